"""A Triton kernel whose cubin the CUDA loader launches."""

import triton
import triton.language as tl


@triton.jit
def double_kernel(x_ptr, y_ptr, count, BLOCK: tl.constexpr):
    """y = 2 x."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, 2 * tl.load(x_ptr + i, mask=i < count, other=0), mask=i < count)
