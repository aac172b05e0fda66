"""Builders for the harness: what a GEMM launches on a named GPU."""

import hybrid_humming as hh


def planned(line: str, device: str, m: int, family: str, n: int = 4096, k: int = 4096):
    """(problem, layout, plan) of a GEMM on a weight in the layout `family`."""
    problem = hh.Problem(spec=hh.Spec.parse(line), m=m, n=n, k=k)
    layout = hh.choose_layout(problem.spec, n, k, device, family=family)
    return problem, layout, hh.choose_plan(problem, layout, device)


def first_kernel(line: str, device: str, m: int, family: str):
    """The first kernel of that GEMM, compiled."""
    problem, layout, plan = planned(line, device, m, family)
    _, compiled = hh.compile_gemm(problem, device, layout=layout, plan=plan)
    return compiled[0]
