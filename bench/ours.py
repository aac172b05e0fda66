"""Our side: the only file of the bench that calls the library's GEMM.

Calls go through `hh.gemm(..., out=)` as a user's would; captured in a graph, its host time is outside the measurement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import hybrid_humming as hh
from bench.check import Judge
from bench.timer import copies_for
from hybrid_humming.dtypes import parse_format
from hybrid_humming.plan import Plan
from hybrid_humming.reference import dequantize_input, quantize_input
from hybrid_humming.spec import Problem, Spec

Tensor = torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Calls:
    """Calls on each weight copy, the output that all write, and the tensors of x that a writer has to produce."""

    calls: list[Callable[[], Any]]
    out: Tensor
    x: Tensor


class OurWeight:
    """One weight quantized and packed by the library, with enough copies for a cold L2."""

    def __init__(self, spec: str, weight: Tensor) -> None:
        self.spec = Spec.parse(spec)
        self.input_dtype = torch.float16 if self.spec.activation == "fp16" else torch.bfloat16
        self.qweight = hh.quantize(weight, self.spec)
        self.device = self.qweight.device
        tensors = self.qweight.tensors()
        self.copies = [self.qweight]
        for _ in range(copies_for(self.qweight.nbytes) - 1):
            self.copies.append(self.qweight.replace(**{name: t.clone() for name, t in tensors.items()}))

    def judge(self) -> Judge:
        """Return the judge of this weight; holds 10 bytes a weight, so drop it after use."""
        exact = hh.dequantize(self.qweight, torch.float64)
        return Judge(exact, exact.to(self.input_dtype))

    def plan(self, m: int, setting: str) -> Plan:
        """Return the planner's plan; in the plain setting without dependent launch, which belongs to chain."""
        problem = Problem(spec=self.spec, m=m, n=self.qweight.n, k=self.qweight.k, dependent_launch=setting == "chain")
        return hh.choose_plan(problem, self.qweight.layout, self.device)

    def calls(self, x: Tensor, plan: Plan) -> Calls:
        """Return calls of y = x @ W.T for float x [M, K]; where the spec quantizes activations, x is quantized once, outside."""
        m = x.shape[0]
        out = torch.full(
            (m, self.qweight.n), float("nan"), dtype=parse_format(str(self.spec.out_dtype)).torch_storage, device=x.device
        )
        scales: dict[str, Tensor | None] = {}
        if self.spec.quantizes_activation:
            quantized = quantize_input(x, self.spec)
            x, scales = quantized.values, {"x_scale": quantized.scale, "x_global_scale": quantized.global_scale}
        calls = [lambda w=w: hh.gemm(x, w, out=out, plan=plan, **scales) for w in self.copies]
        return Calls(calls=calls, out=out, x=x)

    def multiplied(self, x: Tensor) -> Tensor:
        """Return the values [M, K] that are multiplied for float x: x itself, or x after quantization."""
        if not self.spec.quantizes_activation:
            return x
        return dequantize_input(quantize_input(x, self.spec), self.spec, torch.float64)
