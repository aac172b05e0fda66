"""`explain` of every spec on every GPU that we name: a plan that says what multiplies and why, or a typed error with the reason."""

import pytest

import hybrid_humming as hh
from hybrid_humming.device import DeviceInfo, device_names
from hybrid_humming.errors import FallbackRefused, HybridHummingError, UnsupportedProblem
from hybrid_humming.plan import operand_format
from hybrid_humming.plan.registry import kernel
from tests.kernels.cases import QUANTIZED, WEIGHT_ONLY, k_of

LINES = [f"{half} x {'bf16' if i % 2 else 'fp16'}" for i, half in enumerate(WEIGHT_ONLY)] + QUANTIZED
GPUS = [name for name in device_names() if name != "cpu"]


@pytest.mark.parametrize("name", device_names())
def test_every_spec_is_served_or_told_why_not(name):
    device = DeviceInfo.named(name)
    for i, line in enumerate(LINES):
        spec, m = hh.Spec.parse(line), (1, 16, 300, 4096)[i % 4]
        said = hh.explain(spec, m=m, n=4096, k=32 * k_of(line), device=name)
        plan, entry = said.plan, kernel(said.plan.kernel)
        assert entry.device == device.kind
        # What multiplies is the format's own, its stand-in's, or a wider one that the kernel that fits decodes it to: never unsaid.
        assert bool(plan.fallback) == (plan.multiplies != spec.activation) or device.kind == "cpu"
        assert not plan.fallback or plan.fallback in str(said)
        assert device.kind == "cpu" or device.multiplies(plan.multiplies) or plan.multiplies == "fp32"
        assert not device.families or said.choice.layout.family in device.families
        assert said.choice.candidates and all(r.reason for r in said.choice.rejections)


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("line", ["int4 g128 x bf16", "e4m3 channel x e4m3 token", "nvfp4 x nvfp4", "e0m3 g128 x e0m3 token"])
def test_a_refused_fallback_says_which_format_and_why(line, name):
    spec, device = hh.Spec.parse(line), DeviceInfo.named(name)
    options = hh.Options(fallback="error")
    try:
        plan = hh.explain(spec, m=16, n=4096, k=4096, device=name, options=options).plan
    except FallbackRefused as error:
        assert f"{spec.activation} activations are multiplied as" in str(error) and device.name in str(error)
        if operand_format(spec.activation, device) != spec.activation:
            assert f"(sm_{device.sm}) has no {spec.activation} tensor cores" in str(error)
    else:
        assert plan.multiplies == spec.activation and not plan.fallback


@pytest.mark.parametrize("name", ["t4", "l40s", "h200", "rtx-5090"])
def test_a_spec_that_no_kernel_serves_is_refused_with_every_kernels_reason(name):
    """Scales of activations that change every 8 k: no kernel has so short a step, on any GPU and in any stand-in."""
    with pytest.raises(UnsupportedProblem) as refused:
        hh.explain("int8 g8:fp32 x int8 g8", m=16, n=4096, k=4096, device=name)
    assert "activation and weight scales change every 8 k; this kernel needs" in str(refused.value)
    assert "triton.gemm_portable" in str(refused.value) and "no kernel runs" in str(refused.value)
    assert isinstance(refused.value, HybridHummingError)
