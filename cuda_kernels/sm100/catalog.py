"""The CUDA kernels of SM100 and its kin as data: what they multiply, which tiles, what each costs. Imports no compiler."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator

from hybrid_humming.cuda_kernels.patch.available import hidden_reason
from hybrid_humming.cuda_kernels.sm100.config import ROWS, GemmConfig, code_bits, slot_bits
from hybrid_humming.device import DeviceInfo
from hybrid_humming.errors import UnsupportedProblem
from hybrid_humming.kinds import AS_FLOAT, HIDDEN, scale_block, umma_kind
from hybrid_humming.plan import KernelEntry, LayoutEntry, Tile
from hybrid_humming.plan.cost import problem_bytes, roofline_us
from hybrid_humming.spec import PackLayout, Problem, Spec

SMS = (100, 103, 110)
MEMORY_SHARE, MATH_SHARE = 0.7, 0.6  # of the peaks that gemm.cu is assumed to reach; estimates, it has not run on such a GPU
SMALL_SHARE = 0.6  # of the memory's speed, small_m.cu
SMALL_ROWS = 32
STATIC_BYTES = 256  # shared memory of barriers
MAX_STAGES = 8
NOT_RUN = "compiled, not run"


@functools.cache
def missing() -> str | None:
    """Return why no CUDA C++ can be compiled here; None where it can."""
    try:
        found = importlib.util.find_spec("cuda.bindings") is not None
    except ModuleNotFoundError:
        found = False
    return None if found else "needs cuda-bindings and NVRTC: install hybrid_humming[cuda13]"


def reject_spec(spec: Spec, encoding: str, device: DeviceInfo) -> str | None:
    """Return why no kind of `device`'s tensor memory multiplies a weight stored as `encoding`; None where one does."""
    if device.sm not in SMS:
        return f"is for tensor memory ({', '.join(f'sm_{sm}' for sm in SMS)}); {device.name} is sm_{device.sm}"
    kind, reason = umma_kind(spec, encoding)
    if reason:
        return reason
    hidden = (hidden_reason(fmt, device.sm, scale_block(kind)) for fmt in (encoding, spec.activation) if fmt in HIDDEN)
    return next((why for why in hidden if why), missing())


def _reject_layout(spec: Spec, n: int, k: int, device: DeviceInfo) -> str | None:
    """Of an integer weight the better case: `make_layout` refuses it where the lowest code is used."""
    encoding = AS_FLOAT.get(spec.weight, spec.weight) if spec.quantizes_activation else spec.weight
    return reject_spec(spec, encoding, device) or _reject_k(spec, encoding, k)


def _reject_k(spec: Spec, encoding: str, k: int) -> str | None:
    kind, _ = umma_kind(spec, encoding)
    if code_bits(spec.activation) < slot_bits(kind, spec.activation) and k % 128:
        return f"K={k}: {spec.activation} codes are spread over bytes 128 at a time, so K must be a multiple of 128"
    return None


def _reject_umma(problem: Problem, layout: PackLayout, device: DeviceInfo) -> str | None:
    if problem.experts:
        return f"dense only, the weight has {problem.experts} experts"
    return reject_spec(problem.spec, layout.encoding, device) or _reject_k(problem.spec, layout.encoding, problem.k)


def _config(tile: Tile, problem: Problem, layout: PackLayout, device: DeviceInfo) -> GemmConfig:
    spec = problem.spec
    return GemmConfig(
        sm=device.sm, kind=umma_kind(spec, layout.encoding)[0], w=layout.encoding, x=spec.activation, out="bf16",
        block_m=tile.block_m, ctas=tile.multicast, stages=tile.num_stages,
    )  # fmt: skip


