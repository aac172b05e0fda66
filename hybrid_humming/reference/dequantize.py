"""dequantize: CanonicalWeight -> float weight, the meaning of a spec."""

from __future__ import annotations

import torch

from hybrid_humming.dtypes import parse_format
from hybrid_humming.reference.codes import decode
from hybrid_humming.weight import CanonicalWeight

Tensor = torch.Tensor


def dequantize(weight: CanonicalWeight, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return (value(code) - zero_point) * scale * secondary, [N, K] or [E, N, K].

    float64 is exact but for products of more than 53 significant bits; other types are computed in fp32 and rounded once.
    """
    work = torch.float64 if dtype == torch.float64 else torch.float32
    spec = weight.spec
    values = decode(weight.codes, spec.weight_format, work)
    if weight.zero_point is not None:
        values = values - expand(weight.zero_point.to(work), weight)
    values = values * expand(decode_scale(weight.scale, spec.scale_format.name, work), weight)
    if weight.secondary_scale is not None:
        values = values * weight.secondary_scale.to(work)[..., None]
    return values.to(dtype)


def decode_scale(scale: Tensor, fmt: str, dtype: torch.dtype) -> Tensor:
    """Return the values of a scale stored in `fmt`."""
    parsed = parse_format(fmt)
    if parsed.kind == "scale":
        return decode(scale.view(torch.uint8), parsed, dtype)
    return scale.to(dtype)


def expand(grid: Tensor, weight: CanonicalWeight) -> Tensor:
    """Return `grid` [.., R, C] repeated to one entry per weight, [.., N, K] (or a shape that broadcasts to it)."""
    spec, n, k = weight.spec, weight.n, weight.k
    if spec.granularity == "group" and spec.group_size:
        return grid.repeat_interleave(spec.group_size, dim=-1)
    if spec.granularity == "block" and spec.block:
        (block_n, block_k), (off_n, off_k) = spec.block, weight.block_offset
        rows = (torch.arange(n, device=grid.device) + off_n % block_n) // block_n
        cols = (torch.arange(k, device=grid.device) + off_k % block_k) // block_k
        return grid[..., rows, :][..., cols]
    return grid
