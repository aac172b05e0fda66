"""CanonicalWeight <-> QWeight: one module a layout family, each with `make_layout`, `pack` and `unpack`.

`pack` of a family is `empty`, `write` of all codes, and `pack_beside` for the small tensors; a weight whose codes come in pieces is
packed by the same three.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import torch

from hybrid_humming.dtypes import parse_format
from hybrid_humming.errors import LayoutError
from hybrid_humming.spec import PackLayout, Spec
from hybrid_humming.weight import CanonicalWeight, Facts, QWeight

Tensor = torch.Tensor

FAMILIES = ("portable", "hopper", "hopper_a8", "ampere", "umma")


def pack(weight: CanonicalWeight, layout: PackLayout, pieces: Iterable[tuple[int, Tensor]] | None = None) -> QWeight:
    """Return `weight` packed in `layout`; every value is kept. Raises LayoutError when the two don't fit.

    pieces  the codes in parts, where those of `weight` lie on the meta device: (first row, codes [n, K]), a multiple of 64 rows
            each but the last, or (first expert, codes [e, N, K])
    """
    if (layout.n, layout.k, layout.experts) != (weight.n, weight.k, weight.experts):
        raise LayoutError(
            f"layout {layout} is for {[layout.experts, layout.n, layout.k]}, but the weight is "
            f"{[weight.experts, weight.n, weight.k]} (experts, N, K); choose a layout for this weight"
        )
    module = _module(layout)
    tensors: dict[str, Any]
    if pieces is None:
        tensors = module.pack(weight, layout)
    else:
        tensors = {"qweight": module.empty(layout, weight.scale.device), **module.pack_beside(weight, layout)}
        for begin, codes in pieces:
            module.write(tensors["qweight"], codes, begin, weight.spec, layout)
    return QWeight(
        spec=weight.spec,
        layout=layout,
        input_scale=weight.input_scale,
        transform=weight.transform,
        block_offset=weight.block_offset,
        **tensors,
    )


def unpack(qweight: QWeight) -> CanonicalWeight:
    """Return the canonical weight that was packed, equal in every code, scale and zero point."""
    weight: CanonicalWeight = _module(qweight.layout).unpack(qweight)
    return weight


def check(qweight: QWeight) -> QWeight:
    """Return `qweight`, which came from a file; raises LayoutError unless its tensors have the shapes that its layout says.

    A kernel reads by the layout alone, so a tensor of another shape would be read past its end.
    """
    spec, layout = qweight.spec, qweight.layout
    facts = Facts(lowest_code_unused=layout.encoding != spec.weight, row_exponent_span=0 if layout.folded else None)
    made = make_layout(layout.family, spec, layout.n, layout.k, experts=layout.experts, facts=facts)
    if made != layout:
        raise LayoutError(f"the layout {layout} is none that a weight of '{spec}' is packed in; {made} would be")
    lead = (layout.experts,) if layout.experts else ()
    words, scale = _module(layout).shapes(spec, layout, qweight.block_offset)
    want: dict[str, tuple[int, ...]] = {"qweight": (*lead, *words), "scale": (*lead, *scale)}
    if spec.has_zero_point:
        want["zero_point"] = want["scale"]
    if spec.secondary:
        want["secondary_scale"] = (*lead, 1 if spec.secondary == "tensor" else layout.n)
    types = {"qweight": torch.int32, "scale": spec.scale_format.torch_storage, "secondary_scale": torch.float32}
    if spec.has_zero_point:
        types["zero_point"] = torch.uint8 if spec.zero_point == "int" else parse_format(str(spec.zero_point)).torch_storage
    for name, shape in want.items():
        tensor = getattr(qweight, name)
        if tensor is None or tuple(tensor.shape) != shape or tensor.dtype != types[name]:
            have = "missing" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"
            raise LayoutError(f"{name} is {have}, but '{spec}' in layout {layout} takes {types[name]} {list(shape)}")
    return qweight


def make_layout(family: str, spec: Spec, n: int, k: int, *, experts: int = 0, facts: Facts) -> PackLayout:
    """Return the layout of family `family` for a weight [n, k]."""
    layout: PackLayout = _family(family).make_layout(spec, n, k, experts, facts)
    return layout


def _family(name: str) -> Any:
    if name not in FAMILIES:
        raise LayoutError(f"unknown layout family {name!r}; this version knows {', '.join(FAMILIES)}")
    return importlib.import_module(f"hybrid_humming.pack.{name}")


def _module(layout: PackLayout) -> Any:
    module = _family(layout.family)
    if layout.version != module.VERSION:
        raise LayoutError(
            f"layout {layout.family} version {layout.version}: this version of hybrid_humming reads version "
            f"{module.VERSION}; pack the checkpoint again (hh.load from the original files)"
        )
    return module
