"""Activations of 4 and 6 bits where no tensor core takes them: one answer, right numbers on every path, and said so."""

import pytest
import torch

import hybrid_humming as hh
from hybrid_humming import cpu, ops
from hybrid_humming.errors import FallbackRefused
from hybrid_humming.plan import KernelEntry, Tile, registry
from hybrid_humming.plan.fallback import stand_in
from hybrid_humming.plan.registry import register_kernel
from hybrid_humming.reference import dequantize_input, quantize_input
from hybrid_humming.usage import report, reset_report

# A GPU as Hopper is, that is this machine's CPU.
HOPPER = hh.DeviceInfo.named("h200")
RATES = (("e4m3", 9.0), ("fp32", 0.1), ("int8", 9.0))
CPU_WITH_INT8 = hh.DeviceInfo.named("cpu").replace(name="cpu with 8-bit units", tera_ops=RATES)
seen = []


def launch(args, plan):
    """The CPU's own kernel, on the spec and the x that an 8-bit kernel is given."""
    seen.append((args.problem.spec.activation, args.x.dtype, args.x.shape[1]))
    cpu.launch(args, plan)


EIGHT = KernelEntry(
    name="test.gemm_eight", family="*", launcher="tests.ops.test_stand_in:launch", device="cpu",
    reject=lambda problem, layout, device: None if problem.spec.activation in ("int8", "e4m3") else "multiplies 8 bits only",
    tiles=lambda *_: (Tile(mma="library"),), check=lambda *_: None, cost_us=lambda *_: 1e-6,
    multiplies=lambda problem, device: problem.spec.activation,
)  # fmt: skip


@pytest.fixture
def eight(monkeypatch):
    """A kernel that multiplies int8 and e4m3, on a device that does."""
    ops.load_catalogs()
    monkeypatch.setattr(registry, "_kernels", dict(registry._kernels))
    register_kernel(EIGHT)
    of = hh.DeviceInfo.of.__func__
    monkeypatch.setattr(hh.DeviceInfo, "of", classmethod(lambda cls, d: CPU_WITH_INT8 if str(d) == "cpu" else of(cls, d)))
    from hybrid_humming.plan import choose

    for cached in (ops._prepare, choose._survey):
        cached.cache_clear()
    seen.clear()
    yield
    for cached in (ops._prepare, choose._survey):
        cached.cache_clear()


@pytest.mark.parametrize(("line", "given"), [
    ("int4 channel x int4 token", "int4 channel x int8 token"), ("int4 g128 x int4 g128", "int4 g128 x int8 g128"),
    ("mxfp4 x mxfp4", "mxfp4 x mxfp8"), ("e2m1 g32 x e2m1 token", "e2m1 g32 x e4m3 token"), ("mxfp6 x mxfp6", "mxfp6 x mxfp8"),
    ("nvfp4 x nvfp4", "nvfp4 x e4m3 g16:e4m3+tensor"), ("e0m3 g32 x e0m3 g32", "e0m3 g32 x int8 g32"),
    ("e4m3 channel x e4m3 token", None), ("int8 channel x int8 token", None), ("int4 g128 x bf16", None),
    ("mxfp4 x e3m4 g32", None),
])  # fmt: skip
def test_hopper_has_one_answer_for_each(line, given):
    spec = hh.Spec.parse(line)
    assert str(stand_in(spec, HOPPER)) == (given or line)
    assert stand_in(spec, hh.DeviceInfo.named("cpu")) == spec


CASES = [
    ("int4 channel x int4 token", torch.int8), ("mxfp4 x mxfp4", torch.float8_e4m3fn), ("nvfp4 x nvfp4", torch.float8_e4m3fn),
    ("e0m3 g32 x e0m3 token", torch.int8), ("mxfp6 x mxfp6", torch.float8_e4m3fn),
]  # fmt: skip


@pytest.mark.parametrize(("line", "dtype"), CASES)
def test_an_8_bit_kernel_is_given_the_values_of_the_narrow_grid(eight, line, dtype):
    spec = hh.Spec.parse(line)
    generator = torch.Generator().manual_seed(0)
    qweight = hh.quantize(torch.randn(48, 256, generator=generator), spec)
    x = torch.randn(3, 5, 256, generator=generator).bfloat16()
    reset_report()
    y = hh.gemm(x, qweight)
    made = hh.quantize_input(x, spec)
    assert torch.equal(y, hh.gemm(made.values, qweight, x_scale=made.scale, x_global_scale=made.global_scale))
    operand = {torch.int8: "int8", torch.float8_e4m3fn: "e4m3"}[dtype]
    assert seen == [(operand, dtype, 256)] * 2
    truth = dequantize_input(quantize_input(x, spec), spec, torch.float64) @ hh.dequantize(qweight, torch.float64).T
    assert (y.double() - truth).norm() <= 5e-3 * truth.norm()
    (row,) = report().rows
    assert (row.plan.multiplies, row.plan.kernel) == (operand, "test.gemm_eight")
    assert row.spec == str(spec) and f"multiplied as {operand}: cpu with 8-bit units" in row.plan.fallback
    assert report().fallbacks and f"{spec.activation_line} as {operand}" in str(report())
    with pytest.raises(FallbackRefused, match=f"{spec.activation} activations are multiplied as"):
        hh.gemm(x, qweight, options=hh.Options(fallback="error"))


def test_a_users_plan_of_such_a_kernel_runs_too(eight):
    qweight = hh.quantize(torch.randn(48, 256), "int4 channel x int4 token")
    problem = hh.Problem(spec=qweight.spec, m=4, n=48, k=256)
    plan = hh.choose_plan(problem, qweight.layout, "cpu")
    assert plan.kernel == "test.gemm_eight"
    x = torch.randn(4, 256)
    assert torch.equal(hh.gemm(x, qweight, plan=plan), hh.gemm(x, qweight))


@pytest.mark.parametrize("line", [line for line, _ in CASES])
def test_explain_says_what_hopper_multiplies(line):
    spec = hh.Spec.parse(line)
    explanation = hh.explain(spec, m=16, n=4096, k=4096, device="h200")
    plan = explanation.plan
    assert plan.multiplies != spec.activation
    assert f"{spec.activation} activations are multiplied as {plan.multiplies}: h200 (sm_90) has no {spec.activation}" in str(
        explanation
    )
    with pytest.raises(FallbackRefused):
        hh.explain(spec, m=16, n=4096, k=4096, device="h200", options=hh.Options(fallback="error"))
