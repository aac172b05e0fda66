"""What the W8A8 kernel can run, how it cuts a problem, and what that costs. Imports no Triton."""

from __future__ import annotations

from collections.abc import Iterator

from hybrid_humming.device import DeviceInfo
from hybrid_humming.dtypes import parse_format
from hybrid_humming.plan import Tile
from hybrid_humming.plan.cost import problem_bytes
from hybrid_humming.spec import PackLayout, Problem, Spec
from hybrid_humming.triton_kernels.hopper.plan import COUNTERS, ROW
from hybrid_humming.triton_kernels.hopper.wgmma_tiles import PRODUCER_WARPS, SHARED_SLACK, Work, registers, work_of

__all__ = [
    "check", "cost_us", "out_columns", "parts_of", "promotes", "registers", "reject", "reject_pair", "reject_spec", "shared_bytes",
    "split", "tiles", "waves_of", "weight_block", "weight_groups", "workspace", "x_groups", "x_is_rows",
]  # fmt: skip

PRODUCER_REGISTERS = 24
ROWS_FIRST = 128  # x is wgmma's 64-row operand from this block_m on
PAIRS = (("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3"), ("e5m2", "e5m2"), ("int8", "int8"))
GROUPS = (32, 64, 128)

# (block_m, block_n, num_warps, num_stages, ctas_per_sm, stream_k, raster_m, multicast)
TILES = (
    (16, 64, 4, 12, 2, True, 0, 1), (16, 128, 8, 12, 1, True, 0, 1), (32, 64, 4, 10, 2, True, 0, 1), (64, 64, 4, 6, 2, True, 0, 1),
    (64, 128, 8, 8, 1, True, 0, 1), (128, 64, 8, 4, 2, True, 0, 1), (128, 128, 8, 6, 1, True, 0, 1),
    (128, 128, 8, 6, 1, False, 8, 1), (128, 256, 8, 4, 1, True, 8, 1), (128, 256, 8, 4, 1, False, 8, 1),
    (256, 128, 8, 4, 1, False, 8, 1), (256, 128, 8, 4, 1, False, 8, 2), (128, 256, 8, 4, 1, False, 8, 2),
    (128, 128, 8, 6, 1, False, 8, 2),
)  # fmt: skip


# ---- scales that vary along K ----
def x_groups(spec: Spec) -> int:
    """Return the scales that a row of x has in 128 k; 0 where none varies along K."""
    return ROW // spec.activation_group_size if spec.activation_group_size else 0


def weight_groups(spec: Spec) -> int:
    """Return the scales that a row of W has in 128 k, where each row has its own; 0 where none varies along K."""
    return ROW // spec.group_size if spec.granularity == "group" and spec.group_size else 0


def weight_block(spec: Spec) -> int:
    """Return the rows of W that share a block's scale; 0 where there are no blocks."""
    return spec.block[0] if spec.granularity == "block" and spec.block else 0


def parts_of(spec: Spec) -> int:
    """Return the partial sums that 128 k make."""
    return max(1, x_groups(spec), weight_groups(spec))


def reject_spec(spec: Spec) -> str | None:
    """Return why this kernel can't multiply what the spec says, whatever the GPU; None where it can."""
    if (spec.weight, spec.activation) not in PAIRS:
        pairs = ", ".join(f"{w} x {a}" for w, a in PAIRS)
        return f"multiplies 8-bit weights by 8-bit activations ({pairs}), not {spec.weight} x {spec.activation}"
    if spec.has_zero_point:
        return "takes no zero points"
    if spec.granularity == "group" and spec.group_size not in GROUPS:
        return f"scales of W span {spec.group_size} weights along K; the kernel takes 32, 64 and 128"
    if spec.block and (spec.block[0] % 128 or spec.block[1] != ROW):
        return f"blocks of {spec.block}: a tile of 128 rows and {ROW} k must lie inside one"
    if spec.activation_group_size and spec.activation_group_size not in GROUPS:
        return f"scales of x span {spec.activation_group_size} along K; the kernel takes 32, 64 and 128"
    if spec.activation_secondary:
        return "takes no second scale of x"
    return None


