"""The input quantization kernels, compiled: no local memory, whole vectors read, hardware conversion where there is one."""

import pytest
import torch

from hybrid_humming.jit.offline import compiling_for
from hybrid_humming.spec import Spec
from tests.compile.harness import Job, compile_all

pytestmark = pytest.mark.compile

CASES = (
    ("e4m3 channel x e4m3 token", 1, 90, ""), ("e4m3 channel x e4m3 token", 1024, 90, ""),
    ("int8 channel x int8 token", 16, 90, ""),
    ("e4m3 b128x128 x e4m3 g128", 16, 90, ""), ("mxfp8 x mxfp8", 1024, 90, ""), ("nvfp4 x nvfp4", 64, 90, ""),
    ("e4m3 tensor x e4m3 tensor", 64, 90, ""), ("int8 channel x int8 token", 16, 80, ""), ("e4m3 channel x e4m3 token", 16, 80, ""),
    ("e4m3 channel x e4m3 token", 4096, 90, "swiglu_oai"), ("e4m3 b128x128 x e4m3 g128", 4096, 90, "hadamard"),
    ("mxfp8 x mxfp8", 4095, 90, "packed"), ("nvfp4 x nvfp4", 4096, 90, "rows"),
)  # fmt: skip
JOBS = [Job("tests.compile.test_quantize:built", {"line": line, "m": m, "sm": sm, "more": more}) for line, m, sm, more in CASES]


def built(line, m, sm, more, k=4096):
    """The last kernel that quantizing x [m, k] bf16 launches, with `more` of a prologue or a layout."""
    from hybrid_humming.inputs import empty_input
    from hybrid_humming.jit.args import InputArgs
    from hybrid_humming.triton_kernels.quantize.launch import quantize

    spec, meta = Spec.parse(line), torch.device("meta")
    activation = more if more.startswith("swiglu") else ""
    values, scale, second = empty_input((m,), k, spec, more if more == "packed" else "row_major", meta)
    args = InputArgs(
        x=torch.empty(m, 2 * k if activation else k, dtype=torch.bfloat16, device=meta), values=values, scale=scale,
        global_scale=second, input_scale=None, rows=torch.empty(m, dtype=torch.int32, device=meta) if more == "rows" else None,
        pre_quant_scale=None, permutation=None, hadamard=128 if more == "hadamard" else 0, activation=activation, limit=0.0,
        packed=more == "packed", spec=spec, stored=spec.activation,
    )  # fmt: skip
    with compiling_for(sm) as compiled:
        quantize(args)
    return compiled[-1]


@pytest.mark.parametrize("triton", ["3.6.0", "installed"])
@pytest.mark.parametrize("job", JOBS, ids=str)
def test_it_stays_in_registers_and_reads_whole_vectors(job, triton):
    made = compile_all(JOBS, triton)[job]
    assert made.ok, made.error
    assert made.spills == 0 and made.stack_bytes == 0
    assert made.sass_count("LDG.E.128") > 0
    if job.kwargs["sm"] >= 89 and "e4m3" in job.kwargs["line"]:
        assert made.sass_count("F2FP") > 0
