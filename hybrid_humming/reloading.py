"""reload_: new values in a weight's own memory, for checkpoints that change while a server runs."""

from __future__ import annotations

from pathlib import Path

from hybrid_humming import pack as packing
from hybrid_humming.errors import CheckpointError, DtypeError, LayoutError
from hybrid_humming.loading import Loaded, load, read_packed
from hybrid_humming.weight import CanonicalWeight, QWeight

Source = QWeight | CanonicalWeight | Loaded | str | Path


def reload_(qweight: QWeight, source: Source, name: str | None = None) -> QWeight:
    """Copy the values of `source` into `qweight` and return it; every data pointer stays, so captured CUDA graphs see them.

    source  a weight, a checkpoint's path, or what `hh.load` returned (give its `activation` there)
    name    the layer in a checkpoint; may be left out where there is only one

    Raises LayoutError, before a byte is written, unless spec, sizes, transform and the set of tensors are the same. Another
    layout is packed anew. A bias is no part of a QWeight: copy it yourself.
    """
    if not isinstance(qweight, QWeight):
        raise DtypeError(f"reload_ writes into a QWeight (hh.quantize, hh.load), not into {type(qweight).__name__}")
    new = _in_layout(_value(source, name), qweight)
    _check_same(new, qweight)
    own = qweight.tensors()
    for part, tensor in new.tensors().items():
        own[part].copy_(tensor)
    return qweight


def _value(source: Source, name: str | None) -> QWeight | CanonicalWeight:
    if isinstance(source, QWeight | CanonicalWeight):
        return source
    loaded = source if isinstance(source, Loaded) else load(source)
    if name is None:
        if len(loaded) != 1:
            raise CheckpointError(f"{loaded.checkpoint.path} holds {len(loaded)} layers; say with `name` which one to reload")
        (name,) = loaded
    layer = loaded.checkpoint.layer(name)
    if layer.packed is not None and layer.spec == loaded.spec(name):
        return read_packed(layer, validate=loaded.checkpoint.validate)
    return loaded.canonical(name)


def _in_layout(weight: QWeight | CanonicalWeight, like: QWeight) -> QWeight:
    """`weight` packed as `like` is; raises LayoutError where spec or sizes differ."""
    if (weight.spec, weight.n, weight.k, weight.experts) != (like.spec, like.n, like.k, like.experts):
        raise LayoutError(
            f"reload_: the new weight is '{weight.spec}' {_sizes(weight)}, the one in memory '{like.spec}' {_sizes(like)}; load "
            "it as a new weight, or give the activation half that it is served with to hh.load(path, activation=...)"
        )
    if isinstance(weight, QWeight):
        if weight.layout == like.layout:
            return weight
        weight = packing.unpack(weight)
    if weight.codes.device != like.device:
        weight = weight.to(like.device)
    return packing.pack(weight, like.layout)


def _check_same(new: QWeight, own: QWeight) -> None:
    hadamards = [w.transform.hadamard if w.transform else None for w in (new, own)]
    if hadamards[0] != hadamards[1] or new.block_offset != own.block_offset:
        raise LayoutError(
            f"reload_: the new weight has Hadamard block {hadamards[0]} and block offset {new.block_offset}, the one in memory "
            f"{hadamards[1]} and {own.block_offset}; load it as a new weight"
        )
    found, wanted = ({name: (t.dtype, tuple(t.shape)) for name, t in w.tensors().items()} for w in (new, own))
    if found != wanted:
        names = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
        listed = "; ".join(f"{name}: new {_text(found.get(name))}, in memory {_text(wanted.get(name))}" for name in names)
        raise LayoutError(f"reload_: the tensors differ ({listed}); load it as a new weight")


def _sizes(weight: QWeight | CanonicalWeight) -> list[int]:
    return [weight.experts, weight.n, weight.k] if weight.experts else [weight.n, weight.k]


def _text(tensor: tuple[object, tuple[int, ...]] | None) -> str:
    return "none" if tensor is None else f"{tensor[0]} {list(tensor[1])}"
