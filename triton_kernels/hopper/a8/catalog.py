"""The kernels for 8-bit activations and their layout as data: on trial until they are measured. Imports no Triton."""

from __future__ import annotations

from hybrid_humming.device import DeviceInfo
from hybrid_humming.plan import KernelEntry, LayoutEntry
from hybrid_humming.spec import Problem, Spec
from hybrid_humming.triton_kernels.hopper.a8 import tiles, w4_tiles

SM = 90


def reject_spec(spec: Spec, device: DeviceInfo) -> str | None:
    """Return why the layout can't hold the spec, or none of its kernels can run it; None where all is well."""
    if device.sm != SM:
        return f"is for sm_{SM}, {device.name} is sm_{device.sm}"
    return tiles.reject_spec(spec) if spec.bits == 8 else w4_tiles.reject_spec(spec)


def _reject(problem: Problem, device: DeviceInfo, *, whole: bool) -> str | None:
    if problem.experts:
        return f"dense only, the weight has {problem.experts} experts"
    if (problem.spec.bits == 8) != whole:
        return f"takes weights of {'8 bits' if whole else '7 bits and fewer'}, not {problem.spec.weight}"
    return reject_spec(problem.spec, device)


W8A8 = KernelEntry(
    name="gluon.gemm_w8a8",
    family="hopper_a8",
    launcher="hybrid_humming.triton_kernels.hopper.a8.w8a8:launch",
    device="cuda",
    dependent_launch=True,
    status="trial",
    reject=lambda problem, layout, device: _reject(problem, device, whole=True),
    tiles=tiles.tiles,
    check=tiles.check,
    cost_us=tiles.cost_us,
    multiplies=tiles.multiplies,
    workspace=tiles.workspace,
    note="TMA brings both operands; the tensor core's partial sums are promoted to fp32 as scales change, or every 128 k",
)

W4A8 = KernelEntry(
    name="gluon.gemm_w4a8",
    family="hopper_a8",
    launcher="hybrid_humming.triton_kernels.hopper.a8.w4a8:launch",
    device="cuda",
    dependent_launch=True,
    status="trial",
    reject=lambda problem, layout, device: _reject(problem, device, whole=False),
    tiles=w4_tiles.tiles,
    check=w4_tiles.check,
    cost_us=w4_tiles.cost_us,
    multiplies=w4_tiles.multiplies,
    workspace=w4_tiles.workspace,
    note="TMA brings W in fragment order; warpgroups decode it into 8-bit operand registers; group sums are promoted to fp32",
)

ENTRIES = (W8A8, W4A8)
LAYOUT = LayoutEntry(
    family="hopper_a8",
    preference=10,
    reject=lambda spec, n, k, device: reject_spec(spec, device),
    experts=False,
    inside_blocks=False,
)
