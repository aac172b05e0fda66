"""W-A16 GEMM for few rows: y = x @ dequantize(W).T at the speed at which the packed weights can be read.

    x        [M, K]          bf16 | fp16, unit stride along K, 16-byte aligned rows
    w        planes of int32 words in fragment order (hybrid_humming/pack/hopper.py)
    scale    as hybrid_humming/pack/hopper_scale.py lays it out; zero_point likewise
    partial  [tiles, SPLIT_K, BLOCK_N * BLOCK_M]  fp32, count [tiles] int32 zeros: only when K is split over CTAs
    out      [M, N]          unit stride along N

One CTA owns BLOCK_N rows of W and (a slice of) all of K. Its warps split K between them as well, SLICES ways, so that a
whole SM works on few rows and no partial sum leaves the SM: the slices meet in shared memory, once, at the end. Weights, scales
and x arrive by cp.async, STAGES deep; every weight byte is read once, by one CTA. mma.sync takes the
decoded weights as its 16-row operand and x as the other.

Numerics. Weights are exact in the operand type, integer zero points subtracted; a float zero point is subtracted there with one
rounding, in two parts where the operand type can't hold it. Each group's partial sum is scaled in fp32, so no product of weight
and scale is ever rounded. Sums are fp32 in a fixed order, y is rounded once.
"""

from collections.abc import Callable

import torch

from hybrid_humming.jit.args import GemmArgs
from hybrid_humming.jit.launch import launch_triton
from hybrid_humming.plan import Plan, Tile
from hybrid_humming.triton_kernels.hopper.epilogue import NONE, SCALAR, VECTOR, finish, store, store_layout
from hybrid_humming.triton_kernels.hopper.fragments import (
    constant_of,
    decode_half,
    halves,
    has_zero_pair,
    k16_operand,
    k32_operand,
    mma_layout,
    planes_of,
    scale_layout,
    words_layout,
    zero_operands,
)
from hybrid_humming.triton_kernels.hopper.gluon import (
    async_copy,
    copy_async,
    gdc_launch_dependents,
    gdc_wait,
    gl,
    gluon,
    mma_v2,
)
from hybrid_humming.triton_kernels.hopper.host import aligned_rows, as_bytes, counters, decoder_of
from hybrid_humming.triton_kernels.hopper.plan import group_of, registers, stream_shape
from hybrid_humming.triton_kernels.hopper.reduce import collect, publish
from hybrid_humming.triton_kernels.hopper.scale import KINDS, columns, decode_scale

FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0]))
# 16-byte vectors of a 256-byte row of x, XORed with the row: ldmatrix reads 8 rows without a bank conflict.
ROTATED = gl.constexpr(gl.SwizzledSharedLayout(8, 1, 8, [2, 1, 0]))