def reject(problem: Problem, layout: PackLayout, device: DeviceInfo) -> str | None:
    """Return why this kernel can't run what the layout holds, or None."""
    return reject_spec(problem.spec)


# ---- what follows from a tile ----
def x_is_rows(tile: Tile) -> bool:
    """Return whether x, rather than W, is the operand of 64 rows."""
    return tile.block_m >= ROWS_FIRST


def promotes(problem: Problem) -> bool:
    """Return whether fp32 takes over from the tensor core within K."""
    spec = problem.spec
    if x_groups(spec) or weight_groups(spec) or weight_block(spec):
        return True
    return spec.activation != "int8" and not problem.fast_accumulation


def waves_of(tile: Tile, problem: Problem) -> int:
    """Return into how many blocks of rows a tile is cut that are multiplied one after the other."""
    rows = tile.block_m if x_is_rows(tile) else tile.block_n
    return rows // (16 * tile.num_warps)


def out_columns(tile: Tile, problem: Problem) -> int:
    """Return the columns of y that leave through shared memory at a time; 0 where y is stored from registers."""
    if not x_is_rows(tile):
        return 0
    return min(tile.block_n, 128 if problem.spec.out_dtype != "fp32" else 64)


def reject_pair(tile: Tile) -> str | None:
    """Return why CTAs of this tile can't work in pairs that share x, or None."""
    if tile.multicast not in (1, 2):
        return f"multicast={tile.multicast} must be 1, or 2 for pairs of CTAs that share x"
    if tile.multicast == 2 and (tile.stream_k or tile.dependent_launch or tile.ctas_per_sm > 1 or tile.block_m < 64):
        return "multicast=2 is for whole tiles of at least 64 rows, one CTA a multiprocessor, without stream_k or dependent_launch"
    return None


