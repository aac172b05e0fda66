"""What ran in this process: `hh.report()` counts each plan, and each fallback is logged once."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from hybrid_humming.plan import Plan
from hybrid_humming.spec import Problem

log = logging.getLogger("hybrid_humming")
log.addHandler(logging.NullHandler())


@dataclass(frozen=True, kw_only=True)
class Row:
    """One plan and how often it ran."""

    spec: str
    n: int
    k: int
    m_bucket: int
    device: str
    plan: Plan
    calls: int


@dataclass(frozen=True, kw_only=True)
class Report:
    """Every plan that ran in this process, most called first. `str()` is a table."""

    rows: tuple[Row, ...]

    @property
    def fallbacks(self) -> tuple[Row, ...]:
        """The rows in which something else than the activation's own format was multiplied."""
        return tuple(r for r in self.rows if r.plan.fallback)

    def __str__(self) -> str:
        if not self.rows:
            return "no GEMM has run in this process"
        lines = [f"{'calls':>8}  {'M <=':>6}  {'N':>6}  {'K':>6}  {'device':12}  spec | kernel [tile] | multiplies"]
        for r in self.rows:
            note = f"  ({r.plan.fallback})" if r.plan.fallback else ""
            lines.append(
                f"{r.calls:8}  {r.m_bucket:6}  {r.n:6}  {r.k:6}  {r.device:12}  {r.spec} | {r.plan} | {r.plan.multiplies}{note}"
            )
        return "\n".join(lines)


class Counter:
    """Counts the calls of one planned problem; made once per plan, cheap to bump."""

    __slots__ = ("calls", "device", "plan", "problem")

    def __init__(self, problem: Problem, plan: Plan, device: str) -> None:
        self.problem, self.plan, self.device, self.calls = problem, plan, device, 0
        _counters.append(self)
        log.info("plan: %s on %s: %s", problem, device, plan)
        if plan.fallback and (key := (device, plan.fallback)) not in _logged:
            _logged.add(key)
            log.warning("fallback on %s: %s", device, plan.fallback)


_counters: list[Counter] = []
_logged: set[tuple[str, str]] = set()


def report() -> Report:
    """Return what ran in this process so far, by plan."""
    rows = [
        Row(
            spec=str(c.problem.spec),
            n=c.problem.n,
            k=c.problem.k,
            m_bucket=c.problem.m,
            device=c.device,
            plan=c.plan,
            calls=c.calls,
        )
        for c in _counters
        if c.calls
    ]
    return Report(rows=tuple(sorted(rows, key=lambda r: -r.calls)))


def reset_report() -> None:
    """Set every count back to zero."""
    for counter in _counters:
        counter.calls = 0
