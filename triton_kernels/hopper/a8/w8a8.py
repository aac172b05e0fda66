"""W8A8 GEMM: y = (x @ W.T) * scales, both operands from shared memory, 8 bits each.

    x        [M, K]            e4m3 | e5m2 | int8, unit stride along K
    w        [N/64, K/128, 64, 128] bytes in tiles (hybrid_humming/pack/hopper_a8.py)
    scale    fp32 (or the spec's format): by channel, tensor, block or group
    x_scale  [M, 1] | [1] | [M, K/G], any strides;  x_zero_point int32 [M], beside int8 without scales along K
    partial  [2 CTAs, BLOCK_M * BLOCK_N] fp32 | int32, count [tiles] int32 zeros: only when tiles are shared (stream-K)
    out      [M, N]            unit stride along N

Few rows: W is wgmma's 64-row operand and M tokens are its columns, so that any M costs no more than its next multiple of 8.
Many rows: x is the 64-row operand, so that y leaves through shared memory and TMA in its own order, and a scale of x costs a lane
two values. One producer warp asks TMA for steps of 128 k; warpgroups multiply. CTAs are persistent; segments.py says how they
share the tiles.

Numerics. INT8 sums are exact in int32. FP8 products are summed by the tensor core over 128 k (or a group), then in fp32;
fast_accumulation leaves all of K to the tensor core where no scale varies along K. Scales multiply in fp32, y is rounded once.
"""

import contextlib

import torch

from hybrid_humming.device import DeviceInfo
from hybrid_humming.errors import PlanError, UnsupportedProblem
from hybrid_humming.jit.args import GemmArgs
from hybrid_humming.jit.launch import launch_triton
from hybrid_humming.plan import Plan, Tile
from hybrid_humming.triton_kernels.hopper.a8.edit import digest, paired
from hybrid_humming.triton_kernels.hopper.a8.finish import accumulator_layout, finish, store_columns, store_rows
from hybrid_humming.triton_kernels.hopper.a8.pair import count_places, meet, place, produce_either
from hybrid_humming.triton_kernels.hopper.a8.sums import sum_products, sum_promoted
from hybrid_humming.triton_kernels.hopper.a8.tiles import (
    out_columns,
    parts_of,
    promotes,
    registers,
    split,
    waves_of,
    weight_block,
    weight_groups,
    x_groups,
    x_is_rows,
)
from hybrid_humming.triton_kernels.hopper.epilogue import NONE, SCALAR, VECTOR
from hybrid_humming.triton_kernels.hopper.gluon import (
    fence_async_shared,
    gdc_launch_dependents,
    gdc_wait,
    gl,
    gluon,
    mbarrier,
    tma,
)
from hybrid_humming.triton_kernels.hopper.host import aligned_rows, as_bytes, counters
from hybrid_humming.triton_kernels.hopper.plan import ROW
from hybrid_humming.triton_kernels.hopper.scale import KINDS
from hybrid_humming.triton_kernels.hopper.segments import sum_shared
from hybrid_humming.triton_kernels.hopper.wgmma import described

PRODUCER_REGISTERS = gl.constexpr(24)
PLANES = gl.constexpr((8,))


