"""The consumer warpgroups of the W8A8 kernel: sum of one segment, both operands from shared memory.

`rows` is wgmma's 64-row operand, `columns` the other: W and x in one order or the other (X_ROWS). Two ways to add up:

    sum_products   one accumulator over all K: INT8, which is exact, and FP8 at the tensor core's own precision
    sum_promoted   the tensor core sums 128 k, or a group, then fp32 takes over: an FP8 sum in the tensor core keeps some 14 bits.
                   Scales that vary along K multiply the partial sum, W's first

A warpgroup waits for its own partial sum before it adds it; the other warpgroup's products, or another CTA's, run meanwhile. The
compiler puts a barrier of all warpgroups before and after the arrival that gives a slot back, so the arrival, and the wait for
the next step's operands, follow the moment when a step's products are under way: nobody stands idle between a sum and the next
products.
Nothing but (slot, phase), sums and scales is carried from step to step: Triton 3.6.0 folds other carried integers of such nested
loops to their first values.
"""

from hybrid_humming.triton_kernels.hopper.a8.pair import BYTES, release, tokens
from hybrid_humming.triton_kernels.hopper.gluon import (
    extents,
    gl,
    gluon,
    mbarrier,
    view,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from hybrid_humming.triton_kernels.hopper.scale import decode_scale


@gluon.jit
def operands(xb, wb, slot, X_ROWS: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, PAIR: gl.constexpr):
    """(rows [R, 128], columns [C, 128]) of the step in `slot`."""
    w = view(wb.index(slot), wb.dtype, extents(BN, 128), BYTES)
    x = tokens(xb, slot, BM, PAIR)
    if X_ROWS:
        return x, w
    else:
        return w, x


@gluon.jit
def sum_products(
    slot, phase, begin, end, xb, wb, full, empty,
    X_ROWS: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, SUM: gl.constexpr, ACC: gl.constexpr,
    PAIR: gl.constexpr,
):  # fmt: skip
    """(sum [R, C] of type SUM, slot, phase) of one segment."""
    R: gl.constexpr = BM if X_ROWS else BN
    C: gl.constexpr = BN if X_ROWS else BM
    d = warpgroup_mma_init(gl.zeros([R, C], SUM, ACC))
    mbarrier.wait(full.index(slot), phase, pred=begin < end)
    for k in range(begin, end):
        prev = gl.where(slot == 0, STAGES - 1, slot - 1)
        rows, columns = operands(xb, wb, slot, X_ROWS, BM, BN, PAIR)
        slot += 1
        if slot == STAGES:
            slot = 0
            phase = phase ^ 1
        d = warpgroup_mma(rows, columns.permute([1, 0]), d, is_async=True)
        t = warpgroup_mma_wait(1, [d])  # the step before is complete: its slot is free
        d = warpgroup_mma_init(t)
        release(empty.index(prev), k > begin, PAIR)
        mbarrier.wait(full.index(slot), phase, pred=k + 1 < end)
    t = warpgroup_mma_wait(0, [d])
    last = gl.where(slot == 0, STAGES - 1, slot - 1)
    release(empty.index(last), True, PAIR)
    return t, slot, phase


@gluon.jit
def spread(value, ALONG_ROWS: gl.constexpr):
    """A vector along the rows or the columns of the sum, to multiply it with."""
    if ALONG_ROWS:
        return value[:, None]
    else:
        return value[None, :]


@gluon.constexpr_function
def loads_late(parts, x_rows, w_groups):
    """Whether scales are loaded as a partial sum needs them, not a step ahead: they take too many registers to be carried."""
    return parts > 1 or (x_rows and w_groups > 0)


@gluon.jit
def decoded(stored, KIND: gl.constexpr):
    """Stored scales -> fp32, exact; without a choice between values, which would come between a product and its sum."""
    if KIND == 3:
        # 2**(code - 127): code 0 is the fp32 subnormal 2**-127; for code 255 alone the sum reaches the sign, and makes it NaN.
        bits = gl.maximum(stored.to(gl.int32) << 23, 0x00400000).to(gl.uint32, bitcast=True)
        return (bits | (((bits + 0x00800000) >> 9) & 0x00400000)).to(gl.float32, bitcast=True)
    else:
        return decode_scale(stored, KIND)


@gluon.jit
def input_scale(
    x_scale_ptr, k, j: gl.constexpr, m, M, stride_xm, stride_xk, live, X_GROUPS: gl.constexpr, KIND: gl.constexpr,
    PARTS: gl.constexpr,
):  # fmt: skip
    """(x's scales beside rows `m` of partial sum j of step k,), or () where they are constant along K."""
    if X_GROUPS > 0:
        at = m * stride_xm + (k * X_GROUPS + j * X_GROUPS // PARTS) * stride_xk
        return (decoded(gl.load(x_scale_ptr + at, mask=(m < M) & live, other=0), KIND),)
    else:
        return ()


@gluon.jit
def weight_scale(
    w_scale_ptr, k, j: gl.constexpr, n, n0, N, stride_w, live, W_GROUPS: gl.constexpr, W_BLOCK: gl.constexpr, KIND: gl.constexpr,
    PARTS: gl.constexpr,
):  # fmt: skip
    """(W's scales of partial sum j of step k,), or () where they are constant along K.

    W_BLOCK  rows that share a scale, [K / 128, N / W_BLOCK]: one scalar for the tile, which lies inside a block
    W_GROUPS scales of a row in 128 k, [K / 128, padded N * W_GROUPS] (hybrid_humming/pack/hopper_scale.py)
    """
    if W_BLOCK > 0:
        return (decoded(gl.load(w_scale_ptr + k * stride_w + n0 // W_BLOCK, mask=live & (n0 < N), other=0), KIND),)
    elif W_GROUPS > 0:
        at = k * stride_w + n * W_GROUPS + j * W_GROUPS // PARTS
        return (decoded(gl.load(w_scale_ptr + at, mask=(n < N) & live, other=0), KIND),)
    else:
        return ()


@gluon.jit
def add_now(acc, t, factor, NOW: gl.constexpr):
    """acc + t * factor. NOW: before the next product is asked for; moved behind it, the sum would need registers of its own."""
    if NOW:
        f = factor.broadcast_to(acc.shape)
        return gl.inline_asm_elementwise(
            "fma.rn.f32 $0, $1, $2, $3;", "=r,r,r,r", [t, f, acc], dtype=gl.float32, is_pure=False, pack=1
        )
    else:
        return acc + t * factor


@gluon.jit
def promoted(acc, t, x_scale, w_scale, X_ROWS: gl.constexpr, W_BLOCK: gl.constexpr, NOW: gl.constexpr):
    """acc + t * W's scale * x's scale, in fp32; each scale in a tuple of one, or ()."""
    t = t.to(gl.float32)
    if len(w_scale) > 0:
        if W_BLOCK > 0 and len(x_scale) > 0:
            return add_now(acc, t, spread(x_scale[0] * w_scale[0], X_ROWS), NOW)
        elif W_BLOCK > 0:
            return acc + t * w_scale[0]
        elif len(x_scale) > 0:
            return add_now(acc, t * spread(w_scale[0], not X_ROWS), spread(x_scale[0], X_ROWS), NOW)
        else:
            return add_now(acc, t, spread(w_scale[0], not X_ROWS), NOW)
    elif len(x_scale) > 0:
        return add_now(acc, t, spread(x_scale[0], X_ROWS), NOW)
    else:
        return acc + t


@gluon.jit
def sum_promoted(
    slot, phase, begin, end, xb, wb, full, empty, x_scale_ptr, w_scale_ptr, m0, n0, M, N, stride_xm, stride_xk, stride_w,
    X_ROWS: gl.constexpr, X_GROUPS: gl.constexpr, X_KIND: gl.constexpr, W_GROUPS: gl.constexpr, W_BLOCK: gl.constexpr,
    W_KIND: gl.constexpr, PARTS: gl.constexpr, WAVES: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr,
    SUM: gl.constexpr, ACC: gl.constexpr, PAIR: gl.constexpr,
):  # fmt: skip
    """(sums [R / WAVES, C] fp32 of each wave of rows, slot, phase) of one segment; the tensor core sums 128 / PARTS k alone."""
    R: gl.constexpr = (BM if X_ROWS else BN) // WAVES
    C: gl.constexpr = BN if X_ROWS else BM
    K: gl.constexpr = 128 // PARTS
    ROW: gl.constexpr = gl.SliceLayout(1, ACC)
    COLUMN: gl.constexpr = gl.SliceLayout(0, ACC)
    LATE: gl.constexpr = loads_late(PARTS, X_ROWS, W_GROUPS)
    zero = gl.zeros([R, C], SUM, ACC)
    acc0 = gl.zeros([R, C], gl.float32, ACC)
    acc1 = acc0
    if X_ROWS:
        m_first = m0 + gl.arange(0, R, layout=ROW)
        m_second = m_first + R * (WAVES - 1)
        n_all = n0 + gl.arange(0, C, layout=COLUMN)
    else:
        gl.static_assert(WAVES == 1)
        m_first = m0 + gl.arange(0, C, layout=COLUMN)
        m_second = m_first
        n_all = n0 + gl.arange(0, R, layout=ROW)
    live = begin < end
    xs0 = input_scale(x_scale_ptr, begin, 0, m_first, M, stride_xm, stride_xk, live, X_GROUPS, X_KIND, PARTS)
    xs1 = xs0
    if WAVES == 2:
        xs1 = input_scale(x_scale_ptr, begin, 0, m_second, M, stride_xm, stride_xk, live, X_GROUPS, X_KIND, PARTS)
    ws = weight_scale(w_scale_ptr, begin, 0, n_all, n0, N, stride_w, live, W_GROUPS, W_BLOCK, W_KIND, PARTS)
    mbarrier.wait(full.index(slot), phase, pred=live)
    for k in range(begin, end):
        prev = gl.where(slot == 0, STAGES - 1, slot - 1)
        live = k + 1 < end
        next_xs0 = xs0
        next_xs1 = xs1
        next_ws = ws
        if not LATE:
            # The next step's scales are on their way while this one multiplies.
            next_xs0 = input_scale(x_scale_ptr, k + 1, 0, m_first, M, stride_xm, stride_xk, live, X_GROUPS, X_KIND, PARTS)
            next_xs1 = next_xs0
            if WAVES == 2:
                next_xs1 = input_scale(x_scale_ptr, k + 1, 0, m_second, M, stride_xm, stride_xk, live, X_GROUPS, X_KIND, PARTS)
            next_ws = weight_scale(w_scale_ptr, k + 1, 0, n_all, n0, N, stride_w, live, W_GROUPS, W_BLOCK, W_KIND, PARTS)
        rows, columns = operands(xb, wb, slot, X_ROWS, BM, BN, PAIR)
        slot += 1
        if slot == STAGES:
            slot = 0
            phase = phase ^ 1
        for j in gl.static_range(PARTS):
            b = columns.slice(j * K, K, dim=1).permute([1, 0])
            d = warpgroup_mma(rows.slice(0, R, dim=0).slice(j * K, K, dim=1), b, zero, use_acc=False, is_async=True)
            if LATE:
                xs0 = input_scale(x_scale_ptr, k, j, m_first, M, stride_xm, stride_xk, True, X_GROUPS, X_KIND, PARTS)
                ws = weight_scale(w_scale_ptr, k, j, n_all, n0, N, stride_w, True, W_GROUPS, W_BLOCK, W_KIND, PARTS)
            if j == 0:
                release(empty.index(prev), k > begin, PAIR)
                mbarrier.wait(full.index(slot), phase, pred=live)
            t = warpgroup_mma_wait(0, [d])
            acc0 = promoted(acc0, t, xs0, ws, X_ROWS, W_BLOCK, WAVES == 2)
            if WAVES == 2:
                d = warpgroup_mma(rows.slice(R, R, dim=0).slice(j * K, K, dim=1), b, zero, use_acc=False, is_async=True)
                if LATE:
                    xs1 = input_scale(x_scale_ptr, k, j, m_second, M, stride_xm, stride_xk, True, X_GROUPS, X_KIND, PARTS)
                t = warpgroup_mma_wait(0, [d])
                acc1 = promoted(acc1, t, xs1, ws, X_ROWS, W_BLOCK, WAVES == 2)
        if not LATE:
            xs0 = next_xs0
            xs1 = next_xs1
            ws = next_ws
    last = gl.where(slot == 0, STAGES - 1, slot - 1)
    release(empty.index(last), True, PAIR)
    return acc0, acc1, slot, phase
