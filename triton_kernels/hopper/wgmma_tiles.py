"""What the wgmma kernel can run, how it cuts a problem, and what that costs. Imports no Triton."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hybrid_humming.device import DeviceInfo
from hybrid_humming.dtypes import parse_format
from hybrid_humming.fragment import PLANES
from hybrid_humming.plan import Tile
from hybrid_humming.plan.cost import problem_bytes
from hybrid_humming.spec import PackLayout, Problem, Spec
from hybrid_humming.triton_kernels.hopper.plan import COUNTERS, ROW, group_of, groups_in_row

PRODUCER_WARPS = 4  # the producer is one warp, but warps come and take registers in fours
SHARED_SLACK = 1024  # what the system takes of each CTA's shared memory

# The cost model: share of the tensor cores' rate, microseconds to decode 128 x 128 int4 weights, bytes that a multiprocessor copies
# in a microsecond, how far the three overlap (1 not at all), microseconds for a MB of sums between CTAs, and the kernel's start.
MMA_SHARE, DECODE_US, SM_COPY_BYTES, OVERLAP, SUM_US_MB, START_US = 0.95, 0.195, 79_000, 2.2, 0.51, 2.3
# SASS instructions for 8 weights by width, as tests/compile/test_hopper_decode.py counts them (bf16 operands).
DECODE_INSTRUCTIONS = {1: 10.75, 2: 10.5, 3: 13.0, 4: 11.5, 5: 16.0, 6: 15.75, 7: 19.75, 8: 14.25}

# (block_m, block_n, num_warps, num_stages, ctas_per_sm, stream_k, raster_m)
TILES = (
    (8, 64, 4, 5, 3, True, 0), (16, 64, 4, 4, 4, True, 0), (16, 64, 4, 6, 2, True, 0), (16, 128, 8, 3, 2, True, 0),
    (32, 64, 4, 4, 3, True, 0), (32, 64, 4, 6, 2, True, 0), (32, 128, 8, 4, 2, True, 0), (32, 128, 8, 7, 1, True, 0),
    (64, 64, 4, 5, 2, True, 0), (64, 64, 4, 5, 2, False, 4), (64, 128, 8, 6, 1, True, 0),
    (128, 64, 4, 3, 2, True, 0), (128, 64, 4, 3, 2, False, 4), (128, 64, 4, 5, 1, True, 0),
    (128, 128, 8, 4, 1, True, 0), (128, 128, 8, 4, 1, False, 4), (256, 128, 8, 3, 1, True, 4), (256, 128, 8, 3, 1, False, 4),
)  # fmt: skip


def scales_weights(spec: Spec, block_m: int, batch_invariant: bool = False) -> bool:
    """Return whether scales are multiplied onto the decoded weights, rather than onto the fp32 sums of their groups.

    A lane scales 32 registers of weights or block_m / 2 sums for each group in 128 k, whichever is less work. Scales that may lie
    outside of fp16 stay in fp32. With batch invariance the choice must not depend on block_m.
    """
    groups = groups_in_row(spec)
    if not groups:
        return True  # nothing to scale in the loop
    if spec.activation == "fp16" and spec.scale not in ("fp16", "e4m3", "e5m2"):
        return False
    if groups == 8 or batch_invariant:
        return True
    return block_m * groups > 64


def splits_scale(spec: Spec) -> bool:
    """Return whether a scale on the weights needs a high and a low part of the operand type to round as torch does."""
    return spec.activation == "bf16" and spec.scale in ("fp16", "fp32")


def reject(problem: Problem, layout: PackLayout, device: DeviceInfo) -> str | None:
    """Return why this kernel can't run what the layout holds, or None."""
    spec, groups = problem.spec, groups_in_row(problem.spec)
    if groups == 8 and spec.has_zero_point:
        return "groups of 16 with zero points: a lane would need two of them for one decoding"
    if groups == 8 and not scales_weights(spec, 16):
        return f"groups of 16 with {spec.scale} scales, which fp16 can't hold: their sums would be too short"
    return None


@dataclass(frozen=True, kw_only=True)
class Work:
    """How a grid shares the problem.

    tiles_m, tiles_n  tiles;  steps: of 128 k in each
    shared            tiles that are cut along K;  share: their steps for each CTA
    ctas              programs launched
    """

    tiles_m: int
    tiles_n: int
    steps: int
    shared: int
    share: int
    ctas: int


