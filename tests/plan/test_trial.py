"""Kernels on trial: named by explain with what lets them in, planned when asked for, never by default."""

import pytest
import torch

import hybrid_humming as hh
from hybrid_humming.errors import SettingError, UnsupportedProblem
from hybrid_humming.plan import check_plan
from hybrid_humming.plan.registry import kernels

LINE, A8 = "int4 g128 x bf16", "e4m3 channel x e4m3 token"


def plan_of(line, m, layout=None):
    spec = hh.Spec.parse(line)
    layout = layout or hh.choose_layout(spec, 8192, 8192, "h200")
    return hh.choose_plan(hh.Problem(spec=spec, m=m, n=8192, k=8192), layout, "h200"), layout


def status_of(plan):
    return next(entry.status for entry in kernels() if entry.name == plan.kernel)


@pytest.mark.parametrize("line", [LINE, A8, "int4 g128 x int8 token"])
@pytest.mark.parametrize("m", [1, 64, 1024])
def test_no_plan_takes_one_by_default(line, m, monkeypatch):
    monkeypatch.delenv("HYBRID_HUMMING_TRIAL", raising=False)
    plan, layout = plan_of(line, m)
    assert status_of(plan) != "trial" and layout.family != "hopper_a8"


def test_explain_says_what_lets_them_in(monkeypatch):
    monkeypatch.delenv("HYBRID_HUMMING_TRIAL", raising=False)
    text = " ".join(str(hh.explain(LINE, m=64, n=8192, k=8192, device="h200")).split())
    assert "gluon.gemm_wgmma" in text and "on trial" in text and "HYBRID_HUMMING_TRIAL=1" in text


def test_the_switch_lets_them_in_and_is_read_at_each_plan(monkeypatch):
    monkeypatch.setenv("HYBRID_HUMMING_TRIAL", "1")
    plan, _ = plan_of(LINE, 64)
    a8, layout = plan_of(A8, 64)
    assert plan.kernel == "gluon.gemm_wgmma" and a8.kernel == "gluon.gemm_w8a8" and layout.family == "hopper_a8"
    monkeypatch.setenv("HYBRID_HUMMING_TRIAL", "0")
    assert plan_of(LINE, 64)[0].kernel != plan.kernel
    with pytest.raises(UnsupportedProblem, match="HYBRID_HUMMING_TRIAL=1"):
        plan_of(A8, 64, layout)


def test_a_plan_that_names_one_is_obeyed(monkeypatch):
    monkeypatch.setenv("HYBRID_HUMMING_TRIAL", "1")
    plan, layout = plan_of(LINE, 64)
    monkeypatch.delenv("HYBRID_HUMMING_TRIAL")
    problem = hh.Problem(spec=hh.Spec.parse(LINE), m=64, n=8192, k=8192)
    assert check_plan(plan, problem, layout, hh.DeviceInfo.named("h200")).tile == plan.tile


def test_a_weight_may_be_packed_for_them_by_name(monkeypatch):
    monkeypatch.delenv("HYBRID_HUMMING_TRIAL", raising=False)
    weight = torch.randn(256, 512)
    qweight = hh.quantize(weight, A8, device=hh.DeviceInfo.named("h200"), layout="hopper_a8")
    assert qweight.layout.family == "hopper_a8"
    assert torch.equal(hh.dequantize(qweight), hh.dequantize(hh.quantize(weight, A8)))


def test_another_value_of_the_switch_is_refused(monkeypatch):
    monkeypatch.setenv("HYBRID_HUMMING_TRIAL", "yes")
    with pytest.raises(SettingError, match="HYBRID_HUMMING_TRIAL is 'yes'; it takes 0"):
        plan_of(LINE, 64)
