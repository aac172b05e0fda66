"""A kernel and its launcher that only the tests of jit use."""

import torch
import triton
import triton.language as tl

from hybrid_humming.jit.launch import launch_triton


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, K, BLOCK: tl.constexpr):
    i, j = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, K, BLOCK):
        acc = tl.dot(tl.load(a_ptr + i * K + k + j), tl.load(b_ptr + (i + k) * BLOCK + j), acc)
    tl.store(c_ptr + i * BLOCK + j, acc)


def launch(k: int = 128, dtype: torch.dtype = torch.float16, device: str = "cpu") -> torch.Tensor:
    """A [64, K] times [K, 64] product of ones; returns the output, which starts as NaN."""
    a = torch.ones(64, k, dtype=dtype, device=device)
    b = torch.ones(k, 64, dtype=dtype, device=device)
    out = torch.full((64, 64), float("nan"), device=device)
    launch_triton(matmul_kernel, (1, 1, 1), a, b, out, k, constants={"BLOCK": 64})
    return out


def compiled(sm: int, k: int = 128):
    """What `launch` would launch on `sm`: a builder for the compile harness."""
    from hybrid_humming.jit.offline import compiling_for

    with compiling_for(sm) as results:
        launch(k)
    [result] = results
    return result
