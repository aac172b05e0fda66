"""What ran in this process: `hh.report()` counts each plan and each input quantizer, and each fallback is logged once."""

from __future__ import annotations

import dataclasses
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
class InputRow:
    """One kind of input quantization and how often it ran.

    activation  what x became, such as "e4m3 g128";  dtype: what it was
    quantizer   what ran, such as triton.quantize_input
    before      what was done to x on the way: "silu > Hadamard 128"
    """

    activation: str
    k: int
    dtype: str
    device: str
    quantizer: str
    before: str
    calls: int


@dataclass(frozen=True, kw_only=True)
class Report:
    """Every plan and every input quantizer that ran in this process, most called first. `str()` is a table."""

    rows: tuple[Row, ...]
    inputs: tuple[InputRow, ...] = ()

    @property
    def fallbacks(self) -> tuple[Row, ...]:
        """The rows in which something else than the activation's own format was multiplied."""
        return tuple(r for r in self.rows if r.plan.fallback)

    def __str__(self) -> str:
        if not self.rows and not self.inputs:
            return "no GEMM has run in this process"
        lines = (
            [f"{'calls':>8}  {'M <=':>6}  {'N':>6}  {'K':>6}  {'device':12}  spec | kernel [tile] | multiplies"]
            if self.rows
            else []
        )
        for r in self.rows:
            note = f"  ({r.plan.fallback})" if r.plan.fallback else ""
            lines.append(
                f"{r.calls:8}  {r.m_bucket:6}  {r.n:6}  {r.k:6}  {r.device:12}  {r.spec} | {r.plan} | {r.plan.multiplies}{note}"
            )
        lines += [f"{'calls':>8}  {'K':>6}  {'device':12}  input | quantizer | before"] if self.inputs else []
        for i in self.inputs:
            before = f" | {i.before}" if i.before else ""
            lines.append(f"{i.calls:8}  {i.k:6}  {i.device:12}  {i.dtype} to {i.activation} | {i.quantizer}{before}")
        return "\n".join(lines)


class InputCounter:
    """Counts the quantizations of one kind of x; made once, cheap to bump."""

    __slots__ = ("calls", "what")

    def __init__(self, activation: str, k: int, dtype: str, device: str, quantizer: str, before: str) -> None:
        self.what = {
            "activation": activation, "k": k, "dtype": dtype, "device": device, "quantizer": quantizer, "before": before
        }  # fmt: skip
        self.calls = 0
        _input_counters.append(self)
        log.info("input: %s [K=%d] to %s on %s: %s %s", dtype, k, activation, device, quantizer, before)


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
_input_counters: list[InputCounter] = []
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
    inputs: dict[InputRow, int] = {}  # weights of one activation share a row
    for count in _input_counters:
        if count.calls:
            key = InputRow(**count.what, calls=0)  # type: ignore[arg-type]
            inputs[key] = inputs.get(key, 0) + count.calls
    counted = [dataclasses.replace(key, calls=calls) for key, calls in inputs.items()]
    return Report(rows=tuple(sorted(rows, key=lambda r: -r.calls)), inputs=tuple(sorted(counted, key=lambda r: -r.calls)))


def reset_report() -> None:
    """Set every count back to zero."""
    for counter in _counters:
        counter.calls = 0
    for input_counter in _input_counters:
        input_counter.calls = 0
