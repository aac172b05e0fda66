"""The tiles of the stream kernel: which are legal, which are worth a look, what each costs. Imports no Triton."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

from hybrid_humming.device import DeviceInfo
from hybrid_humming.plan import Tile
from hybrid_humming.spec import PackLayout, Problem
from hybrid_humming.triton_kernels.hopper.plan import COUNTERS, ROW, StreamShape, groups_in_row, stream_shape, stream_shared_bytes

STEPS = (128, 256)  # k that a warp may advance at a time
BLOCK_MS = (8, 16, 32, 64)
THREADS = 512  # threads of one SM that `ctas_per_sm` counts on, 128 registers each
RESERVED = 1024  # bytes of shared memory that each resident CTA takes beside its own

# Of the cost model below; fitted to 165 timings on an H200 of int4 g128 (M = 1 to 128) and mxfp4 (one tile a shape), x bf16:
# the root mean square error is 5 %, and in every problem with several timings its choice was the fastest.
START_US = 3.5  # launch, ramp, the last store
MEMORY_SHARE = 1.04  # of the listed DRAM bandwidth
LATENCY_US = 0.68  # between asking for bytes and having them, under load
WARPS_US = 0.485  # for each doubling of the warps that wait for each other
SLICES_US = 0.07  # for each doubling of the slices that are summed
SPLIT_US = 0.086  # for each row that is summed over CTAs
WAVE_US = 0.12  # for each row of x, each further wave
UNIT_NS, UNIT_ROW_NS, UNIT_STEP_NS = 0.33, 0.16, 0.62  # of one SM for 16x16 weights: decoding; each row of x; each 128 k
UNIT_SCALE_NS = 0.024  # beside it, for each row of x and each group that ends in 128 k
IDLE = 0.3  # how much longer an SM takes with half the 8 warps that hide its latencies
L2_US = 0.019  # for each MB that the CTAs read of x
ROUNDNESS = 1.84  # how little the smaller of memory time and SM time adds to the larger


def resident(tile: Tile, problem: Problem, layout: PackLayout, device: DeviceInfo) -> int:
    """Return how many CTAs one SM holds at a time; 0 where not even one fits."""
    need = stream_shared_bytes(tile, problem, layout)
    if need > device.shared_per_block_bytes:
        return 0
    return min(device.shared_per_sm_bytes // (need + RESERVED), max(1, THREADS // (32 * tile.num_warps)))


def check(tile: Tile, problem: Problem, layout: PackLayout, device: DeviceInfo) -> str | None:
    """Return the number that breaks the tile, or None."""
    if tile.block_m not in BLOCK_MS:
        return f"block_m={tile.block_m} must be one of {BLOCK_MS}"
    if tile.block_n not in (16, 32, 64, 128):
        return f"block_n={tile.block_n} must be 16, 32, 64 or 128"
    if tile.num_warps not in (4, 8, 16) or tile.num_warps * 16 < tile.block_n:
        return f"num_warps={tile.num_warps} must be 4, 8 or 16 and at least block_n / 16 = {tile.block_n // 16}"
    slices = tile.num_warps * 16 // tile.block_n
    if tile.block_k not in tuple(slices * step for step in STEPS):
        return f"block_k={tile.block_k} must be {slices * STEPS[0]} or {slices * STEPS[1]}: {slices} slices of K, 128 or 256 k each"
    if tile.num_stages < 2:
        return f"num_stages={tile.num_stages} must be at least 2"
    shape = stream_shape(tile, problem.m, layout, problem.k)
    steps = -(-shape.rows * ROW // tile.block_k)
    if not 1 <= tile.split_k <= steps:
        return f"split_k={tile.split_k} must lie in 1..{steps} (K={problem.k}, block_k={tile.block_k})"
    if tile.split_k > 1 and shape.tiles > COUNTERS:
        return f"split_k={tile.split_k} sums {shape.tiles} tiles over CTAs, at most {COUNTERS} may be"
    if tile.block_m >= 32 and tile.num_warps * tile.ctas_per_sm > 256 // tile.block_m * 2:
        return f"block_m={tile.block_m}: {tile.num_warps} warps x ctas_per_sm={tile.ctas_per_sm} leave too few registers a thread"
    if tile.num_warps * tile.ctas_per_sm * 32 > THREADS or tile.ctas_per_sm < 1:
        return f"ctas_per_sm={tile.ctas_per_sm} of {tile.num_warps} warps must come to at most {THREADS} threads"
    if tile.stream_k or tile.warp_specialize or tile.multicast != 1:
        return "this kernel has no stream_k, warp_specialize or multicast"
    if resident(tile, problem, layout, device) < 1:
        need = stream_shared_bytes(tile, problem, layout)
        return f"needs {need} bytes of shared memory, {device.name} has {device.shared_per_block_bytes} a block"
    if problem.batch_invariant and tile.replace(dependent_launch=False) != invariant_tile(problem, layout, device):
        return f"batch invariance runs every M with one tile, {invariant_tile(problem, layout, device)}"
    return None


def tiles(problem: Problem, layout: PackLayout, device: DeviceInfo) -> Iterator[Tile]:
    """Yield the tiles worth a look, as deep a pipeline as fits."""
    if problem.batch_invariant:
        tile = invariant_tile(problem, layout, device)
        if tile is not None:
            yield tile
        return
    least = min(64, max(8, 1 << (problem.m - 1).bit_length()))
    for block_m in dict.fromkeys((least, max(16, least // 2))):
        yield from _tiles(block_m, problem, layout, device)


def _tiles(block_m: int, problem: Problem, layout: PackLayout, device: DeviceInfo) -> Iterator[Tile]:
    for block_n in (16, 32, 64, 128):
        for num_warps in (4, 8, 16):
            slices = num_warps * 16 // block_n
            if slices < 1:
                continue
            for step in STEPS:
                ctas = min(THREADS // (32 * num_warps), max(1, 512 // block_m // num_warps))
                tile = _deepest(block_m, block_n, step * slices, num_warps, ctas, problem, layout, device)
                for split_k in (1, 2, 4, 8):
                    if tile is None or not _worth_splitting(tile, split_k, problem, layout, device):
                        continue
                    if check(tile.replace(split_k=split_k), problem.replace(batch_invariant=False), layout, device) is None:
                        yield tile.replace(split_k=split_k)


def _deepest(
    block_m: int, block_n: int, block_k: int, num_warps: int, ctas: int, problem: Problem, layout: PackLayout, device: DeviceInfo
) -> Tile | None:
    """The tile with as many stages, up to 8, as `ctas` CTAs a SM leave room for; fewer CTAs where that is under 3."""
    for ctas_per_sm in range(ctas, 0, -1):
        room = min(device.shared_per_block_bytes, device.shared_per_sm_bytes // ctas_per_sm - RESERVED)
        tile = Tile(
            block_m=block_m, block_n=block_n, block_k=block_k, num_warps=num_warps, num_stages=1, ctas_per_sm=ctas_per_sm,
            mma="mma_sync",
        )  # fmt: skip
        stages = room // stream_shared_bytes(tile, problem, layout)
        if stages >= 3:
            return tile.replace(num_stages=min(8, stages))
    return None


def _worth_splitting(tile: Tile, split_k: int, problem: Problem, layout: PackLayout, device: DeviceInfo) -> bool:
    if split_k == 1:
        return True
    shape = stream_shape(tile, problem.m, layout, problem.k)
    return shape.tiles * split_k <= 4 * device.sm_count and split_k * 2 * tile.block_k <= shape.rows * ROW


@functools.lru_cache(maxsize=4096)
def invariant_tile(problem: Problem, layout: PackLayout, device: DeviceInfo) -> Tile | None:
    """Return the one tile that batch invariance runs at every M: the best for 16 rows with K whole. None if none fits."""
    problem = problem.replace(m=16, batch_invariant=False)
    found = [t for t in _tiles(16, problem, layout, device) if t.split_k == 1]
    return min(found, key=lambda t: (cost_us(t, problem, layout, device), str(t)), default=None)


def cost_us(tile: Tile, problem: Problem, layout: PackLayout, device: DeviceInfo) -> float:
    """Return the estimated microseconds: waves of CTAs that share the memory, or SMs that are busy, whichever is longer."""
    shape = stream_shape(tile, problem.m, layout, problem.k)
    held = max(1, resident(tile, problem, layout, device))
    ctas = shape.tiles * tile.split_k
    tiles_m = -(-problem.m // tile.block_m)
    waves = -(-ctas // (held * device.sm_count))
    memory = _memory_us(tile, shape, ctas, held, problem, layout, device) / min(2, tiles_m)
    per_unit = UNIT_NS + UNIT_ROW_NS * tile.block_m + UNIT_STEP_NS * (128 / shape.step - 0.5)
    per_unit += UNIT_SCALE_NS * tile.block_m * groups_in_row(problem.spec)
    warps = tile.num_warps * min(held, -(-ctas // device.sm_count))
    per_unit *= 1.0 + IDLE * max(0.0, 8 / warps - 1.0)
    units = shape.tiles * (tile.block_n / 16) * shape.rows * (ROW / 16)
    imbalance = -(-ctas // device.sm_count) * device.sm_count / ctas
    x_mb = -(-layout.padded_n // tile.block_n) * problem.m * problem.k * 2e-6
    busy = units / device.sm_count * imbalance * per_unit * 1e-3 + x_mb * L2_US
    work = (memory**ROUNDNESS + busy**ROUNDNESS) ** (1 / ROUNDNESS)
    between = WAVE_US * tile.block_m * (waves - 1) / math.sqrt(held)
    split = SPLIT_US * min(problem.m, tile.block_m) * tiles_m if tile.split_k > 1 else 0.0
    return START_US + work + between + split + WARPS_US * math.log2(tile.num_warps) + SLICES_US * math.log2(shape.slices)


def _memory_us(
    tile: Tile, shape: StreamShape, ctas: int, held: int, problem: Problem, layout: PackLayout, device: DeviceInfo
) -> float:
    """Time of the weights' bytes: as fast as the DRAM gives them, or as the bytes that are asked for at a time allow."""
    tiles_m = -(-problem.m // tile.block_m)
    per_cta = problem.spec.weight_bytes(layout.padded_n, layout.padded_k) * tiles_m / ctas
    ahead = (tile.num_stages - 1.5) * (
        stream_shared_bytes(tile, problem, layout) / tile.num_stages - tile.block_m * tile.block_k * 2
    )

    def rate(count: int) -> float:  # bytes a microsecond
        return min(device.dram_gbps * 1e3 * MEMORY_SHARE, count * ahead / LATENCY_US)

    full, rest = divmod(ctas, held * device.sm_count)
    wave = held * device.sm_count
    time = full * wave * per_cta / rate(wave)
    return time + (rest * per_cta / rate(rest) if rest else 0.0)
