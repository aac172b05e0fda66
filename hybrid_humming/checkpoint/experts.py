"""Experts that a checkpoint stores one by one, as one weight with an expert axis.

model.layers.0.mlp.experts.{0..E-1}.gate_proj            -> model.layers.0.mlp.experts.gate_proj   [E, N, K]
model.layers.0.block_sparse_moe.experts.{0..E-1}.w1      -> model.layers.0.block_sparse_moe.experts.w1
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from hybrid_humming.errors import CheckpointMismatch, LayoutError
from hybrid_humming.lazy import torch
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


def stack_experts(name: str, weights: Iterable[CanonicalWeight], count: int) -> CanonicalWeight:
    """Return the weights [N, K] of `count` experts, taken one at a time, as one [E, N, K].

    Raises LayoutError unless spec, sizes and transform are the same.
    """
    stacks: dict[str, Any] = {}
    for i, weight in enumerate(weights):
        tensors = {part: getattr(weight, part) for part in _STACKED if getattr(weight, part) is not None}
        if i == 0:
            spec, transform, n, k = weight.spec, weight.transform, weight.n, weight.k
            stacks = {part: tensor.new_empty(count, *tensor.shape) for part, tensor in tensors.items()}
        if (weight.spec, weight.n, weight.k) != (spec, n, k):
            raise LayoutError(
                f"{name}: expert {i} is '{weight.spec}' [{weight.n}, {weight.k}], expert 0 is '{spec}' [{n}, {k}]; "
                "experts of one weight must be alike: load them one by one"
            )
        if not _same_transform(weight.transform, transform):
            raise LayoutError(
                f"{name}: expert {i} transforms x in another way than expert 0 (act-order or pre_quant_scale of its own); "
                "one weight has one transform: load the experts one by one"
            )
        if set(tensors) != set(stacks):
            odd = ", ".join(sorted(set(tensors) ^ set(stacks)))
            raise LayoutError(f"{name}: one of expert 0 and expert {i} has {odd}, the other has not; all or none may")
        for part, tensor in tensors.items():
            stacks[part][i] = tensor
    return CanonicalWeight(spec=spec, transform=transform, **stacks)


def _same_transform(one: InputTransform | None, other: InputTransform | None) -> bool:
    if one is None or other is None:
        return one is other
    pairs = ((one.pre_quant_scale, other.pre_quant_scale), (one.permutation, other.permutation))
    same = all(a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)
    return same and one.hadamard == other.hadamard
