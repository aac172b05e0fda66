"""W4A8 GEMM, and every other weight of 7 bits and fewer: y = x @ dequantize(W).T, weights decoded into e4m3 or int8 registers.

    x        [M, K]          e4m3 | e5m2 | int8, unit stride along K, 16-byte aligned rows
    w        planes of int32 words in fragment order (hybrid_humming/pack/hopper_a8.py)
    scale    as hybrid_humming/pack/hopper_scale.py lays it out; zero_point likewise
    x_scale  [M, 1] | [1] | [M, K/G], any strides
    partial  [2 CTAs, BLOCK_N * BLOCK_M] fp32 | int32, count [tiles] int32 zeros: only when tiles are shared (stream-K)
    out      [M, N]          unit stride along N

As the 16-bit kernel (wgmma.py): W is wgmma's 64-row operand, from registers, and M tokens are its columns; one producer warp asks
TMA for steps of 128 k, one warpgroup for each 64 rows of W decodes and multiplies, CTAs are persistent.

Numerics. Decoded weights are exact in the operand type, up to a power of two that the end multiplies by. INT8 products of a group
are exact in int32; FP8 products of a group, or of 128 k, are summed by the tensor core. Scales and everything else are fp32, y is
rounded once.
"""

import contextlib

import torch

from hybrid_humming.device import DeviceInfo
from hybrid_humming.errors import PlanError
from hybrid_humming.jit.args import GemmArgs
from hybrid_humming.jit.launch import launch_triton
from hybrid_humming.plan import Plan, Tile
from hybrid_humming.spec import PackLayout, Spec
from hybrid_humming.triton_kernels.hopper.a8.decoded import sum_decoded, sum_groups, sum_parts
from hybrid_humming.triton_kernels.hopper.a8.decoder import ByteDecoder, byte_decoder
from hybrid_humming.triton_kernels.hopper.a8.edit import digest, paired
from hybrid_humming.triton_kernels.hopper.a8.finish import accumulator_layout, finish, store_columns
from hybrid_humming.triton_kernels.hopper.a8.operand import planes_of
from hybrid_humming.triton_kernels.hopper.a8.pair import count_places, meet, place, produce_either
from hybrid_humming.triton_kernels.hopper.a8.tiles import split, x_groups
from hybrid_humming.triton_kernels.hopper.a8.w4_tiles import groups_of, keeps_sum, operand_of, registers
from hybrid_humming.triton_kernels.hopper.epilogue import NONE, SCALAR, VECTOR
from hybrid_humming.triton_kernels.hopper.gluon import (
    fence_async_shared,
    gdc_launch_dependents,
    gdc_wait,
    gl,
    gluon,
    mbarrier,
)
from hybrid_humming.triton_kernels.hopper.host import aligned_rows, as_bytes, counters
from hybrid_humming.triton_kernels.hopper.plan import group_of, groups_in_row
from hybrid_humming.triton_kernels.hopper.scale import KINDS
from hybrid_humming.triton_kernels.hopper.segments import sum_shared
from hybrid_humming.triton_kernels.hopper.wgmma import descriptors_of, served_by, words_runs, words_wide

PRODUCER_REGISTERS = gl.constexpr(24)


@gluon.constexpr_function
def unit_of(decoder):
    """Power of two by which decoded operands are still to be multiplied."""
    return decoder.unit


