"""Packed weights joined along N or K and cut for tensor parallelism: `partition` with a repack around it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch

from hybrid_humming import pack as packing
from hybrid_humming import partition
from hybrid_humming.api import pack_weight, unpack_weight
from hybrid_humming.errors import DtypeError, SpecError
from hybrid_humming.weight import CanonicalWeight, QWeight, scan

Weight = TypeVar("Weight", QWeight, CanonicalWeight)


def stack(weights: Sequence[Weight], dim: int = 0) -> Weight:
    """Return the weights joined along N (dim 0: q, k, v; gate, up) or K (dim 1), packed as the first one is.

    Scales by tensor that differ become scales by row, so no value changes; raises LayoutError for what can't be exact.
    """
    if not isinstance(weights, Iterable):
        raise DtypeError(f"stack takes a sequence of weights, not {type(weights).__name__}: hh.stack([q, k, v])")
    weights = list(weights)
    for weight in weights:
        _check_weight("stack", weight)
    if len({type(weight) for weight in weights}) > 1:
        raise SpecError("stack takes packed weights or canonical ones, not both; unpack_weight makes them alike")
    joined = partition.stack([_clear(weight) for weight in weights], dim)
    return _like(weights[0], joined)


def shard(weight: Weight, dim: int, rank: int, world: int, *, columns: str = "natural") -> Weight:
    """Return rank's part of a weight among `world`, along N (dim 0) or K (dim 1), packed as the whole one is.

    columns  of an act-order weight cut along K: "natural", a slice of x; "sorted", x[:, sorted_columns(weight, rank, world)]

    Raises LayoutError with the numbers where the parts could not sum to the whole exactly.
    """
    _check_weight("shard", weight)
    return _like(weight, partition.shard(_clear(weight), dim, rank, world, columns=columns))


def sorted_columns(weight: QWeight | CanonicalWeight, rank: int, world: int) -> torch.Tensor:
    """Return the columns of x, int64 [K/world], that a shard cut with columns="sorted" multiplies, in its order."""
    return partition.sorted_columns(_clear(weight), rank, world)


def _check_weight(what: str, weight: object) -> None:
    if not isinstance(weight, QWeight | CanonicalWeight):
        raise DtypeError(f"{what} takes QWeight and CanonicalWeight (hh.quantize, hh.load), not {type(weight).__name__}")


def _clear(weight: QWeight | CanonicalWeight) -> CanonicalWeight:
    return unpack_weight(weight) if isinstance(weight, QWeight) else weight


def _like(origin: Weight, weight: CanonicalWeight) -> Weight:
    if isinstance(origin, CanonicalWeight):
        return weight
    family = origin.layout.family
    if origin.device.type != "cpu":
        return pack_weight(weight, layout=family)
    # On the CPU lie weights packed for some GPU too, which the planner would not choose there.
    layout = packing.make_layout(family, weight.spec, weight.n, weight.k, experts=weight.experts, facts=scan(weight))
    return packing.pack(weight, layout)
