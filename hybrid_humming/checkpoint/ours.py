"""Our own files: packed bytes as a kernel reads them, or canonical weights, each with a tag. Written by `hh.save`.

    packed      qweight, scale [, zero_point, secondary_scale]     in the order of the layout that the tag names
    canonical   codes uint8 [N, ceil(K*b/8)], scale [, zero_point, secondary_scale]: each row one bit stream, low bits first;
                codes [N, K], one a byte, where the tag has no k
    both        [input_scale, pre_quant_scale, permutation, bias,] quantization: uint8, the tag (hybrid_humming/tag.py)

The state dict of a model with `hh.Linear` layers has the same names and is read too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial

from hybrid_humming import __version__
from hybrid_humming.checkpoint.bits import stream_bytes, unpack_bytes
from hybrid_humming.checkpoint.config import QuantConfig
from hybrid_humming.checkpoint.pieces import Pieces
from hybrid_humming.checkpoint.registry import Importer, Parts, ReadOptions, StoredLayer, pick, require
from hybrid_humming.errors import CheckpointError, CheckpointMismatch, CorruptFile, LayoutError, UnknownQuantMethod
from hybrid_humming.lazy import Tensor
from hybrid_humming.spec import PackLayout
from hybrid_humming.tag import PART, Tag
from hybrid_humming.weight import CanonicalWeight, InputTransform, QWeight

Tensors = Mapping[str, Tensor]
METHOD = "hybrid_humming"
FORMAT_VERSION = 1
READABLE = {"portable": 1, "hopper": 1, "hopper_a8": 1, "ampere": 1, "umma": 1}
"""Layout family -> the version that pack/<family>.py reads."""


class Ours(Importer):
    """Reads what `hh.save` wrote."""

    def __init__(self, config: QuantConfig, options: ReadOptions) -> None:
        super().__init__(config, options)
        version = config.integer("format_version", default=FORMAT_VERSION)
        if version != FORMAT_VERSION:
            raise UnknownQuantMethod(
                f"{config.source}: format_version {version} of {METHOD}; hybrid_humming {__version__} reads version "
                f"{FORMAT_VERSION}: use the version that wrote it ({config.text('producer', default='not named')})"
            )

    def describe(self, name: str, parts: Parts) -> StoredLayer | None:
        """Return the layer that the module's tag describes; None without a tag."""
        if PART not in parts:
            return None
        stored = parts[PART]
        if stored.dtype != "U8" or len(stored.shape) != 1:
            raise LayoutError(f"{name}: the tensor {PART!r} is {stored}; the tag of a weight is U8 [length]")
        tag = Tag.parse(stored.read_bytes().decode(errors="replace"))
        needed = ["codes" if tag.layout is None else "qweight", "scale"]
        needed += ["zero_point"] if tag.spec.has_zero_point else []
        needed += ["secondary_scale"] if tag.spec.secondary else []
        require(name, parts, tuple(needed), f"'{tag.spec}'")
        n, k, experts = _sizes(name, parts, tag)
        return StoredLayer(
            name=name,
            spec=tag.spec,
            n=n,
            k=k,
            experts=experts,
            parts=pick(parts, *needed, "input_scale", "pre_quant_scale", "permutation", "bias", PART),
            convert=partial(_canonical, name, tag, (*((experts,) if experts else ()), n, k)),
            pieces=None if tag.layout is not None else _pieces(tag),
            packed=None if tag.layout is None else partial(_packed, tag, tag.layout),
            verify=partial(_verify, name, tag),
            notes=json.loads(tag.notes) if tag.notes else {},
        )


def check_version(name: str, layout: PackLayout) -> None:
    """Raise LayoutError, saying how to convert, unless this version reads `layout`."""
    if READABLE.get(layout.family) == layout.version:
        return
    known = ", ".join(f"{family}.v{version}" for family, version in READABLE.items())
    raise LayoutError(
        f"{name}: packed in layout {layout.family}.v{layout.version}; hybrid_humming {__version__} reads {known}. Run "
        "`hybrid-humming convert` on the original checkpoint again, or on this one with --canonical under the version that "
        "wrote it: every version reads canonical weights"
    )


def _sizes(name: str, parts: Parts, tag: Tag) -> tuple[int, int, int]:
    stored = parts["codes" if tag.layout is None else "qweight"]
    if tag.layout is not None:
        check_version(name, tag.layout)
        if stored.dtype != "I32" or len(stored.shape) != (3 if tag.layout.experts else 2):
            raise CheckpointMismatch(f"{name}: qweight is {stored}, which is not packed as its tag says: '{tag}'")
        return tag.layout.n, tag.layout.k, tag.layout.experts
    if stored.dtype != "U8" or len(stored.shape) not in (2, 3):
        raise CheckpointMismatch(f"{name}: codes are {stored}; canonical codes are U8 [N, bytes] or [E, N, bytes]")
    k = stored.shape[-1] if tag.k is None else tag.k
    if tag.k is not None and stored.shape[-1] != stream_bytes(k, tag.spec.bits):
        raise CheckpointMismatch(
            f"{name}: codes are {stored}, but K={k} at {tag.spec.bits} bits takes {stream_bytes(k, tag.spec.bits)} bytes a row"
        )
    return stored.shape[-2], k, stored.shape[0] if len(stored.shape) == 3 else 0


def _verify(name: str, tag: Tag, tensors: Tensors) -> None:
    if tag.sha256 is None:
        return
    found = tag.digest({part: tensor for part, tensor in tensors.items() if part != PART})
    if found != tag.sha256:
        raise CorruptFile(
            f"{name}: its bytes have the hash {found[:16]}..., the tag says {tag.sha256[:16]}...: the file was damaged or changed; "
            "copy it again, or load with validate=False to take it as it is"
        )


def _packed(tag: Tag, layout: PackLayout, tensors: Tensors) -> QWeight:
    return QWeight(
        spec=tag.spec,
        layout=layout,
        qweight=tensors["qweight"],
        scale=tensors["scale"],
        zero_point=tensors.get("zero_point"),
        secondary_scale=tensors.get("secondary_scale"),
        input_scale=tensors.get("input_scale"),
        transform=_transform(tag, tensors),
        block_offset=tag.block_offset,
    )


def _pieces(tag: Tag) -> Pieces:
    k, bits = tag.k, tag.spec.bits
    return Pieces(part="codes", decode=lambda stored, _: stored if k is None else unpack_bytes(stored, bits, k))


def _canonical(name: str, tag: Tag, shape: tuple[int, ...], tensors: Tensors) -> CanonicalWeight:
    if tag.layout is not None:
        raise CheckpointError(f"{name} is packed as {tag.layout}; hh.load reads it, hh.load_canonical unpacks it")
    return CanonicalWeight(
        spec=tag.spec,
        codes=_pieces(tag).codes(tensors["codes"], *shape),
        scale=tensors["scale"],
        zero_point=tensors.get("zero_point"),
        secondary_scale=tensors.get("secondary_scale"),
        input_scale=tensors.get("input_scale"),
        bias=tensors.get("bias"),
        transform=_transform(tag, tensors),
        block_offset=tag.block_offset,
    )


def _transform(tag: Tag, tensors: Tensors) -> InputTransform | None:
    pre, permutation = tensors.get("pre_quant_scale"), tensors.get("permutation")
    if pre is None and permutation is None and tag.hadamard is None:
        return None
    return InputTransform(pre_quant_scale=pre, hadamard=tag.hadamard, permutation=permutation)
