"""Problems of the CUDA kernels: quantized operands, the launch that the host prepares, and the emulated result beside the truth."""

import functools
from dataclasses import dataclass

import torch

from hybrid_humming import pack as packing
from hybrid_humming.cuda_kernels.sm100.launch import Prepared, prepare, prepare_small
from hybrid_humming.jit.args import GemmArgs
from hybrid_humming.plan import Tile
from hybrid_humming.reference import gemm
from hybrid_humming.reference.activation import quantize_input
from hybrid_humming.reference.quantize import quantize
from hybrid_humming.spec import Problem, Spec
from hybrid_humming.weight import CanonicalWeight, scan
from tests.emulation.launch import run_prepared

OUT = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass
class Run:
    """A prepared launch, its output (poisoned until it ran), and the exact product."""

    prepared: Prepared
    out: torch.Tensor
    exact: torch.Tensor

    def emulate(self, **changes) -> tuple[float, dict[str, int]]:
        """Run it on the emulator; returns the relative error and how often each tensor instruction ran."""
        self.out.fill_(torch.nan)
        counts = run_prepared(self.prepared, **changes)
        return self.error(), counts

    def error(self) -> float:
        return ((self.out.double() - self.exact).norm() / self.exact.norm()).item()


@functools.cache
def weight_of(line: str, n: int, k: int) -> CanonicalWeight:
    torch.manual_seed(n + k)
    return quantize(torch.randn(n, k) * 2.0 ** torch.randint(-3, 4, (n, 1)), Spec.parse(line))


def problem(line: str, m: int, n: int, k: int, *, sm: int, tile: Tile, family: str = "umma", bias: str = "", sms: int = 2) -> Run:
    """A launch on `sms` SMs; y has a row stride of its own."""
    spec, weight = Spec.parse(line), weight_of(line, n, k)
    layout = packing.make_layout(family, spec, n, k, facts=scan(weight))
    packed = packing.pack(weight, layout)
    x = torch.randn(m, k) * 2.0 ** torch.randint(-3, 4, (m, 1))
    if spec.quantizes_activation:
        quantized = quantize_input(x, spec)
        values, x_scale, x_global = quantized.values, quantized.scale, quantized.global_scale
    else:
        values, x_scale, x_global = x.to(OUT[spec.activation]), None, None
        x = values
    b = torch.randn(n).to(OUT[bias]) if bias else None
    out = torch.full((m, n + 8), torch.nan, dtype=OUT[str(spec.out_dtype)])[:, :n]
    args = GemmArgs(
        values, packed.qweight, packed.scale, None, packed.secondary_scale, x_scale, x_global, b, out, None,
        Problem(spec=spec, m=m, n=n, k=k), layout, {},
    )  # fmt: skip
    made = prepare(args, tile, sm, sms) if family == "umma" else prepare_small(args, tile, sm)
    return Run(made, out, gemm(x, weight, bias=b))
