"""choose_layout, once when weights load; choose_plan, per bucket of M. Pure functions of values, no tensors."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from hybrid_humming import env
from hybrid_humming.device import DeviceInfo
from hybrid_humming.errors import FallbackRefused, LayoutError, PlanError, UnsupportedProblem
from hybrid_humming.pack import make_layout
from hybrid_humming.plan.fallback import fallback_reason, stand_in
from hybrid_humming.plan.registry import kernel, kernels, layouts
from hybrid_humming.plan.tuned import Row, tuned
from hybrid_humming.plan.types import Candidate, KernelEntry, LayoutEntry, Plan, Rejection
from hybrid_humming.spec import PackLayout, Problem, Spec
from hybrid_humming.weight import Facts

ON_TRIAL = (
    "on trial: compiled and checked without a GPU, not run on one yet; HYBRID_HUMMING_TRIAL=1 lets it be planned, plan= asks for it"
)


def m_bucket(m: int) -> int:
    """Return the M that a plan is made for: the next power of two."""
    return 1 << max(0, m - 1).bit_length()


def choose_layout(
    spec: Spec,
    n: int,
    k: int,
    device: DeviceInfo,
    *,
    experts: int = 0,
    facts: Facts | None = None,
    family: str | None = None,
    inside_block: bool = False,
) -> PackLayout:
    """Return the layout in which to pack a weight [n, k] for `device`; `family` asks for one by name.

    inside_block  the weight is a shard that starts inside a block of scales along K
    """
    spec.check_shape(n, k)
    reasons, trial = [], env.trial_kernels()
    for entry in layouts():
        if family is not None and entry.family != family:
            continue
        reason = _not_for(entry.family, device) or _held(entry, spec, n, k, device)
        if reason is None and not trial and family is None and _only_trial(entry.family):
            reason = ON_TRIAL
        if experts and not entry.experts:
            reason = f"holds dense weights, this one has {experts} experts"
        elif inside_block and not entry.inside_blocks:
            reason = "holds no shard that starts inside a block of scales along K"
        if reason is None:
            try:
                return make_layout(entry.family, spec, n, k, experts=experts, facts=facts or Facts())
            except LayoutError as error:  # these codes can't be held, another weight's of this spec could
                reason = error.args[0]
        reasons.append(f"{entry.family}: {reason}")
    known = ", ".join(e.family for e in layouts())
    raise LayoutError(f"no layout holds '{spec}' [{n}, {k}] for {device.name}: {'; '.join(reasons) or f'known are {known}'}")


def _held(entry: LayoutEntry, spec: Spec, n: int, k: int, device: DeviceInfo) -> str | None:
    """Return why a layout can't hold the weight, neither beside its own activations nor beside those that stand in for them."""
    reason = entry.reject(spec, n, k, device)
    other = stand_in(spec, device)
    return reason if reason is None or other == spec else entry.reject(other, n, k, device)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Everything that choosing a plan looked at: candidates cheapest first, and the rejected kernels."""

    problem: Problem
    layout: PackLayout
    device: DeviceInfo
    candidates: tuple[Candidate, ...]
    rejections: tuple[Rejection, ...]


def survey(problem: Problem, layout: PackLayout, device: DeviceInfo) -> Choice:
    """Return the candidates for `problem`, cheapest first, with each other kernel's reason. M is bucketed."""
    return _survey(problem, layout, device, env.hidden_formats(), env.trial_kernels())


@functools.lru_cache(maxsize=4096)
def _survey(problem: Problem, layout: PackLayout, device: DeviceInfo, hidden_formats: bool, trial: bool) -> Choice:
    if (layout.n, layout.k, layout.experts) != (problem.n, problem.k, problem.experts):
        raise LayoutError(f"layout {layout} holds another weight than {problem} has; choose a layout for this problem")
    problem = problem.replace(m=m_bucket(problem.m))
    candidates, rejections = [], []
    for entry in kernels():
        given, reason = fitting(entry, problem, layout, device)
        if reason is None and entry.status == "trial" and not trial:
            reason = ON_TRIAL
        if reason is not None:
            rejections.append(Rejection(kernel=entry.name, reason=reason))
            continue
        tiles = list(entry.tiles(given, layout, device))
        if not tiles:
            rejections.append(Rejection(kernel=entry.name, reason="no tile of this kernel fits the problem"))
        for tile in tiles:
            cost = entry.cost_us(tile, given, layout, device)
            candidates.append(Candidate(entry=entry, tile=tile, cost_us=cost, problem=given))
    candidates.sort(key=lambda c: (c.cost_us, c.entry.name, str(c.tile)))
    measured = tuned(problem, device)
    if measured is not None and not problem.batch_invariant:
        candidates = _prefer(measured, candidates, problem, layout, device, trial)
    return Choice(problem=problem, layout=layout, device=device, candidates=tuple(candidates), rejections=tuple(rejections))


