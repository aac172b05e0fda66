"""Weights joined along N or K (`stack`) and cut for tensor parallelism (`shard`), every value kept.

    stack([a, b], dim=0)   [Na + Nb, K]   x @ stack.T = [x @ a.T, x @ b.T]          (q, k, v; gate, up)
    stack([a, b], dim=1)   [N, Ka + Kb]   [xa, xb] @ stack.T = xa @ a.T + xb @ b.T
    shard(w, 0, r, world)  rows r*N/world ...;      the products side by side are the whole one
    shard(w, 1, r, world)  columns r*K/world ...;   the products of the slices of x sum to the whole one; rank 0 keeps the bias

Only the form of the scales may change, never what they say: scales by tensor that differ become scales by row (or groups along
K), a group that a cut runs through becomes finer groups, a block keeps its place in the grid as `block_offset`. What can't be
kept exactly is refused with the numbers. Experts keep their axis. Works on CanonicalWeight, one code a byte.

A row of x that is quantized by its own absmax (`token`) takes it from its slice on each rank; static scales and groups are kept.

Act-order: a weight's sorted columns come from all over x, so a slice of x meets a few columns of each group, and equal groups
of 8 or more columns can't be made of them in general. `columns="sorted"` cuts the sorted columns instead: rank r then wants
x[:, sorted_columns(w, r, world)], which costs nothing when the layer that makes x has its rows cut in that order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hybrid_humming.errors import LayoutError, ShapeError, SpecError
from hybrid_humming.spec import Spec
from hybrid_humming.weight import CanonicalWeight, InputTransform

Tensor = torch.Tensor


# ---- stack ----
def stack(weights: Sequence[CanonicalWeight], dim: int = 0) -> CanonicalWeight:
    """Return the weights joined along N (dim 0) or K (dim 1); raises LayoutError or ShapeError for what can't be exact."""
    if not weights:
        raise ShapeError("stack needs at least one weight")
    _check_dim(dim)
    if len(weights) == 1:
        return weights[0]
    _check_alike(weights, dim)
    parts = _equal_form(list(weights), dim)
    spec, first = parts[0].spec, parts[0]
    _check_blocks(parts, dim)
    axis = -2 if dim == 0 else -1

    def joined(name: str) -> Tensor | None:
        found = [getattr(part, name) for part in parts]
        grows = spec.granularity in (("channel", "group", "block") if dim == 0 else ("group", "block"))
        return None if found[0] is None else torch.cat(found, axis) if grows else found[0]

    secondary = first.secondary_scale
    if spec.secondary == "channel" and dim == 0:
        secondary = torch.cat([part.secondary_scale for part in parts if part.secondary_scale is not None], -1)
    return CanonicalWeight(
        spec=spec,
        codes=torch.cat([part.codes for part in parts], axis),
        scale=_present(joined("scale")),
        zero_point=joined("zero_point"),
        secondary_scale=secondary,
        input_scale=first.input_scale,
        bias=_joined_bias(parts, dim),
        transform=first.transform if dim == 0 else _joined_transform(parts),
        block_offset=first.block_offset,
    )


def _check_alike(weights: Sequence[CanonicalWeight], dim: int) -> None:
    """Raise unless the weights agree in everything but their scales' values and the axis they are joined along."""
    first = weights[0]
    fixed = ("weight", "scale", "zero_point", "group_size", "block", "secondary", "activation", "activation_granularity",
             "activation_group_size", "activation_scale", "activation_secondary", "out_dtype")  # fmt: skip
    for i, other in enumerate(weights[1:], 1):
        for field in fixed:
            mine, its = getattr(first.spec, field), getattr(other.spec, field)
            if mine != its:
                raise SpecError(f"stack: weight 0 is '{first.spec}' and weight {i} is '{other.spec}'; their {field} must agree")
        same = "k" if dim == 0 else "n"
        if getattr(first, same) != getattr(other, same) or first.experts != other.experts:
            raise ShapeError(
                f"stack along {'NK'[dim]}: weight 0 is {list(first.codes.shape)} and weight {i} is {list(other.codes.shape)}; "
                f"{same.upper()} and the experts must agree"
            )
        if not _same(first.input_scale, other.input_scale):
            values = [None if w.input_scale is None else float(w.input_scale.flatten()[0]) for w in (first, other)]
            raise LayoutError(
                f"stack: the static input scales differ ({values[0]} of weight 0, {values[1]} of weight {i}), so one quantized x "
                "can't serve both; give both one input_scale first with replace(input_scale=...): the largest keeps all in range"
            )
        if dim == 0 and not _same_transform(first.transform, other.transform):
            raise LayoutError(
                f"stack along N: weights 0 and {i} transform x differently (act-order, pre_quant_scale or Hadamard), "
                "and one x can't be transformed in two ways; keep them apart"
            )


