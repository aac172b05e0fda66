"""The portable kernels as data: what they support, which tiles, what each costs. Imports no Triton."""

from collections.abc import Iterator

from hybrid_humming.device import DeviceInfo
from hybrid_humming.plan import KernelEntry, Tile
from hybrid_humming.plan.cost import problem_bytes, roofline_us
from hybrid_humming.plan.types import Mma
from hybrid_humming.spec import PackLayout, Problem
from hybrid_humming.triton_kernels.portable.tiles import LEAST_BLOCK_K, block_k_limit, operand, shared_bytes

# Shares of the peaks that plain Triton is assumed to reach, and what one more pass over the output costs; estimates.
MEMORY_SHARE, MATH_SHARE = 0.5, 0.35
PASS_US = 2.0


def _reject_experts(problem: Problem, layout: PackLayout, device: DeviceInfo) -> str | None:
    if problem.experts:
        return f"dense only, the weight has {problem.experts} experts"
    return None


def _reject_gemm(problem: Problem, layout: PackLayout, device: DeviceInfo) -> str | None:
    limit = block_k_limit(problem.spec)
    if limit < LEAST_BLOCK_K:
        return f"activation and weight scales change every {limit} k; this kernel needs {LEAST_BLOCK_K} or more"
    return _reject_experts(problem, layout, device)


# ---- gemm: tensor cores (FMA where the SM has none for the operand) ----
# (block_m, block_n, block_k, num_warps, num_stages)
MMA_TILES = (
    (16, 64, 128, 4, 3), (16, 128, 128, 4, 3), (32, 128, 128, 4, 3), (64, 128, 64, 4, 3), (64, 64, 128, 4, 3),
    (128, 128, 64, 8, 3), (128, 64, 64, 4, 3), (128, 128, 32, 8, 3),
)  # fmt: skip
# FMA keeps a thread's operands for a whole block_k in registers: larger blocks spill.
FMA_TILES = ((16, 64, 32, 4, 2), (32, 64, 32, 4, 2), (64, 64, 32, 8, 2))
WGMMA_ROWS = 64  # the least block_m of wgmma and tcgen05; smaller tiles take mma.sync where the SM has it


def _gemm_tiles(problem: Problem, layout: PackLayout, device: DeviceInfo) -> Iterator[Tile]:
    limit = block_k_limit(problem.spec)
    sizes = FMA_TILES if _mma(problem, device, 16) == "fma" else MMA_TILES
    limited = dict.fromkeys((block_m, block_n, min(block_k, limit), *rest) for block_m, block_n, block_k, *rest in sizes)
    for block_m, block_n, block_k, warps, stages in limited:
        if problem.batch_invariant and (block_m, block_n) != (16, 64):
            continue
        tile = Tile(
            block_m=block_m, block_n=block_n, block_k=block_k, num_warps=warps, num_stages=stages,
            raster_m=8 if problem.m > 256 else 0, mma=_mma(problem, device, block_m),
        )  # fmt: skip
        while tile.num_stages > 1 and _shared_need(tile, problem, device) > device.shared_per_block_bytes:
            tile = tile.replace(num_stages=tile.num_stages - 1)  # fp32 operands on sm_75
        splits = (1,) if problem.batch_invariant else (1, 2, 4, 8)
        for split in splits:
            split_tile = tile.replace(split_k=split)
            if _check_gemm(split_tile, problem, layout, device) is None and _worth_splitting(split_tile, problem, device):
                yield split_tile


