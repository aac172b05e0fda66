"""What a caller can get wrong around hh.gemm and hh.Linear: each mistake has its own typed error, also under torch.compile."""

import copy
import pickle

import pytest
import torch
from torch import nn

import hybrid_humming as hh
from hybrid_humming.errors import DeviceError, DtypeError, LayoutError, PlanError, ShapeError, SpecError
from hybrid_humming.plan import check_plan
from hybrid_humming.reference import quantize_input

WEIGHT = torch.randn(72, 256, generator=torch.Generator().manual_seed(0))
X = torch.randn(5, 256, generator=torch.Generator().manual_seed(1)).bfloat16()
INT4 = hh.quantize(WEIGHT, "int4 g128 x bf16")
FP8 = hh.quantize(WEIGHT, "e4m3 channel x e4m3 token")
NVFP4 = hh.quantize(WEIGHT, "nvfp4 x nvfp4")
EXPERTS = hh.quantize(torch.stack([WEIGHT, WEIGHT]), "int4 g128 x bf16")
CODES = X.to(torch.float8_e4m3fn)
NV = quantize_input(X, NVFP4.spec)


def problem(**changes):
    return hh.Problem(**({"spec": INT4.spec, "m": 5, "n": 72, "k": 256} | changes))


CALLS = {
    "x None": (lambda: hh.gemm(None, INT4), DtypeError, "x is NoneType; it must be a torch tensor"),
    "x numpy": (lambda: hh.gemm(X.float().numpy(), INT4), DtypeError, "x is ndarray; it must be a torch tensor"),
    "x sparse": (lambda: hh.gemm(X.to_sparse(), INT4), DtypeError, "x is torch.sparse_coo; it must be a dense tensor"),
    "bias list": (lambda: hh.gemm(X, INT4, bias=[1.0]), DtypeError, "bias is list"),
    "bias complex": (lambda: hh.gemm(X, INT4, bias=torch.ones(72) + 1j), DtypeError, "bias is torch.complex64; it must be float16"),
    "bias int": (lambda: hh.gemm(X, INT4, bias=torch.ones(72).int()), DtypeError, "bias is torch.int32"),
    "plan text": (lambda: hh.gemm(X, INT4, plan="fast"), PlanError, "plan is str; pass a Plan"),
    "options text": (lambda: hh.gemm(X, INT4, options="batch_invariant"), SpecError, "options is str; pass hh.Options"),
    "out overlaps": (
        lambda: hh.gemm(X, INT4, out=torch.empty(1, 72).expand(5, 72)), ShapeError, r"strides \[0, 1\]: several elements share"),
    "out and gradient": (
        lambda: hh.gemm(X.clone().requires_grad_(), INT4, out=torch.empty(5, 72)), SpecError, "out= has no gradient"),
    "scale of 3 rows": (
        lambda: hh.gemm(CODES, FP8, x_scale=torch.ones(3, 1)), ShapeError,
        r"x_scale is torch.float32 \[3, 1\] on cpu; .* x \[5, 256\] needs torch.float32 \[5, 1\] on cpu"),
    "scale in bf16": (lambda: hh.gemm(CODES, FP8, x_scale=torch.ones(5, 1).bfloat16()), ShapeError, "x_scale is torch.bfloat16"),
    "scale transposed": (
        lambda: hh.gemm(NV.values, NVFP4, x_scale=NV.scale.T, x_global_scale=NV.global_scale), ShapeError, r"\[16, 5\].*\[5, 16\]"),
    "no global scale": (lambda: hh.gemm(NV.values, NVFP4, x_scale=NV.scale), SpecError, "no x_global_scale was given beside"),
    "a global scale too many": (
        lambda: hh.gemm(CODES, FP8, x_scale=torch.ones(5, 1), x_global_scale=torch.ones(1)),
        SpecError, "an x_global_scale was given"),
    "global scale alone": (lambda: hh.gemm(X, FP8, x_global_scale=torch.ones(1)), SpecError, "without x_scale"),
    "global scale, bf16 x": (lambda: hh.gemm(X, INT4, x_global_scale=torch.ones(1)), SpecError, "carry no scale"),
    "global scale [3]": (
        lambda: hh.gemm(NV.values, NVFP4, x_scale=NV.scale, x_global_scale=torch.ones(3)),
        ShapeError, r"must be torch.float32 \[1\]"),
    "quantize numpy": (lambda: hh.quantize(WEIGHT.numpy(), "int4 g128 x bf16"), DtypeError, "weight is ndarray"),
    "quantize meta": (lambda: hh.quantize(WEIGHT.to("meta"), "int4 g128 x bf16"), DeviceError, "on meta and holds no values"),
    "no experts": (lambda: hh.quantize(torch.empty(0, 8, 128), "int4 g128 x bf16"), ShapeError, r"\[0, 8, 128\]"),
    "pack a QWeight": (lambda: hh.pack_weight(INT4), DtypeError, "weight is QWeight; pass a CanonicalWeight"),
    "unpack a tensor": (lambda: hh.unpack_weight(WEIGHT), DtypeError, "qweight is Tensor"),
    "dequantize to int": (lambda: hh.dequantize(INT4, torch.int8), DtypeError, "dtype=torch.int8: must be a floating"),
    "plan of text": (lambda: hh.choose_plan("int4 g128 x bf16"), PlanError, "problem is str; pass a Problem"),
    "layout of another weight": (lambda: hh.choose_plan(problem(n=80), INT4.layout, "cpu"), LayoutError, "holds another weight"),
    "fallback maybe": (lambda: hh.choose_plan(problem(), fallback="maybe"), PlanError, "allowed are 'allow' and 'error'"),
    "to nowhere": (lambda: INT4.to("nowhere"), DeviceError, "'nowhere' is no torch device"),
    "to a card too many": (lambda: INT4.to("cuda:99"), DeviceError, "cuda:99 was asked for, but torch sees"),
    "half a row": (lambda: problem(m=1.5), ShapeError, "m=1.5: must be an integer of at least 0"),
    "negative rows": (lambda: problem(m=-1), ShapeError, "m=-1"),
    "plan JSON": (lambda: hh.Plan.from_json("{}"), PlanError, "can't read plan '{}'"),
    "Linear of a tensor": (lambda: hh.Linear(WEIGHT), DtypeError, "qweight is Tensor; pass a QWeight"),
    "Linear of experts": (lambda: hh.Linear(EXPERTS), ShapeError, "2 experts; Linear takes one dense weight"),
    "Linear bias": (lambda: hh.Linear(INT4, torch.ones(3)), ShapeError, r"bias is \[3\]; it must be a tensor \[72\]"),
    "Linear of integers": (lambda: hh.Linear(INT4)(X.int()), DtypeError, "takes a float x"),
    "replace a tensor": (lambda: hh.replace_linear(WEIGHT, "int4 g128 x bf16"), SpecError, "model is Tensor; pass the module"),
    "replace the root": (lambda: hh.replace_linear(nn.Linear(8, 8), "int8 channel x bf16"), SpecError, "Linear.from_linear"),
    "skip text": (
        lambda: hh.replace_linear(nn.Sequential(nn.Linear(8, 8)), "int8 channel x bf16", skip="0"), SpecError, "pass a tuple"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_mistakes_are_named(name):
    call, error, text = CALLS[name]
    with pytest.raises(error, match=text):
        call()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.parametrize("call", [lambda: hh.quantize(WEIGHT, INT4.spec, device="cuda"), lambda: hh.repack(INT4, "cuda:1")])
def test_a_gpu_that_is_not_there_is_a_device_error(call):
    with pytest.raises((DeviceError, RuntimeError, AssertionError)) as caught:
        call()
    assert isinstance(caught.value, DeviceError) and "torch sees no CUDA device" in str(caught.value)


@pytest.mark.parametrize(("field", "value"), [("split_k", 0), ("block_m", -16), ("num_stages", "3"), ("raster_m", -1)])
def test_a_tile_that_makes_no_sense_is_refused(field, value):
    h200 = hh.DeviceInfo.named("h200")
    layout = hh.choose_layout(INT4.spec, 72, 256, h200)
    plan = hh.choose_plan(problem(), layout, h200).replace(**{field: value})
    with pytest.raises(PlanError, match=rf"{field}={value!r} must be an integer of at least"):
        check_plan(plan, problem(), layout, h200)


TRACED = {
    "x in fp16": (lambda: (X.half(), INT4, {}), "x is torch.float16"),
    "x of integers": (lambda: (X.int(), INT4, {}), "x is torch.int32"),
    "short x": (lambda: (X[:, :100], INT4, {}), "must be 256"),
    "short bias": (lambda: (X, INT4, {"bias": torch.ones(3)}), r"bias is \[3\]; it must be \[72\]"),
    "experts": (lambda: (X, EXPERTS, {}), "2 experts"),
    "short out": (lambda: (X, INT4, {"out": torch.empty(5, 7)}), r"out is \[5, 7\]; it must be \[5, 72\]"),
    "another spec": (lambda: (X, INT4, {"spec": "int4 g64 x bf16"}), "spec 'int4 g64 x bf16' was given, but the weight"),
    "plan of text": (lambda: (X, INT4, {"plan": "fast"}), "plan is str; pass a Plan"),
    "options of text": (lambda: (X, INT4, {"options": "fast"}), "options is str; pass hh.Options"),
    "scale of 3 rows": (lambda: (CODES, FP8, {"x_scale": torch.ones(3, 1)}), r"x_scale is torch.float32 \[3, 1\]"),
}


@pytest.mark.parametrize("name", TRACED)
def test_mistakes_are_named_under_compile_too(name):
    args, text = TRACED[name]
    x, qweight, options = args()
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, **options: hh.gemm(x, qweight, **options), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match=text):
        compiled(x, **options)


@pytest.mark.parametrize("line", ["int4 g128 x bf16", "nvfp4 x bf16", "uint4 g64 zp:fp16 x fp16", "int8 channel x int8 token"])
@pytest.mark.parametrize("cast", [lambda m: m.half(), lambda m: m.bfloat16(), lambda m: m.double(), lambda m: m.to(torch.float32)])
def test_casting_a_model_keeps_the_packed_bytes(line, cast):
    layer = hh.Linear.from_linear(nn.Linear(256, 72), line)
    x = torch.randn(3, 256)
    want, before = layer(x), {name: t.clone() for name, t in layer.named_buffers() if name != "bias"}
    moved = cast(nn.Sequential(layer))[0]
    assert all(torch.equal(getattr(moved, name), t) and getattr(moved, name).dtype == t.dtype for name, t in before.items())
    assert (moved(x) - want).norm() <= 5e-3 * want.norm()


def test_a_replaced_buffer_is_read():
    first, second = (hh.Linear.from_linear(nn.Linear(256, 72), "uint4 g64 zp x bf16") for _ in range(2))
    x = torch.randn(3, 256)
    before = second(x)
    second.zero_point = first.zero_point
    assert not torch.equal(second(x), before)


def test_a_spec_that_does_not_fit_leaves_the_model_whole():
    model = nn.Sequential(nn.Linear(256, 72), nn.Linear(100, 8))
    with pytest.raises(ShapeError, match="K=100"):
        hh.replace_linear(model, "int4 g128 x bf16")
    assert [type(layer) for layer in model] == [nn.Linear, nn.Linear]


def test_a_layer_with_two_names_is_quantized_once_and_stays_shared():
    shared = nn.Linear(256, 256)
    model = nn.ModuleDict({"a": shared, "b": shared})
    assert hh.replace_linear(model, "int4 g128 x bf16") == ["a", "b"]
    assert model["a"] is model["b"] and isinstance(model["b"], hh.Linear)


def test_copies_and_pickles_compute_the_same_and_share_no_plans():
    want = hh.gemm(X, INT4)
    for other in (copy.deepcopy(INT4), pickle.loads(pickle.dumps(INT4))):
        assert not other.prepared
        assert torch.equal(hh.gemm(X, other), want)
