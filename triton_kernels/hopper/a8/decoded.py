"""The consumer warpgroups of the W4A8 kernel: sum of one segment, W decoded in registers, x from shared memory.

    sum_decoded     one sum over all K: INT8, exact, and FP8 at the tensor core's own precision; no scale varies along K
    sum_groups      the tensor core sums 128 k, then fp32 takes over, times the scale of the group if there is one
    sum_parts       the same for 64, 32 or 16 k

While a product runs, the next weights are decoded. A slot is given back, and the next awaited, when a step's last products are
under way (see sums.py). Nothing but (slot, phase), sums and scales is carried from step to step: Triton 3.6.0 folds other carried
integers of such nested loops to their first values.
"""

from hybrid_humming.triton_kernels.hopper.a8.operand import (
    beside_words,
    block_words,
    folds,
    operand,
    operands,
    planes_of,
)
from hybrid_humming.triton_kernels.hopper.a8.pair import release, tokens
from hybrid_humming.triton_kernels.hopper.a8.sums import input_scale
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
from hybrid_humming.triton_kernels.hopper.operand import FLAT1, row_values
from hybrid_humming.triton_kernels.hopper.scale import decode_scale


@gluon.jit
def columns_of(x, AT: gl.constexpr, WIDTH: gl.constexpr):
    """[WIDTH, BLOCK_M] view of a step's x, from column AT on."""
    return x.slice(AT, WIDTH, dim=1).permute([1, 0])


@gluon.jit
def scale_words(buffers, slot, BN: gl.constexpr, LAYOUT: gl.constexpr, DECODER: gl.constexpr):
    """Four e8m0 scales of each row, as one int32 [BN]."""
    return view(buffers[len(planes_of(DECODER))].index(slot), gl.int32, extents(BN), FLAT1).load(LAYOUT)


@gluon.jit
def step_beside(
    buffers, slot, J: gl.constexpr, ZERO: gl.constexpr, BN: gl.constexpr, WG: gl.constexpr, A: gl.constexpr, DECODER: gl.constexpr
):
    """Zero points, or exponents to be folded in, of each 64 k of a step: what `operand` takes; () where there are none."""
    FOLDED: gl.constexpr = folds(DECODER)
    if FOLDED:
        exponents = beside_words(scale_words(buffers, slot, BN, gl.SliceLayout(1, A), DECODER), BN, WG, A)
        return exponents, exponents
    elif ZERO:
        zb = buffers[len(planes_of(DECODER)) + 1]
        stored = row_values(zb.index(slot), BN, J, gl.SliceLayout(1, A), 4 * WG)
        z = ()
        for j in gl.static_range(J):
            z = z + beside_words(stored[j].to(gl.int32) * 0x01010101, BN, WG, A)
        AT: gl.constexpr = J // 4
        first = (z[0], z[1], z[2 * AT], z[2 * AT + 1])  # type: ignore[misc]
        if J == 1:
            return first, first
        else:
            HALF: gl.constexpr = J // 2
            return first, (  # type: ignore[misc]
                z[2 * HALF],
                z[2 * HALF + 1],
                z[2 * (HALF + AT)],
                z[2 * (HALF + AT) + 1],
            )
    else:
        return (), ()


