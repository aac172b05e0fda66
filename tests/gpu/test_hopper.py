"""hh.gemm on weights in Hopper's fragment order: every format and scale, through the planner's own choice, against float64."""

import concurrent.futures
import multiprocessing
import os

import pytest
import torch

import hybrid_humming as hh
from hybrid_humming.device import DeviceInfo
from tests.kernels.cases import WEIGHT_ONLY, Case, k_of

if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs an sm_90 GPU", allow_module_level=True)

DEVICE = DeviceInfo.of("cuda")
HELD = [h for h in WEIGHT_ONLY if hh.choose_layout(f"{h} x bf16", 200, k_of(h), "h200").family == "hopper"]


FORMAT_MS, BIAS_M = {"bf16": (1, 16, 17, 300), "fp16": (7, 100)}, 7


def compile_ahead(asked):
    """Compile one kernel into Triton's cache, with no GPU; a child process of the pool below."""
    line, m, n, k = asked
    hh.compile_gemm(hh.Problem(spec=hh.Spec.parse(line), m=m, n=n, k=k), "h200")


@pytest.fixture(scope="module", autouse=True)
def kernels_in_the_cache():
    """A kernel takes 0.7 s to compile on one core, and the tests below run some 250."""
    asked = [(f"{h} x {x}", m, 200, k_of(h)) for h in HELD for x, ms in FORMAT_MS.items() for m in ms if m != BIAS_M]
    asked += [(f"{h} x bf16 -> fp32", 16, 200, k_of(h)) for h in HELD]
    with concurrent.futures.ProcessPoolExecutor(
        min(14, os.cpu_count() or 2), mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        list(pool.map(compile_ahead, asked, chunksize=4))


def poisoned(case, **kwargs):
    """y of a call whose output was NaN before."""
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[case.spec.out_dtype]
    out = torch.full((case.x.shape[0], case.qweight.n), float("nan"), dtype=dtype, device="cuda")
    return hh.gemm(case.x, case.qweight, case.spec, bias=case.bias, out=out, **kwargs)


def test_most_formats_are_packed_for_hopper():
    assert len(HELD) >= len(WEIGHT_ONLY) - 4, sorted(set(WEIGHT_ONLY) - set(HELD))


@pytest.mark.parametrize("activation", ["bf16", "fp16"])
@pytest.mark.parametrize("half", HELD)
def test_error_is_at_most_twice_torchs(half, activation):
    for m in FORMAT_MS[activation]:
        case = Case(f"{half} x {activation}", m, 200, k_of(half), device="cuda", bias=m == BIAS_M)
        assert case.qweight.layout.family == "hopper"
        y = poisoned(case)
        assert case.holds(y), f"M={m}: {case.error(y):.3e}, torch {case.torch_err:.3e}"


@pytest.mark.parametrize("half", HELD)
def test_decode_is_bit_exact(half):
    """One-hot rows read single columns of W out; scales that vary along K multiply fp32 sums, so nothing is rounded."""
    k = k_of(half)
    case = Case(f"{half} x bf16 -> fp32", 16, 200, k, device="cuda")
    want = hh.dequantize(case.qweight, torch.float64)
    columns = torch.randperm(k, generator=torch.Generator().manual_seed(1))[:16]
    case.x = torch.nn.functional.one_hot(columns, k).bfloat16().cuda()
    got = poisoned(case).double()
    assert torch.allclose(got, want[:, columns.cuda()].T, rtol=3e-7 if case.spec.zero_point in (None, "int") else 8e-3, atol=0)


@pytest.mark.parametrize(("n", "k"), [(8, 128), (72, 1024), (264, 1152), (1000, 2944), (4096, 4096)])
def test_ragged_shapes(n, k):
    for line in ("int4 g128 x bf16", "mxfp4 x bf16", "int3 g64 x fp16"):
        for m in (1, 5, 16, 33, 129):
            case = Case(line, m, n, k, device="cuda")
            assert case.holds(poisoned(case)), f"{line} M={m}"


def test_fifty_runs_are_equal():
    for m in (1, 16, 64, 256):
        case = Case("int4 g128 x bf16", m, 2304, 4096, device="cuda")
        first = poisoned(case)
        assert all(torch.equal(first, poisoned(case)) for _ in range(50)), f"M={m}"


def test_split_k_adds_in_order():
    case = Case("int4 g128 x bf16", 8, 512, 8192, device="cuda")
    plan = hh.choose_plan(hh.Problem(spec=case.spec, m=8, n=512, k=8192), case.qweight.layout, "cuda")
    for split in (2, 4, 8):
        split_plan = plan.replace(block_n=64, block_k=256, num_warps=4, num_stages=4, ctas_per_sm=4, split_k=split)
        first = poisoned(case, plan=split_plan)
        assert case.holds(first)
        assert all(torch.equal(first, poisoned(case, plan=split_plan)) for _ in range(20))


def test_a_row_has_the_same_bits_whatever_m_is():
    case = Case("int4 g128 x bf16", 257, 512, 1024, device="cuda")
    options = hh.Options(batch_invariant=True)
    whole = poisoned(case, options=options)
    x = case.x
    for m in (1, 4, 16, 64):
        case.x = x[:m]
        assert torch.equal(poisoned(case, options=options), whole[:m])


def test_strided_and_captured_calls():
    case = Case("int4 g128 x bf16", 4, 512, 1024, device="cuda")
    want = poisoned(case)
    big = torch.full((4, 1100), float("nan"), dtype=torch.bfloat16, device="cuda")
    big[:, 3:1027] = case.x
    x, case.x = case.x, big[:, 3:1027]
    assert torch.equal(poisoned(case), want)
    out = torch.empty_like(want)
    hh.gemm(x, case.qweight, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hh.gemm(x, case.qweight, out=out)
        hh.gemm(x, case.qweight, out=out)
    out.fill_(float("nan"))
    graph.replay()
    assert torch.equal(out, want)
