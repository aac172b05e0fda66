"""The Hopper kernels and their layout as data: what they support, which tiles, what each costs. Imports no Triton."""

from __future__ import annotations

from hybrid_humming.device import DeviceInfo
from hybrid_humming.errors import FormatError
from hybrid_humming.fragment import recipe
from hybrid_humming.plan import KernelEntry, LayoutEntry, Tile
from hybrid_humming.plan.cost import problem_bytes, roofline_us
from hybrid_humming.spec import PackLayout, Problem, Spec
from hybrid_humming.triton_kernels.hopper import stream_tiles, wgmma_tiles
from hybrid_humming.triton_kernels.hopper.plan import ROW, group_of, workspace_bytes

SM = 90
STREAM_ROWS = 256  # beyond, the stream kernel reads the weights too often


def reject_spec(spec: Spec, device: DeviceInfo) -> str | None:
    """Return why the layout can't hold the spec, or none of its kernels can run it; None where all is well."""
    if device.sm != SM:
        return f"is for sm_{SM}, {device.name} is sm_{device.sm}"
    return reject_format(spec)


def reject_format(spec: Spec) -> str | None:
    """Return why no fragment order holds the spec's weights, scales or activations, whatever the GPU; None where one does."""
    if spec.quantizes_activation or spec.activation not in ("bf16", "fp16"):
        return f"multiplies bf16 and fp16 activations only, not {spec.activation}"
    group = group_of(spec)
    if group and group not in (16, 32, 64) and group % ROW:
        return f"scales along K span {group} weights; the layout holds 16, 32, 64 and multiples of {ROW}"
    if spec.granularity == "tensor" and spec.has_zero_point:
        return "a zero point must belong to a group or a channel, not to the whole tensor"
    try:
        recipe(spec.weight, spec.activation)
    except FormatError as error:
        return str(error)
    return None


def _reject(problem: Problem, layout: PackLayout, device: DeviceInfo) -> str | None:
    if problem.experts:
        return f"dense only, the weight has {problem.experts} experts"
    return reject_spec(problem.spec, device)


def _activation(problem: Problem, device: DeviceInfo) -> str:
    return problem.spec.activation


# ---- stream: few rows ----
def _reject_stream(problem: Problem, layout: PackLayout, device: DeviceInfo) -> str | None:
    if problem.m > STREAM_ROWS and not problem.batch_invariant:
        return f"M={problem.m} is more than {STREAM_ROWS} rows"
    return _reject(problem, layout, device)


STREAM = KernelEntry(
    name="gluon.gemm_stream",
    family="hopper",
    launcher="hybrid_humming.triton_kernels.hopper.stream:launch",
    device="cuda",
    dependent_launch=True,
    reject=_reject_stream,
    tiles=stream_tiles.tiles,
    check=stream_tiles.check,
    cost_us=stream_tiles.cost_us,
    multiplies=_activation,
    workspace=lambda tile, problem, layout, device: workspace_bytes(tile, problem, layout),
    note="weights stream in fragment order and are decoded in registers; scales multiply fp32 sums",
)


# ---- wgmma: many rows ----
def _reject_wgmma(problem: Problem, layout: PackLayout, device: DeviceInfo) -> str | None:
    if problem.batch_invariant:
        return "its tiles sum K in another order than the stream kernel's one batch-invariant tile"
    return _reject(problem, layout, device) or wgmma_tiles.reject(problem, layout, device)


WGMMA = KernelEntry(
    name="gluon.gemm_wgmma",
    family="hopper",
    launcher="hybrid_humming.triton_kernels.hopper.wgmma:launch",
    device="cuda",
    dependent_launch=True,
    reject=_reject_wgmma,
    tiles=wgmma_tiles.tiles,
    check=wgmma_tiles.check,
    cost_us=wgmma_tiles.cost_us,
    multiplies=_activation,
    workspace=wgmma_tiles.workspace,
    status="trial",
    note="TMA brings W in fragment order; warpgroups decode it into wgmma's register operand; CTAs share tiles along K",
)


# ---- dequantize into a workspace, then the vendor's matmul ----
def _reject_dequant(problem: Problem, layout: PackLayout, device: DeviceInfo) -> str | None:
    if problem.batch_invariant:
        return "the vendor's matmul picks its kernel by M"
    return _reject(problem, layout, device)


_DEQUANT_TILE = Tile(block_m=16, block_n=64, block_k=256, num_warps=8, num_stages=1, mma="library")


def _check_dequant(tile: Tile, problem: Problem, layout: PackLayout, device: DeviceInfo) -> str | None:
    if tile.block_n not in (64, 128):
        return f"block_n={tile.block_n} must be 64 or 128"
    if tile.block_k not in (128, 256, 512):
        return f"block_k={tile.block_k} must be 128, 256 or 512"
    warps = tile.block_n // 16 * (tile.block_k // ROW)
    if tile.num_warps != warps or warps > 16:
        return f"num_warps={tile.num_warps} must be {warps}, one for 16 rows and {ROW} k, and at most 16"
    return None


def _dequant_cost(tile: Tile, problem: Problem, layout: PackLayout, device: DeviceInfo) -> float:
    decoded = 2.0 * layout.padded_n * layout.padded_k
    dequantize = (problem.spec.weight_bytes(problem.n, problem.k) + decoded) / (device.dram_gbps * 0.75) * 1e-3
    product = roofline_us(
        device,
        moved_bytes=decoded + problem_bytes(problem),
        ops=2.0 * problem.m * problem.n * problem.k,
        operand=problem.spec.activation,
        memory_share=0.85,
        math_share=0.75 * min(1.0, problem.m / 128),
    )
    return dequantize + product + device.launch_us


DEQUANT_MATMUL = KernelEntry(
    name="gluon.hopper_dequant_matmul",
    family="hopper",
    launcher="hybrid_humming.triton_kernels.hopper.dequant_matmul:launch",
    device="cuda",
    reject=_reject_dequant,
    tiles=lambda problem, layout, device: (_DEQUANT_TILE,),
    check=_check_dequant,
    cost_us=_dequant_cost,
    multiplies=_activation,
    workspace=lambda tile, problem, layout, device: 2 * layout.padded_n * layout.padded_k,
    note="dequantizes W into 16 bits, then torch.mm",
)

ENTRIES = (STREAM, WGMMA, DEQUANT_MATMUL)
LAYOUT = LayoutEntry(
    family="hopper", preference=10, reject=lambda spec, n, k, device: reject_spec(spec, device), experts=False, inside_blocks=False
)
