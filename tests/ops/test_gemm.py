"""hh.gemm on CPU tensors: the same public call, checks and op that a GPU gets."""

import random

import pytest
import torch

import hybrid_humming as hh
from hybrid_humming.errors import (
    DeviceError,
    DtypeError,
    FallbackRefused,
    PlanError,
    ShapeError,
    SpecError,
)
from hybrid_humming.usage import report, reset_report

SPECS = [
    "int4 g128 x bf16",
    "uint4 g64 zp x fp16",
    "uint3 g32 zp:fp16 x fp16",
    "int8 channel x bf16",
    "mxfp4 x bf16",
    "nvfp4 x bf16",
    "e4m3 b128x128 x bf16",
    "e4m3 channel x e4m3 token",
    "int8 channel x int8 token",
    "mxfp4 x mxfp8",
    "nvfp4 x nvfp4",
    "int4 channel x int4 token",
]


def make(line, m=5, n=72, k=256, seed=0):
    gen = torch.Generator().manual_seed(seed)
    spec = hh.Spec.parse(line)
    weight = torch.randn(n, k, generator=gen) * 0.1
    dtype = torch.bfloat16 if spec.quantizes_activation else spec.activation_format.torch_storage
    return torch.randn(m, k, generator=gen).to(dtype), hh.quantize(weight, spec), spec


def exact(x, qweight):
    return x.double() @ hh.dequantize(qweight, torch.float64).T


@pytest.mark.parametrize("line", SPECS)
def test_error_is_at_most_twice_torchs(line):
    x, qweight, spec = make(line)
    y = hh.gemm(x, qweight, spec)
    assert y.shape == (5, 72) and y.dtype == (torch.float16 if spec.activation == "fp16" else torch.bfloat16)
    truth = exact(x, qweight)
    if spec.quantizes_activation:  # the truth of these is the product of the quantized operands
        from hybrid_humming.reference import dequantize_input, quantize_input

        truth = dequantize_input(quantize_input(x, spec), spec, torch.float64) @ hh.dequantize(qweight, torch.float64).T
        assert (y.double() - truth).norm() <= 4e-3 * truth.norm()
        return
    torch_err = ((x @ hh.dequantize(qweight).to(x.dtype).T).double() - truth).norm()
    assert (y.double() - truth).norm() <= 2 * torch_err


def test_identity_reads_the_decoded_weight_out():
    _, qweight, spec = make("int4 g128 x bf16 -> fp32")
    got = hh.gemm(torch.eye(256, dtype=torch.bfloat16), qweight, spec)
    assert torch.equal(got.T, hh.dequantize(qweight))


@pytest.mark.parametrize(
    "view",
    [
        lambda big: big[:, :256],
        lambda big: big.t()[:256].t(),
        lambda big: big[::2, :256],
        lambda big: big[:6, :256].unflatten(0, (2, 3)).transpose(0, 1),
        lambda big: big[:1, :256].expand(4, 256),
        lambda big: big[0, :256],
    ],
    ids=["sliced", "transposed", "every other row", "3-D", "expanded", "1-D"],
)
def test_strided_x_equals_contiguous_x(view):
    _, qweight, _ = make("int4 g128 x bf16")
    x = view(torch.randn(8, 512).bfloat16())
    got = hh.gemm(x, qweight)
    assert got.shape == (*x.shape[:-1], 72) and got.is_contiguous()
    assert torch.equal(got, hh.gemm(x.contiguous(), qweight))


@pytest.mark.parametrize("shape", [(0, 256), (2, 0, 256)])
def test_no_rows_give_no_rows_and_plan_nothing(shape):
    _, qweight, _ = make("int4 g128 x bf16")
    reset_report()
    assert hh.gemm(torch.empty(shape, dtype=torch.bfloat16), qweight).shape == (*shape[:-1], 72)
    assert not report().rows