def _mma(problem: Problem, device: DeviceInfo, block_m: int) -> Mma:
    if operand(problem, device) == "fp32" or device.sm < 80:
        return "fma"  # plain tl.dot makes no tensor-core instruction on sm_75
    units: dict[int, Mma] = {9: "wgmma", 10: "tcgen05", 11: "tcgen05"}
    return units.get(device.sm // 10, "mma_sync") if block_m >= WGMMA_ROWS else "mma_sync"


def _tiles_of(tile: Tile, problem: Problem) -> int:
    return -(-problem.m // tile.block_m) * -(-problem.n // tile.block_n)


def _worth_splitting(tile: Tile, problem: Problem, device: DeviceInfo) -> bool:
    return tile.split_k == 1 or (
        _tiles_of(tile, problem) * tile.split_k <= 4 * device.sm_count and tile.split_k * tile.block_k * 2 <= problem.k
    )


def _shared_need(tile: Tile, problem: Problem, device: DeviceInfo) -> int:
    return shared_bytes(tile, 4 if operand(problem, device) == "fp32" else 2, problem.spec.bits)


def _check_gemm(tile: Tile, problem: Problem, layout: PackLayout, device: DeviceInfo) -> str | None:
    limit = block_k_limit(problem.spec)
    sizes = (("block_m", tile.block_m, 16), ("block_n", tile.block_n, 16), ("block_k", tile.block_k, LEAST_BLOCK_K))
    for name, value, least in sizes:
        if value < least or value & (value - 1):
            return f"{name}={value} must be a power of two of at least {least}"
    if tile.block_k > limit:
        return f"block_k={tile.block_k} is more than {limit}, the most that one scale of the activations or weights allows"
    if tile.split_k < 1 or tile.split_k > -(-problem.k // tile.block_k):
        return f"split_k={tile.split_k} must lie in 1..{-(-problem.k // tile.block_k)} (K={problem.k}, block_k={tile.block_k})"
    if problem.batch_invariant and tile.split_k > 1:
        return f"split_k={tile.split_k}: batch invariance keeps K whole"
    if tile.num_warps not in (1, 2, 4, 8, 16):
        return f"num_warps={tile.num_warps} must be 1, 2, 4, 8 or 16"
    if problem.spec.quantizes_activation and _mma(problem, device, tile.block_m) == "wgmma":
        # Triton hands decoded x to wgmma in registers, and 3.6.0 may overwrite them while the product still reads.
        return f"block_m={tile.block_m}: quantized activations need fewer than {WGMMA_ROWS} rows a tile on sm_{device.sm}"
    need = _shared_need(tile, problem, device)
    if need > device.shared_per_block_bytes:
        return f"needs about {need} bytes of shared memory, {device.name} has {device.shared_per_block_bytes} a block"
    return None


def _gemm_cost(tile: Tile, problem: Problem, layout: PackLayout, device: DeviceInfo) -> float:
    fmt = operand(problem, device)
    tiles = _tiles_of(tile, problem) * tile.split_k
    waves = -(-tiles // device.sm_count) * device.sm_count / tiles
    rows = -(-problem.m // tile.block_m) * tile.block_m
    math_share = MATH_SHARE * min(1.0, tile.block_m / 64) * min(1.0, tile.block_n / 128) / waves
    memory_share = MEMORY_SHARE * min(1.0, tiles / (2 * device.sm_count)) * min(1.0, tile.block_k / 64)
    us = roofline_us(
        device,
        moved_bytes=problem_bytes(problem),
        ops=2.0 * rows * problem.n * problem.k,
        operand=fmt,
        memory_share=memory_share,
        math_share=math_share if device.sm >= 80 else 0.1,
    )
    extra = 8.0 * tile.split_k * problem.m * problem.n
    return us + (PASS_US + extra / device.dram_gbps * 1e-3 if tile.split_k > 1 else 0.0)


def _partials(tile: Tile, problem: Problem, layout: PackLayout, device: DeviceInfo) -> int:
    return 4 * tile.split_k * problem.m * problem.n if tile.split_k > 1 else 0


GEMM = KernelEntry(
    name="triton.gemm_portable",
    family="portable",
    launcher="hybrid_humming.triton_kernels.portable.gemm:launch",
    device="cuda",
    reject=_reject_gemm,
    tiles=_gemm_tiles,
    check=_check_gemm,
    cost_us=_gemm_cost,
    multiplies=operand,
    workspace=_partials,
    note="every format; operands in 16 bits; on sm_75 plain Triton multiplies without tensor cores",
)


# ---- gemv: a few rows, FMA, memory-bound ----
GEMV_ROWS = 4


def _reject_gemv(problem: Problem, layout: PackLayout, device: DeviceInfo) -> str | None:
    spec = problem.spec
    if problem.m > GEMV_ROWS:
        return f"M={problem.m} is more than {GEMV_ROWS} rows"
    if spec.quantizes_activation:
        return "reads 16-bit activations only"
    if problem.batch_invariant:
        return "M decides between this kernel and another, so a row would depend on M"
    return _reject_experts(problem, layout, device)


def _gemv_tiles(problem: Problem, layout: PackLayout, device: DeviceInfo) -> Iterator[Tile]:
    for block_n, block_k in ((128, 128), (256, 128)):
        for split in (1, 2, 4, 8, 16, 32):
            tile = Tile(
                block_m=1 << (problem.m - 1).bit_length(), block_n=block_n, block_k=block_k, num_warps=4, num_stages=2,
                split_k=split, mma="fma",
            )  # fmt: skip
            if _check_gemv(tile, problem, layout, device) is None:
                yield tile


def _check_gemv(tile: Tile, problem: Problem, layout: PackLayout, device: DeviceInfo) -> str | None:
    if tile.block_m not in (1, 2, 4) or tile.block_m < problem.m:
        return f"block_m={tile.block_m} must be 1, 2 or 4 and hold all M={problem.m} rows"
    if tile.block_n not in (32, 64, 128, 256, 512):
        return f"block_n={tile.block_n} must be a power of two in 32..512"
    if tile.block_k not in (16, 32, 64, 128, 256):
        return f"block_k={tile.block_k} must be a power of two in 16..256"
    blocks = -(-problem.k // tile.block_k)
    if tile.split_k < 1 or tile.split_k > blocks:
        return f"split_k={tile.split_k} must lie in 1..{blocks} (K={problem.k}, block_k={tile.block_k})"
    return None


def _gemv_cost(tile: Tile, problem: Problem, layout: PackLayout, device: DeviceInfo) -> float:
    programs = -(-problem.n // tile.block_n) * tile.split_k
    waves = -(-programs // (8 * device.sm_count)) * 8 * device.sm_count / programs
    # Six instructions a weight and one more a row, on 128 lanes an SM at about 1.7 GHz.
    issue = problem.n * problem.k * (6 + problem.m) / (device.sm_count * 128 * 1.7e3)
    share = 0.7 * min(1.0, programs / (4 * device.sm_count))
    memory = problem_bytes(problem) / (device.dram_gbps * share) * 1e-3
    reduce_us = PASS_US + 4e-3 * tile.split_k * problem.m * problem.n / device.dram_gbps if tile.split_k > 1 else 0.0
    return max(memory, issue * max(1.0, waves / 4)) + device.launch_us + reduce_us


GEMV = KernelEntry(
    name="triton.gemv_portable",
    family="portable",
    launcher="hybrid_humming.triton_kernels.portable.gemv:launch",
    device="cuda",
    reject=_reject_gemv,
    tiles=_gemv_tiles,
    check=_check_gemv,
    cost_us=_gemv_cost,
    multiplies=lambda problem, device: problem.spec.activation,
    workspace=_partials,
    note=f"up to {GEMV_ROWS} rows; exact products in fp32 FMA",
)


# ---- dequantize into a workspace, then the vendor's matmul ----
def _reject_dequant(problem: Problem, layout: PackLayout, device: DeviceInfo) -> str | None:
    spec = problem.spec
    if spec.quantizes_activation:
        return "multiplies 16-bit activations only"
    if not device.multiplies(spec.activation):
        return f"{device.name} (sm_{device.sm}) has no {spec.activation} tensor cores"
    if problem.batch_invariant:
        return "the vendor's matmul picks its kernel by M"
    return _reject_experts(problem, layout, device)


_DEQUANT_TILE = Tile(block_m=16, block_n=64, block_k=128, num_warps=4, num_stages=2, mma="library")


def _check_dequant(tile: Tile, problem: Problem, layout: PackLayout, device: DeviceInfo) -> str | None:
    for name, value in (("block_n", tile.block_n), ("block_k", tile.block_k)):
        if value not in (16, 32, 64, 128, 256):
            return f"{name}={value} must be a power of two in 16..256"
    return None


def _dequant_cost(tile: Tile, problem: Problem, layout: PackLayout, device: DeviceInfo) -> float:
    decoded = 2.0 * problem.n * problem.k
    dequantize = (problem.spec.weight_bytes(problem.n, problem.k) + decoded) / (device.dram_gbps * 0.7) * 1e-3
    product = roofline_us(
        device,
        moved_bytes=decoded + problem_bytes(problem),
        ops=2.0 * problem.m * problem.n * problem.k,
        operand=problem.spec.activation,
        memory_share=0.8,
        math_share=0.75 * min(1.0, problem.m / 128),
    )
    return dequantize + product + device.launch_us


DEQUANT_MATMUL = KernelEntry(
    name="triton.dequant_matmul",
    family="portable",
    launcher="hybrid_humming.triton_kernels.portable.dequant_matmul:launch",
    device="cuda",
    reject=_reject_dequant,
    tiles=lambda problem, layout, device: (_DEQUANT_TILE,),
    check=_check_dequant,
    cost_us=_dequant_cost,
    multiplies=lambda problem, device: problem.spec.activation,
    workspace=lambda tile, problem, layout, device: 2 * problem.n * problem.k,
    note="dequantizes W into 16 bits, then torch.mm",
)

ENTRIES = (GEMM, GEMV, DEQUANT_MATMUL)