@gluon.constexpr_function
def groups_in_row(group):
    """Scales of one weight row in 128 k; 0 where none varies along K."""
    return max(1, 128 // group) if group else 0


@gluon.constexpr_function
def rows_in_group(group):
    """Rows of 128 k that one scale serves."""
    return max(1, group // 128)


@gluon.constexpr_function
def least(a, b):
    """The smaller constant."""
    return min(a, b)


@gluon.constexpr_function
def word_copy_layout(slices, rows, words):
    """Registers of [S, R, words] int32 for 16-byte copies."""
    along = min(32, words // 4)
    return gl.BlockedLayout([1, 1, 4], [1, 32 // along, along], [slices, rows, 1], [2, 1, 0])


@gluon.constexpr_function
def scale_copy_layout(slices, rows, columns, itemsize):
    """Registers of [S, U, columns] scales of `itemsize` bytes for 16-byte copies."""
    vector = 16 // itemsize
    along = min(32, max(1, columns // vector))
    return gl.BlockedLayout([1, 1, vector], [1, 32 // along, along], [slices, 1, rows], [2, 1, 0])


@gluon.jit
def fetch_words(buffer, w_ptr, row16, rows16, block, blocks_end, kblocks, P: gl.constexpr, STEP: gl.constexpr, EVEN: gl.constexpr):
    """Start copying the words of one plane: STEP k of each slice, slices side by side from `block` on. Past the end: 0."""
    S: gl.constexpr = buffer.shape[0]
    R: gl.constexpr = buffer.shape[1]
    L: gl.constexpr = word_copy_layout(S, R, STEP // 2 * P)
    s = gl.arange(0, S, layout=gl.SliceLayout(1, gl.SliceLayout(2, L)))
    r = row16 + gl.arange(0, R, layout=gl.SliceLayout(0, gl.SliceLayout(2, L)))
    i = gl.arange(0, STEP // 2 * P, layout=gl.SliceLayout(0, gl.SliceLayout(1, L)))
    kb = (STEP // 64 * s)[:, None, None] + (i // (32 * P))[None, None, :]
    row = (r // 4).to(gl.int64) * kblocks * (128 * P) + r % 4 * (32 * P)
    pointers = w_ptr + row[None, :, None] + (kb * (128 * P) + (i % (32 * P))[None, None, :]) + block * (128 * P)
    if EVEN:
        copy_async(buffer, pointers)
    else:
        copy_async(buffer, pointers, mask=(block + kb < blocks_end) & (r < rows16)[None, :, None])


@gluon.jit
def fetch_scales(
    buffer, ptr, n0, padded_n, row, rows_end, J: gl.constexpr, SERVED: gl.constexpr, U: gl.constexpr, EVEN: gl.constexpr
):
    """Start copying the scales [S, 1, 16 R J] of rows `row`, row + U ... of 128 k, SERVED of which share one. Past the end: 0."""
    S: gl.constexpr = buffer.shape[0]
    C: gl.constexpr = buffer.shape[2]
    L: gl.constexpr = scale_copy_layout(S, C // (16 * J), C, ptr.dtype.element_ty.primitive_bitwidth // 8)
    at = (row + U * gl.arange(0, S, layout=gl.SliceLayout(1, gl.SliceLayout(2, L))))[:, None, None]
    i = (n0 * J + gl.arange(0, C, layout=gl.SliceLayout(0, gl.SliceLayout(1, L))))[None, None, :]
    pointers = ptr + (at // SERVED).to(gl.int64) * (padded_n * J) + i
    if EVEN:
        copy_async(buffer, pointers)
    else:
        copy_async(buffer, pointers, mask=(at < rows_end) & (i < padded_n * J))


@gluon.jit
def fetch_weights(
    w_ptr, scale_ptr, zero_ptr, wb, sb, zb, slot, row, rows_end, row16, rows16, kblocks,
    DECODER: gl.constexpr, J: gl.constexpr, SERVED: gl.constexpr, ZERO: gl.constexpr, STEP: gl.constexpr, EVEN: gl.constexpr,
):  # fmt: skip
    """Start copying the words, scales and zero points of one step, from the `row`-th 128 k on, into `slot`."""
    PLANES: gl.constexpr = planes_of(DECODER)
    base = w_ptr
    for p in gl.static_range(len(PLANES)):
        fetch_words(wb[p].index(slot), base, row16, rows16, 2 * row, gl.minimum(2 * rows_end, kblocks), kblocks,
                    PLANES[p], STEP, EVEN)  # fmt: skip
        base += rows16.to(gl.int64) * kblocks * (32 * PLANES[p])
    U: gl.constexpr = STEP // 128
    for u in gl.static_range(U):
        if J > 0:
            fetch_scales(sb.index(slot * U + u), scale_ptr, row16 * 16, rows16 * 16, row + u, rows_end, J, SERVED, U, EVEN)
        if ZERO:
            fetch_scales(zb.index(slot * U + u), zero_ptr, row16 * 16, rows16 * 16, row + u, rows_end, J, SERVED, U, EVEN)


@gluon.jit
def fetch_x(buffer, x_ptr, m0, M, k0, k_end, stride_xm, R: gl.constexpr, EVEN: gl.constexpr):
    """Start copying one step of x: rows m0 .. m0 + BLOCK_M, columns from k0 on, slices side by side. Columns past k_end: 0."""
    S: gl.constexpr = buffer.shape[0]
    BLOCK_M: gl.constexpr = buffer.shape[1]
    STEP: gl.constexpr = buffer.shape[2]
    L: gl.constexpr = gl.BlockedLayout([1, 1, 8], [1, 256 // STEP, STEP // 8], [S, R, 1], [2, 1, 0])
    s = gl.arange(0, S, layout=gl.SliceLayout(1, gl.SliceLayout(2, L)))
    m = m0 + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(0, gl.SliceLayout(2, L)))
    k = (s * STEP)[:, None, None] + gl.arange(0, STEP, layout=gl.SliceLayout(0, gl.SliceLayout(1, L)))[None, None, :]
    pointers = x_ptr + (m.to(gl.int64) * stride_xm)[None, :, None] + k + k0
    if EVEN:
        copy_async(buffer, pointers, mask=(m < M)[None, :, None])
    else:
        copy_async(buffer, pointers, mask=(m < M)[None, :, None] & (k0 + k < k_end))


@gluon.jit
def operand_x(xb, slot, AT: gl.constexpr, WIDTH: gl.constexpr, LAYOUT: gl.constexpr):
    """[S, WIDTH, BLOCK_M] operand: columns AT .. AT + WIDTH of the step in `slot`."""
    return xb.index(slot).slice(AT, WIDTH, dim=2).permute([0, 2, 1]).load(LAYOUT)


@gluon.jit
def multiply_half(
    acc, part, regs, xb, slot, scales, U: gl.constexpr, AT: gl.constexpr, GROUP: gl.constexpr,
    S: gl.constexpr, R: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """Multiply 32 k of each slice, at AT in the U-th 128 k of the step; a group that ends here is scaled and added to acc.

    Returns acc and the sum of the group that is still open.
    """
    A: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    B: gl.constexpr = gl.DotOperandLayout(1, MMA, 2)
    if GROUP == 16:
        for h in gl.static_range(2):
            a = k16_operand(regs[4 * h], regs[4 * h + 1], regs[4 * h + 2], regs[4 * h + 3], S, R, A)
            b = operand_x(xb, slot, 128 * U + AT + 16 * h, 16, B)
            acc += mma_v2(a, b, gl.zeros_like(acc)) * scales[AT // 16 + h][:, :, None]
    else:
        a = k32_operand(regs, S, R, A)
        SPAN: gl.constexpr = least(GROUP, 128)
        b = operand_x(xb, slot, 128 * U + AT, 32, B)
        if GROUP == 0:
            acc = mma_v2(a, b, acc)
        else:
            if AT % SPAN == 0:
                part = gl.zeros_like(acc)
            part = mma_v2(a, b, part)
            if (AT + 32) % SPAN == 0:
                acc += part * scales[AT // SPAN][:, :, None]
    return acc, part


@gluon.jit
def row_scales(sb, slot, S: gl.constexpr, R: gl.constexpr, J: gl.constexpr):
    """Stored scales of 128 k: [S, 16 R, J], all of a row in one lane."""
    return sb.index(slot).reshape([S, 16 * R, J]).load(scale_layout(S, R, J))


@gluon.jit
def block_words(buffer, slot, BLOCK: gl.constexpr, P: gl.constexpr, S: gl.constexpr, R: gl.constexpr):
    """What each half of one k64 block of the step reads of one plane: two tuples of pairs of words."""
    words = buffer.index(slot).slice(BLOCK * 32 * P, 32 * P, dim=2).load(words_layout(S, R, P))
    return halves(words, P, S, R)


@gluon.jit
def multiply_row(
    acc, wb, xb, sb, zb, slot, U: gl.constexpr, DECODER: gl.constexpr, GROUP: gl.constexpr, J: gl.constexpr, KIND: gl.constexpr,
    ZERO: gl.constexpr, S: gl.constexpr, R: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """acc [S, 16 R, BLOCK_M] plus the products of 128 k of each slice, the U-th of the step in `slot`."""
    PLANES: gl.constexpr = planes_of(DECODER)
    SPAN: gl.constexpr = xb.shape[3] // 128
    DTYPE: gl.constexpr = xb.dtype
    ROWS: gl.constexpr = gl.SliceLayout(2, MMA)
    PAIR: gl.constexpr = has_zero_pair(DECODER)
    scales = ()
    zeros = ()
    rests = ()
    if J > 0:
        scales = columns(decode_scale(row_scales(sb, slot * SPAN + U, S, R, J), KIND), J, S, 16 * R, ROWS)
    if ZERO:
        stored = row_scales(zb, slot * SPAN + U, S, R, J)
        rounded = stored.to(DTYPE)
        zeros = columns(rounded, J, S, 16 * R, ROWS)
        if PAIR:
            rests = columns((stored.to(gl.float32) - rounded.to(gl.float32)).to(DTYPE), J, S, 16 * R, ROWS)
    part = gl.zeros_like(acc)
    for q in gl.static_range(2):
        low = ()
        high = ()
        for p in gl.static_range(len(PLANES)):
            a, b = block_words(wb[p], slot, 2 * U + q, PLANES[p], S, R)
            low = low + a
            high = high + b
        if ZERO:
            low = low + zero_operands(zeros[64 * q * J // 128], S, R)
            high = high + zero_operands(zeros[(64 * q + 32) * J // 128], S, R)
        if PAIR:
            low = low + zero_operands(rests[64 * q * J // 128], S, R)
            high = high + zero_operands(rests[(64 * q + 32) * J // 128], S, R)
        acc, part = multiply_half(acc, part, decode_half(low, DECODER, 0, DTYPE), xb, slot, scales,
                                  U, 64 * q, GROUP, S, R, MMA)  # fmt: skip
        acc, part = multiply_half(acc, part, decode_half(high, DECODER, 1, DTYPE), xb, slot, scales,
                                  U, 64 * q + 32, GROUP, S, R, MMA)  # fmt: skip
    return acc


@gluon.jit
def stream_kernel(
    x_ptr, w_ptr, scale_ptr, zero_ptr, secondary_ptr, bias_ptr, out_ptr, partial_ptr, count_ptr,
    M, N, K, rows16, kblocks, share, stride_xm, stride_om,
    DECODER: gl.constexpr, GROUP: gl.constexpr, KIND: gl.constexpr, ZERO: gl.constexpr, SCALE: gl.constexpr,
    SECONDARY: gl.constexpr, BIAS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, SPLIT_K: gl.constexpr, DEPENDENT: gl.constexpr, EVEN: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """One tile [BLOCK_N, BLOCK_M] of one share of K a CTA; see the module's head. GROUP is 0 where no scale varies along K."""
    S: gl.constexpr = WARPS * 16 // BLOCK_N
    R: gl.constexpr = BLOCK_N // 16
    STEP: gl.constexpr = BLOCK_K // S
    U: gl.constexpr = STEP // 128
    J: gl.constexpr = groups_in_row(GROUP)
    SERVED: gl.constexpr = rows_in_group(GROUP)
    PLANES: gl.constexpr = planes_of(DECODER)
    CONSTANT: gl.constexpr = constant_of(DECODER)
    MMA: gl.constexpr = mma_layout(S, R)
    DTYPE: gl.constexpr = x_ptr.dtype.element_ty
    if DEPENDENT:
        gdc_launch_dependents()
    tile = gl.program_id(0) // SPLIT_K
    part_k = gl.program_id(0) % SPLIT_K
    tiles_m = gl.cdiv(M, BLOCK_M)
    m0 = (tile % tiles_m) * BLOCK_M
    row16 = (tile // tiles_m) * R
    begin = part_k * share
    end = gl.minimum(begin + share, gl.cdiv(kblocks, 2))
    k_end = gl.minimum(K, end * 128)

    wb = ()
    for p in gl.static_range(len(PLANES)):
        plane = (gl.allocate_shared_memory(gl.int32, [STAGES, S, R, STEP // 2 * PLANES[p]], FLAT),)
        wb = wb + plane  # type: ignore[assignment]
    xb = gl.allocate_shared_memory(DTYPE, [STAGES, S, BLOCK_M, STEP], ROTATED)
    sb = xb
    zb = xb
    if J > 0:
        sb = gl.allocate_shared_memory(scale_ptr.dtype.element_ty, [STAGES * U, S, 1, BLOCK_N * J], FLAT)
    if ZERO:
        zb = gl.allocate_shared_memory(zero_ptr.dtype.element_ty, [STAGES * U, S, 1, BLOCK_N * J], FLAT)

    if DEPENDENT:
        # Weights do not depend on the kernel before this one: they are on their way while it still runs.
        for i in gl.static_range(STAGES - 1):
            if begin + i * S * U < end:
                fetch_weights(w_ptr, scale_ptr, zero_ptr, wb, sb, zb, i, begin + i * S * U, end, row16, rows16, kblocks,
                              DECODER, J, SERVED, ZERO, STEP, EVEN)  # fmt: skip
        gdc_wait()
    for i in gl.static_range(STAGES - 1):
        if begin + i * S * U < end:
            if not DEPENDENT:
                fetch_weights(w_ptr, scale_ptr, zero_ptr, wb, sb, zb, i, begin + i * S * U, end, row16, rows16, kblocks,
                              DECODER, J, SERVED, ZERO, STEP, EVEN)  # fmt: skip
            fetch_x(xb.index(i), x_ptr, m0, M, (begin + i * S * U) * 128, k_end, stride_xm, R, EVEN)
        async_copy.commit_group()

    acc = gl.zeros([S, BLOCK_N, BLOCK_M], gl.float32, MMA)
    slot = 0
    for row in range(begin, end, S * U):
        async_copy.wait_group(STAGES - 2)
        for u in gl.static_range(U):
            acc = multiply_row(acc, wb, xb, sb, zb, slot, u, DECODER, GROUP, J, KIND, ZERO, S, R, MMA)
        free = gl.where(slot == 0, STAGES - 1, slot - 1)
        ahead = row + (STAGES - 1) * S * U
        if ahead < end:
            fetch_weights(w_ptr, scale_ptr, zero_ptr, wb, sb, zb, free, ahead, end, row16, rows16, kblocks,
                          DECODER, J, SERVED, ZERO, STEP, EVEN)  # fmt: skip
            fetch_x(xb.index(free), x_ptr, m0, M, ahead * 128, k_end, stride_xm, R, EVEN)
        async_copy.commit_group()
        slot = gl.where(slot == STAGES - 1, 0, slot + 1)

    OUT: gl.constexpr = store_layout(BLOCK_N, WARPS)
    total = gl.convert_layout(gl.sum(acc, axis=0), OUT)
    n = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, OUT))
    m = gl.arange(0, BLOCK_M, layout=gl.SliceLayout(0, OUT))
    if SPLIT_K > 1:
        offset = n[:, None] + m[None, :] * BLOCK_N
        mask = ((m0 + m < M)[None, :]) & (n < BLOCK_N)[:, None]
        TILE: gl.constexpr = BLOCK_N * BLOCK_M
        if publish(total, offset, mask, partial_ptr, count_ptr, tile, part_k, SPLIT_K, TILE):
            total = collect(total, offset, mask, partial_ptr, count_ptr, tile, part_k, SPLIT_K, TILE)
            y = finish(total, row16 * 16 + n, N, scale_ptr, secondary_ptr, bias_ptr, SCALE, KIND, SECONDARY, CONSTANT, BIAS)
            store(out_ptr, y, m0 + m, row16 * 16 + n, M, N, stride_om)
    else:
        y = finish(total, row16 * 16 + n, N, scale_ptr, secondary_ptr, bias_ptr, SCALE, KIND, SECONDARY, CONSTANT, BIAS)
        store(out_ptr, y, m0 + m, row16 * 16 + n, M, N, stride_om)


# ---- host ----
def launch(args: GemmArgs, plan: Plan) -> None:
    """Run the stream kernel as `plan` says."""
    launch_with(constants_of, args, plan)


def launch_with(make: Callable[[GemmArgs, Tile, bool], dict[str, object]], args: GemmArgs, plan: Plan) -> None:
    """Run the stream kernel with the constants that `make` (constants_of, or another GPU's) gives; once a memo."""
    tile, layout = plan.tile, args.layout
    rows = args.x.shape[0]
    shape = stream_shape(tile, rows, layout, args.problem.k)
    constants = args.memo.get("stream_constants")
    if constants is None:
        constants = args.memo["stream_constants"] = make(args, tile, shape.even)
    x = aligned_rows(args.x)
    none = args.out  # stands for what is absent and never read
    launch_triton(
        stream_kernel,
        (shape.tiles * tile.split_k, 1, 1),
        x,
        args.qweight,
        as_bytes(args.scale),
        none if args.zero_point is None else args.zero_point,
        none if args.secondary_scale is None else args.secondary_scale,
        none if args.bias is None else args.bias,
        args.out,
        none if args.workspace is None else args.workspace.view(torch.float32),
        counters(args.out.device, shape.tiles) if tile.split_k > 1 else none,
        rows, layout.n, x.shape[1], layout.padded_n // 16, layout.padded_k // 64, shape.share,
        x.stride(0), args.out.stride(0),
        num_warps=tile.num_warps,
        constants=constants,
        options={"maxnreg": registers(tile)} | ({"launch_pdl": True} if tile.dependent_launch else {}),
        memo=args.memo,
    )  # fmt: skip


def constants_of(args: GemmArgs, tile: Tile, even: bool) -> dict[str, object]:
    """The kernel's constants, in the order of its parameters."""
    spec = args.problem.spec
    group = group_of(spec)
    return {
        "DECODER": decoder_of(spec, args.layout),
        "GROUP": group,
        "KIND": KINDS[str(spec.scale)],
        "ZERO": spec.has_zero_point,
        "SCALE": NONE if group else SCALAR if spec.granularity == "tensor" else VECTOR,
        "SECONDARY": {None: NONE, "tensor": SCALAR, "channel": VECTOR}[spec.secondary],
        "BIAS": args.bias is not None,
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_K": tile.block_k,
        "STAGES": tile.num_stages,
        "SPLIT_K": tile.split_k,
        "DEPENDENT": tile.dependent_launch,
        "EVEN": even,
        "WARPS": tile.num_warps,
    }
