"""compile_gemm: the kernels of a GEMM for a GPU that is not here, with no weight."""

import pytest

import hybrid_humming as hh
from hybrid_humming.ahead import meta_arguments
from hybrid_humming.errors import DeviceError, PlanError

PROBLEM = hh.Problem(spec=hh.Spec.parse("uint4 g64 zp x fp16"), m=3, n=96, k=128, bias=True)


def test_a_cpu_needs_no_compiling():
    with pytest.raises(DeviceError, match="name a GPU"):
        hh.compile_gemm(PROBLEM, "cpu")


@pytest.mark.parametrize("line", ["uint4 g64 zp x fp16", "nvfp4 x bf16", "nvfp4 x nvfp4", "e4m3 channel x e4m3 token"])
def test_meta_arguments_look_like_real_ones(line):
    """Shapes, types and strides of a launch with no data are those of a real weight and x."""
    import torch

    from hybrid_humming.reference import quantize_input

    problem = PROBLEM.replace(spec=hh.Spec.parse(line))
    qweight = hh.quantize(torch.randn(problem.n, problem.k), problem.spec, device=hh.DeviceInfo.named("h200"))
    plan = hh.choose_plan(problem, qweight.layout, "h200")
    args = meta_arguments(problem, qweight.layout, plan)
    real = {name: getattr(qweight, name) for name in ("qweight", "scale", "zero_point", "secondary_scale")}
    if problem.spec.quantizes_activation:
        x = quantize_input(torch.randn(problem.m, problem.k), problem.spec)
        real |= {"x": x.values, "x_scale": x.scale, "x_global_scale": x.global_scale}
    for name, want in real.items():
        got = getattr(args, name)
        assert (got is None) == (want is None), name
        if want is not None:
            assert (got.shape, got.dtype, got.stride()) == (want.shape, want.dtype, want.stride()), name
    assert all(a.is_meta for a in args if isinstance(a, torch.Tensor))


@pytest.mark.compile
def test_the_plan_is_the_planners_or_the_users():
    plan, compiled = hh.compile_gemm(PROBLEM, "h200")
    assert plan == hh.choose_plan(PROBLEM, device="h200")
    assert all(c.sm == 90 and c.cubin.startswith(b"\x7fELF") for c in compiled)
    layout = hh.choose_layout(PROBLEM.spec, 96, 128, "h200", family="portable")
    own = hh.choose_plan(PROBLEM, layout, "h200").replace(num_warps=2)
    plan, _ = hh.compile_gemm(PROBLEM, "h200", layout=layout, plan=own)
    assert (plan.tile, plan.source) == (own.tile, "user")
    with pytest.raises(PlanError, match="num_warps=3"):
        hh.compile_gemm(PROBLEM, "h200", layout=layout, plan=own.replace(num_warps=3))


@pytest.mark.compile
@pytest.mark.parametrize(("line", "kernels"), [
    ("e4m3 channel x e4m3 token", ["quantize_kernel"]),
    ("nvfp4 x nvfp4", ["absmax_kernel", "quantize_kernel", "quantize_kernel"]),  # its own second scale, then a static one
])  # fmt: skip
def test_the_input_quantizers_are_built_too(line, kernels):
    problem = hh.Problem(spec=hh.Spec.parse(line), m=16, n=128, k=512)
    _, compiled = hh.compile_gemm(problem, "h200")
    assert [c.entry for c in compiled][-len(kernels) :] == kernels and len(compiled) > len(kernels)
    assert not any(c.spill_bytes for c in compiled[-len(kernels) :])
