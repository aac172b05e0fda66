"""The consumer warpgroups: sum of one segment, W from registers, x from shared memory.

Two half-steps of 64 k take turns: while one half's product runs, the other half's weights are decoded into registers of their own.
Each set is named in the wait that retires its product, so that nothing overwrites what the tensor cores still read. Where sums are
scaled, a wait for all products follows the decoding of the next half; ptxas moves that decoding behind the wait, where nothing
overlaps it, unless a loop stands between: `decoded_by_now` is one, a wait for a copy that is known to be there. Nothing but
(slot, phase), and sums, is carried from step to step: Triton 3.6.0 folds other carried integers of such nested loops to their
first values.
"""

from hybrid_humming.triton_kernels.hopper.decode.tile import dtype_of, load_words, planes_of
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
from hybrid_humming.triton_kernels.hopper.operand import beside_words, half_operand, operand, row_values
from hybrid_humming.triton_kernels.hopper.scale import decode_scale

WORDS = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [3, 2, 1, 0]))


@gluon.jit
def block_words(buffers, slot, Q: gl.constexpr, BN: gl.constexpr, WG: gl.constexpr, DECODER: gl.constexpr):
    """Words of the Q-th 64 k of a step: (what half 0 reads, what half 1 reads)."""
    PLANES: gl.constexpr = planes_of(DECODER)
    views = ()
    for p in gl.static_range(len(PLANES)):
        whole = view(buffers[p].index(slot), gl.int32, extents(BN // 64, 2, 128, PLANES[p]), WORDS)
        one = (whole.slice(Q, 1, dim=1),)
        views = views + one  # type: ignore[assignment]
    return load_words(views, BN, 64, WG, DECODER)


@gluon.jit
def columns_of(xb, slot, AT: gl.constexpr, WIDTH: gl.constexpr):
    """[WIDTH, BLOCK_M] view of x of the step in `slot`, from column AT on."""
    return xb.index(slot).slice(AT, WIDTH, dim=1).permute([1, 0])


@gluon.jit
def beside_all(values, SPLIT: gl.constexpr, BN: gl.constexpr, WG: gl.constexpr, A: gl.constexpr, DECODER: gl.constexpr):
    """Row values of each group -> what `operand` takes, for each group."""
    out = ()
    for j in gl.static_range(len(values)):
        one = (beside_words(values[j], SPLIT, BN, WG, A, DECODER),)
        out = out + one  # type: ignore[assignment]
    return out


@gluon.jit
def step_zeros(
    zb, slot, J: gl.constexpr, ZERO: gl.constexpr, BN: gl.constexpr, WG: gl.constexpr, A: gl.constexpr, DECODER: gl.constexpr
):
    """Zero points of each 32 k of a step: four tuples."""
    if ZERO:
        stored = row_values(zb.index(slot), BN, J, gl.SliceLayout(1, A), 4 * WG)
        z = beside_all(stored, DECODER.zero_point == "float_pair", BN, WG, A, DECODER)
        return z[0], z[J // 4], z[J // 2], z[3 * J // 4]
    else:
        return (), (), (), ()


@gluon.jit
def step_factors(
    sb, slot, J: gl.constexpr, KIND: gl.constexpr, SPLIT: gl.constexpr, BN: gl.constexpr, WG: gl.constexpr, A: gl.constexpr,
    DECODER: gl.constexpr,
):  # fmt: skip
    """Scales of a step in the operand type, for each 64 k: () or, of each half, a factor for each k16 step."""
    if J > 0:
        stored = row_values(sb.index(slot), BN, J, gl.SliceLayout(1, A), 4 * WG)
        values = ()
        for j in gl.static_range(J):
            one = (decode_scale(stored[j], KIND),)
            values = values + one  # type: ignore[assignment]
        f = beside_all(values, SPLIT, BN, WG, A, DECODER)
        first = ((f[0], f[J // 8]), (f[J // 4], f[3 * J // 8]))
        second = ((f[J // 2], f[5 * J // 8]), (f[3 * J // 4], f[7 * J // 8]))
        return first, second
    else:
        return (), ()


@gluon.jit
def decoded_by_now(full, slot, phase):
    """Keep ptxas from moving what stands above below what follows (3 instructions)."""
    mbarrier.wait(full.index(slot), phase)


@gluon.jit
def sum_scaled_weights(
    slot, phase, begin, end, xb, buffers, full, empty,
    DECODER: gl.constexpr, J: gl.constexpr, KIND: gl.constexpr, ZERO: gl.constexpr, SPLIT: gl.constexpr,
    BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, WG: gl.constexpr, ACC: gl.constexpr,
):  # fmt: skip
    """(sum, slot, phase) of one segment; scales are on the weights, or none varies along K (J = 0)."""
    A: gl.constexpr = gl.DotOperandLayout(0, ACC, 2)
    DTYPE: gl.constexpr = dtype_of(DECODER)
    PLANES: gl.constexpr = planes_of(DECODER)
    sb = buffers[len(PLANES)]
    zb = buffers[len(PLANES) + 1]
    d = warpgroup_mma_init(gl.zeros([BN, BM], gl.float32, ACC))
    a1 = gl.full([BN, 64], 0, DTYPE, A)
    for k in range(begin, end):
        prev = gl.where(slot == 0, STAGES - 1, slot - 1)
        mbarrier.wait(full.index(slot), phase)
        low0, high0 = block_words(buffers, slot, 0, BN, WG, DECODER)
        low1, high1 = block_words(buffers, slot, 1, BN, WG, DECODER)
        f0, f1 = step_factors(sb, slot, J, KIND, SPLIT, BN, WG, A, DECODER)
        z0, z1, z2, z3 = step_zeros(zb, slot, J, ZERO, BN, WG, A, DECODER)
        a0 = operand(low0, high0, (z0, z1), f0, BN, A, DECODER)
        d = warpgroup_mma(a0, columns_of(xb, slot, 0, 64), d, is_async=True)
        t, _a1 = warpgroup_mma_wait(1, [d, a1])  # the step before is complete: its slot is free
        d = warpgroup_mma_init(t)
        mbarrier.arrive(empty.index(prev), count=1, pred=k > begin)
        a1 = operand(low1, high1, (z2, z3), f1, BN, A, DECODER)
        d = warpgroup_mma(a1, columns_of(xb, slot, 64, 64), d, is_async=True)
        t, _a0 = warpgroup_mma_wait(1, [d, a0])
        d = warpgroup_mma_init(t)
        slot += 1
        if slot == STAGES:
            slot = 0
            phase = phase ^ 1
    t, _a1 = warpgroup_mma_wait(0, [d, a1])
    last = gl.where(slot == 0, STAGES - 1, slot - 1)
    mbarrier.arrive(empty.index(last), count=1)
    return t, slot, phase


@gluon.jit
def sum_scaled_partials(
    slot, phase, begin, end, xb, buffers, full, empty,
    DECODER: gl.constexpr, J: gl.constexpr, KIND: gl.constexpr, ZERO: gl.constexpr,
    BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, WG: gl.constexpr, ACC: gl.constexpr,
):  # fmt: skip
    """(sum, slot, phase) of one segment; one scale a step of 128 k, applied to the step's sum in fp32."""
    A: gl.constexpr = gl.DotOperandLayout(0, ACC, 2)
    DTYPE: gl.constexpr = dtype_of(DECODER)
    PLANES: gl.constexpr = planes_of(DECODER)
    sb = buffers[len(PLANES)]
    zb = buffers[len(PLANES) + 1]
    acc = gl.zeros([BN, BM], gl.float32, ACC)
    zero = gl.zeros([BN, BM], gl.float32, ACC)
    d = warpgroup_mma_init(zero)
    scale = gl.zeros([BN], gl.float32, gl.SliceLayout(1, ACC))
    a1 = gl.full([BN, 64], 0, DTYPE, A)
    for k in range(begin, end):
        prev = gl.where(slot == 0, STAGES - 1, slot - 1)
        mbarrier.wait(full.index(slot), phase)
        low0, high0 = block_words(buffers, slot, 0, BN, WG, DECODER)
        low1, high1 = block_words(buffers, slot, 1, BN, WG, DECODER)
        z0, z1, z2, z3 = step_zeros(zb, slot, J, ZERO, BN, WG, A, DECODER)
        a0 = operand(low0, high0, (z0, z1), (), BN, A, DECODER)
        stored = row_values(sb.index(slot), BN, 1, gl.SliceLayout(1, ACC), 4 * WG)
        decoded_by_now(full, slot, phase)
        t, _a1 = warpgroup_mma_wait(0, [d, a1])  # the step before is complete: its slot is free
        mbarrier.arrive(empty.index(prev), count=1, pred=k > begin)
        acc += t * scale[:, None]
        d = warpgroup_mma(a0, columns_of(xb, slot, 0, 64), zero, use_acc=False, is_async=True)
        a1 = operand(low1, high1, (z2, z3), (), BN, A, DECODER)
        d = warpgroup_mma(a1, columns_of(xb, slot, 64, 64), d, is_async=True)
        t, _a0 = warpgroup_mma_wait(1, [d, a0])
        d = warpgroup_mma_init(t)
        scale = decode_scale(stored[0], KIND)
        slot += 1
        if slot == STAGES:
            slot = 0
            phase = phase ^ 1
    t, _a1 = warpgroup_mma_wait(0, [d, a1])
    last = gl.where(slot == 0, STAGES - 1, slot - 1)
    mbarrier.arrive(empty.index(last), count=1)
    return acc + t * scale[:, None], slot, phase


@gluon.jit
def sum_scaled_groups(
    slot, phase, begin, end, xb, buffers, full, empty,
    DECODER: gl.constexpr, J: gl.constexpr, KIND: gl.constexpr, ZERO: gl.constexpr,
    BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, WG: gl.constexpr, ACC: gl.constexpr,
):  # fmt: skip
    """(sum, slot, phase) of one segment; J = 2 or 4 scales a step, each applied in fp32 to the sum of its 64 or 32 k."""
    A: gl.constexpr = gl.DotOperandLayout(0, ACC, 2)
    DTYPE: gl.constexpr = dtype_of(DECODER)
    PLANES: gl.constexpr = planes_of(DECODER)
    WIDTH: gl.constexpr = 128 // J
    sb = buffers[len(PLANES)]
    zb = buffers[len(PLANES) + 1]
    acc = gl.zeros([BN, BM], gl.float32, ACC)
    zero = gl.zeros([BN, BM], gl.float32, ACC)
    d = warpgroup_mma_init(zero)
    scale = gl.zeros([BN], gl.float32, gl.SliceLayout(1, ACC))
    busy = gl.full([BN, WIDTH], 0, DTYPE, A)
    for k in range(begin, end):
        prev = gl.where(slot == 0, STAGES - 1, slot - 1)
        mbarrier.wait(full.index(slot), phase)
        stored = row_values(sb.index(slot), BN, J, gl.SliceLayout(1, ACC), 4 * WG)
        zeros = step_zeros(zb, slot, J, ZERO, BN, WG, A, DECODER)
        for j in gl.static_range(J):
            low, high = block_words(buffers, slot, 2 * j // J, BN, WG, DECODER)
            if J == 2:
                a = operand(low, high, (zeros[2 * j], zeros[2 * j + 1]), (), BN, A, DECODER)
            elif j % 2 == 0:
                a = half_operand(low, zeros[j], (), 0, BN, A, DECODER)
            else:
                a = half_operand(high, zeros[j], (), 1, BN, A, DECODER)
            if j == 0:
                decoded_by_now(full, slot, phase)
            t, _busy = warpgroup_mma_wait(0, [d, busy])
            if j == 0:
                mbarrier.arrive(empty.index(prev), count=1, pred=k > begin)
            acc += t * scale[:, None]
            d = warpgroup_mma(a, columns_of(xb, slot, WIDTH * j, WIDTH), zero, use_acc=False, is_async=True)
            busy = a
            scale = decode_scale(stored[j], KIND)
        slot += 1
        if slot == STAGES:
            slot = 0
            phase = phase ^ 1
    t, _busy = warpgroup_mma_wait(0, [d, busy])
    last = gl.where(slot == 0, STAGES - 1, slot - 1)
    mbarrier.arrive(empty.index(last), count=1)
    return acc + t * scale[:, None], slot, phase
