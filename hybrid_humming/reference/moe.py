"""fused_moe: the truth that mixture-of-experts kernels are held to.

    h = activation(x[t] @ dequantize(w13[e]).T + b13[e])
    y[t] = sum over the slots of t of topk_weight * (h @ dequantize(w2[e]).T + b2[e])

x             [T, K]
w13           [E, 2I, K]  gate rows 0..I-1, then up rows; interleaved (gate, up, gate, up ...) where told
w2            [E, K, I]
topk_weights  [T, top_k]  float
topk_ids      [T, top_k]  an id outside 0..E-1 adds exactly nothing
b13, b2       [E, 2I], [E, K]  or None
y             [T, K]

activation     one of `reference.prologue`: silu, gelu (erf), gelu_tanh, swiglu_oai
"""

from __future__ import annotations

import torch

from hybrid_humming.errors import ShapeError, SpecError, did_you_mean
from hybrid_humming.reference.activation import dequantize_input, quantize_input
from hybrid_humming.reference.dequantize import dequantize
from hybrid_humming.reference.prologue import ACTIVATIONS, gated
from hybrid_humming.reference.transform import apply_transform
from hybrid_humming.weight import CanonicalWeight

Tensor = torch.Tensor


def fused_moe(
    x: Tensor,
    w13: CanonicalWeight,
    w2: CanonicalWeight,
    topk_weights: Tensor,
    topk_ids: Tensor,
    *,
    activation: str = "silu",
    interleaved: bool = False,
    b13: Tensor | None = None,
    b2: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Return y [T, K] computed in `dtype`; x and h are quantized where the specs say so, each as one tensor."""
    _check(x, w13, w2, topk_weights, topk_ids, activation)
    rows = x[:, None].expand(*topk_ids.shape, x.shape[1])  # [T, top_k, K]
    both = _product(rows, w13, topk_ids, b13, dtype)
    out = _product(gated(both, activation, interleaved=interleaved), w2, topk_ids, b2, dtype)
    live = (topk_ids >= 0) & (topk_ids < w13.experts)
    factor = torch.where(live, topk_weights.to(dtype), 0.0)
    return (out * factor[..., None]).sum(1)


def one_expert(weight: CanonicalWeight, expert: int) -> CanonicalWeight:
    """Return the dense weight of one expert."""
    scale = (
        weight.scale.view(torch.uint8)[expert].view(weight.scale.dtype)
        if weight.scale.element_size() == 1
        else weight.scale[expert]
    )
    return weight.replace(
        codes=weight.codes[expert],
        scale=scale,
        zero_point=None if weight.zero_point is None else weight.zero_point[expert],
        secondary_scale=None if weight.secondary_scale is None else weight.secondary_scale[expert],
        input_scale=_of_expert(weight.input_scale, expert),
        bias=None if weight.bias is None else weight.bias[expert],
    )


def _of_expert(scale: Tensor | None, expert: int) -> Tensor | None:
    """The [1] input scale of an expert; one scale may serve all."""
    return scale if scale is None or scale.numel() == 1 else scale.reshape(-1)[expert].reshape(1)


def _product(x: Tensor, weight: CanonicalWeight, ids: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """[T, top_k, K] -> [T, top_k, N], each slot by its expert's weight; zeros where there is none."""
    if weight.transform is not None:
        x = apply_transform(x, weight.transform)
    shared = weight.input_scale is None or weight.input_scale.numel() == 1
    if shared:
        x = _quantized(x, weight, dtype)
    y = torch.zeros(*ids.shape, weight.n, dtype=dtype, device=x.device)
    for expert in range(weight.experts):
        token, slot = (ids == expert).nonzero(as_tuple=True)
        dense = one_expert(weight, expert)
        rows = x[token, slot] if shared else _quantized(x[token, slot], dense, dtype)
        product = rows.to(dtype) @ dequantize(dense, dtype).T
        y[token, slot] = product if bias is None else product + bias[expert].to(dtype)
    return y


def _quantized(x: Tensor, weight: CanonicalWeight, dtype: torch.dtype) -> Tensor:
    if not weight.spec.quantizes_activation:
        return x
    return dequantize_input(quantize_input(x, weight.spec, input_scale=weight.input_scale), weight.spec, dtype)


def _check(x: Tensor, w13: CanonicalWeight, w2: CanonicalWeight, weights: Tensor, ids: Tensor, activation: str) -> None:
    if activation not in ACTIVATIONS:
        raise SpecError(f"activation {activation!r}: allowed are {', '.join(ACTIVATIONS)}.{did_you_mean(activation, ACTIVATIONS)}")
    if not w13.experts or w13.experts != w2.experts:
        raise ShapeError(f"w13 has {w13.experts} experts and w2 has {w2.experts}; both need the same leading [E]")
    if x.dim() != 2 or x.shape[1] != w13.k:
        raise ShapeError(f"x is {list(x.shape)}; it must be [T, K] with K={w13.k}, the reduction size of w13")
    if w13.n != 2 * w2.k:
        raise ShapeError(f"w13 has N={w13.n} and w2 has K={w2.k}; gate and up need N = 2 * {w2.k}")
    if ids.dim() != 2 or ids.shape[0] != x.shape[0] or weights.shape != ids.shape:
        raise ShapeError(
            f"topk_ids is {list(ids.shape)} and topk_weights {list(weights.shape)}; both must be [T={x.shape[0]}, top_k]"
        )