def work_of(tile: Tile, m: int, layout: PackLayout, sm_count: int) -> Work:
    """Return how `tile` shares a problem of m rows out on a device of `sm_count` multiprocessors."""
    tiles_m, tiles_n = -(-m // tile.block_m), -(-layout.padded_n // tile.block_n)
    steps, tiles, places = -(-layout.padded_k // ROW), tiles_m * tiles_n, sm_count * tile.ctas_per_sm
    shared = tiles % places if tile.stream_k else 0
    share = max(1, -(-shared * steps // places))
    ctas = min(places, tiles) if tiles >= places or not shared else -(-shared * steps // share)
    return Work(tiles_m=tiles_m, tiles_n=tiles_n, steps=steps, shared=shared, share=share, ctas=ctas)


def workspace_bytes(tile: Tile, m: int, layout: PackLayout, sm_count: int) -> int:
    """Return the bytes of fp32 partial tiles: two for each CTA that shares tiles."""
    work = work_of(tile, m, layout, sm_count)
    return 2 * work.ctas * tile.block_m * tile.block_n * 4 if work.shared else 0


def workspace(tile: Tile, problem: Problem, layout: PackLayout, device: DeviceInfo) -> int:
    """Return bytes that are enough for every M that the plan may serve: one plan serves a range of M, and which tiles are shared
    changes with M."""
    return 8 * device.sm_count * tile.ctas_per_sm * tile.block_m * tile.block_n if tile.stream_k else 0


def stage_bytes(tile: Tile, problem: Problem, layout: PackLayout) -> int:
    """Return the bytes that one step brings into shared memory."""
    spec = problem.spec
    words = tile.block_n * tile.block_k * sum(PLANES[parse_format(layout.encoding).bits]) // 8
    values = groups_in_row(spec) * tile.block_n
    scales = values * spec.scale_format.bits // 8
    zeros = 0
    if spec.has_zero_point:
        zeros = values * (8 if spec.zero_point == "int" else parse_format(str(spec.zero_point)).bits) // 8
    return words + 2 * tile.block_m * tile.block_k + scales + zeros


def shared_bytes(tile: Tile, problem: Problem, layout: PackLayout) -> int:
    """Return the bytes of shared memory that the kernel takes, as compiled: slots, two barriers each, the output's way to its order
    in memory, and the roles of the warps."""
    exchange = min(512, 32 * tile.block_m) * tile.num_warps
    gap = 8 if tile.num_stages % 2 else 0  # as the compiler aligns what follows an odd number of barriers
    return tile.num_stages * (stage_bytes(tile, problem, layout) + 16) + exchange + 4 + gap


def registers(tile: Tile) -> int:
    """Return the registers of a thread before the producer hands its own over, for `ctas_per_sm` CTAs to be resident."""
    return min(255, 65536 // (32 * (tile.num_warps + PRODUCER_WARPS) * tile.ctas_per_sm) // 8 * 8)


def check(tile: Tile, problem: Problem, layout: PackLayout, device: DeviceInfo) -> str | None:
    """Return the number that breaks a tile, or None."""
    spec = problem.spec
    if tile.block_m not in (8, 16, 32, 64, 128, 256):
        return f"block_m={tile.block_m} must be 8, 16, 32, 64, 128 or 256"
    if tile.block_n not in (64, 128, 256):
        return f"block_n={tile.block_n} must be 64, 128 or 256"
    if tile.block_k != ROW:
        return f"block_k={tile.block_k} must be {ROW}"
    if tile.num_warps != tile.block_n // 16:
        return f"num_warps={tile.num_warps} must be {tile.block_n // 16}, a warpgroup for 64 rows of W"
    if tile.num_stages < 2:
        return f"num_stages={tile.num_stages} must be at least 2"
    if tile.split_k != 1:
        return f"split_k={tile.split_k}: this kernel shares K with stream_k"
    if tile.stream_k and problem.batch_invariant:
        return "stream_k: batch invariance keeps K whole"
    if not scales_weights(spec, tile.block_m, problem.batch_invariant) and tile.block_m > 128:
        return (
            f"block_m={tile.block_m}: {spec.scale} scales beside {spec.activation} multiply sums, which fit for 128 rows and fewer"
        )
    need = shared_bytes(tile, problem, layout) + SHARED_SLACK
    if need > device.shared_per_block_bytes or need * tile.ctas_per_sm > device.shared_per_sm_bytes:
        return (
            f"needs {need} bytes of shared memory for each of {tile.ctas_per_sm} CTAs, "
            f"{device.name} has {device.shared_per_block_bytes} a block and {device.shared_per_sm_bytes} a multiprocessor"
        )
    work = work_of(tile, problem.m, layout, device.sm_count)
    if work.shared > COUNTERS:
        return f"{work.shared} tiles share K; at most {COUNTERS} may"
    return None


def tiles(problem: Problem, layout: PackLayout, device: DeviceInfo) -> Iterator[Tile]:
    """Yield the tiles worth trying, all legal; stages are as many as fit."""
    for block_m, block_n, warps, stages, ctas, stream_k, raster_m in TILES:
        if block_m >= 2 * max(16, problem.m):
            continue
        tile = Tile(
            block_m=block_m, block_n=block_n, block_k=ROW, num_warps=warps, num_stages=stages, ctas_per_sm=ctas, stream_k=stream_k,
            raster_m=raster_m, warp_specialize=True, mma="wgmma", tma_w=True, tma_x=True, tma_scale=bool(group_of(problem.spec)),
        )  # fmt: skip
        while tile.num_stages > 2 and check(tile, problem, layout, device):
            tile = tile.replace(num_stages=tile.num_stages - 1)
        if check(tile, problem, layout, device) is None:
            yield tile


def cost_us(tile: Tile, problem: Problem, layout: PackLayout, device: DeviceInfo) -> float:
    """Return the estimated microseconds.

    A step's product, decoding and copies overlap in part, as a power mean says; tiles that share K pay for the sums' way through
    memory. Constants: fitted to 24 times of the prototype of this structure on an H200 (int4 g128, M = 1 to 8192, three shapes),
    root mean square error 7 %.
    """
    work = work_of(tile, problem.m, layout, device.sm_count)
    whole = -(-(work.tiles_m * work.tiles_n - work.shared) // work.ctas) * work.steps
    busy = whole + (work.share if work.shared else 0)
    held = min(tile.ctas_per_sm, -(-work.ctas // device.sm_count))
    flops = 2.0 * tile.block_m * tile.block_n * ROW
    product = flops / (MMA_SHARE * device.rate(problem.spec.activation) / device.sm_count * 1e6)
    decode = DECODE_US * tile.block_n / 128 * _decode_share(tile, problem, layout)
    copies = stage_bytes(tile, problem, layout) / SM_COPY_BYTES
    step_us = held * (product**OVERLAP + decode**OVERLAP + copies**OVERLAP) ** (1 / OVERLAP)
    memory_us = problem_bytes(problem) / (0.8 * device.dram_gbps) * 1e-3
    sums_us = SUM_US_MB * 2e-6 * work.ctas * tile.block_m * tile.block_n * 4 if work.shared else 0.0
    return float(((busy * step_us) ** 6 + memory_us**6) ** (1 / 6) + sums_us + START_US + device.launch_us)


def _decode_share(tile: Tile, problem: Problem, layout: PackLayout) -> float:
    """Instructions of a step beside those of int4 g128 on 128 rows or more of x: decoding, and a scale for each weight or sum."""
    groups = groups_in_row(problem.spec)
    decode = DECODE_INSTRUCTIONS.get(parse_format(layout.encoding).bits, 14.0)
    if scales_weights(problem.spec, tile.block_m, problem.batch_invariant):
        scale = 4.0 * (3 if splits_scale(problem.spec) else 1) if groups else 0.0
    else:
        scale = groups * tile.block_m / 2 / 8  # a lane's sums, for the 64 weights that it decodes
    return (decode + scale) / (DECODE_INSTRUCTIONS[4] + 4.0)


def multiplies(problem: Problem, device: DeviceInfo) -> str:
    """Return the format of the operands."""
    return problem.spec.activation
