"""The Ampere kernels and their layout as data: what they support, which tiles, what each costs. Imports no Triton.

The kernels are Hopper's (mma.sync and cp.async are SM80's), so tiles and costs are the same functions of the GPU's own numbers.
"""

from __future__ import annotations

import dataclasses

from hybrid_humming.device import DeviceInfo
from hybrid_humming.plan import KernelEntry, LayoutEntry, Tile
from hybrid_humming.spec import PackLayout, Problem, Spec
from hybrid_humming.triton_kernels.hopper import catalog as hopper

SMS = (80, 86, 87, 89, 120, 121)  # GPUs whose best matrix instruction is mma.sync
OLDEST = 80  # that run the kernels; SM90 and later do too, from a weight that was packed for an older GPU
MATH_SHARE = 0.6  # of the tensor cores' peak that the stream kernel is assumed to reach; an estimate
DEPENDENT = 90  # the first SM with dependent launches


def reject_spec(spec: Spec, device: DeviceInfo) -> str | None:
    """Return why no weight is packed in this layout for `device`; None where it can be."""
    if device.sm not in SMS:
        return f"is for {', '.join(f'sm_{sm}' for sm in SMS)}; {device.name} is sm_{device.sm}"
    return _reject_spec(spec, device)


def _reject_spec(spec: Spec, device: DeviceInfo) -> str | None:
    if spec.activation in ("bf16", "fp16") and not device.multiplies(spec.activation):
        return f"{device.name} has no {spec.activation} tensor cores"
    return hopper.reject_format(spec)


def _reject(problem: Problem, layout: PackLayout, device: DeviceInfo) -> str | None:
    if device.sm < OLDEST:
        return f"needs cp.async and m16n8k16, which sm_{OLDEST} brought; {device.name} is sm_{device.sm}"
    if problem.experts:
        return f"dense only, the weight has {problem.experts} experts"
    return _reject_spec(problem.spec, device)


def _reject_stream(problem: Problem, layout: PackLayout, device: DeviceInfo) -> str | None:
    if problem.m > hopper.STREAM_ROWS and not problem.batch_invariant:
        return f"M={problem.m} is more than {hopper.STREAM_ROWS} rows"
    return _reject(problem, layout, device)


def _reject_dequant(problem: Problem, layout: PackLayout, device: DeviceInfo) -> str | None:
    if problem.batch_invariant:
        return "the vendor's matmul picks its kernel by M"
    return _reject(problem, layout, device)


def _check_stream(tile: Tile, problem: Problem, layout: PackLayout, device: DeviceInfo) -> str | None:
    if tile.dependent_launch and device.sm < DEPENDENT:
        return f"dependent_launch needs sm_{DEPENDENT} or newer, {device.name} is sm_{device.sm}"
    return hopper.STREAM.check(tile, problem, layout, device)


def _cost_stream(tile: Tile, problem: Problem, layout: PackLayout, device: DeviceInfo) -> float:
    """Hopper's model, and never less than the products take: below Hopper they may be what takes longest."""
    rows = -(-problem.m // tile.block_m) * tile.block_m
    products = 2e-6 * rows * layout.padded_n * layout.padded_k / (MATH_SHARE * device.rate(problem.spec.activation))
    return max(hopper.STREAM.cost_us(tile, problem, layout, device), products + device.launch_us)


STREAM: KernelEntry = dataclasses.replace(
    hopper.STREAM,
    name="gluon.ampere_stream",
    family="ampere",
    launcher="hybrid_humming.triton_kernels.ampere.launch:launch_stream",
    reject=_reject_stream,
    check=_check_stream,
    cost_us=_cost_stream,
    dependent_launch=False,
    status="compiled, not run",
)
DEQUANT_MATMUL: KernelEntry = dataclasses.replace(
    hopper.DEQUANT_MATMUL,
    name="gluon.ampere_dequant_matmul",
    family="ampere",
    launcher="hybrid_humming.triton_kernels.ampere.launch:launch_dequant_matmul",
    reject=_reject_dequant,
    status="compiled, not run",
)

ENTRIES = (STREAM, DEQUANT_MATMUL)
LAYOUT = LayoutEntry(
    family="ampere", preference=10, reject=lambda spec, n, k, device: reject_spec(spec, device), experts=False, inside_blocks=False
)
