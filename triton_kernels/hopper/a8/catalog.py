"""The kernels for 8-bit activations and their layout as data. Imports no Triton. Not offered to the planner before they are
measured."""

from __future__ import annotations

from hybrid_humming.device import DeviceInfo
from hybrid_humming.plan import KernelEntry, LayoutEntry
from hybrid_humming.spec import PackLayout, Problem, Spec
from hybrid_humming.triton_kernels.hopper.a8 import tiles

SM = 90


def reject_spec(spec: Spec, device: DeviceInfo) -> str | None:
    """Return why the layout can't hold the spec, or none of its kernels can run it; None where all is well."""
    if device.sm != SM:
        return f"is for sm_{SM}, {device.name} is sm_{device.sm}"
    return tiles.reject_spec(spec)


def _reject(problem: Problem, layout: PackLayout, device: DeviceInfo) -> str | None:
    if problem.experts:
        return f"dense only, the weight has {problem.experts} experts"
    return reject_spec(problem.spec, device)


W8A8 = KernelEntry(
    name="gluon.gemm_w8a8",
    family="hopper_a8",
    launcher="hybrid_humming.triton_kernels.hopper.a8.w8a8:launch",
    device="cuda",
    reject=_reject,
    tiles=tiles.tiles,
    check=tiles.check,
    cost_us=tiles.cost_us,
    multiplies=tiles.multiplies,
    workspace=tiles.workspace,
    note="TMA brings both operands; the tensor core's partial sums are promoted to fp32 as scales change, or every 128 k",
)

ENTRIES = (W8A8,)
LAYOUT = LayoutEntry(
    family="hopper_a8",
    preference=10,
    reject=lambda spec, n, k, device: reject_spec(spec, device),
    experts=False,
    inside_blocks=False,
)
