"""Accumulator -> y, transposed tiles: y[m, n] = acc[n, m] * scale[n] * secondary[n] * CONSTANT + bias[n], rounded once."""

from hybrid_humming.triton_kernels.hopper.gluon import gl, gluon
from hybrid_humming.triton_kernels.hopper.scale import decode_scale

# Extent along N of a factor that is constant along K.
NONE, SCALAR, VECTOR = 0, 1, 2


@gluon.constexpr_function
def store_layout(block_n, num_warps):
    """Registers of [BLOCK_N, BLOCK_M] for a store with n contiguous: 16-byte runs where the tile has enough rows."""
    run = min(8, max(1, block_n // 8))
    across = min(32, block_n // run)
    return gl.BlockedLayout([run, 1], [across, 32 // across], [1, num_warps], [0, 1])


@gluon.jit
def factor(ptr, n, N, EXTENT: gl.constexpr, KIND: gl.constexpr):
    """fp32 factor of each row n: its own (VECTOR) or the tensor's (SCALAR)."""
    if EXTENT == 2:
        return decode_scale(gl.load(ptr + n, mask=n < N, other=0), KIND)
    else:
        return decode_scale(gl.load(ptr + n * 0), KIND)


@gluon.jit
def finish(
    acc, n, N, scale_ptr, secondary_ptr, bias_ptr,
    SCALE: gl.constexpr, KIND: gl.constexpr, SECONDARY: gl.constexpr, CONSTANT: gl.constexpr, BIAS: gl.constexpr,
):  # fmt: skip
    """[BLOCK_N, BLOCK_M] fp32 accumulator -> fp32 result, not yet rounded."""
    if CONSTANT != 1.0:
        acc = acc * CONSTANT
    if SCALE != 0:
        acc = acc * factor(scale_ptr, n, N, SCALE, KIND)[:, None]
    if SECONDARY != 0:
        acc = acc * factor(secondary_ptr, n, N, SECONDARY, 0)[:, None]
    if BIAS:
        acc = acc + gl.load(bias_ptr + n, mask=n < N, other=0).to(gl.float32)[:, None]
    return acc


@gluon.jit
def store(out_ptr, acc, m, n, M, N, stride_om):
    """Round once and store what lies inside [M, N]."""
    mask = (n < N)[:, None] & (m < M)[None, :]
    offset = m.to(gl.int64)[None, :] * stride_om + n[:, None]
    gl.store(out_ptr + offset, acc.to(out_ptr.dtype.element_ty), mask=mask)
