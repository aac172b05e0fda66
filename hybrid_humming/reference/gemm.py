"""gemm: the truth that kernels are held to."""

from __future__ import annotations

import torch

from hybrid_humming.errors import ShapeError
from hybrid_humming.reference.activation import dequantize_input, quantize_input
from hybrid_humming.reference.dequantize import dequantize
from hybrid_humming.reference.transform import apply_transform
from hybrid_humming.weight import CanonicalWeight

Tensor = torch.Tensor


def gemm(x: Tensor, weight: CanonicalWeight, *, bias: Tensor | None = None, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return transform(x) [..., K] @ dequantize(weight).T (+ bias), computed in `dtype`; x is quantized if the spec says so."""
    if weight.experts:
        raise ShapeError(f"weight has {weight.experts} experts; gemm takes a dense weight [N, K], use fused_moe")
    if x.shape[-1] != weight.k:
        raise ShapeError(f"x is {list(x.shape)}, but the weight is [{weight.n}, {weight.k}]: x needs K={weight.k}")
    if weight.transform is not None:
        x = apply_transform(x, weight.transform)
    if weight.spec.quantizes_activation:
        x = dequantize_input(quantize_input(x, weight.spec, input_scale=weight.input_scale), weight.spec, dtype)
    y = x.to(dtype) @ dequantize(weight, dtype).T
    return y if bias is None else y + bias.to(dtype)
