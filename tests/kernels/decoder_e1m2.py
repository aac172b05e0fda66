"""A decoder of a user's own, in one file."""

import triton
import triton.language as tl

from hybrid_humming.triton_kernels.dequant.integers import small_int


@triton.jit
def decode_e1m2(codes, DTYPE: tl.constexpr, EXPONENT: tl.constexpr, MANTISSA: tl.constexpr):
    """e1m2 is linear: 0, 0.5 ... 3.5."""
    half_steps = small_int(codes & 7, tl.float32) * 0.5
    return tl.where(codes > 7, -half_steps, half_steps).to(DTYPE)
