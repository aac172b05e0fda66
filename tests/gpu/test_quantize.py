"""hh.quantize_input on a GPU: the bits of the reference, inside hh.gemm, in a CUDA graph, under torch.compile."""

import pytest
import torch

import hybrid_humming as hh
from bench.quantize_cases import FORMATS, LAYOUTS, PROLOGUES, WIDENED, Case, arguments, differences, expected, nearly
from hybrid_humming.reference import quantize_input
from hybrid_humming.usage import report, reset_report

PLAIN = [Case(f, m, 2048 + 128, dtype) for f in FORMATS for m, dtype in ((7, "bf16"), (130, "fp32"), (300, "fp16"))]
BEFORE = [Case(f, m, 2048, prologue=p) for p in PROLOGUES for f in ("e4m3 token", "e4m3 g128", "nvfp4") for m in (7, 130)]
LAID_OUT = [Case(f, m, 1024 + 128, layout=layout) for f, layout in LAYOUTS for m in (1, 130)]
STATIC = [Case(f, 130, 2048, static=True) for f in ("e4m3 tensor", "int8 tensor", "nvfp4")]
WIDE = [Case(f, m, 2048, stored=stored) for f, stored in WIDENED for m in (7, 130)]
LONG = [Case(f, 5, 40960) for f in ("e4m3 token", "int8 token")]


@pytest.mark.parametrize("case", [*PLAIN, *BEFORE, *LAID_OUT, *STATIC, *LONG, *WIDE], ids=Case.label)
def test_codes_scales_and_padding_are_those_of_the_reference(case):
    from hybrid_humming.triton_kernels.quantize.launch import quantize

    args = arguments(case, "cuda")
    quantize(args)
    want = expected(args, "cpu")
    assert not (nearly(args, want) if case.close else differences(args, want))


@pytest.mark.parametrize("activation", ["e4m3 tensor", "e5m2 tensor", "int8 tensor", "e2m1 tensor"])
@pytest.mark.parametrize("offset", [0, 1, 255])
def test_conversions_round_to_nearest_even_and_saturate(activation, offset):
    from bench.quantize_probe import conversions

    assert conversions(activation, offset)["wrong"] == 0


@pytest.mark.parametrize("bound", [None, 2.0**20])
def test_division_by_multiply_adds_is_the_rounded_quotient(bound):
    from bench.quantize_probe import division

    found = division(1 << 12, bound=bound)
    assert found["wrong"] == 0, found["first"]


@pytest.mark.parametrize("activation", ["mxfp8", "mxfp6", "mxfp4"])
def test_powers_of_two_divide_exactly(activation):
    from bench.quantize_probe import powers_of_two

    found = powers_of_two(activation)
    assert found["wrong"] == 0, found["first"]


LINES = ["e4m3 channel x e4m3 token", "int8 channel x int8 token", "nvfp4 x nvfp4"]


@pytest.mark.parametrize("line", LINES)
def test_gemm_quantizes_inside_as_outside_and_says_so(line):
    reset_report()
    qweight = hh.quantize(torch.randn(256, 512, device="cuda"), line)
    x = torch.randn(3, 5, 512, device="cuda", dtype=torch.bfloat16)
    made = hh.quantize_input(x, qweight)
    want = quantize_input(x.cpu(), qweight.spec)
    assert torch.equal(made.values.cpu().view(torch.uint8), want.values.view(torch.uint8))
    inside = hh.gemm(x, qweight)
    assert torch.equal(inside, hh.gemm(made.values, qweight, x_scale=made.scale, x_global_scale=made.global_scale))
    assert {row.quantizer for row in report().inputs} == {"triton.quantize_input"}


@pytest.mark.parametrize("line", LINES)
def test_it_is_captured_in_a_graph_and_compiled_whole(line):
    x = torch.randn(16, 512, device="cuda", dtype=torch.bfloat16)
    spec = hh.Spec.parse(line)
    want = hh.quantize_input(x, spec)
    graph, pool = torch.cuda.CUDAGraph(), x.clone()
    with torch.cuda.graph(graph):
        made = hh.quantize_input(pool, spec)
    pool.copy_(x)
    graph.replay()
    torch.cuda.synchronize()
    compiled = torch.compile(lambda t: hh.quantize_input(t, spec)[:2], fullgraph=True)(x)
    for got in (made, compiled):
        assert torch.equal(got[0].view(torch.uint8), want.values.view(torch.uint8))
        assert torch.equal(got[1].view(torch.uint8), want.scale.view(torch.uint8))


def test_a_first_call_inside_a_capture_is_refused():
    from hybrid_humming.errors import CompileError

    x = torch.randn(16, 1536, device="cuda", dtype=torch.float16)
    with pytest.raises(CompileError, match="is not compiled for this problem yet"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        hh.quantize_input(x, "e4m3 channel x e5m2 token")