def _equal_form(weights: list[CanonicalWeight], dim: int) -> list[CanonicalWeight]:
    """Return the weights with scales of one granularity that can be joined along `dim`."""
    kinds = {weight.spec.granularity for weight in weights}
    if kinds - {"tensor", "channel"} and len(kinds) > 1:
        raise SpecError(f"stack: weights scaled by {' and '.join(sorted(map(str, kinds)))} can't be one weight; requantize one")
    differ = len(kinds) > 1 or any(
        not _same(weights[0].scale, w.scale) or not _same(weights[0].zero_point, w.zero_point) for w in weights[1:]
    )
    if dim == 0:
        if kinds <= {"tensor", "channel"} and differ:
            weights = [by_row(weight) for weight in weights]
        if weights[0].spec.secondary == "tensor" and any(
            not _same(weights[0].secondary_scale, w.secondary_scale) for w in weights[1:]
        ):
            weights = [_secondary_by_row(weight) for weight in weights]
        return weights
    if any(not _same(weights[0].secondary_scale, w.secondary_scale) for w in weights[1:]):
        values = [float(_present(w.secondary_scale).flatten()[0]) for w in weights]
        raise LayoutError(f"stack along K: the secondary scales differ ({values}), and there is one for all of K; keep them apart")
    if kinds <= {"tensor", "channel"} and differ:
        size = math.gcd(*(weight.k for weight in weights))
        if size % 8:
            raise LayoutError(
                f"stack along K: the scales differ, so groups must divide every K ({[w.k for w in weights]}), whose largest "
                f"common divisor is {size}; groups are multiples of 8"
            )
        weights = [by_group(weight, size) for weight in weights]
    return weights


def by_row(weight: CanonicalWeight) -> CanonicalWeight:
    """Return `weight` with its scale by tensor repeated for each row; others as they are."""
    if weight.spec.granularity != "tensor":
        return weight
    return _with_scales(weight, weight.spec.replace(granularity="channel"), lambda t: t.expand(*t.shape[:-2], weight.n, 1))


