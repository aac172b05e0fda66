"""Act-order: columns of W whose scale groups are scattered along K, made contiguous by permuting x.

g_idx[k] is the group of column k. Sorting the columns by group turns the weight into an ordinary grouped one, and x is
gathered by the same permutation before the product, so the result is exactly that of the scattered weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hybrid_humming.errors import CheckpointMismatch
from hybrid_humming.lazy import Tensor, torch
from hybrid_humming.spec import Spec
from hybrid_humming.weight import CanonicalWeight, InputTransform


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupOrder:
    """How to read a weight [N, K] with scattered groups as one with contiguous groups.

    permutation  [K] int32, column k of the new weight is column permutation[k] of the old; None: in order already
    columns      [C] int64, column c of the new scale is column columns[c] of the old
    group_size   of the new weight; None: one group covers all of K (channel)
    """

    permutation: Tensor | None
    columns: Tensor
    group_size: int | None


def group_order(name: str, g_idx: Tensor, group_size: int, groups: int) -> GroupOrder | None:
    """Return the order that makes the groups of `g_idx` [K] contiguous, or None if they are 0, 0, ..., 1, 1, ... already.

    Any g_idx is read whose groups, once sorted, share a size that is a multiple of 8; others raise CheckpointMismatch.
    """
    g_idx = g_idx.long()
    k = g_idx.numel()
    if torch.equal(g_idx, torch.arange(k, device=g_idx.device) // group_size):
        return None
    low, high = int(g_idx.min()), int(g_idx.max())
    if low < 0 or high >= groups:
        raise CheckpointMismatch(f"{name}: g_idx spans {low}..{high}, but the scales have the groups 0..{groups - 1}")
    permutation = torch.argsort(g_idx, stable=True)
    ordered = g_idx[permutation]
    counts = torch.bincount(g_idx, minlength=groups)
    used = counts[counts > 0].tolist()
    size = math.gcd(*used)
    if len(used) > 1 and size % 8:
        odd = next(i for i, c in enumerate(counts.tolist()) if c % 8)
        raise CheckpointMismatch(
            f"{name}: g_idx gives group {odd} {int(counts[odd])} columns; sorted groups must share a size that is a multiple "
            f"of 8 (config group_size={group_size}, K={k})"
        )
    in_order = torch.equal(permutation, torch.arange(k, device=g_idx.device))
    return GroupOrder(
        permutation=None if in_order else permutation.to(torch.int32),
        columns=ordered[:: size if len(used) > 1 else k],
        group_size=size if len(used) > 1 else None,
    )


def reorder(weight: CanonicalWeight, order: GroupOrder | None) -> CanonicalWeight:
    """Return `weight` (scale [N, groups] as stored) with its groups contiguous and the permutation in its transform."""
    if order is None:
        return weight
    spec: Spec = weight.spec.replace(granularity="channel" if order.group_size is None else "group", group_size=order.group_size)
    # gather reads row by row; an index along K would walk the matrix column by column.
    codes = weight.codes
    if order.permutation is not None and not codes.is_meta:
        codes = codes.gather(1, order.permutation.long().expand_as(codes))
    zero_point = None if weight.zero_point is None else weight.zero_point[:, order.columns].contiguous()
    return weight.replace(
        spec=spec,
        codes=codes,
        scale=weight.scale[:, order.columns].contiguous(),
        zero_point=zero_point,
        transform=None if order.permutation is None else InputTransform(permutation=order.permutation),
    )
