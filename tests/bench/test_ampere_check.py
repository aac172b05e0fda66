"""The check of the Ampere kernels: every case has a plan of the family, legal on the GPU that runs it, and compiles for it."""

import pytest

from bench import ampere_check as checking
from hybrid_humming.device import DeviceInfo
from hybrid_humming.jit.launch import target_sm
from hybrid_humming.plan import check_plan
from hybrid_humming.triton_kernels.ampere import launch


def test_every_case_is_legal_where_it_runs():
    here, kernels, rows = DeviceInfo.named(checking.HERE), set(), set()
    for case in (*checking.check_cases(), *checking.invariant_cases()):
        problem, layout, plan = checking.planned(case)
        check_plan(plan, problem, layout, here)
        kernels.add(plan.kernel)
        rows.add(case.m)
    assert kernels == {"gluon.ampere_stream", "gluon.ampere_dequant_matmul"} and {1, 17, 64, 300, 1024} <= rows
    timed = [(case, checking.planned(case)) for case in checking.time_cases()]
    assert {case.m for case, made in timed if made is not None} == set(checking.TIMED)


@pytest.mark.compile
@pytest.mark.parametrize(("line", "hot"), [("nvfp4 x bf16", True), ("int8 channel x fp16", False)])
def test_a_case_compiles_without_a_gpu_for_sm_80s_instructions(line, hot, monkeypatch):
    monkeypatch.setattr(launch, "target_sm", target_sm)  # undone at the end, whatever the check sets
    assert checking.precompile(checking.Case(line, 8, "a100", hot=hot)) == ""
    assert launch.target_sm(None) == 80
