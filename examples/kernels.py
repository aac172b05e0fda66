"""Where there is no GPU: compile the kernels that an H200 would run, and run the Triton kernel in the interpreter.

python examples/kernels.py SPEC...      with TRITON_INTERPRET=1: one JSON line for each spec
"""

from __future__ import annotations

import json
import sys
import time

import minilm
import torch
from torch import Tensor

import hybrid_humming as hh
from hybrid_humming.jit.args import GemmArgs
from hybrid_humming.jit.compile import Compiled
from hybrid_humming.jit.launch import load_launcher
from hybrid_humming.plan.registry import kernel
from hybrid_humming.reference import quantize_input

# Triton's interpreter multiplies bf16 wrongly without an error and truncates to it, so what it runs is planned for tensor cores
# of fp16 alone and gives fp16.
FP16_ONLY = hh.DeviceInfo.named("h200").replace(tera_ops=(("fp16", 989.0),))


def run(x: Tensor, qweight: hh.QWeight, problem: hh.Problem, plan: hh.Plan) -> Tensor:
    """y [M, N] from one kernel's own launcher, called with CPU tensors; NaN where it wrote nothing."""
    x_scale = x_global_scale = None
    if problem.spec.quantizes_activation:
        quantized = quantize_input(x, problem.spec)
        x, x_scale, x_global_scale = quantized.values, quantized.scale, quantized.global_scale
    out = torch.full((problem.m, problem.n), float("nan"), dtype=torch.float16)
    workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8) if plan.workspace_bytes else None
    args = GemmArgs(
        x, qweight.qweight, qweight.scale, qweight.zero_point, qweight.secondary_scale, x_scale, x_global_scale, None,
        out, workspace, problem, qweight.layout, {},
    )  # fmt: skip
    load_launcher(kernel(plan.kernel).launcher)(args, plan)
    return out


def compile_for_h200(spec: str, m: int, n: int, k: int) -> tuple[hh.Plan, tuple[Compiled, ...], float]:
    """(plan, kernels, seconds) of x [M, K] times a weight [N, K], with a bias, as an H200 would run it."""
    begin = time.perf_counter()
    plan, compiled = hh.compile_gemm(hh.Problem(spec=hh.Spec.parse(spec), m=m, n=n, k=k, bias=True), "h200")
    return plan, compiled, time.perf_counter() - begin


def interpret(line: str, x: Tensor, weight: Tensor) -> dict:
    """One layer through the portable Triton kernel in the interpreter, against the CPU backend on the same packed weight."""
    spec = hh.Spec.parse(line)
    if spec.activation == "bf16":
        spec = spec.replace(activation="fp16")
    spec = spec.replace(out_dtype="fp16")
    begin = time.perf_counter()
    qweight = hh.quantize(weight, spec, layout="portable")
    problem = hh.Problem(spec=spec, m=len(x), n=qweight.n, k=qweight.k)
    plan = hh.choose_plan(problem, qweight.layout, FP16_ONLY)
    x = x.to(torch.float16 if not spec.quantizes_activation else torch.float32)
    got = run(x, qweight, problem, plan).double()
    want = hh.gemm(x, qweight).double()
    difference = float((got - want).norm() / want.norm())
    return {"spec": str(spec), "kernel": plan.kernel, "difference": difference, "seconds": time.perf_counter() - begin}


def main(lines: list[str]) -> None:
    """Print the result of `interpret` for each spec, on layer 0's query projection and the first sentence's tokens."""
    model = minilm.load()
    ids, _ = minilm.tokenize(minilm.SENTENCES[:1])
    e = model.embeddings
    words = e["word_embeddings"](ids[0]) + e["position_embeddings"].weight[: ids.shape[1]] + e["token_type_embeddings"].weight[0]
    weight = model.encoder["layer"][0].attention.self["query"].weight
    for line in lines:
        print(json.dumps(interpret(line, e["LayerNorm"](words), weight)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