@gluon.constexpr_function
def step_bytes(decoder, groups, zero, block_m, block_n, block_k, scale_type):
    """Bytes that the boxes of one step bring."""
    total = block_n * block_k * sum(decoder.planes) // 8 + block_m * block_k
    return total + groups * block_n * (scale_type.primitive_bitwidth // 8 + (1 if zero else 0))


@gluon.jit
def consume(
    scale_ptr, secondary_ptr, x_scale_ptr, bias_ptr, out_ptr, partial_ptr, count_ptr, xb, buffers, full, empty,
    M, N, tiles_m, tiles_n, steps, shared, share, stride_om, stride_xm, stride_xk, dealt, segments,
    DECODER: gl.constexpr, J: gl.constexpr, KIND: gl.constexpr, ZERO: gl.constexpr, KEEP: gl.constexpr, SUM: gl.constexpr,
    GROUPS: gl.constexpr, X_GROUPS: gl.constexpr, SCALE: gl.constexpr, SECONDARY: gl.constexpr, X_SCALE: gl.constexpr,
    X_KIND: gl.constexpr, BIAS: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, STREAM_K: gl.constexpr, RASTER_M: gl.constexpr,
    DEPENDENT: gl.constexpr, PAIR: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """Sum and store segment after segment."""
    ACC: gl.constexpr = accumulator_layout(WARPS, BLOCK_M, SUM == gl.int32)
    WG: gl.constexpr = WARPS // 4
    UNIT: gl.constexpr = unit_of(DECODER)
    if DEPENDENT and X_GROUPS > 0:
        gdc_wait()  # scales of x are read in the loop
    slot = 0
    phase = 0
    for i in range(segments):
        tile, begin, end, m, n = place(i, dealt, steps, shared, share, tiles_m, tiles_n, RASTER_M, PAIR)
        if KEEP:
            acc, slot, phase = sum_decoded(slot, phase, begin, end, xb, buffers, full, empty,
                                           DECODER, BLOCK_M, BLOCK_N, STAGES, WG, SUM, ACC, PAIR)  # fmt: skip
        elif GROUPS == 1:
            acc, slot, phase = sum_groups(slot, phase, begin, end, xb, buffers, full, empty, x_scale_ptr, m * BLOCK_M, M, stride_xm,
                                          stride_xk, DECODER, J, KIND, ZERO, X_GROUPS, X_KIND, BLOCK_M, BLOCK_N, STAGES, WG, SUM,
                                          ACC, PAIR)  # fmt: skip
        else:
            acc, slot, phase = sum_parts(slot, phase, begin, end, xb, buffers, full, empty, x_scale_ptr, m * BLOCK_M, M, stride_xm,
                                         stride_xk, DECODER, J, KIND, ZERO, X_GROUPS, X_KIND, GROUPS, BLOCK_M, BLOCK_N, STAGES, WG,
                                         SUM, ACC, PAIR)  # fmt: skip
        if DEPENDENT:
            gdc_wait()
        has_sum = True
        if STREAM_K:
            if end - begin < steps:
                has_sum, acc = sum_shared(acc, partial_ptr, count_ptr, tile, steps, share, BLOCK_N, BLOCK_M, ACC)
        if has_sum:
            y = acc.to(gl.float32)
            if UNIT != 1.0:
                y = y * UNIT
            y = finish(y, m * BLOCK_M, n * BLOCK_N, M, N,
                       (x_scale_ptr, scale_ptr, secondary_ptr, bias_ptr, scale_ptr, scale_ptr), stride_xm,
                       False, False, X_SCALE, X_KIND, SCALE, KIND, SECONDARY, BIAS, BLOCK_N, BLOCK_M, ACC)  # fmt: skip
            store_columns(out_ptr, y, m * BLOCK_M, n * BLOCK_N, M, N, stride_om, False, BLOCK_N, BLOCK_M, WARPS)


@gluon.jit(do_not_specialize=["M", "N", "tiles_m", "tiles_n", "steps", "shared", "share", "stride_xm", "stride_xk"])
def w4a8_kernel(
    x_desc, w0_desc, w1_desc, w2_desc, scale_desc, zero_desc,
    scale_ptr, secondary_ptr, x_scale_ptr, bias_ptr, out_ptr, partial_ptr, count_ptr,
    M, N, tiles_m, tiles_n, steps, shared, share, stride_om, stride_xm, stride_xk,
    DECODER: gl.constexpr, GROUP: gl.constexpr, J: gl.constexpr, KIND: gl.constexpr, ZERO: gl.constexpr, KEEP: gl.constexpr,
    INTEGER: gl.constexpr, GROUPS: gl.constexpr, X_GROUPS: gl.constexpr, SCALE: gl.constexpr, SECONDARY: gl.constexpr,
    X_SCALE: gl.constexpr, X_KIND: gl.constexpr,
    BIAS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    STREAM_K: gl.constexpr, RASTER_M: gl.constexpr, DEPENDENT: gl.constexpr, PAIR: gl.constexpr, WARPS: gl.constexpr,
    EDITOR: gl.constexpr,
):  # fmt: skip
    """See the module's head. GROUP is 0 where no scale varies along K, J the scales of a row in BLOCK_K; KEEP: one sum over K."""
    PLANES: gl.constexpr = planes_of(DECODER)
    SERVED: gl.constexpr = served_by(GROUP, BLOCK_K)
    SUM: gl.constexpr = gl.int32 if INTEGER else gl.float32
    if DEPENDENT:
        gdc_launch_dependents()
    every = (w0_desc, w1_desc, w2_desc)
    descriptors = ()
    buffers = ()
    for p in gl.static_range(len(PLANES)):
        desc = (every[p],)
        descriptors = descriptors + desc  # type: ignore[assignment]
        words = (
            gl.allocate_shared_memory(
                gl.int32, [STAGES, BLOCK_N // 64, words_runs(PLANES[p], BLOCK_K), words_wide(PLANES[p])], every[p].layout
            ),
        )
        buffers = buffers + words  # type: ignore[assignment]
    xb = gl.allocate_shared_memory(x_desc.dtype, [STAGES * PAIR, BLOCK_M // PAIR, BLOCK_K], x_desc.layout)
    sb = xb
    zb = xb
    scales = x_desc  # stands for what is absent and never read
    zeros = x_desc
    if J > 0:
        scales = scale_desc
        sb = gl.allocate_shared_memory(scale_desc.dtype, [STAGES, 1, BLOCK_N * J // 64, 64], scale_desc.layout)
    if ZERO:
        zeros = zero_desc
        zb = gl.allocate_shared_memory(zero_desc.dtype, [STAGES, 1, BLOCK_N * J // 64, 64], zero_desc.layout)
    descriptors = descriptors + (scales, zeros)  # type: ignore[assignment]  # noqa: RUF005 (Gluon has no star in a tuple)
    buffers = buffers + (sb, zb)  # type: ignore[assignment]  # noqa: RUF005
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=PAIR)
    fence_async_shared()
    meet(PAIR)
    BYTES: gl.constexpr = step_bytes(DECODER, J, ZERO, BLOCK_M, BLOCK_N, BLOCK_K, sb.dtype)
    dealt, segments = count_places(tiles_m, tiles_n, steps, shared, share, PAIR)
    gl.warp_specialize(
        [
            (consume, (scale_ptr, secondary_ptr, x_scale_ptr, bias_ptr, out_ptr, partial_ptr, count_ptr, xb, buffers, full, empty,
                       M, N, tiles_m, tiles_n, steps, shared, share, stride_om, stride_xm, stride_xk, dealt, segments,
                       DECODER, J, KIND, ZERO, KEEP, SUM, GROUPS, X_GROUPS, SCALE, SECONDARY, X_SCALE, X_KIND, BIAS,
                       BLOCK_M, BLOCK_N, STAGES, STREAM_K, RASTER_M, DEPENDENT, PAIR, WARPS)),
            (produce_either, (x_desc, descriptors, xb, buffers, full, empty, tiles_m, tiles_n, steps, shared, share, dealt,
                              segments, J, SERVED, ZERO, PLANES, BLOCK_M, BLOCK_K, STAGES, RASTER_M, BYTES, DEPENDENT, PAIR)),
        ],
        [1],
        [PRODUCER_REGISTERS],
    )  # fmt: skip


# ---- host ----
def launch(args: GemmArgs, plan: Plan) -> None:
    """Run the W4A8 kernel as `plan` says."""
    tile, layout, problem = plan.tile, args.layout, args.problem
    work = split(tile, args.x.shape[0], layout, DeviceInfo.of(args.out.device).sm_count)
    if work.shared and args.workspace is None:
        raise PlanError(f"{work.shared} tiles share K, but the plan brought no workspace; plan it with workspace_bytes")
    exact = problem.spec.activation == "int8" and keeps_sum(problem)
    none, x = args.out, aligned_rows(args.x)  # `none` stands for what is absent and never read
    x_scale = none if args.x_scale is None else args.x_scale
    by_group = args.x_scale is not None and x_scale.dim() == 2 and x_scale.shape[1] > 1
    counts = counters(args.out.device, work.shared) if tile.stream_k else none
    compiling = paired() if tile.multicast == 2 and w4a8_kernel.__name__ not in args.memo else contextlib.nullcontext()
    with compiling:
        launch_triton(
            w4a8_kernel,
            (work.ctas, 1, 1),
            *descriptors_of(args, x, tile),
            as_bytes(args.scale)[-1] if layout.folded else as_bytes(args.scale),  # folded: the least exponent of each row
            none if args.secondary_scale is None else args.secondary_scale,
            none if args.x_scale is None else as_bytes(x_scale),
            none if args.bias is None else args.bias,
            args.out,
            none if args.workspace is None else args.workspace.view(torch.int32 if exact else torch.float32),
            counts,
            args.x.shape[0], layout.n, work.tiles_m, work.tiles_n, work.steps, work.shared, work.share, args.out.stride(0),
            x_scale.stride(0), x_scale.stride(1) if by_group else 0,
            num_warps=tile.num_warps,
            constants=constants_of(args, tile),
            options={"maxnreg": registers(tile)} | ({"launch_pdl": True} if tile.dependent_launch else {}),
            memo=args.memo,
        )  # fmt: skip


def decoder_of(spec: Spec, layout: PackLayout) -> ByteDecoder:
    """Return the decoder of the layout's weights."""
    return byte_decoder(layout.encoding, operand_of(spec), folded=layout.folded)


def constants_of(args: GemmArgs, tile: Tile) -> dict[str, object]:
    """The kernel's constants, in the order of its parameters."""
    problem, spec = args.problem, args.problem.spec
    group = group_of(spec)
    return {
        "DECODER": decoder_of(spec, args.layout),
        "GROUP": group,
        "J": groups_in_row(spec),
        "KIND": KINDS[str(spec.scale)],
        "ZERO": spec.has_zero_point,
        "KEEP": keeps_sum(problem),
        "INTEGER": spec.activation == "int8",
        "GROUPS": groups_of(problem, args.layout),
        "X_GROUPS": x_groups(spec),
        "SCALE": VECTOR if args.layout.folded else NONE if group else SCALAR if spec.granularity == "tensor" else VECTOR,
        "SECONDARY": {None: NONE, "tensor": SCALAR, "channel": VECTOR}[spec.secondary],
        "X_SCALE": {"tensor": SCALAR, "token": VECTOR}.get(str(spec.activation_granularity), NONE),
        "X_KIND": KINDS[str(spec.activation_scale)],
        "BIAS": args.bias is not None,
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_K": tile.block_k,
        "STAGES": tile.num_stages,
        "STREAM_K": tile.stream_k,
        "RASTER_M": tile.raster_m,
        "DEPENDENT": tile.dependent_launch,
        "PAIR": tile.multicast,
        "WARPS": tile.num_warps,
        "EDITOR": digest() if tile.multicast == 2 else "",
    }
