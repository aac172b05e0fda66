"""Explanation: the chosen kernel and tile, the runners-up, and why each other kernel was rejected."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from hybrid_humming.plan.choose import Choice, choose_plan, survey
from hybrid_humming.plan.cost import bound_by, problem_bytes
from hybrid_humming.plan.registry import kernel, quantizer
from hybrid_humming.plan.types import Candidate, Plan


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What runs and why. `str()` is for people, `to_dict()` for programs."""

    choice: Choice
    plan: Plan
    m: int

    def __str__(self) -> str:
        choice, plan = self.choice, self.plan
        problem, device = choice.problem, choice.device
        entry = kernel(plan.kernel)
        lines = [
            f"{problem.replace(m=self.m)} on {device.name} (sm_{device.sm}, {device.sm_count} SMs)",
            f"layout      {choice.layout}",
            f"kernel      {plan.kernel}  ({entry.status}; {entry.note})"
            if entry.note
            else f"kernel      {plan.kernel}  ({entry.status})",
            f"tile        {plan.tile}",
            f"multiplies  {plan.multiplies}" + (f"  (fallback: {plan.fallback})" if plan.fallback else ""),
            f"cost        {plan.cost_us:.3g} us ({plan.source}), bound by {bound_by(problem, device, plan.multiplies)}, "
            f"{problem_bytes(problem) / 1e6:.3g} MB to move, planned for M <= {problem.m}",
        ]
        if self.quantizer:
            lines.insert(2, f"input       {self.quantizer}")
        if plan.workspace_bytes:
            lines.append(f"workspace   {plan.workspace_bytes / 1e6:.3g} MB")
        others = self.runners_up
        lines += ["runners-up"] if others else []
        for other in others[:5]:
            lines.append(f"  {other.cost_us:8.3g} us  {other.entry.name} [{other.tile}]")
        if len(others) > 5:
            lines.append(f"  and {len(others) - 5} more")
        lines += ["rejected"] if choice.rejections else []
        lines += [f"  {r.kernel}: {r.reason}" for r in choice.rejections]
        return "\n".join(lines)

    @property
    def quantizer(self) -> str:
        """What quantizes a float x before the product, with its number of kernels; empty where x is multiplied as it is."""
        spec, entry = self.choice.problem.spec, quantizer(self.choice.device.kind)
        if not spec.quantizes_activation:
            return ""
        dynamic, static = entry.launches(spec, False), entry.launches(spec, True)
        count = "" if not dynamic else f"; {dynamic} kernel{'s' * (dynamic > 1)} a float x"
        count += f", {static} with a static scale" if static != dynamic else ""
        return f"to {spec.activation_line} by {entry.name}  ({entry.status}{count})"

    @property
    def runners_up(self) -> list[Candidate]:
        """The candidates that were not chosen, cheapest first."""
        return [c for c in self.choice.candidates if (c.entry.name, c.tile) != (self.plan.kernel, self.plan.tile)]

    def to_dict(self) -> dict[str, Any]:
        """Return the same as plain values, ready for JSON."""
        choice = self.choice
        return {
            "problem": str(choice.problem.replace(m=self.m)),
            "device": choice.device.name,
            "layout": str(choice.layout),
            "plan": dataclasses.asdict(self.plan),
            "quantizer": self.quantizer,
            "runners_up": [{"kernel": c.entry.name, "tile": str(c.tile), "cost_us": c.cost_us} for c in self.runners_up],
            "rejected": [{"kernel": r.kernel, "reason": r.reason} for r in choice.rejections],
        }


def explain_problem(choice_args: tuple[Any, Any, Any], *, m: int, fallback: str = "allow") -> Explanation:
    """Return the Explanation of (problem, layout, device); raises what `choose_plan` raises."""
    plan = choose_plan(*choice_args, fallback=fallback)
    return Explanation(choice=survey(*choice_args), plan=plan, m=m)
