"""Builders for the harness: what a GEMM launches on a named GPU."""

import hybrid_humming as hh
from hybrid_humming.plan.choose import make_plan, survey


def planned(line: str, device: str, m: int, family: str, n: int = 4096, k: int = 4096):
    """(problem, layout, plan) of a GEMM on a weight in the layout `family`: the best of Triton's kernels."""
    problem = hh.Problem(spec=hh.Spec.parse(line), m=m, n=n, k=k)
    layout = hh.choose_layout(problem.spec, n, k, device, family=family)
    info = hh.DeviceInfo.named(device)
    choice = survey(problem, layout, info)
    best = next(c for c in choice.candidates if not c.entry.name.startswith("cuda."))
    return problem, layout, make_plan(best, choice.problem, layout, info)


def first_kernel(line: str, device: str, m: int, family: str):
    """The first kernel of that GEMM, compiled."""
    problem, layout, plan = planned(line, device, m, family)
    _, compiled = hh.compile_gemm(problem, device, layout=layout, plan=plan)
    return compiled[0]
