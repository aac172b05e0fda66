"""The pairwise cover that a GPU runs: whole, planned without a refusal, and by the kernels it is meant for."""

import collections

import hybrid_humming as hh
from hybrid_humming.plan import check_plan

from .cover import load, met, pairs


def test_every_pair_meets_in_some_case():
    assert not pairs() - met(load())


def test_every_case_has_a_plan_that_its_kernel_takes():
    h200, kernels = hh.DeviceInfo.named("h200"), collections.Counter()
    for choice in load():
        layout = hh.choose_layout(choice.spec, choice.n, choice.k, h200)
        problem = hh.Problem(
            spec=choice.spec, m=choice.m, n=choice.n, k=choice.k, bias=choice.option == "bias",
            batch_invariant=choice.option == "batch invariant",
        )  # fmt: skip
        plan = hh.choose_plan(problem, layout, h200)
        check_plan(plan, problem, layout, h200)
        kernels[plan.kernel] += 1
    assert kernels["gluon.gemm_stream"] > 300 and sum(n for name, n in kernels.items() if name.startswith("gluon")) > 450, kernels
