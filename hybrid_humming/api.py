"""Public functions around the op: quantize, pack, dequantize, plan, explain."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import torch

from hybrid_humming import pack as packing
from hybrid_humming import plan as planning
from hybrid_humming import reference
from hybrid_humming.catalogs import load_catalogs
from hybrid_humming.device import DeviceInfo
from hybrid_humming.errors import DtypeError, PlanError, SpecError
from hybrid_humming.ops import Options
from hybrid_humming.plan import Explanation, Plan
from hybrid_humming.spec import PackLayout, Problem, Spec
from hybrid_humming.weight import CanonicalWeight, Facts, QWeight, scan

Tensor = torch.Tensor
Device = torch.device | str | DeviceInfo


def quantize(
    weight: Tensor,
    spec: Spec | str,
    *,
    device: Device | None = None,
    layout: str | None = None,
    exponent: str = "least_error",
) -> QWeight:
    """Return float `weight` [N, K] or [E, N, K] quantized to nearest and packed for `device` (default: where it lies).

    layout    name of a pack layout family to use in place of the planner's choice
    exponent  of power-of-two scales (MX formats): least_error takes OCP's or the next, whichever leaves less squared error in the
              group; ocp takes OCP's always, which clips values beyond the format's largest
    """
    return pack_weight(reference.quantize(weight, Spec.parse(spec), exponent=exponent), device=device, layout=layout)  # type: ignore[arg-type]


def pack_weight(
    weight: CanonicalWeight,
    *,
    device: Device | None = None,
    layout: str | None = None,
    validate: bool = False,
    pieces: Callable[[], Iterator[tuple[int, Tensor]]] | None = None,
) -> QWeight:
    """Return a canonical weight packed for `device` (default: where it lies), in the layout that `choose_layout` picks.

    validate  raise ValueRangeError when a scale is NaN or infinite, or a code out of range; without it a NaN scale makes its
              own group NaN and nothing else
    pieces    yields the codes in parts (`packing.pack`), where those of `weight` lie on the meta device
    """
    if not isinstance(weight, CanonicalWeight):
        raise DtypeError(f"weight is {type(weight).__name__}; pass a CanonicalWeight, or a float tensor to hh.quantize")
    if validate:
        weight.validate()
    info = DeviceInfo.of(weight.scale.device if device is None else device)
    block, facts = weight.spec.block, scan(weight)

    def chosen(facts: Facts) -> PackLayout:
        return choose_layout(
            weight.spec,
            weight.n,
            weight.k,
            info,
            experts=weight.experts,
            facts=facts,
            family=layout,
            inside_block=block is not None and weight.block_offset[1] % block[1] != 0,
        )

    if pieces is None:
        packed = packing.pack(weight, chosen(facts))
    else:
        # The codes are read once more only where the layout hangs on whether their lowest occurs.
        without = dataclasses.replace(facts, lowest_code_unused=True)
        if chosen(without) != chosen(facts) and all(int(codes.min()) > 0 for _, codes in pieces()):
            facts = without
        packed = packing.pack(weight, chosen(facts), pieces())
    return packed if device is None or isinstance(device, DeviceInfo) or not is_torch(device) else packed.to(device)


def unpack_weight(qweight: QWeight) -> CanonicalWeight:
    """Return the canonical weight inside `qweight`, equal in every code and scale."""
    if not isinstance(qweight, QWeight):
        raise DtypeError(f"qweight is {type(qweight).__name__}; pass the QWeight that hh.quantize or hh.load returned")
    return packing.unpack(qweight)


def repack(qweight: QWeight, device: Device, *, layout: str | None = None) -> QWeight:
    """Return the same weight on `device`, in the layout that is best there."""
    weight = unpack_weight(qweight)
    DeviceInfo.of(device)  # a device that is not there is refused in our words, not torch's
    return pack_weight(weight.to(device) if is_torch(device) else weight, device=device, layout=layout)  # type: ignore[arg-type]


def place(qweight: QWeight, device: Device) -> QWeight:
    """Return the same weight on `device`; repacked only where another layout family is better there."""
    info = DeviceInfo.of(device)
    block = qweight.spec.block
    inside = block is not None and qweight.block_offset[1] % block[1] != 0
    best = choose_layout(qweight.spec, qweight.n, qweight.k, info, experts=qweight.experts, inside_block=inside)
    if best.family != qweight.layout.family:
        return repack(qweight, device)
    return qweight.to(device) if is_torch(device) else qweight  # type: ignore[arg-type]


def dequantize(qweight: QWeight | CanonicalWeight, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the float weight [N, K] or [E, N, K] in `dtype`."""
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise DtypeError(f"dtype={dtype!r}: must be a floating torch dtype, such as torch.float32")
    weight = qweight if isinstance(qweight, CanonicalWeight) else unpack_weight(qweight)
    return reference.dequantize(weight, dtype)


