"""Options(dependent_launch=True): in the plan of a kernel that has it, nowhere else, and through every form of the options."""

import pytest

import hybrid_humming as hh
from hybrid_humming.plan import check_plan


def planned(m, device="h200", **flags):
    spec = hh.Spec.parse("int4 g128 x bf16")
    layout = hh.choose_layout(spec, 8192, 8192, device)
    problem = hh.Problem(spec=spec, m=m, n=8192, k=8192, **flags)
    return hh.choose_plan(problem, layout, device), problem, layout


@pytest.mark.parametrize("m", [1, 16, 64])
def test_it_is_in_the_plan_when_it_was_asked_for(m):
    plain, asked = planned(m)[0], planned(m, dependent_launch=True)[0]
    assert not plain.tile.dependent_launch and asked.tile.dependent_launch and "dependent_launch" in str(asked)
    assert asked == plain.replace(dependent_launch=True, source=plain.source)


def test_a_kernel_without_it_starts_as_usual():
    plan = planned(4, device="l40s", dependent_launch=True)[0]
    assert not plan.tile.dependent_launch


def test_it_goes_with_batch_invariance():
    plan, problem, layout = planned(64, dependent_launch=True, batch_invariant=True)
    assert plan.tile.dependent_launch
    check_plan(plan, problem, layout, hh.DeviceInfo.named("h200"))


def test_options_carry_it():
    options = hh.Options(dependent_launch=True, batch_invariant=True)
    assert hh.Options.parse(str(options)) == options
    text = str(hh.explain("int4 g128 x bf16", m=16, n=8192, k=8192, device="h200", options=options))
    assert "+dependent_launch" in text and "+batch_invariant" in text
