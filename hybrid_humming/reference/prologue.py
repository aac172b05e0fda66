"""prepare_input: what is done to x before it is quantized, in this order.

    rows        row i of the result is row rows[i] of x; zeros where rows[i] lies outside x
    activation  act(gate) * up of the halves of x [.., 2K], in fp32
    transform   pre_quant_scale, Hadamard, permutation, as `apply_transform` does them

silu, gelu, gelu_tanh   act(gate) * up; with a limit gate is clamped to at most limit, up to -limit..limit, before
swiglu_oai              the same clamp (limit 7 by default), then gate * sigmoid(1.702 * gate) * (up + 1), as gpt-oss does
"""

from __future__ import annotations

import torch

from hybrid_humming.reference.transform import apply_transform
from hybrid_humming.weight import InputTransform

Tensor = torch.Tensor
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "swiglu_oai")
OAI_LIMIT, OAI_ALPHA = 7.0, 1.702


def prepare_input(
    x: Tensor,
    *,
    rows: Tensor | None = None,
    activation: str = "",
    limit: float | None = None,
    transform: InputTransform | None = None,
) -> Tensor:
    """Return the float values that are quantized, for x [.., K], or [.., 2K] before an activation; with rows [M]: [M, K]."""
    if rows is not None:
        x = gather_rows(x, rows)
    if activation:
        x = gated(x.float(), activation, limit=limit)
    return x if transform is None else apply_transform(x, transform)


def gather_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Return x[rows] of x [T, K], zeros for a row outside 0..T-1."""
    if x.shape[0] == 0:
        return x.new_zeros(rows.shape[0], x.shape[1])
    there = (rows >= 0) & (rows < x.shape[0])
    return torch.where(there[:, None], x.index_select(0, rows.clamp(0, x.shape[0] - 1)), 0)


def gated(both: Tensor, activation: str, *, interleaved: bool = False, limit: float | None = None) -> Tensor:
    """Return the activation [.., I] of gate and up [.., 2I], in both's type."""
    gate, up = (both[..., 0::2], both[..., 1::2]) if interleaved else both.chunk(2, -1)
    if limit is None and activation == "swiglu_oai":
        limit = OAI_LIMIT
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    if activation == "silu":
        return torch.nn.functional.silu(gate) * up
    if activation in ("gelu", "gelu_tanh"):
        return torch.nn.functional.gelu(gate, approximate="tanh" if activation == "gelu_tanh" else "none") * up
    return gate * torch.sigmoid(OAI_ALPHA * gate) * (up + 1)