@gluon.jit
def sum_decoded(
    slot, phase, begin, end, xb, buffers, full, empty,
    DECODER: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, WG: gl.constexpr, SUM: gl.constexpr,
    ACC: gl.constexpr, PAIR: gl.constexpr,
):  # fmt: skip
    """(sum [BN, BM] of type SUM, slot, phase) of one segment."""
    A: gl.constexpr = gl.DotOperandLayout(0, ACC, 4)
    d = warpgroup_mma_init(gl.zeros([BN, BM], SUM, ACC))
    mbarrier.wait(full.index(slot), phase, pred=begin < end)
    for k in range(begin, end):
        prev = gl.where(slot == 0, STAGES - 1, slot - 1)
        x = tokens(xb, slot, BM, PAIR)
        first = block_words(buffers, slot, 0, BN, WG, DECODER)
        second = block_words(buffers, slot, 1, BN, WG, DECODER)
        t = warpgroup_mma_wait(1, [d])  # the first operand's registers are free
        d = warpgroup_mma_init(t)
        a0 = operand(first, (), 0, BN, A, DECODER)
        d = warpgroup_mma(a0, columns_of(x, 0, 64), d, is_async=True)
        t = warpgroup_mma_wait(1, [d])  # the step before is complete
        d = warpgroup_mma_init(t)
        a1 = operand(second, (), 1, BN, A, DECODER)
        d = warpgroup_mma(a1, columns_of(x, 64, 64), d, is_async=True)
        slot += 1
        if slot == STAGES:
            slot = 0
            phase = phase ^ 1
        release(empty.index(prev), k > begin, PAIR)
        mbarrier.wait(full.index(slot), phase, pred=k + 1 < end)
    t = warpgroup_mma_wait(0, [d])
    last = gl.where(slot == 0, STAGES - 1, slot - 1)
    release(empty.index(last), True, PAIR)
    return t, slot, phase


@gluon.jit
def add_group(acc, t, scale, x_scale, SCALED: gl.constexpr):
    """acc + t * W's scale * x's scale (a tuple of one, or ())."""
    t = t.to(gl.float32)
    if len(x_scale) > 0:
        if SCALED:
            t = t * scale[:, None]
        return acc + t * x_scale[0][None, :]
    elif SCALED:
        return acc + t * scale[:, None]
    else:
        return acc + t


@gluon.jit
def sum_groups(
    slot, phase, begin, end, xb, buffers, full, empty, x_scale_ptr, m0, M, stride_xm, stride_xk,
    DECODER: gl.constexpr, J: gl.constexpr, KIND: gl.constexpr, ZERO: gl.constexpr, X_GROUPS: gl.constexpr, X_KIND: gl.constexpr,
    BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, WG: gl.constexpr, SUM: gl.constexpr, ACC: gl.constexpr,
    PAIR: gl.constexpr,
):  # fmt: skip
    """(sum [BN, BM] fp32, slot, phase) of one segment; J = 1 scale for 128 k, or none that the sum needs; x may have one too."""
    A: gl.constexpr = gl.DotOperandLayout(0, ACC, 4)
    SCALED: gl.constexpr = J == 1
    sb = buffers[len(planes_of(DECODER))]
    acc = gl.zeros([BN, BM], gl.float32, ACC)
    zero = gl.zeros([BN, BM], SUM, ACC)
    d = warpgroup_mma_init(zero)
    scale = gl.zeros([BN], gl.float32, gl.SliceLayout(1, ACC))
    m = m0 + gl.arange(0, BM, layout=gl.SliceLayout(0, ACC))
    # Scales follow their products: those of a step are used when its sum is complete, a step later.
    x_scale = input_scale(x_scale_ptr, begin, 0, m, M, stride_xm, stride_xk, begin < end, X_GROUPS, X_KIND, 1)
    mbarrier.wait(full.index(slot), phase, pred=begin < end)
    for k in range(begin, end):
        prev = gl.where(slot == 0, STAGES - 1, slot - 1)
        x = tokens(xb, slot, BM, PAIR)
        first = block_words(buffers, slot, 0, BN, WG, DECODER)
        second = block_words(buffers, slot, 1, BN, WG, DECODER)
        z0, z1 = step_beside(buffers, slot, J, ZERO, BN, WG, A, DECODER)
        next_scale = scale
        if SCALED:
            next_scale = decode_scale(row_values(sb.index(slot), BN, 1, gl.SliceLayout(1, ACC), 4 * WG)[0], KIND)
        t = warpgroup_mma_wait(1, [d])  # the first operand's registers are free
        d = warpgroup_mma_init(t)
        a0 = operand(first, z0, 0, BN, A, DECODER)
        t = warpgroup_mma_wait(0, [d])  # the step before is complete
        acc = add_group(acc, t, scale, x_scale, SCALED)
        scale = next_scale
        x_scale = input_scale(x_scale_ptr, k, 0, m, M, stride_xm, stride_xk, True, X_GROUPS, X_KIND, 1)
        d = warpgroup_mma(a0, columns_of(x, 0, 64), zero, use_acc=False, is_async=True)
        a1 = operand(second, z1, 1, BN, A, DECODER)
        d = warpgroup_mma(a1, columns_of(x, 64, 64), d, is_async=True)
        slot += 1
        if slot == STAGES:
            slot = 0
            phase = phase ^ 1
        release(empty.index(prev), k > begin, PAIR)
        mbarrier.wait(full.index(slot), phase, pred=k + 1 < end)
    t = warpgroup_mma_wait(0, [d])
    last = gl.where(slot == 0, STAGES - 1, slot - 1)
    release(empty.index(last), True, PAIR)
    return add_group(acc, t, scale, x_scale, SCALED), slot, phase