def test_bias_out_and_out_dtype():
    x, qweight, _ = make("int4 g128 x bf16")
    bias = torch.randn(72)
    plain = hh.gemm(x, qweight, out_dtype=torch.float32)
    assert torch.equal(hh.gemm(x, qweight, bias=bias, out_dtype=torch.float32), plain + bias)
    out = torch.full((5, 72), float("nan"))
    assert hh.gemm(x, qweight, out=out) is out and torch.equal(out, plain)
    wide = torch.full((5, 144), float("nan"), dtype=torch.bfloat16)
    hh.gemm(x, qweight, out=wide[:, ::2])
    assert torch.equal(wide[:, ::2], hh.gemm(x, qweight)) and wide[:, 1::2].isnan().all()


def test_quantized_x_with_its_scale_equals_float_x():
    from hybrid_humming.reference import quantize_input

    for line in ("e4m3 channel x e4m3 token", "nvfp4 x nvfp4", "int4 channel x int4 token", "mxfp8 x mxfp8"):
        x, qweight, spec = make(line)
        q = quantize_input(x, spec)
        got = hh.gemm(q.values, qweight, spec, x_scale=q.scale, x_global_scale=q.global_scale)
        assert torch.equal(got, hh.gemm(x, qweight, spec)), line


def test_batch_invariance_is_kept():
    x, qweight, spec = make("int4 g128 x bf16", m=64)
    options = hh.Options(batch_invariant=True)
    whole = hh.gemm(x, qweight, spec, options=options)
    for m in (1, 4, 16):
        assert torch.equal(hh.gemm(x[:m], qweight, spec, options=options), whole[:m])


def test_explain_names_the_plan_that_the_launch_records():
    rng = random.Random(0)
    for _ in range(200):
        line = rng.choice(SPECS)
        m, n, k = rng.randint(1, 70), rng.choice([8, 24, 72, 136]), rng.choice([128, 256, 384])
        x, qweight, spec = make(line, m, n, k)
        reset_report()
        hh.gemm(x, qweight, spec)
        (row,) = report().rows
        assert row.plan == hh.explain(spec, m=m, n=n, k=k, device="cpu").plan
        assert (row.calls, row.n, row.k) == (1, n, k)


def test_a_users_plan_runs_and_is_recorded():
    x, qweight, spec = make("int4 g128 x bf16")
    plan = hh.choose_plan(hh.Problem(spec=spec, m=5, n=72, k=256), device="cpu").replace(num_warps=8)
    reset_report()
    assert torch.equal(hh.gemm(x, qweight, spec, plan=plan), hh.gemm(x, qweight, spec))
    assert {row.plan.source for row in report().rows} == {"user", "heuristic"}
    with pytest.raises(PlanError, match="unknown kernel"):
        hh.gemm(x, qweight, spec, plan=plan.replace(kernel="nothing"))


def test_gradient_is_the_dequantized_product():
    x, qweight, spec = make("int4 g128 x bf16 -> fp32")
    x = x.clone().requires_grad_()
    bias = torch.zeros(72, requires_grad=True)
    grad = torch.randn(5, 72)
    hh.gemm(x, qweight, spec, bias=bias).backward(grad)
    assert torch.allclose(x.grad.float(), (grad @ hh.dequantize(qweight)).bfloat16().float())
    assert torch.allclose(bias.grad, grad.sum(0))


