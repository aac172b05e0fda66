"""Kernels that only the harness's own test compiles."""

import os

import triton
import triton.language as tl

from tests.compile.harness import Source


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, K, BLOCK: tl.constexpr):
    i, j = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, K, BLOCK):
        acc = tl.dot(tl.load(a_ptr + i * K + k + j), tl.load(b_ptr + (i + k) * BLOCK + j), acc)
    tl.store(c_ptr + i * BLOCK + j, acc)


def matmul(sm: int) -> Source:
    """A 64 x 64 fp16 product."""
    signature = {"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp32", "K": "i32"}
    return Source(matmul_kernel, signature, {"BLOCK": 64}, sm, divisible=("a_ptr", "b_ptr", "c_ptr", "K"))


def matmul_compiled():
    """The same, already compiled: what a builder that calls other code's compile function returns."""
    return matmul(90).compile()


def wrong():
    """A kernel that does not compile."""
    return Source(matmul_kernel, {"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp32", "K": "i32"}, {"BLOCK": 48}, 90)


def crash():
    """A compiler that takes the process with it."""
    os._exit(7)