@gluon.constexpr_function
def first_of(q, part, parts):
    """First k of a partial sum's operand in a step: the q-th 64 k, whole or as two steps of 32."""
    return 64 * q + part * 64 // parts // 32 * 32


@gluon.jit
def add_scaled(acc, t, scales, x_scales, INDEX: gl.constexpr):
    """acc + t times the INDEX-th scale of each row and of each column, where there are some.

    It is done before the next product is asked for: LLVM would move it behind, and ptxas then serialises.
    """
    t = t.to(gl.float32)
    if len(x_scales) > 0 and len(scales) > 0:
        row = scales[INDEX][:, None].broadcast_to(acc.shape)
        column = x_scales[INDEX][None, :].broadcast_to(acc.shape)
        return gl.inline_asm_elementwise(
            "{ .reg .f32 s; mul.rn.f32 s, $1, $2; fma.rn.f32 $0, s, $3, $4; }", "=&r,r,r,r,r", [t, row, column, acc],
            dtype=gl.float32, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        if len(scales) > 0:
            f = scales[INDEX][:, None].broadcast_to(acc.shape)
        else:
            f = x_scales[INDEX][None, :].broadcast_to(acc.shape)
        return gl.inline_asm_elementwise(
            "fma.rn.f32 $0, $1, $2, $3;", "=r,r,r,r", [t, f, acc], dtype=gl.float32, is_pure=False, pack=1
        )


@gluon.jit
def power_of_two(words, AT: gl.constexpr):
    """Byte AT of each word as 2**(code - 127), 2**-127 for 0; infinity for 255, which `has_nan` finds."""
    if AT == 3:
        bits = (words >> 1) & 0x7F800000
    else:
        bits = (words << (23 - 8 * AT)) & 0x7F800000
    return gl.maximum(bits, 0x00400000).to(gl.float32, bitcast=True)


@gluon.jit
def has_nan(words):
    """A bit set for each byte 255 of each word."""
    return ((words & 0x7F7F7F7F) + 0x01010101) & words & -0x7F7F7F80


@gluon.jit
def sum_parts(
    slot, phase, begin, end, xb, buffers, full, empty, x_scale_ptr, m0, M, stride_xm, stride_xk,
    DECODER: gl.constexpr, J: gl.constexpr, KIND: gl.constexpr, ZERO: gl.constexpr, X_GROUPS: gl.constexpr, X_KIND: gl.constexpr,
    GROUPS: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, WG: gl.constexpr, SUM: gl.constexpr,
    ACC: gl.constexpr, PAIR: gl.constexpr,
):  # fmt: skip
    """(sum [BN, BM] fp32, slot, phase) of one segment; GROUPS = 2, 4 or 8 partial sums of 128 k, of which W has J scales and x
    X_GROUPS, or none.

    The partial sums of 64 k are under way together, and the next 64 k are decoded meanwhile.
    """
    A: gl.constexpr = gl.DotOperandLayout(0, ACC, 4)
    ROW: gl.constexpr = gl.SliceLayout(1, ACC)
    PARTS: gl.constexpr = GROUPS // 2
    WIDTH: gl.constexpr = 64 if PARTS == 1 else 32
    POWERS: gl.constexpr = J == 4 and KIND == 3
    sb = buffers[len(planes_of(DECODER))]
    acc = gl.zeros([BN, BM], gl.float32, ACC)
    zero = gl.zeros([BN, BM], SUM, ACC)
    bad = gl.zeros([BN], gl.int32, ROW)
    m = m0 + gl.arange(0, BM, layout=gl.SliceLayout(0, ACC))
    d = ()
    scales = ()
    x_scales = ()
    for i in gl.static_range(PARTS):
        token = (warpgroup_mma_init(zero),)
        d = d + token  # type: ignore[assignment]
        if J > 0:
            one = (gl.zeros([BN], gl.float32, ROW),)
            scales = scales + one  # type: ignore[assignment]
        x_scales = x_scales + input_scale(
            x_scale_ptr, begin, i, m, M, stride_xm, stride_xk, begin < end, X_GROUPS, X_KIND, GROUPS
        )  # fmt: skip
    mbarrier.wait(full.index(slot), phase, pred=begin < end)
    for k in range(begin, end):
        prev = gl.where(slot == 0, STAGES - 1, slot - 1)
        x = tokens(xb, slot, BM, PAIR)
        stored = ()
        if POWERS:
            words = scale_words(buffers, slot, BN, ROW, DECODER)
            bad = bad | has_nan(words)
            stored = (words,)  # type: ignore[assignment]
        elif J > 0:
            stored = row_values(sb.index(slot), BN, J, ROW, 4 * WG)
        zeros = step_beside(buffers, slot, J, ZERO, BN, WG, A, DECODER)
        for q in gl.static_range(2):
            a = operands(block_words(buffers, slot, q, BN, WG, DECODER), zeros[q], q, PARTS, BN, A, DECODER)
            acc = add_all(acc, d, scales, x_scales)
            d = ()
            scales = ()
            x_scales = ()
            for i in gl.static_range(PARTS):
                b = columns_of(x, first_of(q, i, PARTS), WIDTH)
                token = (warpgroup_mma(a[i], b, zero, use_acc=False, is_async=True),)
                d = d + token  # type: ignore[assignment]
                if POWERS:
                    one = (power_of_two(stored[0], (q * PARTS + i) * J // GROUPS),)  # type: ignore[misc]
                    scales = scales + one  # type: ignore[assignment]
                elif J > 0:
                    one = (decode_scale(stored[(q * PARTS + i) * J // GROUPS], KIND),)
                    scales = scales + one  # type: ignore[assignment]
                x_scales = x_scales + input_scale(
                    x_scale_ptr, k, q * PARTS + i, m, M, stride_xm, stride_xk, True, X_GROUPS, X_KIND, GROUPS
                )  # fmt: skip
        slot += 1
        if slot == STAGES:
            slot = 0
            phase = phase ^ 1
        release(empty.index(prev), k > begin, PAIR)
        mbarrier.wait(full.index(slot), phase, pred=k + 1 < end)
    acc = add_all(acc, d, scales, x_scales)
    last = gl.where(slot == 0, STAGES - 1, slot - 1)
    release(empty.index(last), True, PAIR)
    if POWERS:
        acc = gl.where((bad != 0)[:, None], float("nan"), acc)
    return acc, slot, phase


@gluon.jit
def add_all(acc, d, scales, x_scales):
    """acc + the partial sums under way, once they are complete, each times its scales."""
    if len(d) == 1:
        return add_scaled(acc, warpgroup_mma_wait(0, [d[0]]), scales, x_scales, 0)
    elif len(d) == 2:
        t0, t1 = warpgroup_mma_wait(0, [d[0], d[1]])
        return add_scaled(add_scaled(acc, t0, scales, x_scales, 0), t1, scales, x_scales, 1)
    else:
        t0, t1, t2, t3 = warpgroup_mma_wait(0, [d[0], d[1], d[2], d[3]])
        acc = add_scaled(add_scaled(acc, t0, scales, x_scales, 0), t1, scales, x_scales, 1)
        return add_scaled(add_scaled(acc, t2, scales, x_scales, 2), t3, scales, x_scales, 3)
