"""W-A16 GEMM for many rows: y = x @ dequantize(W).T, weights decoded in registers, x from shared memory.

    x        [M, K]          bf16 | fp16, unit stride along K, 16-byte aligned rows
    w        planes of int32 words in fragment order (hybrid_humming/pack/hopper.py)
    scale    as hybrid_humming/pack/hopper_scale.py lays it out; zero_point likewise
    partial  [2 CTAs, BLOCK_N * BLOCK_M] fp32, count [tiles] int32 zeros: only when tiles are shared (stream-K)
    out      [M, N]          unit stride along N

The product is transposed: W is wgmma's 64-row operand, from registers, and M tokens are its columns, so that any M costs no more
than its next multiple of 8 and the weights need no way back through shared memory. One producer warp asks TMA for steps of
128 k; one warpgroup for each 64 rows of W decodes and multiplies. CTAs are persistent; how they share the tiles is said in
segments.py.

Numerics. Weights are exact in the operand type. A scale that varies along K multiplies the fp32 sum of its group (few rows), or
the weight, rounded once, as torch rounds it (many rows); other scales multiply the sum at the end. Sums are fp32 in a fixed
order, y is rounded once.
"""

import functools
from typing import NamedTuple

import torch

from hybrid_humming.device import DeviceInfo
from hybrid_humming.dtypes import parse_format
from hybrid_humming.errors import PlanError
from hybrid_humming.fragment import PLANES
from hybrid_humming.jit.args import GemmArgs
from hybrid_humming.jit.launch import launch_triton
from hybrid_humming.plan import Plan, Tile
from hybrid_humming.spec import PackLayout
from hybrid_humming.triton_kernels.hopper.consumer import sum_scaled_groups, sum_scaled_partials, sum_scaled_weights
from hybrid_humming.triton_kernels.hopper.decode.tile import dtype_of, planes_of
from hybrid_humming.triton_kernels.hopper.epilogue import NONE, SCALAR, VECTOR, finish, store_layout
from hybrid_humming.triton_kernels.hopper.gluon import (
    fence_async_shared,
    gdc_launch_dependents,
    gdc_wait,
    gl,
    gluon,
    mbarrier,
)
from hybrid_humming.triton_kernels.hopper.host import aligned_rows, as_bytes, counters, decoder_of
from hybrid_humming.triton_kernels.hopper.plan import ROW, group_of, groups_in_row
from hybrid_humming.triton_kernels.hopper.producer import produce
from hybrid_humming.triton_kernels.hopper.scale import KINDS
from hybrid_humming.triton_kernels.hopper.segments import count_segments, segment, sum_shared, tile_at
from hybrid_humming.triton_kernels.hopper.wgmma_tiles import registers, scales_weights, splits_scale, work_of

PRODUCER_REGISTERS = gl.constexpr(24)


@gluon.constexpr_function
def constant_of(decoder):
    """Power of two by which the decoded values are still to be multiplied."""
    return decoder.post_scale


@gluon.constexpr_function
def words_wide(plane):
    """Words in a row of a TMA box of a plane: at most 256."""
    return 128 if plane == 1 else 256


@gluon.constexpr_function
def words_runs(plane, block_k):
    """Rows of that box for 64 rows of W."""
    return block_k // 64 * plane * 128 // (128 if plane == 1 else 256)


@gluon.constexpr_function
def accumulator_layout(warps, block_m):
    """Registers of [16 warps, block_m]."""
    return gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, block_m, 16])


