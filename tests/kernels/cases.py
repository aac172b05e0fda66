"""What the kernel tests share: spec lines, operands, the truth and torch's own error."""

import torch

import hybrid_humming as hh
from hybrid_humming.reference import dequantize_input, quantize_input

# Every width, every kind of scale and zero point; K must be a multiple of 128 (264 for g24).
WEIGHT_ONLY = [
    "int1 g128", "int2 g16", "int3 g32", "int4 g128", "int5 g64", "int6 channel", "int7 g256", "int8 tensor", "int8 channel",
    "uint1 g64 zp", "uint2 g32 zp", "uint3 channel zp", "uint4 g64 zp", "uint8 g128 zp",
    "uint4 g64 zp:fp16", "uint2 channel zp:fp32",
    "mxfp4", "nvfp4", "mxint4", "mxfp6", "mxfp8", "e3m2 g32", "e2m3 g64", "e4m3 channel", "e4m3 b128x128", "e5m2 tensor",
    "e3m4 g128", "e1m2 g128", "e4m1 g32", "e0m1 channel", "e0m3 g128", "e0m7 g64",
    "int4 g24", "int4 g64:e5m3+channel", "int4 g128:fp32", "int4 g128:e4m3+tensor", "int4 channel+tensor", "int8 b32x64+channel",
]  # fmt: skip
QUANTIZED = [
    "e4m3 channel x e4m3 token", "int8 channel x int8 token", "int4 g128 x int4 token", "int4 g128 x int8 token",
    "mxfp4 x mxfp8", "mxfp8 x mxfp8", "nvfp4 x nvfp4", "mxfp4 x mxfp4", "mxfp4 x e4m3 token", "e4m3 b128x128 x e4m3 g128",
    "e2m3 g32:e8m0 x e3m2 g32:e8m0", "e0m3 g128 x e0m3 token", "e5m2 channel x e5m2 token", "e3m4 channel x e3m4 token",
    "uint4 g128 zp x int8 token", "e4m3 tensor x e4m3 tensor", "e2m1 g32 x e2m1 token",
]  # fmt: skip


def k_of(line: str) -> int:
    """A K that the scales of `line` allow."""
    return {"g24": 264, "g256": 512}.get(line.split()[1] if " " in line else "", 384)


class Case:
    """Operands of one GEMM on one device: x, qweight, exact result, and the error that torch makes in the same types."""

    def __init__(self, line, m, n, k, *, device="cpu", seed=0, bias=False):
        self.spec = spec = hh.Spec.parse(line)
        gen = torch.Generator().manual_seed(seed)
        weight = torch.randn(n, k, generator=gen) * 0.1
        dtype = torch.bfloat16 if spec.activation == "bf16" else torch.float16
        self.x = torch.randn(m, k, generator=gen).to(dtype).to(device)
        self.qweight = hh.quantize(weight.to(device), spec)
        self.bias = torch.randn(n, generator=gen).to(device) if bias else None
        w = hh.dequantize(self.qweight, torch.float64)
        if spec.quantizes_activation:
            self.quantized = quantize_input(self.x, spec)
            x = dequantize_input(self.quantized, spec, torch.float64)
        else:
            self.quantized, x = None, self.x.double()
        extra = 0 if self.bias is None else self.bias.double()
        self.exact = x @ w.T + extra
        out = torch.float16 if spec.out_dtype == "fp16" else torch.float32 if spec.out_dtype == "fp32" else torch.bfloat16
        rounded = (x.to(dtype).double() @ w.to(dtype).double().T + extra).to(out)  # torch's operands, its best sum
        self.torch_err = (rounded.double() - self.exact).norm().item()

    def error(self, y) -> float:
        return (y.double() - self.exact).norm().item()

    def holds(self, y) -> bool:
        """At most twice torch's error, with room for fp32 sums where torch has none."""
        return self.error(y) <= 2 * self.torch_err + 1e-6 * self.exact.norm().item()