def test_gradient_passes_back_through_the_input_transform():
    _, qweight, _ = make("int4 g128 x bf16 -> fp32")
    permutation = torch.randperm(256).int()
    transform = hh.InputTransform(pre_quant_scale=torch.rand(256) + 0.5, hadamard=32, permutation=permutation)
    qweight = qweight.replace(transform=transform)
    x = torch.randn(3, 256).bfloat16().requires_grad_()
    hh.gemm(x, qweight).sum().backward()
    basis = hh.gemm(torch.eye(256).bfloat16(), qweight).sum(1)  # d sum(y) / d x[k], as the forward sees it
    assert (x.grad[0].float() - basis).norm() <= 2e-2 * basis.norm()
    assert torch.equal(x.grad[0], x.grad[2])


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x, q: hh.gemm(x[:, :255], q), ShapeError, r"x is \[5, 255\], but the weight is \[72, 256\].*must be 256"),
        (lambda x, q: hh.gemm(x.half(), q), DtypeError, r"x is torch.float16, but 'int4 g128 x bf16' multiplies torch.bfloat16"),
        (lambda x, q: hh.gemm(x, q, "int4 g64 x bf16"), SpecError, r"'int4 g64 x bf16' was given, but.*'int4 g128 x bf16'"),
        (lambda x, q: hh.gemm(x, q, bias=torch.zeros(71)), ShapeError, r"bias is \[71\].*must be \[72\]"),
        (lambda x, q: hh.gemm(x, q, out=torch.empty(5, 71)), ShapeError, r"out is torch.float32 \[5, 71\].*\[5, 72\]"),
        (lambda x, q: hh.gemm(x, q, out_dtype=torch.int8), DtypeError, r"out_dtype torch.int8: allowed are"),
        (lambda x, q: hh.gemm(x, q, x_scale=torch.ones(1)), SpecError, r"x_scale was given, but.*carry no scale"),
        (lambda x, q: hh.gemm(x.to("meta"), q), DeviceError, r"x is on meta, the weight on cpu"),
        (lambda x, q: hh.gemm(x, q.qweight), DtypeError, r"qweight is Tensor; pass the QWeight"),
        (lambda x, q: hh.gemm(torch.tensor(1.0), q), ShapeError, r"x is a scalar; it must be \[..., 256\]"),
        (lambda x, q: hh.Options(fallback="never"), SpecError, r"fallback='never': allowed are 'allow' and 'error'"),
    ],
)  # fmt: skip
def test_bad_calls_are_refused_with_the_numbers(call, error, text):
    x, qweight, _ = make("int4 g128 x bf16")
    with pytest.raises(error, match=text):
        call(x, qweight)


def test_codes_without_a_scale_are_refused():
    x, qweight, spec = make("e4m3 channel x e4m3 token")
    with pytest.raises(DtypeError, match="float8_e4m3fn without x_scale"):
        hh.gemm(x.to(torch.float8_e4m3fn), qweight, spec)
    with pytest.raises(DtypeError, match=r"x is torch.int8 with x_scale; .* stored as torch.float8_e4m3fn"):
        hh.gemm(x.to(torch.int8), qweight, spec, x_scale=torch.ones(5, 1))


def test_fallback_can_be_refused():
    x, qweight, spec = make("e4m3 channel x e4m3 token")
    with pytest.raises(FallbackRefused, match="e4m3 activations are multiplied as fp32"):
        hh.gemm(x, qweight, spec, options=hh.Options(fallback="error"))


def test_nan_scale_poisons_its_own_group_only():
    _, qweight, _ = make("int4 g128 x bf16 -> fp32")
    canonical = hh.unpack_weight(qweight)
    scale = canonical.scale.clone()
    scale[3, 1] = float("nan")
    bad = canonical.replace(scale=scale)
    with pytest.raises(ValueError, match=r"scale\[3, 1\] is nan"):
        hh.pack_weight(bad, validate=True)
    decoded = hh.dequantize(hh.pack_weight(bad))
    assert decoded[3, 128:].isnan().all() and int(decoded.isnan().sum()) == 128


def test_fp16_sums_pass_the_fp16_range():
    """Partial sums leave fp16's range although the result does not."""
    weight = torch.full((8, 8192), 7.0)
    weight[:, 4096:] = -7.0
    x = torch.full((1, 8192), 8.0, dtype=torch.float16)
    y = hh.gemm(x, hh.quantize(weight, "int4 channel x fp16"))
    assert torch.equal(y, torch.zeros_like(y))


def test_experts_are_refused_by_the_dense_call():
    qweight = hh.quantize(torch.randn(2, 16, 128), "int4 g128 x bf16")
    with pytest.raises(ShapeError, match="2 experts"):
        hh.gemm(torch.randn(3, 128).bfloat16(), qweight)