def _tile(problem: Problem, layout: PackLayout, device: DeviceInfo, block_m: int, ctas: int) -> Tile | None:
    tile = Tile(
        block_m=block_m, block_n=ROWS * ctas, block_k=1, num_warps=6, num_stages=1, multicast=ctas, warp_specialize=True,
        mma="tcgen05", tma_w=True, tma_x=True,
    )  # fmt: skip
    try:
        config = _config(tile, problem, layout, device)
    except UnsupportedProblem:
        return None
    stages = (device.shared_per_block_bytes - STATIC_BYTES - 1024) // config.stage_bytes
    steps = -(-problem.k // config.step)
    return tile.replace(block_k=config.step, num_stages=max(1, min(stages, MAX_STAGES, steps + 1)), tma_scale=config.vector > 0)


def _umma_tiles(problem: Problem, layout: PackLayout, device: DeviceInfo) -> Iterator[Tile]:
    for block_m in (16, 32, 64, 128, 256):
        for ctas in (1, 2):
            tile = _tile(problem, layout, device, block_m, ctas)
            if tile is not None and (block_m <= 32 or block_m < 2 * problem.m):
                yield tile


def _check_umma(tile: Tile, problem: Problem, layout: PackLayout, device: DeviceInfo) -> str | None:
    try:
        config = _config(tile, problem, layout, device)
    except UnsupportedProblem as error:
        return str(error)
    fixed = {"block_n": ROWS * tile.multicast, "block_k": config.step, "num_warps": 6, "split_k": 1, "ctas_per_sm": 1}
    for name, value in fixed.items():
        if getattr(tile, name) != value:
            return f"{name}={getattr(tile, name)}: this kernel has {value}"
    need = config.shared_bytes + STATIC_BYTES
    if need > device.shared_per_block_bytes:
        return f"{tile.num_stages} stages take {need} bytes of shared memory, {device.name} has {device.shared_per_block_bytes}"
    return None


def _umma_cost(tile: Tile, problem: Problem, layout: PackLayout, device: DeviceInfo) -> float:
    tiles = -(-problem.m // tile.block_m) * -(-problem.n // tile.block_n) * tile.multicast
    waves = -(-tiles // device.sm_count) * device.sm_count / tiles
    rows = -(-problem.m // tile.block_m) * tile.block_m
    return roofline_us(
        device,
        moved_bytes=problem_bytes(problem),
        ops=2.0 * rows * layout.padded_n * layout.padded_k,
        operand=problem.spec.activation,
        memory_share=MEMORY_SHARE * min(1.0, tiles / device.sm_count),
        math_share=MATH_SHARE * min(1.0, tile.block_m / 128) * (1.0 if tile.multicast == 2 else 0.9) / waves,
    )


UMMA = KernelEntry(
    name="cuda.gemm_umma",
    family="umma",
    launcher="hybrid_humming.cuda_kernels.sm100.launch:launch",
    device="cuda",
    reject=_reject_umma,
    tiles=_umma_tiles,
    check=_check_umma,
    cost_us=_umma_cost,
    multiplies=lambda problem, device: problem.spec.activation,
    status=NOT_RUN,
    note="CUDA C++: TMA, tensor memory, one or two CTAs a tile; hidden types through the instruction descriptor",
)


# ---- few rows: mma.sync from the portable layout ----
def _reject_small(problem: Problem, layout: PackLayout, device: DeviceInfo) -> str | None:
    spec = problem.spec
    if device.sm not in SMS:
        return f"is for {', '.join(f'sm_{sm}' for sm in SMS)}; {device.name} is sm_{device.sm}"
    if problem.experts:
        return f"dense only, the weight has {problem.experts} experts"
    if problem.m > SMALL_ROWS:
        return f"M={problem.m} is more than {SMALL_ROWS} rows"
    if problem.batch_invariant:
        return "M decides between this kernel and another, so a row would depend on M"
    scaled = spec.granularity in ("channel", "group") and (spec.group_size or 128) % 128 == 0 and spec.scale_format.is_wide
    if spec.weight != "int4" or spec.activation not in ("bf16", "fp16") or spec.has_zero_point or spec.secondary or not scaled:
        return f"multiplies int4 by bf16 or fp16, scales by channel or group of a multiple of 128; '{spec}' is another"
    if problem.k % 2:
        return f"K={problem.k} must be even: x is read two numbers at a time"
    return missing()


def _check_small(tile: Tile, problem: Problem, layout: PackLayout, device: DeviceInfo) -> str | None:
    if tile.block_m not in (8, 16, 32):
        return f"block_m={tile.block_m} must be 8, 16 or 32"
    if (tile.block_n, tile.block_k, tile.num_warps) != (16, 128, 8):
        return f"block_n={tile.block_n}, block_k={tile.block_k}, num_warps={tile.num_warps}: this kernel has 16, 128 and 8"
    return None


def _small_cost(tile: Tile, problem: Problem, layout: PackLayout, device: DeviceInfo) -> float:
    blocks = -(-problem.n // 16) * -(-problem.m // tile.block_m)
    share = SMALL_SHARE * min(1.0, blocks / (4 * device.sm_count))
    return problem_bytes(problem) * -(-problem.m // tile.block_m) / (device.dram_gbps * share) * 1e-3 + device.launch_us


SMALL = KernelEntry(
    name="cuda.gemm_int4_mma_sync",
    family="portable",
    launcher="hybrid_humming.cuda_kernels.sm100.launch:launch_small",
    device="cuda",
    reject=_reject_small,
    tiles=lambda problem, layout, device: (
        Tile(block_m=block_m, block_n=16, block_k=128, num_warps=8, num_stages=1, mma="mma_sync") for block_m in (8, 16, 32)
    ),
    check=_check_small,
    cost_us=_small_cost,
    multiplies=lambda problem, device: problem.spec.activation,
    status=NOT_RUN,
    note="CUDA C++: int4 decoded in registers, fragments straight from the portable layout's words",
)

ENTRIES = (UMMA, SMALL)
LAYOUT = LayoutEntry(family="umma", preference=10, reject=_reject_layout, experts=False, inside_blocks=False)