def by_group(weight: CanonicalWeight, size: int) -> CanonicalWeight:
    """Return `weight` with the same scales in groups of `size` along K; `size` divides K, and the group size if there is one."""
    old = weight.spec.group_size or weight.k
    spec = weight.spec.replace(granularity="group", group_size=size)
    return _with_scales(by_row(weight), spec, lambda t: t.repeat_interleave(old // size, -1))


def _secondary_by_row(weight: CanonicalWeight) -> CanonicalWeight:
    if weight.spec.granularity == "channel":  # a spec has one scale by row: the first becomes a group as long as K
        if weight.k % 8:
            raise LayoutError(
                f"stack along N: channel scales with secondary scales that differ become groups of K={weight.k}, and groups are "
                "multiples of 8; keep the weights apart"
            )
        weight = by_group(weight, weight.k)
    rows = _present(weight.secondary_scale).expand(*weight.codes.shape[:-2], weight.n).contiguous()
    return weight.replace(spec=weight.spec.replace(secondary="channel"), secondary_scale=rows)


def _check_blocks(weights: Sequence[CanonicalWeight], dim: int) -> None:
    spec = weights[0].spec
    if spec.granularity != "block" or spec.block is None:
        return
    size, across = spec.block[dim], spec.block[1 - dim]
    for i, weight in enumerate(weights):
        offsets = [w.block_offset[1 - dim] % across for w in (weights[0], weight)]
        if offsets[0] != offsets[1]:
            raise LayoutError(
                f"stack along {'NK'[dim]}: weight 0 starts {offsets[0]} and weight {i} starts {offsets[1]} inside a block of "
                f"{across} along {'KN'[dim]}, so their blocks don't line up; keep them apart"
            )
        length = (weight.n, weight.k)[dim]
        end = (weight.block_offset[dim] + length) % size
        if (i and weight.block_offset[dim] % size) or (i < len(weights) - 1 and end):
            raise LayoutError(
                f"stack along {'NK'[dim]}: weight {i} ({length} long, offset {weight.block_offset[dim]}) doesn't end on a block of "
                f"{size}, so the next one's blocks would be cut anew; put it last, or keep it apart"
            )


def _joined_bias(weights: Sequence[CanonicalWeight], dim: int) -> Tensor | None:
    biases = [weight.bias for weight in weights]
    if all(bias is None for bias in biases):
        return None
    if dim == 0:
        like = next(bias for bias in biases if bias is not None)
        return torch.cat([like.new_zeros(*like.shape[:-1], w.n) if w.bias is None else w.bias for w in weights], -1)
    if sum(bias is not None for bias in biases) > 1:
        raise LayoutError("stack along K: more than one weight has a bias, and their sum would be rounded; keep one")
    return next(bias for bias in biases if bias is not None)


def _joined_transform(weights: Sequence[CanonicalWeight]) -> InputTransform | None:
    transforms = [weight.transform or InputTransform() for weight in weights]
    if all(_same_transform(transform, None) for transform in transforms):
        return None
    sizes = {transform.hadamard for transform in transforms}
    if len(sizes) > 1:
        raise LayoutError(f"stack along K: Hadamard blocks {sizes} differ; one size serves all of x")
    permutation = pre = None
    device = weights[0].codes.device
    if any(transform.permutation is not None for transform in transforms):
        starts = [0, *torch.tensor([w.k for w in weights]).cumsum(0).tolist()]
        pieces = []
        for weight, transform, start in zip(weights, transforms, starts, strict=False):
            own = transform.permutation
            pieces.append((torch.arange(weight.k, dtype=torch.int32, device=device) if own is None else own) + start)
        permutation = torch.cat(pieces).to(torch.int32)
    if any(transform.pre_quant_scale is not None for transform in transforms):
        dtype = next(t.pre_quant_scale.dtype for t in transforms if t.pre_quant_scale is not None)
        ones = [torch.ones(w.k, dtype=dtype, device=device) for w in weights]
        pre = torch.cat([one if t.pre_quant_scale is None else t.pre_quant_scale for one, t in zip(ones, transforms, strict=True)])
    return InputTransform(pre_quant_scale=pre, hadamard=sizes.pop(), permutation=permutation)


# ---- shard ----
def shard(weight: CanonicalWeight, dim: int, rank: int, world: int, *, columns: str = "natural") -> CanonicalWeight:
    """Return rank's part of `weight` among `world`, along N (dim 0) or K (dim 1); raises LayoutError for what can't be exact.

    columns  which columns a cut along K takes: "natural", a slice of x; or "sorted", those of `sorted_columns`
    """
    _check_dim(dim)
    if columns not in ("natural", "sorted"):
        raise ShapeError(f"columns={columns!r}: allowed are natural and sorted")
    start, end = _range(weight, dim, rank, world)
    if dim == 0:
        return _rows(weight, start, end)
    permutation = None if weight.transform is None else weight.transform.permutation
    if permutation is None:
        return _columns(weight, start, end)
    if columns == "sorted":
        return _sorted(weight, start, end)
    return _scattered(weight, start, end)


def sorted_columns(weight: CanonicalWeight, rank: int, world: int) -> Tensor:
    """Return the columns of x, int64 [K/world], that `shard(weight, 1, rank, world, columns="sorted")` multiplies, in its order."""
    start, end = _range(weight, 1, rank, world)
    permutation = None if weight.transform is None else weight.transform.permutation
    whole = torch.arange(weight.k, device=weight.codes.device) if permutation is None else permutation.long()
    return whole[start:end]


def _range(weight: CanonicalWeight, dim: int, rank: int, world: int) -> tuple[int, int]:
    size = (weight.n, weight.k)[dim]
    if not isinstance(rank, int) or not isinstance(world, int):
        raise ShapeError(f"shard: rank {rank!r} of {world!r}; both are integers")
    if world < 1 or not 0 <= rank < world:
        raise ShapeError(f"shard: rank {rank} of {world}; ranks are 0 to world - 1")
    if size % world:
        raise ShapeError(f"shard: {'NK'[dim]}={size} is not a multiple of world={world} ({size / world:.4g} each)")
    return rank * size // world, (rank + 1) * size // world


def _rows(weight: CanonicalWeight, start: int, end: int) -> CanonicalWeight:
    spec = weight.spec
    rows: Callable[[Tensor], Tensor] = lambda t: t[..., start:end, :]  # noqa: E731
    if spec.granularity == "tensor":
        rows = lambda t: t  # noqa: E731
    offset = weight.block_offset
    if spec.granularity == "block" and spec.block is not None:
        size = spec.block[0]
        first = offset[0] % size + start
        low, high = first // size, -(-(first + end - start) // size)
        rows = lambda t: t[..., low:high, :]  # noqa: E731
        offset = (first % size, offset[1])
    return CanonicalWeight(
        spec=spec,
        codes=weight.codes[..., start:end, :].contiguous(),
        scale=rows(weight.scale).contiguous(),
        zero_point=None if weight.zero_point is None else rows(weight.zero_point).contiguous(),
        secondary_scale=weight.secondary_scale
        if spec.secondary != "channel"
        else _present(weight.secondary_scale)[..., start:end].contiguous(),
        input_scale=weight.input_scale,
        bias=None if weight.bias is None else weight.bias[..., start:end].contiguous(),
        transform=weight.transform,
        block_offset=offset,
    )


def _columns(weight: CanonicalWeight, start: int, end: int) -> CanonicalWeight:
    spec = weight.spec
    _check_activation(spec, start, end)
    offset, low, high = weight.block_offset, 0, 1
    if spec.granularity == "block" and spec.block is not None:
        size = spec.block[1]
        first = offset[1] % size + start
        low, high = first // size, -(-(first + end - start) // size)
        offset = (offset[0], first % size)
    elif spec.group_size is not None:
        size = math.gcd(spec.group_size, start, end)
        if size % 8:
            raise LayoutError(
                f"shard: columns {start}..{end} cut groups of {spec.group_size} so that only groups of {size} would fit; "
                f"groups are multiples of 8. Use a world that divides the {weight.k // spec.group_size} groups"
            )
        if size != spec.group_size:
            weight = by_group(weight, size)
            spec = weight.spec
        low, high = start // size, end // size
    return CanonicalWeight(
        spec=spec,
        codes=weight.codes[..., start:end].contiguous(),
        scale=weight.scale[..., low:high].contiguous(),
        zero_point=None if weight.zero_point is None else weight.zero_point[..., low:high].contiguous(),
        secondary_scale=weight.secondary_scale,
        input_scale=weight.input_scale,
        bias=weight.bias if start == 0 else None,
        transform=_cut_transform(weight.transform, start, end),
        block_offset=offset,
    )


def _sorted(weight: CanonicalWeight, start: int, end: int) -> CanonicalWeight:
    """Columns start..end of the sorted order; x comes in that order, so nothing is left to permute."""
    transform = weight.transform
    assert transform is not None and transform.permutation is not None
    if transform.hadamard:
        raise LayoutError("shard: sorted columns of a Hadamard-transformed x mix all of x; use columns='natural'")
    pre = transform.pre_quant_scale
    left = None if pre is None else InputTransform(pre_quant_scale=pre[transform.permutation.long()])
    return _columns(weight.replace(transform=left), start, end)


def _scattered(weight: CanonicalWeight, start: int, end: int) -> CanonicalWeight:
    """The columns of an act-order weight that read x[start:end], if they form equal groups."""
    spec, transform = weight.spec, weight.transform
    assert transform is not None and transform.permutation is not None
    _check_activation(spec, start, end)
    if spec.activation_group_size:
        raise LayoutError(
            f"shard: '{spec}' quantizes the sorted columns of x in groups of {spec.activation_group_size}, "
            "which a slice of x doesn't hold; cut with columns='sorted'"
        )
    if spec.granularity == "block":
        raise LayoutError(f"shard: '{spec}' with act-order can't be cut along K; blocks are not made of scattered columns")
    permutation = transform.permutation.long()
    taken = ((permutation >= start) & (permutation < end)).nonzero().flatten()
    own = InputTransform(
        pre_quant_scale=None if transform.pre_quant_scale is None else transform.pre_quant_scale[start:end].contiguous(),
        hadamard=_cut_hadamard(transform.hadamard, start, end),
        permutation=(permutation[taken] - start).to(torch.int32),
    )
    codes, size = weight.codes[..., taken].contiguous(), spec.group_size
    bias = weight.bias if start == 0 else None
    if size is None:
        return weight.replace(codes=codes, bias=bias, transform=own)
    counts = torch.bincount(taken // size, minlength=weight.k // size)
    common = math.gcd(*counts[counts > 0].tolist())
    if common % 8:
        group = int((counts % 8 != 0).nonzero()[0])
        raise LayoutError(
            f"shard: x[{start}:{end}] meets {int(counts[group])} of the {size} columns of act-order group {group}; equal groups "
            "of 8 or more columns can't be made of such parts. Cut with columns='sorted', and give rank r the columns of x that "
            "sorted_columns(weight, r, world) lists"
        )
    groups = taken[::common] // size
    return CanonicalWeight(
        spec=spec.replace(group_size=common),
        codes=codes,
        scale=weight.scale[..., groups].contiguous(),
        zero_point=None if weight.zero_point is None else weight.zero_point[..., groups].contiguous(),
        secondary_scale=weight.secondary_scale,
        input_scale=weight.input_scale,
        bias=bias,
        transform=own,
    )


def _check_activation(spec: Spec, start: int, end: int) -> None:
    size = spec.activation_group_size
    if size and (start % size or end % size):
        raise LayoutError(
            f"shard: columns {start}..{end} cut the groups of {size} in which x is quantized, so the parts would not sum to "
            f"the whole; use a world that keeps K/world a multiple of {size}"
        )


def _cut_transform(transform: InputTransform | None, start: int, end: int) -> InputTransform | None:
    if transform is None:
        return None
    pre = transform.pre_quant_scale
    return InputTransform(
        pre_quant_scale=None if pre is None else pre[start:end].contiguous(), hadamard=_cut_hadamard(transform.hadamard, start, end)
    )


def _cut_hadamard(size: int | None, start: int, end: int) -> int | None:
    if size and (start % size or end % size):
        raise LayoutError(f"shard: columns {start}..{end} cut Hadamard blocks of {size}; keep K/world a multiple of {size}")
    return size


# ---- helpers ----
def _with_scales(weight: CanonicalWeight, spec: Spec, change: Callable[[Tensor], Tensor]) -> CanonicalWeight:
    fields: dict[str, Any] = {"scale": change(weight.scale).contiguous()}
    if weight.zero_point is not None:
        fields["zero_point"] = change(weight.zero_point).contiguous()
    return weight.replace(spec=spec, **fields)


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and a.dtype == b.dtype and bool(torch.equal(a.float(), b.float()))


def _same_transform(a: InputTransform | None, b: InputTransform | None) -> bool:
    a, b = a or InputTransform(), b or InputTransform()
    same = _same(a.permutation, b.permutation) and _same(a.pre_quant_scale, b.pre_quant_scale)
    return same and (a.hadamard or None) == (b.hadamard or None)


def _present(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor


def _check_dim(dim: int) -> None:
    if dim not in (0, 1):
        raise ShapeError(f"dim={dim}: 0 is N (rows), 1 is K (columns)")
