"""Accumulator -> y: the scales that are constant along K, bias, one rounding, masked store.

y[m, n] = acc[m, n] * scale[n] * secondary[n] * x_scale[m] * x_global + bias[n]
"""

import triton
import triton.language as tl

from hybrid_humming.triton_kernels.scale.decode import decode_scale

# Extent of a factor: none, one number, one per row or column.
NONE = 0
SCALAR = 1
VECTOR = 2


@triton.jit
def load_factor(ptr, index, bound, stride, EXTENT: tl.constexpr, KIND: tl.constexpr):
    """The factor of each index: [BLOCK] for VECTOR and [1] for SCALAR, fp32."""
    if EXTENT == 2:
        return decode_scale(tl.load(ptr + index * stride, mask=index < bound, other=0), KIND)
    else:
        return decode_scale(tl.load(ptr + tl.arange(0, 1)), KIND)


@triton.jit
def finish(
    acc, m, n, M, N, scale_ptr, secondary_ptr, x_scale_ptr, x_global_ptr, bias_ptr, stride_sm,
    SCALE: tl.constexpr, SCALE_KIND: tl.constexpr, SECONDARY: tl.constexpr,
    X_SCALE: tl.constexpr, X_SCALE_KIND: tl.constexpr, X_GLOBAL: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """[BLOCK_M, BLOCK_N] fp32 accumulator -> fp32 result, not yet rounded."""
    if SCALE != 0:
        acc *= load_factor(scale_ptr, n, N, 1, SCALE, SCALE_KIND)[None, :]
    if SECONDARY != 0:
        acc *= load_factor(secondary_ptr, n, N, 1, SECONDARY, 0)[None, :]
    if X_SCALE != 0:
        acc *= load_factor(x_scale_ptr, m, M, stride_sm, X_SCALE, X_SCALE_KIND)[:, None]
    if X_GLOBAL:
        acc *= tl.load(x_global_ptr)
    if BIAS:
        acc += tl.load(bias_ptr + n, mask=n < N, other=0).to(tl.float32)[None, :]
    return acc


@triton.jit
def store_tile(out_ptr, acc, m, n, M, N, stride_om):
    """Round once and store what lies inside [M, N]."""
    mask = (m < M)[:, None] & (n < N)[None, :]
    tl.store(out_ptr + m[:, None] * stride_om + n[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask)
