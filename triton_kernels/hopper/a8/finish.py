"""Sum -> y for 8-bit activations: y[m, n] = sum * W's scale[n] * secondary[n] * x's scale[m] + bias[n], rounded once.

A zero point of x is taken off the integer sum: sum over k of (x - zero[m]) * w = sum - zero[m] * (sum over k of w), exact in int32.

The sum is [R, C]: x's rows by W's rows with X_ROWS, else W's by x's.
"""

from hybrid_humming.triton_kernels.hopper.a8.sums import spread
from hybrid_humming.triton_kernels.hopper.epilogue import factor, store_layout
from hybrid_humming.triton_kernels.hopper.gluon import fence_async_shared, gl, gluon, tma
from hybrid_humming.triton_kernels.hopper.scale import decode_scale


@gluon.constexpr_function
def accumulator_layout(warps, columns, integer):
    """Registers of [16 warps, columns]; Triton 3.6.0 knows no integer product of 256 columns."""
    return gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, min(columns, 128) if integer else columns, 32])


@gluon.jit
def finish(
    acc, m0, n0, M, N, factors, stride_xm,
    X_ROWS: gl.constexpr, X_ZERO: gl.constexpr, X_SCALE: gl.constexpr, X_KIND: gl.constexpr, W_SCALE: gl.constexpr,
    W_KIND: gl.constexpr, SECONDARY: gl.constexpr, BIAS: gl.constexpr, R: gl.constexpr, C: gl.constexpr, ACC: gl.constexpr,
):  # fmt: skip
    """[R, C] sum -> fp32 result, not yet rounded; factors as the kernel makes the tuple."""
    x_scale_ptr, w_scale_ptr, secondary_ptr, bias_ptr, x_zero_ptr, w_sum_ptr = factors
    if X_ROWS:
        m = m0 + gl.arange(0, R, layout=gl.SliceLayout(1, ACC))
        n = n0 + gl.arange(0, C, layout=gl.SliceLayout(0, ACC))
    else:
        m = m0 + gl.arange(0, C, layout=gl.SliceLayout(0, ACC))
        n = n0 + gl.arange(0, R, layout=gl.SliceLayout(1, ACC))
    if X_ZERO:
        zero = gl.load(x_zero_ptr + m, mask=m < M, other=0)
        acc = acc - spread(zero, X_ROWS) * spread(gl.load(w_sum_ptr + n, mask=n < N, other=0), not X_ROWS)
    acc = acc.to(gl.float32)
    if X_SCALE > 0:
        if X_SCALE == 2:
            stored = gl.load(x_scale_ptr + m.to(gl.int64) * stride_xm, mask=m < M, other=0)
        else:
            stored = gl.load(x_scale_ptr + m * 0)
        acc = acc * spread(decode_scale(stored, X_KIND), X_ROWS)
    if W_SCALE != 0:
        acc = acc * spread(factor(w_scale_ptr, n, N, W_SCALE, W_KIND), not X_ROWS)
    if SECONDARY != 0:
        acc = acc * spread(factor(secondary_ptr, n, N, SECONDARY, 0), not X_ROWS)
    if BIAS:
        acc = acc + spread(gl.load(bias_ptr + n, mask=n < N, other=0).to(gl.float32), not X_ROWS)
    return acc


@gluon.jit
def halves(acc, WARPS: gl.constexpr):
    """[R, C] sum -> its left and its right columns, [R, C / 2] each; nothing moves."""
    HALF: gl.constexpr = accumulator_layout(WARPS, acc.shape[1] // 2, acc.dtype == gl.int32)
    left, right = acc.reshape([acc.shape[0], 2, acc.shape[1] // 2]).permute([0, 2, 1]).split()
    return gl.convert_layout(left, HALF, assert_trivial=True), gl.convert_layout(right, HALF, assert_trivial=True)


@gluon.jit
def store_rows(
    out_desc, buffer, acc, m0, n0, M, N, factors, stride_xm,
    X_ZERO: gl.constexpr, X_SCALE: gl.constexpr, X_KIND: gl.constexpr, W_SCALE: gl.constexpr, W_KIND: gl.constexpr,
    SECONDARY: gl.constexpr, BIAS: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """Finish rows [R, C] of y and store them through shared memory, as many columns at a time as the buffer holds.

    TMA cuts at M and N.
    """
    C: gl.constexpr = acc.shape[1]
    if C > buffer.shape[1]:
        left, right = halves(acc, WARPS)
        store_rows(out_desc, buffer, left, m0, n0, M, N, factors, stride_xm,
                   X_ZERO, X_SCALE, X_KIND, W_SCALE, W_KIND, SECONDARY, BIAS, WARPS)  # fmt: skip
        store_rows(out_desc, buffer, right, m0, n0 + C // 2, M, N, factors, stride_xm,
                   X_ZERO, X_SCALE, X_KIND, W_SCALE, W_KIND, SECONDARY, BIAS, WARPS)  # fmt: skip
    else:
        ACC: gl.constexpr = accumulator_layout(WARPS, C, acc.dtype == gl.int32)
        y = finish(acc, m0, n0, M, N, factors, stride_xm,
                   True, X_ZERO, X_SCALE, X_KIND, W_SCALE, W_KIND, SECONDARY, BIAS, acc.shape[0], C, ACC)  # fmt: skip
        tma.store_wait(0)  # what was stored before has left the buffer
        buffer.store(y.to(buffer.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(out_desc, [m0, n0], buffer)


@gluon.jit
def store_columns(out_ptr, y, m0, n0, M, N, stride_om, X_ROWS: gl.constexpr, R: gl.constexpr, C: gl.constexpr, WARPS: gl.constexpr):
    """Round once and store what lies inside [M, N], n contiguous."""
    y = y.to(out_ptr.dtype.element_ty)
    if X_ROWS:
        y = y.permute([1, 0])
    BN: gl.constexpr = C if X_ROWS else R
    BM: gl.constexpr = R if X_ROWS else C
    OUT: gl.constexpr = store_layout(BN, WARPS)
    y = gl.convert_layout(y, OUT)
    n = n0 + gl.arange(0, BN, layout=gl.SliceLayout(1, OUT))
    m = m0 + gl.arange(0, BM, layout=gl.SliceLayout(0, OUT))
    offset = m.to(gl.int64)[None, :] * stride_om + n[:, None]
    gl.store(out_ptr + offset, y, mask=(n < N)[:, None] & (m < M)[None, :])