@gluon.jit
def consume(
    scale_ptr, secondary_ptr, bias_ptr, out_ptr, partial_ptr, count_ptr, xb, buffers, full, empty,
    M, N, tiles_m, tiles_n, steps, shared, share, stride_om, dealt, segments,
    DECODER: gl.constexpr, J: gl.constexpr, KIND: gl.constexpr, ZERO: gl.constexpr, ON_WEIGHTS: gl.constexpr,
    SPLIT: gl.constexpr, SCALE: gl.constexpr, SECONDARY: gl.constexpr, BIAS: gl.constexpr, BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr, STREAM_K: gl.constexpr, RASTER_M: gl.constexpr, DEPENDENT: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    """Sum and store segment after segment."""
    ACC: gl.constexpr = accumulator_layout(WARPS, BLOCK_M)
    WG: gl.constexpr = WARPS // 4
    CONSTANT: gl.constexpr = constant_of(DECODER)
    slot = 0
    phase = 0
    for i in range(segments):
        tile, begin, end = segment(i, dealt, steps, shared, share)
        if ON_WEIGHTS:
            acc, slot, phase = sum_scaled_weights(slot, phase, begin, end, xb, buffers, full, empty,
                                                  DECODER, J, KIND, ZERO, SPLIT, BLOCK_M, BLOCK_N, STAGES, WG, ACC)  # fmt: skip
        elif J == 1:
            acc, slot, phase = sum_scaled_partials(slot, phase, begin, end, xb, buffers, full, empty,
                                                   DECODER, J, KIND, ZERO, BLOCK_M, BLOCK_N, STAGES, WG, ACC)  # fmt: skip
        else:
            acc, slot, phase = sum_scaled_groups(slot, phase, begin, end, xb, buffers, full, empty,
                                                 DECODER, J, KIND, ZERO, BLOCK_M, BLOCK_N, STAGES, WG, ACC)  # fmt: skip
        if DEPENDENT:
            gdc_wait()
        has_sum = True
        if STREAM_K:
            if end - begin < steps:
                has_sum, acc = sum_shared(acc, partial_ptr, count_ptr, tile, steps, share, BLOCK_N, BLOCK_M, ACC)
        if has_sum:
            m, n = tile_at(tile, tiles_m, tiles_n, RASTER_M)
            rows = n * BLOCK_N + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, ACC))
            y = finish(acc, rows, N, scale_ptr, secondary_ptr, bias_ptr, SCALE, KIND, SECONDARY, CONSTANT, BIAS)
            store_tile(out_ptr, y, m * BLOCK_M, n * BLOCK_N, M, N, stride_om, BLOCK_M, BLOCK_N, WARPS)


@gluon.jit
def store_tile(out_ptr, y, m0, n0, M, N, stride_om, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, WARPS: gl.constexpr):
    """Round once and store what lies inside [M, N]."""
    OUT: gl.constexpr = store_layout(BLOCK_N, WARPS)
    y = gl.convert_layout(y.to(out_ptr.dtype.element_ty), OUT)
    n = n0 + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, OUT))
    m = m0 + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(0, OUT))
    offset = m.to(gl.int64)[None, :] * stride_om + n[:, None]
    gl.store(out_ptr + offset, y, mask=(n < N)[:, None] & (m < M)[None, :])