def choose_layout(
    spec: Spec | str,
    n: int,
    k: int,
    device: Device | None = None,
    *,
    experts: int = 0,
    facts: Facts | None = None,
    family: str | None = None,
    inside_block: bool = False,
) -> PackLayout:
    """Return the layout in which a weight [n, k] of `spec` is packed for `device` (default: the current GPU, or the CPU)."""
    load_catalogs()
    info = DeviceInfo.default() if device is None else DeviceInfo.of(device)
    parsed: Spec = Spec.parse(spec)  # type: ignore[arg-type]
    return planning.choose_layout(parsed, n, k, info, experts=experts, facts=facts, family=family, inside_block=inside_block)


def choose_plan(
    problem: Problem, layout: PackLayout | None = None, device: Device | None = None, *, fallback: str = "allow"
) -> Plan:
    """Return the plan that `gemm` would run for `problem` on `device`; `layout` defaults to the one chosen for it."""
    if not isinstance(problem, Problem):
        raise PlanError(f"problem is {type(problem).__name__}; pass a Problem(spec=..., m=..., n=..., k=...)")
    if layout is not None and not isinstance(layout, PackLayout):
        raise PlanError(f"layout is {type(layout).__name__}; pass a PackLayout: the weight's own, or PackLayout.parse(text)")
    load_catalogs()
    info = DeviceInfo.default() if device is None else DeviceInfo.of(device)
    layout = layout or choose_layout(problem.spec, problem.n, problem.k, info, experts=problem.experts)
    return planning.choose_plan(problem, layout, info, fallback=fallback)


def explain(
    spec: Spec | str,
    *,
    m: int,
    n: int,
    k: int,
    device: Device | None = None,
    layout: PackLayout | None = None,
    bias: bool = False,
    options: Options | None = None,
) -> Explanation:
    """Return what would run and why: kernel, tile, runners-up, each other kernel's reason. Needs no GPU."""
    load_catalogs()
    parsed, options = Spec.parse(spec), Options() if options is None else options  # type: ignore[arg-type]
    if not isinstance(options, Options):
        raise SpecError(f"options is {type(options).__name__}; pass hh.Options(...)")
    info = DeviceInfo.default() if device is None else DeviceInfo.of(device)
    problem = Problem(
        spec=parsed,
        m=m,
        n=n,
        k=k,
        bias=bias,
        batch_invariant=options.batch_invariant,
        fast_accumulation=options.fast_accumulation,
        dependent_launch=options.dependent_launch,
    )
    layout = layout or choose_layout(parsed, n, k, info)
    return planning.explain_problem((problem, layout, info), m=m, fallback=options.fallback)


def is_torch(device: Device) -> bool:
    """True for a device that tensors can be moved to, as opposed to the name of a GPU to plan for."""
    if isinstance(device, torch.device):
        return True
    return isinstance(device, str) and device.split(":")[0] in ("cpu", "cuda")