def choose_plan(problem: Problem, layout: PackLayout, device: DeviceInfo, *, fallback: str = "allow") -> Plan:
    """Return the plan for `problem`; `fallback="error"` admits only kernels that multiply the activation's own format.

    Raises UnsupportedProblem with every kernel's reason, or FallbackRefused.
    """
    if fallback not in ("allow", "error"):
        raise PlanError(f"fallback={fallback!r}: allowed are 'allow' and 'error'")
    choice = survey(problem, layout, device)
    problem = choice.problem
    for candidate in choice.candidates:
        multiplies = candidate.entry.multiplies(candidate.problem or problem, device)
        if fallback == "error" and fallback_reason(problem.spec.activation, multiplies, device):
            continue
        return make_plan(candidate, problem, layout, device)
    if choice.candidates:
        first = choice.candidates[0]
        reason = fallback_reason(problem.spec.activation, first.entry.multiplies(first.problem or problem, device), device)
        raise FallbackRefused(
            f"{problem} on {device.name}: {reason}; allow it with Options(fallback='allow'), or choose another activation format"
        )
    reasons = "\n".join(f"  {r.kernel}: {r.reason}" for r in choice.rejections)
    raise UnsupportedProblem(f"no kernel runs {problem} in layout {layout.family} on {device.name}:\n{reasons}")


def make_plan(candidate: Candidate, problem: Problem, layout: PackLayout, device: DeviceInfo) -> Plan:
    """Return the plan that runs `candidate`."""
    entry, multiplies = candidate.entry, candidate.entry.multiplies(candidate.problem or problem, device)
    tile = candidate.tile
    return Plan(
        kernel=entry.name,
        tile=tile.replace(dependent_launch=True) if problem.dependent_launch and entry.dependent_launch else tile,
        multiplies=multiplies,
        fallback=fallback_reason(problem.spec.activation, multiplies, device),
        workspace_bytes=entry.workspace(candidate.tile, candidate.problem or problem, layout, device),
        cost_us=candidate.cost_us,
        source=candidate.source,
    )


def check_plan(plan: Plan, problem: Problem, layout: PackLayout, device: DeviceInfo) -> Plan:
    """Return a user's plan with what follows from its tile filled in for this M; PlanError names the number that breaks it."""
    entry = kernel(plan.kernel)
    given, unfit = fitting(entry, problem, layout, device)
    reason = plan.tile.nonsense() or unfit or entry.check(plan.tile, given, layout, device)
    if reason is not None:
        raise PlanError(f"{plan} can't run {problem} on {device.name}: {reason}")
    multiplies = entry.multiplies(given, device)
    return plan.replace(
        source=plan.source,
        multiplies=multiplies,
        fallback=fallback_reason(problem.spec.activation, multiplies, device),
        workspace_bytes=entry.workspace(plan.tile, given, layout, device),
    )


def fitting(entry: KernelEntry, problem: Problem, layout: PackLayout, device: DeviceInfo) -> tuple[Problem, str | None]:
    """Return the problem to give to a kernel and None, or `problem` and the reason why the kernel can't run it.

    The problem is the one asked for, or, where the GPU can't multiply its activations and the kernel can't take them, the one
    with an 8-bit format that holds their values in its place.
    """
    reason = _reject(entry, problem, layout, device)
    if reason is None:
        return problem, None
    other = stand_in(problem.spec, device)
    if other == problem.spec:
        return problem, reason
    given = problem.replace(spec=other)
    again = _reject(entry, given, layout, device)
    if again is None:
        return given, None
    return problem, reason if again == reason else f"{reason}; with {other.activation} in its place: {again}"


def _reject(entry: KernelEntry, problem: Problem, layout: PackLayout, device: DeviceInfo) -> str | None:
    if entry.device != device.kind:
        return f"runs on {entry.device}, not on {device.kind}"
    if entry.family not in ("*", layout.family):
        held = next((other for other in layouts() if other.family == entry.family), None)
        why = _not_for(entry.family, device)
        why = why or (held.reject(problem.spec, problem.n, problem.k, device) if held is not None else None)
        return f"reads weights in the {entry.family} layout, not in {layout.family}" + (f" ({entry.family}: {why})" if why else "")
    return _not_for(entry.family, device) or entry.reject(problem, layout, device)


def _only_trial(family: str) -> bool:
    """Whether every kernel that reads a layout is on trial."""
    readers = [entry.status for entry in kernels() if entry.family == family]
    return bool(readers) and set(readers) == {"trial"}


def _not_for(family: str, device: DeviceInfo) -> str | None:
    if not device.families or family in ("*", *device.families):
        return None
    return f"{device.name} may use the families {', '.join(device.families)} only, by its entry in the table of devices"


def _prefer(
    measured: Row,
    candidates: list[Candidate],
    problem: Problem,
    layout: PackLayout,
    device: DeviceInfo,
    trial: bool,
) -> list[Candidate]:
    name, tile, us = measured
    entry = next((e for e in kernels() if e.name == name), None)
    if entry is None or (entry.status == "trial" and not trial):
        return candidates
    given, unfit = fitting(entry, problem, layout, device)
    if unfit or entry.check(tile, given, layout, device):
        return candidates
    first = Candidate(entry=entry, tile=tile, cost_us=us, problem=given, source="tuned")
    return [first, *[c for c in candidates if (c.entry, c.tile) != (entry, tile)]]