@gluon.jit(do_not_specialize=["M", "N", "tiles_m", "tiles_n", "steps", "shared", "share"])
def wgmma_kernel(
    x_desc, w0_desc, w1_desc, w2_desc, scale_desc, zero_desc,
    scale_ptr, secondary_ptr, bias_ptr, out_ptr, partial_ptr, count_ptr,
    M, N, tiles_m, tiles_n, steps, shared, share, stride_om,
    DECODER: gl.constexpr, GROUP: gl.constexpr, J: gl.constexpr, KIND: gl.constexpr, ZERO: gl.constexpr,
    ON_WEIGHTS: gl.constexpr, SPLIT: gl.constexpr, SCALE: gl.constexpr, SECONDARY: gl.constexpr, BIAS: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr, STREAM_K: gl.constexpr,
    RASTER_M: gl.constexpr, DEPENDENT: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """See the module's head. GROUP is 0 where no scale varies along K, J the scales of a row in BLOCK_K."""
    PLANES: gl.constexpr = planes_of(DECODER)
    DTYPE: gl.constexpr = dtype_of(DECODER)
    SERVED: gl.constexpr = served_by(GROUP, BLOCK_K)
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
    xb = gl.allocate_shared_memory(DTYPE, [STAGES, BLOCK_M, BLOCK_K], x_desc.layout)
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
        mbarrier.init(empty.index(i), count=1)
    fence_async_shared()
    BYTES: gl.constexpr = step_bytes(DECODER, J, ZERO, BLOCK_M, BLOCK_N, BLOCK_K, sb.dtype, zb.dtype)
    dealt, segments = count_segments(tiles_m * tiles_n, steps, shared, share)
    gl.warp_specialize(
        [
            (consume, (scale_ptr, secondary_ptr, bias_ptr, out_ptr, partial_ptr, count_ptr, xb, buffers, full, empty,
                       M, N, tiles_m, tiles_n, steps, shared, share, stride_om, dealt, segments,
                       DECODER, J, KIND, ZERO, ON_WEIGHTS, SPLIT, SCALE, SECONDARY, BIAS,
                       BLOCK_M, BLOCK_N, STAGES, STREAM_K, RASTER_M, DEPENDENT, WARPS)),
            (produce, (x_desc, descriptors, xb, buffers, full, empty, tiles_m, tiles_n, steps, shared, share, dealt, segments,
                       J, SERVED, ZERO, PLANES, BLOCK_M, BLOCK_K, STAGES, RASTER_M, BYTES, DEPENDENT)),
        ],
        [1],
        [PRODUCER_REGISTERS],
    )  # fmt: skip


@gluon.constexpr_function
def served_by(group, block_k):
    """Steps of K that one row of scales serves."""
    return max(1, group // block_k)


@gluon.constexpr_function
def step_bytes(decoder, groups, zero, block_m, block_n, block_k, scale_type, zero_type):
    """Bytes that the boxes of one step bring."""
    total = block_n * block_k * sum(decoder.planes) // 8 + 2 * block_m * block_k
    total += groups * block_n * scale_type.primitive_bitwidth // 8
    return total + (groups * block_n * zero_type.primitive_bitwidth // 8 if zero else 0)


# ---- host ----
def launch(args: GemmArgs, plan: Plan) -> None:
    """Run the wgmma kernel as `plan` says."""
    tile, layout = plan.tile, args.layout
    work = work_of(tile, args.x.shape[0], layout, DeviceInfo.of(args.out.device).sm_count)
    if work.shared and args.workspace is None:
        raise PlanError(f"{work.shared} tiles share K, but the plan brought no workspace; plan it with workspace_bytes")
    constants = args.memo.get("wgmma_constants")
    if constants is None:
        constants = args.memo["wgmma_constants"] = constants_of(args, tile)
    x = aligned_rows(args.x)
    none = args.out  # stands for what is absent and never read
    counts = counters(args.out.device, work.shared) if tile.stream_k else none
    launch_triton(
        wgmma_kernel,
        (work.ctas, 1, 1),
        *descriptors_of(args, x, tile),
        as_bytes(args.scale),
        none if args.secondary_scale is None else args.secondary_scale,
        none if args.bias is None else args.bias,
        args.out,
        none if args.workspace is None else args.workspace.view(torch.float32),
        counts,
        args.x.shape[0], layout.n, work.tiles_m, work.tiles_n, work.steps, work.shared, work.share, args.out.stride(0),
        num_warps=tile.num_warps,
        constants=constants,
        options={"maxnreg": registers(tile)} | ({"launch_pdl": True} if tile.dependent_launch else {}),
        memo=args.memo,
    )  # fmt: skip


class Address(NamedTuple):
    """What a TMA descriptor needs to know of a tensor, without holding its memory."""

    pointer: int
    dtype: torch.dtype

    def data_ptr(self) -> int:
        return self.pointer


@functools.lru_cache(maxsize=4096)
def descriptor(
    pointer: int, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...], swizzled: bool
) -> object:
    """Return the TMA descriptor of what lies at `pointer`: a weight's is made once, not at each call."""
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    if swizzled:
        element = {1: gl.int8, 2: gl.bfloat16, 4: gl.float32}[dtype.itemsize]
        shared = gl.NVMMASharedLayout.get_default_for(list(box), element)
    else:
        shared = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=8 * dtype.itemsize, rank=len(box))
    return TensorDescriptor(Address(pointer, dtype), list(shape), list(strides), list(box), shared)


def described(tensor: torch.Tensor, box: list[int], swizzled: bool = False) -> object:
    """Return the TMA descriptor of a tensor, in boxes of `box`."""
    return descriptor(tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), tuple(box), swizzled)


