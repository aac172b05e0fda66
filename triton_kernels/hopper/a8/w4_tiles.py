"""What the W4A8 kernel can run, how it cuts a problem, and what that costs. Imports no Triton."""

from __future__ import annotations

from collections.abc import Iterator

from hybrid_humming.device import DeviceInfo
from hybrid_humming.dtypes import parse_format
from hybrid_humming.errors import FormatError
from hybrid_humming.fragment import PLANES
from hybrid_humming.fragment.eight import byte_recipe
from hybrid_humming.plan import Tile
from hybrid_humming.plan.cost import problem_bytes
from hybrid_humming.spec import PackLayout, Problem, Spec
from hybrid_humming.triton_kernels.hopper.a8.tiles import GROUPS, reject_pair, split, x_groups
from hybrid_humming.triton_kernels.hopper.plan import COUNTERS, ROW, group_of, groups_in_row
from hybrid_humming.triton_kernels.hopper.wgmma_tiles import SHARED_SLACK, registers, workspace

__all__ = [
    "check", "cost_us", "groups_of", "keeps_sum", "multiplies", "operand_of", "registers", "reject", "reject_spec", "shared_bytes",
    "tiles", "workspace",
]  # fmt: skip

ACTIVATIONS = ("e4m3", "e5m2", "int8")

# (block_m, block_n, num_warps, num_stages, ctas_per_sm, stream_k, raster_m, multicast)
TILES = (
    (8, 64, 4, 6, 4, True, 0, 1), (16, 64, 4, 6, 4, True, 0, 1), (16, 128, 8, 5, 2, True, 0, 1), (32, 64, 4, 6, 3, True, 0, 1),
    (64, 64, 4, 6, 2, True, 0, 1), (64, 128, 8, 8, 1, True, 0, 1), (128, 64, 4, 5, 2, False, 0, 1), (128, 128, 8, 6, 1, True, 0, 1),
    (128, 128, 8, 6, 1, False, 4, 1), (128, 64, 4, 5, 2, False, 4, 1),
    (128, 128, 8, 6, 1, False, 4, 2), (64, 128, 8, 8, 1, False, 8, 2),
)  # fmt: skip


def operand_of(spec: Spec) -> str:
    """Return the operand type that weights become beside the spec's activations."""
    return "int8" if spec.activation == "int8" else "e4m3"


def keeps_sum(problem: Problem) -> bool:
    """Return whether the tensor core sums all of K: no scale varies along K, and it is exact or fast_accumulation asked for."""
    if groups_in_row(problem.spec) or x_groups(problem.spec):
        return False
    return problem.spec.activation == "int8" or problem.fast_accumulation


def groups_of(problem: Problem, layout: PackLayout) -> int:
    """Return the partial sums that 128 k make, each with scales of its own; exponents that are folded in need none."""
    return max(1, 0 if layout.folded else groups_in_row(problem.spec), x_groups(problem.spec))


def reject_spec(spec: Spec) -> str | None:
    """Return why this kernel can't multiply what the spec says, whatever the GPU; None where it can."""
    if spec.activation not in ACTIVATIONS:
        return f"multiplies {', '.join(ACTIVATIONS)} activations, not {spec.activation}"
    if spec.activation_group_size and spec.activation_group_size not in GROUPS:
        return f"scales of x span {spec.activation_group_size} along K; the kernel takes 32, 64 and 128"
    if spec.activation_secondary:
        return "takes no second scale of x"
    if spec.has_zero_point and spec.zero_point != "int":
        return f"subtracts whole zero points; {spec.zero_point} ones need 16-bit activations"
    if spec.has_zero_point and spec.granularity == "tensor":
        return "a zero point must belong to a group or a channel, not to the whole tensor"
    group = group_of(spec)
    if group and group not in (16, 32, 64) and group % ROW:
        return f"scales along K span {group} weights; the layout holds 16, 32, 64 and multiples of {ROW}"
    if spec.has_zero_point and group == 16:
        return "groups of 16 with zero points: a lane would need two of them for one decoding"
    try:
        byte_recipe(spec.weight, operand_of(spec))
    except FormatError as error:
        return str(error)
    return None


def reject(problem: Problem, layout: PackLayout, device: DeviceInfo) -> str | None:
    """Return why this kernel can't run what the layout holds, or None."""
    return reject_spec(problem.spec)