@gluon.jit
def consume(
    factors, out_ptr, out_desc, partial_ptr, count_ptr, xb, wb, ob, full, empty,
    M, N, tiles_m, tiles_n, steps, shared, share, stride_om, stride_xm, stride_xk, stride_w, dealt, segments,
    X_ROWS: gl.constexpr, PROMOTE: gl.constexpr, PARTS: gl.constexpr, WAVES: gl.constexpr, SUM: gl.constexpr,
    X_ZERO: gl.constexpr, X_GROUPS: gl.constexpr, X_KIND: gl.constexpr, X_SCALE: gl.constexpr, W_GROUPS: gl.constexpr,
    W_BLOCK: gl.constexpr, W_KIND: gl.constexpr, W_SCALE: gl.constexpr, SECONDARY: gl.constexpr, BIAS: gl.constexpr,
    TMA_OUT: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, STREAM_K: gl.constexpr,
    RASTER_M: gl.constexpr,
    DEPENDENT: gl.constexpr, PAIR: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """Sum and store segment after segment."""
    R: gl.constexpr = (BLOCK_M if X_ROWS else BLOCK_N) // WAVES
    C: gl.constexpr = BLOCK_N if X_ROWS else BLOCK_M
    ACC: gl.constexpr = accumulator_layout(WARPS, C, SUM == gl.int32)
    if DEPENDENT:
        gdc_wait()  # scales of x are read in the loop
    slot = 0
    phase = 0
    for i in range(segments):
        tile, begin, end, m, n = place(i, dealt, steps, shared, share, tiles_m, tiles_n, RASTER_M, PAIR)
        m0 = m * BLOCK_M
        n0 = n * BLOCK_N
        if PROMOTE:
            first, second, slot, phase = sum_promoted(
                slot, phase, begin, end, xb, wb, full, empty, factors[0], factors[1], m0, n0, M, N, stride_xm, stride_xk,
                stride_w, X_ROWS, X_GROUPS, X_KIND, W_GROUPS, W_BLOCK, W_KIND, PARTS, WAVES, BLOCK_M, BLOCK_N, STAGES, SUM, ACC,
                PAIR,
            )  # fmt: skip
        else:
            first, slot, phase = sum_products(slot, phase, begin, end, xb, wb, full, empty,
                                              X_ROWS, BLOCK_M, BLOCK_N, STAGES, SUM, ACC, PAIR)  # fmt: skip
        has_sum = True
        if STREAM_K:
            gl.static_assert(WAVES == 1, "a shared tile has one wave of rows")
            if end - begin < steps:
                has_sum, first = sum_shared(first, partial_ptr, count_ptr, tile, steps, share, R, C, ACC)
        if has_sum:
            for wave in gl.static_range(WAVES):
                acc = first
                if wave == 1:
                    acc = second
                if TMA_OUT:
                    store_rows(out_desc, ob, acc, m0 + wave * R, n0, M, N, factors, stride_xm,
                               X_ZERO, X_SCALE, X_KIND, W_SCALE, W_KIND, SECONDARY, BIAS, WARPS)  # fmt: skip
                else:
                    y = finish(acc, m0 + wave * R, n0, M, N, factors, stride_xm,
                               X_ROWS, X_ZERO, X_SCALE, X_KIND, W_SCALE, W_KIND, SECONDARY, BIAS, R, C, ACC)  # fmt: skip
                    store_columns(out_ptr, y, m0 + wave * R, n0, M, N, stride_om, X_ROWS, R, C, WARPS)
    if TMA_OUT:
        tma.store_wait(0)  # shared memory is gone when the program ends


@gluon.jit(do_not_specialize=["M", "N", "tiles_m", "tiles_n", "steps", "shared", "share", "stride_xm", "stride_xk", "stride_w"])
def w8a8_kernel(
    x_desc, w_desc, out_desc, x_scale_ptr, w_scale_ptr, secondary_ptr, bias_ptr, x_zero_ptr, w_sum_ptr,
    out_ptr, partial_ptr, count_ptr,
    M, N, tiles_m, tiles_n, steps, shared, share, stride_om, stride_xm, stride_xk, stride_w,
    X_ROWS: gl.constexpr, PROMOTE: gl.constexpr, PARTS: gl.constexpr, WAVES: gl.constexpr, INTEGER: gl.constexpr,
    X_ZERO: gl.constexpr, X_GROUPS: gl.constexpr, X_KIND: gl.constexpr, X_SCALE: gl.constexpr, W_GROUPS: gl.constexpr,
    W_BLOCK: gl.constexpr, W_KIND: gl.constexpr, W_SCALE: gl.constexpr, SECONDARY: gl.constexpr, BIAS: gl.constexpr,
    OUT_COLUMNS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    STREAM_K: gl.constexpr,
    RASTER_M: gl.constexpr, DEPENDENT: gl.constexpr, PAIR: gl.constexpr, WARPS: gl.constexpr,
    EDITOR: gl.constexpr,
):  # fmt: skip
    """See the module's head. PARTS partial sums in a step; WAVES blocks of rows, one after the other; OUT_COLUMNS that leave
    through shared memory at a time, 0 where y is stored from registers."""
    SUM: gl.constexpr = gl.int32 if INTEGER else gl.float32
    if DEPENDENT:
        gdc_launch_dependents()
    wb = gl.allocate_shared_memory(w_desc.dtype, [STAGES, BLOCK_N // 64, 64, BLOCK_K], w_desc.layout)
    xb = gl.allocate_shared_memory(x_desc.dtype, [STAGES * PAIR, BLOCK_M // PAIR, BLOCK_K], x_desc.layout)
    ob = xb  # stands for what is absent
    if OUT_COLUMNS > 0:
        ob = gl.allocate_shared_memory(out_desc.dtype, [BLOCK_M // WAVES, OUT_COLUMNS], out_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=PAIR)
    fence_async_shared()
    meet(PAIR)
    factors = (x_scale_ptr, w_scale_ptr, secondary_ptr, bias_ptr, x_zero_ptr, w_sum_ptr)
    BYTES: gl.constexpr = (BLOCK_M + BLOCK_N) * BLOCK_K
    dealt, segments = count_places(tiles_m, tiles_n, steps, shared, share, PAIR)
    gl.warp_specialize(
        [
            (consume, (factors, out_ptr, out_desc, partial_ptr, count_ptr, xb, wb, ob, full, empty,
                       M, N, tiles_m, tiles_n, steps, shared, share, stride_om, stride_xm, stride_xk, stride_w,
                       dealt, segments, X_ROWS, PROMOTE, PARTS, WAVES, SUM, X_ZERO, X_GROUPS, X_KIND, X_SCALE, W_GROUPS,
                       W_BLOCK, W_KIND, W_SCALE, SECONDARY, BIAS, OUT_COLUMNS > 0, BLOCK_M, BLOCK_N, STAGES, STREAM_K, RASTER_M,
                       DEPENDENT, PAIR, WARPS)),
            (produce_either, (x_desc, (w_desc,), xb, (wb,), full, empty, tiles_m, tiles_n, steps, shared, share, dealt, segments,
                              0, 1, False, PLANES, BLOCK_M, BLOCK_K, STAGES, RASTER_M, BYTES, DEPENDENT, PAIR)),
        ],
        [1],
        [PRODUCER_REGISTERS],
    )  # fmt: skip


# ---- host ----
def launch(args: GemmArgs, plan: Plan) -> None:
    """Run the W8A8 kernel as `plan` says."""
    tile, layout = plan.tile, args.layout
    work = split(tile, args.x.shape[0], layout, DeviceInfo.of(args.out.device).sm_count)
    if work.shared and args.workspace is None:
        raise PlanError(f"{work.shared} tiles share K, but the plan brought no workspace; plan it with workspace_bytes")
    none, x = args.out, aligned_rows(args.x)  # `none` stands for what is absent and never read
    exact = args.problem.spec.activation == "int8" and not promotes(args.problem)
    tma_out = args.out.stride(0) * args.out.element_size() % 16 == 0 and args.out.data_ptr() % 16 == 0
    columns = out_columns(tile, args.problem) if tma_out else 0
    x_scale = none if args.x_scale is None else args.x_scale
    by_token = x_scale.dim() == 2 and x_scale.shape[1] > 1
    counts = counters(args.out.device, work.shared) if tile.stream_k else none
    compiling = paired() if tile.multicast == 2 and w8a8_kernel.__name__ not in args.memo else contextlib.nullcontext()
    with compiling:
        launch_triton(
            w8a8_kernel,
            (work.ctas, 1, 1),
            described(x, [tile.block_m // tile.multicast, ROW], swizzled=True),
            described(weight_tiles(args), [tile.block_n // 64, 64, ROW], swizzled=True),
            described(args.out, [tile.block_m // waves_of(tile, args.problem), columns], swizzled=True) if columns else None,
            as_bytes(x_scale) if args.x_scale is not None else none,
            as_bytes(args.scale),
            none if args.secondary_scale is None else args.secondary_scale,
            none if args.bias is None else args.bias,
            none if args.x_zero_point is None else args.x_zero_point,
            none if args.x_zero_point is None else weight_sums(args),
            args.out,
            none if args.workspace is None else args.workspace.view(torch.int32 if exact else torch.float32),
            counts,
            args.x.shape[0], layout.n, work.tiles_m, work.tiles_n, work.steps, work.shared, work.share, args.out.stride(0),
            x_scale.stride(0), x_scale.stride(1) if by_token else 0, args.scale.shape[1],
            num_warps=tile.num_warps,
            constants=constants_of(args, tile, columns),
            options={"maxnreg": registers(tile)} | ({"launch_pdl": True} if tile.dependent_launch else {}),
            memo=args.memo,
        )  # fmt: skip


def weight_tiles(args: GemmArgs) -> torch.Tensor:
    """The weight as [padded_n / 64, padded_k / 128 * 64, 128] of its element type."""
    layout = args.layout
    dtype = args.problem.spec.weight_format.torch_storage if args.problem.spec.activation != "int8" else torch.int8
    return args.qweight.view(dtype).view(layout.padded_n // 64, layout.padded_k // ROW * 64, ROW)


def weight_sums(args: GemmArgs) -> torch.Tensor:
    """Return int32 [padded_n], the sum of each row's codes; kept with the weight's address."""
    if args.problem.spec.activation != "int8" or promotes(args.problem):
        raise UnsupportedProblem(
            f"{args.problem} with a zero point of x: only int8 x int8 without scales along K takes one; quantize x symmetrically"
        )
    key = ("w8a8_sums", args.qweight.data_ptr())
    found: torch.Tensor | None = args.memo.get(key)
    if found is None:
        rows = weight_tiles(args).unflatten(1, (-1, 64))
        found = args.memo[key] = rows.sum((1, 3), dtype=torch.int32).flatten()
    return found


def constants_of(args: GemmArgs, tile: Tile, columns: int) -> dict[str, object]:
    """The kernel's constants, in the order of its parameters."""
    problem, spec = args.problem, args.problem.spec
    along_k = weight_groups(spec) or weight_block(spec)
    return {
        "X_ROWS": x_is_rows(tile),
        "PROMOTE": promotes(problem),
        "PARTS": parts_of(spec),
        "WAVES": waves_of(tile, problem),
        "INTEGER": spec.activation == "int8",
        "X_ZERO": args.x_zero_point is not None,
        "X_GROUPS": x_groups(spec),
        "X_KIND": KINDS[str(spec.activation_scale)],
        "X_SCALE": {"tensor": SCALAR, "token": VECTOR}.get(str(spec.activation_granularity), NONE),
        "W_GROUPS": weight_groups(spec),
        "W_BLOCK": weight_block(spec),
        "W_KIND": KINDS[str(spec.scale)],
        "W_SCALE": NONE if along_k else SCALAR if spec.granularity == "tensor" else VECTOR,
        "SECONDARY": {None: NONE, "tensor": SCALAR, "channel": VECTOR}[spec.secondary],
        "BIAS": args.bias is not None,
        "OUT_COLUMNS": columns,
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