def descriptors_of(args: GemmArgs, x: torch.Tensor, tile: Tile) -> tuple[object, ...]:
    """TMA descriptors of x, the planes of W, scales and zero points; None where there is none."""
    # What lies at the same addresses in the same layout has the same descriptors, whichever weight it is.
    zeros = args.zero_point
    key = ("wgmma_weight", args.qweight.data_ptr(), args.scale.data_ptr(), 0 if zeros is None else zeros.data_ptr())
    of_weight: tuple[object, ...] | None = args.memo.get(key)
    if of_weight is None:
        of_weight = args.memo[key] = _descriptors_of_weight(args, tile)
    return (described(x, [tile.block_m // tile.multicast, ROW], swizzled=True), *of_weight)


def _descriptors_of_weight(args: GemmArgs, tile: Tile) -> tuple[object, ...]:
    planes = planes_of_weight(args.qweight, args.layout)
    found: list[object] = [
        described(p, [tile.block_n // 64, ROW // 64 * p.shape[1] // (args.layout.padded_k // 64), p.shape[2]]) for p in planes
    ]
    found += [None] * (3 - len(planes))
    groups = groups_in_row(args.problem.spec)
    for values in (args.scale if groups else None, args.zero_point):
        if values is None:
            found.append(None)
        else:
            runs = as_bytes(values).view(values.shape[0], -1, 64)
            found.append(described(runs, [1, tile.block_n * groups // 64, 64]))
    return tuple(found)


def planes_of_weight(qweight: torch.Tensor, layout: PackLayout) -> list[torch.Tensor]:
    """Each plane as [padded_n / 64, runs, 256 words | 128 for a plane of one bit]: a TMA box is at most 256 wide."""
    rows, blocks, found = 0, layout.padded_n // 64 * (layout.padded_k // 64), []
    for p in PLANES[parse_format(layout.encoding).bits]:
        plane = qweight[rows : rows + blocks * p]
        rows += blocks * p
        found.append(plane.view(layout.padded_n // 64, -1, 128 if p == 1 else 256))
    return found


def constants_of(args: GemmArgs, tile: Tile) -> dict[str, object]:
    """The kernel's constants, in the order of its parameters."""
    spec, problem = args.problem.spec, args.problem
    group = group_of(spec)
    return {
        "DECODER": decoder_of(spec, args.layout),
        "GROUP": group,
        "J": groups_in_row(spec),
        "KIND": KINDS[str(spec.scale)],
        "ZERO": spec.has_zero_point,
        "ON_WEIGHTS": scales_weights(spec, tile.block_m, problem.batch_invariant),
        "SPLIT": splits_scale(spec),
        "SCALE": NONE if group else SCALAR if spec.granularity == "tensor" else VECTOR,
        "SECONDARY": {None: NONE, "tensor": SCALAR, "channel": VECTOR}[spec.secondary],
        "BIAS": args.bias is not None,
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_K": tile.block_k,
        "STAGES": tile.num_stages,
        "STREAM_K": tile.stream_k,
        "RASTER_M": tile.raster_m,
        "DEPENDENT": tile.dependent_launch,
        "WARPS": tile.num_warps,
    }