def stage_bytes(tile: Tile, problem: Problem, layout: PackLayout) -> int:
    """Return the bytes that one step brings into shared memory."""
    spec = problem.spec
    words = tile.block_n * tile.block_k * sum(PLANES[parse_format(layout.encoding).bits]) // 8
    values = groups_in_row(spec) * tile.block_n
    return words + tile.block_m * tile.block_k + values * (spec.scale_format.bits // 8 + (1 if spec.has_zero_point else 0))


def shared_bytes(tile: Tile, problem: Problem, layout: PackLayout) -> int:
    """Return the bytes of shared memory that the kernel takes, as compiled: slots, two barriers each, the output's way to its order
    in memory, and the roles of the warps."""
    out = tile.block_m * tile.block_n * parse_format(str(problem.spec.out_dtype)).bits // 8
    exchange = min(512 * tile.num_warps, out)
    gap = 8 if tile.num_stages % 2 else 0  # as the compiler aligns what follows an odd number of barriers
    return tile.num_stages * (stage_bytes(tile, problem, layout) + 16) + exchange + 4 + gap


def check(tile: Tile, problem: Problem, layout: PackLayout, device: DeviceInfo) -> str | None:
    """Return the number that breaks a tile, or None."""
    parts = max(1, groups_of(problem, layout) // 2)
    if tile.block_m not in (8, 16, 32, 64, 128):
        return f"block_m={tile.block_m} must be 8, 16, 32, 64 or 128"
    if tile.block_n not in (64, 128):
        return f"block_n={tile.block_n} must be 64 or 128"
    if tile.block_k != ROW:
        return f"block_k={tile.block_k} must be {ROW}"
    if tile.num_warps != tile.block_n // 16:
        return f"num_warps={tile.num_warps} must be {tile.block_n // 16}, a warpgroup for 64 rows of W"
    if parts > 1 and tile.block_m * parts > 128:
        return (
            f"block_m={tile.block_m}: {2 * parts} scales in {ROW} k need {parts} sums at a time, which fit for {128 // parts} rows"
        )
    if why := reject_pair(tile):
        return why
    if x_groups(problem.spec) and tile.block_m > 64:
        return f"block_m={tile.block_m}: scales of x that vary along K take a register for four rows, which fit for 64"
    if tile.num_stages < 2:
        return f"num_stages={tile.num_stages} must be at least 2"
    if tile.split_k != 1:
        return f"split_k={tile.split_k}: this kernel shares K with stream_k"
    if tile.stream_k and problem.batch_invariant:
        return "stream_k: batch invariance keeps K whole"
    need = shared_bytes(tile, problem, layout) + SHARED_SLACK
    if need > device.shared_per_block_bytes or need * tile.ctas_per_sm > device.shared_per_sm_bytes:
        return (
            f"needs {need} bytes of shared memory for each of {tile.ctas_per_sm} CTAs, "
            f"{device.name} has {device.shared_per_block_bytes} a block and {device.shared_per_sm_bytes} a multiprocessor"
        )
    shared = split(tile, problem.m, layout, device.sm_count).shared
    if shared > COUNTERS:
        return f"{shared} tiles share K; at most {COUNTERS} may"
    return None


def tiles(problem: Problem, layout: PackLayout, device: DeviceInfo) -> Iterator[Tile]:
    """Yield the tiles worth trying, all legal; stages are as many as fit."""
    for block_m, block_n, warps, stages, ctas, stream_k, raster_m, multicast in TILES:
        if block_m >= 2 * max(8, problem.m):
            continue
        tile = Tile(
            block_m=block_m, block_n=block_n, block_k=ROW, num_warps=warps, num_stages=stages, ctas_per_sm=ctas, stream_k=stream_k,
            raster_m=raster_m, warp_specialize=True, mma="wgmma", tma_w=True, tma_x=True, tma_scale=bool(group_of(problem.spec)),
            multicast=multicast,
        )  # fmt: skip
        while tile.num_stages > 2 and check(tile, problem, layout, device):
            tile = tile.replace(num_stages=tile.num_stages - 1)
        if check(tile, problem, layout, device) is None:
            yield tile


def cost_us(tile: Tile, problem: Problem, layout: PackLayout, device: DeviceInfo) -> float:
    """Return the estimated microseconds: the slowest CTA's arithmetic or traffic, or the memory's time, plus what sharing costs."""
    work = split(tile, problem.m, layout, device.sm_count)
    whole = -(-(work.tiles_m * work.tiles_n * tile.multicast - work.shared) // work.ctas) * work.steps
    busy = whole + (work.share if work.shared else 0)
    flops = 2.0 * tile.block_m * tile.block_n * ROW * tile.ctas_per_sm
    # Prototype, H200: 0.65 of the peak rate; decoding takes about 0.1 us a step of 128 rows; 43 bytes/ns from L2 into each SM.
    math_us = flops / (0.65 * device.rate(problem.spec.activation) / device.sm_count * 1e6)
    decode_us = 0.0008 * tile.block_n * tile.ctas_per_sm
    saved = tile.block_m * ROW * (1 - 1 / tile.multicast)
    traffic_us = (stage_bytes(tile, problem, layout) - saved) * tile.ctas_per_sm / 43.0 * 1e-3
    memory_us = problem_bytes(problem) / (0.8 * device.dram_gbps) * 1e-3
    shared_us = 2.0 + 8.0 * work.ctas * tile.block_m * tile.block_n / (0.5 * device.dram_gbps) * 1e-3 if work.shared else 0.0
    return max(busy * max(math_us, decode_us, traffic_us), memory_us) + shared_us + device.launch_us + 2.0


def multiplies(problem: Problem, device: DeviceInfo) -> str:
    """Return the format of the operands."""
    return problem.spec.activation
