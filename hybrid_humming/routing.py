"""Routing: which rows go to which expert, in the forms that the mixture-of-experts kernels read.

topk_ids      [T, top_k] int32   expert of each token's slot; an id outside 0..E-1 adds nothing
topk_weights  [T, top_k] fp32    factor of each slot in the final sum
indexed       rows stay in token order; `sorted_ids` lists flat slots (token * top_k + slot) expert by expert,
              each expert padded to `block_m` with T * top_k; `expert_ids` names the expert of each block
grouped       rows sorted by expert; `offsets` [E + 1] are prefix sums of the row counts
masked        [E, R] rows; `counts` [E] of them are live
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from hybrid_humming.errors import DtypeError, ShapeError

Tensor = torch.Tensor
Kind = Literal["indexed", "grouped", "masked"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Routing:
    """Token-to-expert assignment. Build it with `indexed`, `grouped` or `masked`."""

    kind: Kind
    num_experts: int
    top_k: int = 1
    block_m: int = 0
    sorted_ids: Tensor | None = None
    expert_ids: Tensor | None = None
    offsets: Tensor | None = None
    counts: Tensor | None = None

    @classmethod
    def indexed(cls, topk_ids: Tensor, num_experts: int, *, block_m: int) -> Routing:
        """Return the routing of tokens in place, slots aligned to blocks of `block_m` rows of one expert."""
        _check_integers("topk_ids", topk_ids)
        if topk_ids.dim() != 2:
            raise ShapeError(f"topk_ids is {list(topk_ids.shape)}; it must be [tokens, top_k]")
        if num_experts < 1 or block_m < 1:
            raise ShapeError(f"num_experts={num_experts}, block_m={block_m}: both must be at least 1")
        flat = topk_ids.reshape(-1).long()
        live = (flat >= 0) & (flat < num_experts)
        key = torch.where(live, flat, num_experts)
        order = torch.argsort(key, stable=True)
        counts = torch.bincount(key, minlength=num_experts + 1)[:num_experts]
        padded = (counts + block_m - 1) // block_m * block_m
        start = padded.cumsum(0) - padded
        rank = torch.arange(flat.numel(), device=flat.device) - (counts.cumsum(0) - counts)[key[order].clamp(max=num_experts - 1)]
        keep = live[order]
        sorted_ids = torch.full((int(padded.sum()),), flat.numel(), dtype=torch.int32, device=flat.device)
        sorted_ids[(start[key[order].clamp(max=num_experts - 1)] + rank)[keep]] = order[keep].int()
        experts = torch.arange(num_experts, device=flat.device, dtype=torch.int32)
        return cls(
            kind="indexed",
            num_experts=num_experts,
            top_k=topk_ids.shape[1],
            block_m=block_m,
            sorted_ids=sorted_ids,
            expert_ids=experts.repeat_interleave(padded // block_m),
            counts=counts.int(),
        )

    @classmethod
    def grouped(cls, offsets: Tensor) -> Routing:
        """Return the routing of rows already sorted by expert; `offsets` [E + 1] are prefix sums from 0."""
        _check_integers("offsets", offsets)
        if offsets.dim() != 1 or offsets.numel() < 2:
            raise ShapeError(f"offsets is {list(offsets.shape)}; it must be [experts + 1]")
        return cls(kind="grouped", num_experts=offsets.numel() - 1, offsets=offsets)

    @classmethod
    def masked(cls, counts: Tensor) -> Routing:
        """Return the routing of x [E, R, K] of which the first `counts[e]` rows of expert e are live."""
        _check_integers("counts", counts)
        if counts.dim() != 1 or not counts.numel():
            raise ShapeError(f"counts is {list(counts.shape)}; it must be [experts], at least one")
        return cls(kind="masked", num_experts=counts.numel(), counts=counts)


def _check_integers(name: str, tensor: Tensor) -> None:
    # Values stay unread: looking at them would make the host wait for the GPU.
    if not isinstance(tensor, Tensor) or tensor.dtype not in (torch.int32, torch.int64):
        raise DtypeError(f"{name} is {getattr(tensor, 'dtype', type(tensor).__name__)}; it must be an int32 or int64 tensor")
