"""The public gemm on a GPU: inside torch.compile, CUDA graphs and opcheck, on any x, with whatever layout and plan are chosen."""

import pytest
import torch
import torch._dynamo.testing

import hybrid_humming as hh
from hybrid_humming.errors import CompileError, DeviceError
from hybrid_humming.reference import dequantize_input, quantize_input
from hybrid_humming.usage import report, reset_report

SPECS = [
    "int4 g128 x bf16", "uint4 g64 zp x fp16", "int3 g32 x bf16", "int8 channel x bf16", "mxfp4 x bf16", "nvfp4 x bf16",
    "e4m3 b128x128 x bf16", "e4m3 channel x e4m3 token", "int8 channel x int8 token", "mxfp4 x mxfp8", "nvfp4 x nvfp4",
]  # fmt: skip
MS = (0, 1, 2, 5, 16, 33, 64, 129, 257, 1024)


def make(line, m, n=520, k=1152, layout=None):
    torch.manual_seed(0)
    spec = hh.Spec.parse(line)
    qweight = hh.quantize(torch.randn(n, k, device="cuda") * 0.1, spec, layout=layout)
    x = torch.randn(m, k, device="cuda").to(torch.float16 if spec.activation == "fp16" else torch.bfloat16)
    return x, qweight, spec


def holds(y, x, qweight, spec):
    """At most twice torch's own error in 16 bits."""
    if y.numel() == 0:
        return True
    w = hh.dequantize(qweight, torch.float64)
    exact, seen = x.double(), x
    if spec.quantizes_activation:
        quantized = quantize_input(x, spec)
        exact = dequantize_input(quantized, spec, torch.float64)
        seen = exact.to(x.dtype)
    truth = exact @ w.T
    torch_error = ((seen @ w.to(x.dtype).T).double() - truth).norm()
    return bool((y.double() - truth).norm() <= 2 * torch_error)


@pytest.mark.parametrize("layout", ["portable", None], ids=["portable", "chosen layout"])
@pytest.mark.parametrize("line", SPECS)
def test_any_m_is_right_and_runs_the_plan_that_explain_names(line, layout):
    x, qweight, spec = make(line, max(MS), layout=layout)
    for m in MS:
        reset_report()
        y = hh.gemm(x[:m], qweight)
        assert y.shape == (m, 520) and holds(y, x[:m], qweight, spec), m
        if m:
            problem = hh.Problem(spec=spec, m=m, n=520, k=1152)
            [row] = [row for row in report().rows if row.calls]
            chosen = hh.choose_plan(problem, qweight.layout, "cuda")
            assert (row.plan.kernel, row.plan.tile) == (chosen.kernel, chosen.tile)


@pytest.mark.parametrize("view", [
    lambda big: big[:, :1152], lambda big: big[::2, :1152], lambda big: big[:1, :1152].expand(4, 1152),
    lambda big: big[:6, :1152].unflatten(0, (2, 3)).transpose(0, 1), lambda big: big.t()[:1152].t(), lambda big: big[0, 3:1155],
])  # fmt: skip
def test_strided_x_equals_contiguous_x(view):
    _, qweight, _ = make("int4 g128 x bf16", 1)
    x = view(torch.randn(8, 1200, device="cuda").bfloat16())
    assert torch.equal(hh.gemm(x, qweight), hh.gemm(x.contiguous(), qweight))


@pytest.mark.parametrize("line", ["int4 g128 x bf16", "int8 channel x int8 token"])
def test_opcheck_passes(line):
    x, qweight, _ = make(line, 5)
    arguments = (
        x, qweight.qweight, qweight.scale, None, None, None, None, None, None, None, None,
        qweight.spec_line, qweight.layout_line, "", "", 0, [0, 0], None,
    )  # fmt: skip
    torch.library.opcheck(torch.ops.hybrid_humming.gemm.default, arguments)


def test_compiles_full_graph_with_dynamic_m():
    x, qweight, _ = make("int4 g128 x bf16", 65)
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda a: hh.gemm(a, qweight) + 1, fullgraph=True, backend=counter)
    for m in (65, 3, 7, 64, 16):
        assert torch.equal(compiled(x[:m]), hh.gemm(x[:m], qweight) + 1)
    assert counter.frame_count <= 3, "more than two recompiles"


@pytest.mark.parametrize("m", [1, 16, 300])
def test_a_cuda_graph_replays_the_same_bits(m):
    x, qweight, spec = make("int4 g128 x bf16", m)
    want = hh.gemm(x, qweight).clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = hh.gemm(x, qweight)
    y.fill_(float("nan"))
    graph.replay()
    assert torch.equal(y, want)
    x.mul_(-1)
    graph.replay()
    assert torch.equal(y, -want) and holds(y, x, qweight, spec)


def test_a_first_call_inside_a_capture_says_what_to_do():
    x, qweight, _ = make("int5 g64 x bf16", 3, n=136, k=640)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(CompileError, match="before the capture"), torch.cuda.graph(graph):
        hh.gemm(x, qweight)
    assert hh.gemm(x, qweight).isfinite().all()


@pytest.mark.parametrize("line", ["int4 g128 x bf16", "e4m3 channel x e4m3 token"])
def test_a_row_has_the_same_bits_whatever_m_is(line):
    x, qweight, _ = make(line, 257)
    options = hh.Options(batch_invariant=True)
    whole = hh.gemm(x, qweight, options=options)
    for m in (1, 4, 16, 64):
        assert torch.equal(hh.gemm(x[:m], qweight, options=options), whole[:m]), m


def test_fifty_calls_have_the_same_bits():
    x, qweight, _ = make("int4 g128 x bf16", 4, n=4096, k=8192)
    first = hh.gemm(x, qweight)
    assert all(torch.equal(hh.gemm(x, qweight), first) for _ in range(50))


def test_tensors_on_two_devices_are_refused_and_the_current_device_does_not_matter():
    x, qweight, _ = make("int4 g128 x bf16", 4)
    with pytest.raises(DeviceError, match="x is on cpu, the weight on cuda:0"):
        hh.gemm(x.cpu(), qweight)
    if torch.cuda.device_count() < 2:
        pytest.skip("the rest needs two GPUs")
    want = hh.gemm(x, qweight)
    assert torch.equal(hh.gemm(x.to("cuda:1"), qweight.to("cuda:1")).to("cuda:0"), want)


def test_gradient_of_x_is_the_dequantized_product():
    x, qweight, _ = make("int4 g128 x bf16", 4)
    x.requires_grad_()
    hh.gemm(x, qweight).sum().backward()
    want = torch.ones(4, 520, device="cuda").bfloat16() @ hh.dequantize(qweight).bfloat16()
    assert torch.allclose(x.grad.float(), want.float(), rtol=2e-2, atol=2e-2)