def split(tile: Tile, m: int, layout: PackLayout, sm_count: int) -> Work:
    """Return how `tile` shares a problem of m rows out; tiles_n counts pairs where CTAs work in pairs."""
    if tile.multicast == 1:
        return work_of(tile, m, layout, sm_count)
    tiles_m, pairs = -(-m // tile.block_m), -(-layout.padded_n // (2 * tile.block_n))
    ctas = 2 * min(sm_count // 2, tiles_m * pairs)
    return Work(tiles_m=tiles_m, tiles_n=pairs, steps=-(-layout.padded_k // ROW), shared=0, share=1, ctas=ctas)


def workspace(tile: Tile, problem: Problem, layout: PackLayout, device: DeviceInfo) -> int:
    """Return bytes of partial tiles that are enough for every M that the plan may serve."""
    return 8 * device.sm_count * tile.ctas_per_sm * tile.block_m * tile.block_n if tile.stream_k else 0


def consumer_registers(tile: Tile) -> int:
    """Return the registers of a thread that multiplies, once the producer has handed its own over."""
    threads = 32 * tile.num_warps
    return min(
        255, (registers(tile) * (threads + 32 * PRODUCER_WARPS) - PRODUCER_REGISTERS * 32 * PRODUCER_WARPS) // threads // 8 * 8
    )


def thread_registers(tile: Tile, problem: Problem) -> int:
    """Return about how many registers a thread needs: sums, partial sums, scales beside the columns, and the rest."""
    spec, waves = problem.spec, waves_of(tile, problem)
    columns = tile.block_n if x_is_rows(tile) else tile.block_m
    sums = waves * columns // 2 + (columns // 2 if promotes(problem) else 0)
    beside = weight_groups(spec) if x_is_rows(tile) else x_groups(spec)
    # Two steps' scales of one sum, or those of every sum of a step, which the compiler loads together.
    scales = columns // 4 * max(parts_of(spec), 1 if x_is_rows(tile) else 2) if beside else 0
    return sums + scales + (36 if parts_of(spec) == 1 else 60)


def shared_bytes(tile: Tile, problem: Problem) -> int:
    """Return the bytes of shared memory that the kernel takes, as compiled: slots, two barriers each, y on its way out, what
    the producer is told, and the roles of the warps."""
    width = parse_format(str(problem.spec.out_dtype)).bits // 8
    out = tile.block_m // waves_of(tile, problem) * out_columns(tile, problem) * width
    exchange = 144 - 16 * tile.multicast if out else min(512 * tile.num_warps, tile.block_m * tile.block_n * width)
    gap = 8 if tile.num_stages % 2 else 0  # as the compiler aligns what follows an odd number of barriers
    return tile.num_stages * ((tile.block_m + tile.block_n) * tile.block_k + 16) + out + exchange + 4 + gap


def check(tile: Tile, problem: Problem, layout: PackLayout, device: DeviceInfo) -> str | None:
    """Return the number that breaks a tile, or None."""
    if tile.block_m not in (8, 16, 32, 64, 128, 256):
        return f"block_m={tile.block_m} must be 8, 16, 32, 64, 128 or 256"
    if tile.block_n not in (64, 128, 256):
        return f"block_n={tile.block_n} must be 64, 128 or 256"
    if tile.block_k != ROW:
        return f"block_k={tile.block_k} must be {ROW}"
    rows = tile.block_m if x_is_rows(tile) else tile.block_n
    waves = waves_of(tile, problem)
    if tile.num_warps not in (4, 8) or waves not in (1, 2):
        return f"num_warps={tile.num_warps} must be 4 or 8, a warpgroup for 64 or 128 of the {rows} rows"
    need, have = thread_registers(tile, problem), consumer_registers(tile)
    if need > have:
        return f"block_m={tile.block_m}, block_n={tile.block_n}: sums and scales take some {need} registers, a thread has {have}"
    if waves == 2 and not promotes(problem):
        return f"block_m={tile.block_m}, block_n={tile.block_n} with {tile.num_warps} warps: only promoted sums take turns"
    if waves == 2 and (tile.stream_k or not x_is_rows(tile)):
        return "stream_k: a tile whose rows take turns keeps K whole" if tile.stream_k else f"num_warps={tile.num_warps} must be 8"
    if weight_block(problem.spec) and tile.block_n > weight_block(problem.spec):
        return f"block_n={tile.block_n} must lie inside a block of {weight_block(problem.spec)} rows"
    if why := reject_pair(tile):
        return why
    if tile.num_stages < 2:
        return f"num_stages={tile.num_stages} must be at least 2"
    if tile.split_k != 1:
        return f"split_k={tile.split_k}: this kernel shares K with stream_k"
    if tile.stream_k and problem.batch_invariant:
        return "stream_k: batch invariance keeps K whole"
    need = shared_bytes(tile, problem) + SHARED_SLACK
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
        if block_m >= 2 * max(16, problem.m):
            continue
        tile = Tile(
            block_m=block_m, block_n=block_n, block_k=ROW, num_warps=warps, num_stages=stages, ctas_per_sm=ctas, stream_k=stream_k,
            raster_m=raster_m, warp_specialize=True, mma="wgmma", tma_w=True, tma_x=True, tma_out=block_m >= ROWS_FIRST,
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
    # Prototype, H200: 0.7 of the peak rate under its power limit; 45 bytes/ns from L2 into each multiprocessor.
    math_us = flops / (0.7 * device.rate(problem.spec.activation) / device.sm_count * 1e6)
    traffic_us = (tile.block_m / tile.multicast + tile.block_n) * ROW * tile.ctas_per_sm / 45.0 * 1e-3
    memory_us = problem_bytes(problem) / (0.85 * device.dram_gbps) * 1e-3
    shared_us = 2.0 + 8.0 * work.ctas * tile.block_m * tile.block_n / (0.5 * device.dram_gbps) * 1e-3 if work.shared else 0.0
    return max(busy * max(math_us, traffic_us), memory_us) + shared_us + device.launch_us + 2.0


def multiplies(problem: Problem, device: DeviceInfo) -> str:
    """Return the format of the operands."""
    return problem.spec.activation
