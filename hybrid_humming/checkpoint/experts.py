"""Experts that a checkpoint stores one by one, as one weight with an expert axis.

model.layers.0.mlp.experts.{0..E-1}.gate_proj            -> model.layers.0.mlp.experts.gate_proj   [E, N, K]
model.layers.0.block_sparse_moe.experts.{0..E-1}.w1      -> model.layers.0.block_sparse_moe.experts.w1
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from hybrid_humming.errors import CheckpointMismatch, LayoutError
from hybrid_humming.lazy import Tensor, torch
from hybrid_humming.weight import CanonicalWeight, InputTransform

_EXPERT = re.compile(r"(?P<before>.*\bexperts)\.(?P<index>\d+)\.(?P<after>.+)$")
_STACKED = ("codes", "scale", "zero_point", "secondary_scale", "input_scale", "bias")


def expert_groups(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return group name -> its members' names by expert number; raises CheckpointMismatch for a group with gaps."""
    found: dict[str, dict[int, str]] = {}
    for name in names:
        if match := _EXPERT.match(name):
            found.setdefault(f"{match['before']}.{match['after']}", {})[int(match["index"])] = name
    for group, members in found.items():
        absent = sorted(set(range(max(members) + 1)) - set(members))
        if absent:
            raise CheckpointMismatch(
                f"{group}: experts up to {max(members)} are there, but {len(absent)} of them are missing: "
                f"{', '.join(map(str, absent[:20]))}"
            )
    return {group: tuple(members[i] for i in range(len(members))) for group, members in found.items()}


def stack_experts(name: str, weights: Sequence[CanonicalWeight]) -> CanonicalWeight:
    """Return the weights [N, K] of E experts as one [E, N, K]; raises LayoutError unless spec, sizes and transform are the same."""
    first = weights[0]
    for i, weight in enumerate(weights[1:], start=1):
        if (weight.spec, weight.n, weight.k) != (first.spec, first.n, first.k):
            raise LayoutError(
                f"{name}: expert {i} is '{weight.spec}' [{weight.n}, {weight.k}], expert 0 is '{first.spec}' "
                f"[{first.n}, {first.k}]; experts of one weight must be alike: load them one by one"
            )
        if not _same_transform(weight.transform, first.transform):
            raise LayoutError(
                f"{name}: expert {i} transforms x in another way than expert 0 (act-order or pre_quant_scale of its own); "
                "one weight has one transform: load the experts one by one"
            )
    tensors = {field: _stack([getattr(weight, field) for weight in weights]) for field in _STACKED}
    return first.replace(**tensors)


def _stack(tensors: list[Tensor | None]) -> Tensor | None:
    present = [tensor for tensor in tensors if tensor is not None]
    if len(present) not in (0, len(tensors)):
        raise LayoutError(f"{len(present)} of {len(tensors)} experts have a bias or an input scale; all or none may")
    return torch.stack(present) if present else None


def _same_transform(one: InputTransform | None, other: InputTransform | None) -> bool:
    if one is None or other is None:
        return one is other
    pairs = ((one.pre_quant_scale, other.pre_quant_scale), (one.permutation, other.permutation))
    same = all(a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)
    return same and one.hadamard == other.hadamard
