"""hh.quantize_input and what hh.gemm quantizes inside: values, layouts, prologues, op registration, compile, report, mistakes."""

import pytest
import torch

import hybrid_humming as hh
from hybrid_humming.errors import DeviceError, DtypeError, ShapeError, SpecError, ValueRangeError
from hybrid_humming.reference import apply_transform, dequantize_input, quantize_input
from hybrid_humming.usage import report, reset_report

LINES = (
    "e4m3 channel x e4m3 token", "e4m3 channel x e5m2 token", "int8 channel x int8 token", "e4m3 tensor x e4m3 tensor",
    "e4m3 b128x128 x e4m3 g128", "int4 g128 x int4 token", "mxfp8 x mxfp8", "mxfp4 x mxfp4", "mxfp6 x mxfp6", "nvfp4 x nvfp4",
)  # fmt: skip


def sample(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def bits(tensor):
    return None if tensor is None else tensor.contiguous().view(torch.uint8)


def same(got, want):
    return all((g is None) == (w is None) and (g is None or torch.equal(bits(g), bits(w))) for g, w in zip(got, want, strict=True))


@pytest.mark.parametrize("line", LINES)
def test_every_format_has_the_values_of_the_reference(line):
    x, spec = sample(3, 5, 256), hh.Spec.parse(line)
    got = hh.quantize_input(x, line)
    assert same(got, quantize_input(x, spec))
    assert got.values.shape == (3, 5, 256 if spec.activation_format.bits > 4 else 128)
    assert same(hh.quantize_input(x[:, ::2], spec), quantize_input(x[:, ::2], spec))  # strided
    wide = sample(7, 512)[:, 128:384]
    assert same(hh.quantize_input(wide, spec), quantize_input(wide.contiguous(), spec))
    assert hh.quantize_input(x[:0], spec).values.numel() == 0


@pytest.mark.parametrize("line", LINES)
def test_gemm_quantizes_inside_as_outside(line):
    weight = sample(48, 256, dtype=torch.float32)
    qweight, x = hh.quantize(weight, line), sample(2, 3, 256)
    made = hh.quantize_input(x, qweight)
    assert torch.equal(hh.gemm(x, qweight), hh.gemm(made.values, qweight, x_scale=made.scale, x_global_scale=made.global_scale))


LAYOUTS = [("e4m3 b128x128 x e4m3 g128", "m_major"), ("mxfp8 x mxfp8", "m_major"), ("mxfp8 x mxfp8", "packed")]


@pytest.mark.parametrize(("line", "layout"), LAYOUTS)
@pytest.mark.parametrize("m", [1, 5, 64])
@pytest.mark.parametrize("k", [384, 512])
def test_scale_layouts_hold_the_same_scales(line, layout, m, k):
    x, spec = sample(m, k), hh.Spec.parse(line)
    plain, other = hh.quantize_input(x, spec), hh.quantize_input(x, spec, scale_layout=layout)
    unit = 16 // other.scale.element_size()
    assert other.scale.stride() == (1, -(-m // unit) * unit)
    groups = k // spec.activation_group_size
    if layout == "packed":
        assert other.scale.dtype == torch.int32 and other.scale.shape == (m, -(-groups // 4))
        words = other.scale.contiguous().view(torch.uint8)
        assert torch.equal(words[:, :groups], bits(plain.scale)) and not words[:, groups:].any()
    else:
        assert same(other, plain)
    behind = other.scale.as_strided((other.scale.shape[1], other.scale.stride(1)), (other.scale.stride(1), 1))[:, m:]
    assert not bits(behind).any()
    qweight = hh.quantize(sample(48, k, dtype=torch.float32), line)
    assert torch.equal(hh.gemm(other.values, qweight, x_scale=other.scale), hh.gemm(x, qweight))


def test_prologues_come_in_the_documented_order():
    x, spec = sample(6, 512, dtype=torch.float16), hh.Spec.parse("int8 channel x int8 token")
    transform = hh.InputTransform(
        pre_quant_scale=torch.rand(256) + 0.5, hadamard=32, permutation=torch.randperm(256, dtype=torch.int32)
    )
    rows = torch.tensor([5, -1, 0, 6, 5])
    got = hh.quantize_input(x, spec, transform=transform, activation="silu", limit=1.0, rows=rows)
    taken = torch.where(((rows >= 0) & (rows < 6))[:, None], x[rows.clamp(0, 5)], 0).float()
    gate, up = taken[:, :256].clamp(max=1.0), taken[:, 256:].clamp(-1.0, 1.0)
    want = quantize_input(apply_transform(torch.nn.functional.silu(gate) * up, transform), spec)
    assert same(got, want)
    assert not dequantize_input(got, spec)[[1, 3]].any()


@pytest.mark.parametrize(("name", "function"), [
    ("silu", lambda g, u: torch.nn.functional.silu(g) * u),
    ("gelu", lambda g, u: torch.nn.functional.gelu(g) * u),
    ("gelu_tanh", lambda g, u: torch.nn.functional.gelu(g, approximate="tanh") * u),
    ("swiglu_oai", lambda g, u: g.clamp(max=7) * torch.sigmoid(1.702 * g.clamp(max=7)) * (u.clamp(-7, 7) + 1)),
])  # fmt: skip
def test_activations_are_those_they_are_called(name, function):
    x, spec = 5 * sample(9, 256, dtype=torch.float32), hh.Spec.parse("e4m3 channel x e4m3 token")
    got = hh.quantize_input(x, spec, activation=name)
    assert same(got, quantize_input(function(x[:, :128], x[:, 128:]), spec))


def test_a_weight_brings_its_static_scale_and_transform():
    spec = hh.Spec.parse("e4m3 tensor x e4m3 tensor")
    transform = hh.InputTransform(pre_quant_scale=torch.rand(256) + 0.5)
    from hybrid_humming import reference

    canonical = reference.quantize(sample(48, 256, dtype=torch.float32), spec)
    qweight = hh.pack_weight(canonical.replace(input_scale=torch.tensor([0.02]), transform=transform))
    x = sample(5, 256)
    got = hh.quantize_input(x, qweight)
    assert float(got.scale) == pytest.approx(0.02)
    assert same(got, quantize_input(apply_transform(x, transform), spec, input_scale=torch.tensor([0.02])))
    assert torch.equal(hh.gemm(x, qweight), hh.gemm(got.values, qweight, x_scale=got.scale))


def test_a_static_scale_of_the_second_kind_is_returned_and_not_shared():
    given = torch.tensor([0.003])
    made = hh.quantize_input(sample(4, 64), "nvfp4 x nvfp4", input_scale=given)
    assert torch.equal(made.global_scale, given) and made.global_scale.data_ptr() != given.data_ptr()


@pytest.mark.parametrize("line", ["e4m3 b128x128 x e4m3 g128", "nvfp4 x nvfp4", "int4 g128 x int4 token"])
def test_the_op_is_registered_as_torch_wants_it(line):
    spec, x = hh.Spec.parse(line), sample(3, 2, 256)
    layout = "m_major" if spec.activation_group_size == 128 else "row_major"
    arguments = (x, None, None, None, None, str(spec), "", 0.0, 0, layout)
    torch.library.opcheck(torch.ops.hybrid_humming.quantize_input.default, arguments)
    rows = torch.tensor([1, 0, 1, 1])
    more = (x[0], None, rows, torch.randperm(128, dtype=torch.int32), torch.rand(128), str(spec), "silu", 7.0, 64, "row_major")
    torch.library.opcheck(torch.ops.hybrid_humming.quantize_input.default, more)


@pytest.mark.parametrize("line", ["e4m3 channel x e4m3 token", "nvfp4 x nvfp4"])
def test_it_compiles_whole_with_any_number_of_rows(line):
    spec = hh.Spec.parse(line)
    torch._dynamo.reset()

    @torch.compile(backend="eager", fullgraph=True, dynamic=True)
    def both(x):
        made = hh.quantize_input(x, spec, activation="silu")
        return made.values, made.scale, made.global_scale

    for m in (3, 17, 64):
        x = sample(m, 512)
        assert same(both(x), hh.quantize_input(x, spec, activation="silu"))


def test_the_result_carries_no_gradient():
    x = sample(3, 128, dtype=torch.float32).requires_grad_()
    made = hh.quantize_input(x, "int8 channel x int8 token")
    assert not made.scale.requires_grad
    assert same(made, quantize_input(x.detach(), hh.Spec.parse("int8 channel x int8 token")))


def test_report_and_explain_name_the_quantizer():
    reset_report()
    qweight, x = hh.quantize(sample(48, 256, dtype=torch.float32), "e4m3 channel x e4m3 token"), sample(5, 256)
    hh.gemm(x, qweight)
    hh.gemm(x, qweight)
    hh.quantize_input(sample(5, 512), qweight, activation="silu")
    first, second = report().inputs
    assert (first.activation, first.quantizer, first.calls, first.before) == ("e4m3 token", "torch.quantize_input", 2, "")
    assert (second.before, second.dtype, second.k) == ("silu", "bfloat16", 256)
    assert "bfloat16 to e4m3 token | torch.quantize_input | silu" in str(report())
    reset_report()
    assert not report().inputs
    said = str(hh.explain(qweight.spec, m=16, n=4096, k=4096, device="h200"))
    assert "input       to e4m3 token by triton.quantize_input" in said and "1 kernel a float x" in said
    said = str(hh.explain("nvfp4 x nvfp4", m=16, n=4096, k=4096, device="h200"))
    assert "2 kernels a float x, 1 with a static scale" in said
    assert hh.explain("int4 g128 x bf16", m=16, n=4096, k=4096, device="h200").quantizer == ""


@pytest.mark.parametrize("line", ["e4m3 tensor x e4m3 tensor", "nvfp4 x nvfp4"])
def test_batch_invariance_needs_a_static_scale(line):
    qweight, x = hh.quantize(sample(48, 256, dtype=torch.float32), line), sample(5, 256)
    with pytest.raises(SpecError, match="without a static input_scale the (second )?scale of x depends on all its rows"):
        hh.gemm(x, qweight, options=hh.Options(batch_invariant=True))
    made = hh.quantize_input(x, qweight, input_scale=torch.tensor([0.02]))
    hh.gemm(made.values, qweight, x_scale=made.scale, x_global_scale=made.global_scale, options=hh.Options(batch_invariant=True))


X = sample(4, 256)
TOKEN, GROUP, TENSOR, NVFP4 = "int8 channel x int8 token", "mxfp8 x mxfp8", "e4m3 tensor x e4m3 tensor", "nvfp4 x nvfp4"
ONE = torch.ones(1)
HADAMARD_512 = hh.InputTransform(hadamard=512)
MISTAKES = {
    "nothing to quantize": (lambda: hh.quantize_input(X, "int4 g128 x bf16"), SpecError, "nothing to quantize"),
    "x list": (lambda: hh.quantize_input([1.0], TOKEN), DtypeError, "x is list"),
    "x double": (lambda: hh.quantize_input(X.double(), TOKEN), DtypeError, "x is torch.float64; quantize_input takes"),
    "x codes": (lambda: hh.quantize_input(X.to(torch.float8_e4m3fn), TOKEN), DtypeError, "x is torch.float8_e4m3fn"),
    "x sparse": (lambda: hh.quantize_input(X.to_sparse(), TOKEN), DtypeError, "x is torch.sparse_coo"),
    "x scalar": (lambda: hh.quantize_input(X[0, 0], TOKEN), ShapeError, r"x is \[\]"),
    "x on meta beside rows": (
        lambda: hh.quantize_input(X, TOKEN, rows=torch.zeros(2, dtype=torch.int32, device="meta")), DeviceError, "rows is on meta"),
    "K off the group": (lambda: hh.quantize_input(X[:, :100], GROUP), ShapeError, "K must be a multiple of the group size 32"),
    "odd K": (lambda: hh.quantize_input(X[:, :33], "int4 g128 x int4 token"), ShapeError, "K=33; int4 is stored two a byte"),
    "odd 2K": (lambda: hh.quantize_input(X[:, :33], TOKEN, activation="silu"), ShapeError, "33 is odd"),
    "activation": (lambda: hh.quantize_input(X, TOKEN, activation="silo"), SpecError, "Did you mean 'silu'"),
    "limit alone": (lambda: hh.quantize_input(X, TOKEN, limit=7.0), SpecError, "limit=7 without an activation"),
    "limit 0": (lambda: hh.quantize_input(X, TOKEN, activation="silu", limit=0.0), SpecError, "limit=0.0: must be positive"),
    "Hadamard": (lambda: hh.quantize_input(X, TOKEN, transform=HADAMARD_512), ShapeError, "Hadamard block 512"),
    "short permutation": (
        lambda: hh.quantize_input(X, TOKEN, transform=hh.InputTransform(permutation=torch.arange(8, dtype=torch.int32))),
        ShapeError, r"permutation is \[8\]; it must be \[256\]"),
    "rows of floats": (lambda: hh.quantize_input(X, TOKEN, rows=torch.ones(3)), ShapeError, r"rows is torch.float32 \[3\]"),
    "rows of 3-D": (lambda: hh.quantize_input(X[None], TOKEN, rows=torch.zeros(3).long()), ShapeError, r"beside x \[T, K\]"),
    "static token": (lambda: hh.quantize_input(X, TOKEN, input_scale=ONE), SpecError, "has a scale for each token"),
    "static of 2": (lambda: hh.quantize_input(X, TENSOR, input_scale=torch.ones(2)), ShapeError, r"torch.float32 \[2\]"),
    "static integer": (lambda: hh.quantize_input(X, NVFP4, input_scale=torch.ones(1).int()), ShapeError, "torch.int32"),
    "layout name": (lambda: hh.quantize_input(X, GROUP, scale_layout="m-major"), SpecError, "Did you mean 'm_major'"),
    "layout of tokens": (lambda: hh.quantize_input(X, TOKEN, scale_layout="m_major"), SpecError, "has a scale for each token"),
    "packed floats": (
        lambda: hh.quantize_input(X, "e4m3 b128x128 x e4m3 g128", scale_layout="packed"), SpecError, "fp32 scales: use m_major"),
    "infinite": (
        lambda: hh.quantize_input(torch.full((1, 2), float("inf")), TOKEN, check_finite=True), ValueRangeError, r"x\[0, 0\] is"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(name):
    call, error, text = MISTAKES[name]
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize("name", ["K off the group", "activation", "rows of 3-D", "static token", "layout of tokens"])
def test_mistakes_are_named_under_compile_too(name):
    call, _, text = MISTAKES[name]
    torch._dynamo.reset()
    with pytest.raises(Exception, match=text):
        torch.compile(call, backend="eager", fullgraph=True)()
