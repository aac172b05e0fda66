"""Experts stored as one tensor with a leading expert axis, as Transformers 5 holds them and compressed-tensors packs them.

    model.layers.0.mlp.experts.gate_up_proj.weight_packed   [E, N, words]      nested: a module with the usual parts
    model.layers.0.mlp.experts.gate_up_proj_packed          [E, N, words]      flat: the part behind the parameter's own name
    model.layers.0.mlp.experts.w13_weight_scale             [E, N, K/G]

Every part has the leading E, but for scalars that all experts share. `weight_shape` is (E, N, K). A scalar of each expert is
[E] or [E, 1]; [E, 2] holds one for the gate half and one for the up half, and is read where the two agree: which rows are the
gate's (the first half, or every other) is not in the files.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping

from hybrid_humming.checkpoint.experts import stack_experts
from hybrid_humming.checkpoint.files import TensorInfo
from hybrid_humming.checkpoint.pieces import Pieces
from hybrid_humming.checkpoint.registry import Parts, StoredLayer
from hybrid_humming.errors import CheckpointMismatch, UnknownQuantMethod
from hybrid_humming.lazy import Tensor, torch
from hybrid_humming.weight import CanonicalWeight

WEIGHTS = ("weight_packed", "weight", "qweight")
_PARAMETER = re.compile(
    r"(?P<module>.*\bexperts\.(?:gate_up_proj|gate_proj|up_proj|down_proj|w13_weight|w2_weight))(?:_(?P<end>[a-z_]+))?$"
)
_ENDS = {end: f"weight_{end}" for end in ("packed", "scale", "zero_point", "shape", "global_scale", "g_idx")}


def split_flat(tensor: str) -> tuple[str, str] | None:
    """Return (module, part) of a flat name: `experts.down_proj_packed` is `weight_packed` of `experts.down_proj`; else None."""
    match = _PARAMETER.fullmatch(tensor)
    if match is None:
        return None
    end = match["end"]
    return match["module"], "weight" if end is None else _ENDS.get(end, end)


def stacked(parts: Parts) -> bool:
    """Return whether a module's weight has a leading expert axis."""
    return any(len(parts[part].shape) == 3 for part in WEIGHTS if part in parts)


def refuse_stacked(name: str, parts: Parts, method: str, writers: str) -> None:
    """Raise UnknownQuantMethod for stacked experts in a format whose exporters store them one by one."""
    if stacked(parts):
        listed = ", ".join(f"{part} {info}" for part, info in parts.items())
        raise UnknownQuantMethod(
            f"{name}: {method} experts stacked in one tensor are not read ({listed}): {writers} store each expert as a layer "
            "of its own (experts.0.gate_proj.qweight ...); split the first axis into such layers, and "
            "loaded.experts('...experts.gate_proj') gives them as one weight [E, N, K]"
        )


def describe_stacked(name: str, parts: Parts, describe: Callable[[Parts], StoredLayer]) -> StoredLayer:
    """Return the layer of E experts; `describe` describes one of them from its slice of each part."""
    main = next(parts[part] for part in WEIGHTS if part in parts)
    experts = main.shape[0]
    if experts == 0:
        raise CheckpointMismatch(f"{name}: {main.name.rpartition('.')[2]} is {main}: no expert in it")
    first = describe({part: _slice(name, part, info, experts) for part, info in parts.items()})
    used = {part: parts[part] for part in first.parts}

    def convert(tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        each = ({part: _cut(name, part, tensor, i) for part, tensor in tensors.items()} for i in range(experts))
        return stack_experts(name, (first.convert(part) for part in each), experts)

    pieces = None
    if first.pieces is not None:
        one, shape = first.pieces, (first.n, first.k)

        def decode(stored: Tensor, count: int) -> Tensor:
            return torch.stack([one.codes(stored[i], *shape) for i in range(count)])

        pieces = Pieces(part=one.part, decode=decode, unsorted=one.unsorted)
    return dataclasses.replace(first, experts=experts, parts=used, convert=convert, pieces=pieces)


def _slice(name: str, part: str, info: TensorInfo, experts: int) -> TensorInfo:
    """The header of the first expert's slice of a part; scalars, and (N, K) of all experts, are as they are."""
    if part == "weight_shape" and len(info.shape) == 1:
        numbers = info.integers()
        if len(numbers) not in (2, 3):
            raise CheckpointMismatch(f"{name}: weight_shape is {info}, expected (E, N, K)")
        if len(numbers) == 3 and numbers[0] != experts:
            raise CheckpointMismatch(f"{name}: weight_shape says {numbers}, but the weight has {experts} experts")
        skipped = (len(numbers) - 2) * (info.nbytes // max(info.numel, 1))
        return dataclasses.replace(info, shape=(2,), start=info.start + skipped, nbytes=info.nbytes - skipped)
    if info.shape in ((), (1,)):
        return info
    if info.shape[0] != experts:
        raise CheckpointMismatch(
            f"{name}: {part} is {info}, but the weight has {experts} experts; the two must have the same first size"
        )
    shape = info.shape[1:]
    return dataclasses.replace(info, shape=(1,) if shape == (2,) else shape, nbytes=info.nbytes // experts)


def _cut(name: str, part: str, tensor: Tensor, expert: int) -> Tensor:
    """Expert i's slice of a part; raises CheckpointMismatch where the gate's scalar is not the up half's."""
    if part == "weight_shape" or tensor.shape in ((), (1,)):
        return tensor
    cut = tensor[expert]
    if cut.shape != (2,):
        return cut
    gate, up = (float(value) for value in cut)
    if gate != up:
        raise CheckpointMismatch(
            f"{name}: {part} of expert {expert} is {gate} for its gate and {up} for its up projection; which rows are which "
            "is not in the files: export with one for both, or with experts one by one"
        )
    return cut[:1]
