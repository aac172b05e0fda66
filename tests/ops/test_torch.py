"""The op inside torch: opcheck, full-graph compile with dynamic M, frozen schemas, a graph used by another process."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch._dynamo.testing

import hybrid_humming as hh
from hybrid_humming.ops import SCHEMAS

from .test_gemm import make

ROOT = Path(__file__).resolve().parents[2]


def arguments(qweight, x, bias=None, plan=""):
    return (
        x, qweight.qweight, qweight.scale, qweight.zero_point, qweight.secondary_scale, None, None, bias, None, None, None,
        str(qweight.spec), str(qweight.layout), plan, "", 0, [0, 0],
    )  # fmt: skip


@pytest.mark.parametrize("line", ["int4 g128 x bf16", "uint4 g64 zp x fp16", "e3m2 g32 x bf16"])
def test_opcheck_passes(line):  # not with 8-bit float scales: opcheck itself calls allclose, which CPU float8 lacks
    x, qweight, _ = make(line)
    x = x.requires_grad_()
    torch.library.opcheck(torch.ops.hybrid_humming.gemm.default, (*arguments(qweight, x, torch.zeros(72)), torch.float32))
    out = torch.empty(5, 72)
    torch.library.opcheck(torch.ops.hybrid_humming.gemm_out.default, (*arguments(qweight, x.detach()), out))


def test_fake_shapes_and_strides_are_the_logical_ones():
    """N = K = 2880 is padded inside; nothing of it may show."""
    x, qweight, _ = make("mxfp4 x bf16", m=3, n=360, k=2880)
    real = hh.gemm(x, qweight)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = torch.ops.hybrid_humming.gemm(*arguments(qweight, mode.from_tensor(x)), None)
    assert fake.shape == real.shape == (3, 360) and fake.stride() == real.stride() == (360, 1)


def test_compiles_full_graph_with_dynamic_m():
    _, qweight, spec = make("int4 g128 x bf16")
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda x: hh.gemm(torch.relu(x), qweight, spec) + 1, backend=counter, fullgraph=True)
    for m in (3, 17, 64, 5, 129, 2):
        x = torch.randn(m, 256).bfloat16()
        assert torch.equal(compiled(x), hh.gemm(torch.relu(x), qweight, spec) + 1)
    assert counter.frame_count <= 3, "more than two recompiles"


def test_a_plan_and_options_made_inside_a_traced_call_run():
    x, qweight, spec = make("int4 g64 x bf16")
    plan = hh.choose_plan(hh.Problem(spec=spec, m=len(x), n=qweight.n, k=qweight.k), qweight.layout, "cpu")

    def call(x):
        return hh.gemm(x, qweight, "int4 g64 x bf16", plan=plan, options=hh.Options(batch_invariant=True))

    assert torch.equal(torch.compile(call, backend="aot_eager", fullgraph=True)(x), call(x))


def test_linear_compiles_without_a_graph_break():
    model = torch.nn.Sequential(torch.nn.Linear(128, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32))
    hh.replace_linear(model, "int8 channel x bf16")
    x = torch.randn(7, 128)
    assert torch._dynamo.explain(model)(x).graph_break_count == 0
    assert torch.equal(torch.compile(model, backend="aot_eager", fullgraph=True)(x), model(x))


def test_split_k_under_compile_equals_eager_twice():
    x, qweight, spec = make("int4 g128 x bf16")
    compiled = torch.compile(lambda t: hh.gemm(t, qweight, spec), backend="aot_eager", fullgraph=True)
    first, second = compiled(x), compiled(x)
    assert torch.equal(first, second) and torch.equal(first, hh.gemm(x, qweight, spec))


def test_schemas_are_frozen():
    """A cached graph holds these names and types: a change needs a new op name."""
    assert [str(torch.ops.hybrid_humming.gemm.default._schema), str(torch.ops.hybrid_humming.gemm_out.default._schema)] == [
        "hybrid_humming::gemm(Tensor x, Tensor qweight, Tensor scale, Tensor? zero_point, Tensor? secondary_scale, "
        "Tensor? x_scale, Tensor? x_global_scale, Tensor? bias, Tensor? permutation, Tensor? pre_quant_scale, "
        "Tensor? input_scale, str spec, str layout, str plan, str options, int hadamard, SymInt[2] block_offset, "
        "ScalarType? out_dtype) -> Tensor".replace("SymInt[2]", "int[2]"),
        "hybrid_humming::gemm_out(Tensor x, Tensor qweight, Tensor scale, Tensor? zero_point, Tensor? secondary_scale, "
        "Tensor? x_scale, Tensor? x_global_scale, Tensor? bias, Tensor? permutation, Tensor? pre_quant_scale, "
        "Tensor? input_scale, str spec, str layout, str plan, str options, int hadamard, int[2] block_offset, "
        "Tensor(a!) out) -> ()",
    ]
    assert len(SCHEMAS) == 2


PROGRAM = """
import sys, torch, hybrid_humming as hh
folder = sys.argv[1]
if sys.argv[2] == "save":
    torch.manual_seed(0)
    linear = hh.Linear(hh.quantize(torch.randn(72, 256), "int4 g128 x bf16"), torch.randn(72))
    x = torch.randn(5, 256)
    program = torch.export.export(linear, (x,), dynamic_shapes=({0: torch.export.Dim("m")},))
    torch.export.save(program, folder + "/program.pt2")
    torch.save((x, linear(x)), folder + "/expected.pt")
else:
    x, expected = torch.load(folder + "/expected.pt")
    import hybrid_humming.ops
    assert torch.equal(torch.export.load(folder + "/program.pt2").module()(x), expected)
print("done")
"""


def test_a_graph_saved_by_one_process_means_the_same_in_another(tmp_path):
    for step in ("save", "load"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path), step], cwd=ROOT, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0 and "done" in done.stdout, done.stderr[-3000:]
