"""CanonicalWeight <-> QWeight: one module a layout family, each with `make_layout`, `pack` and `unpack`."""

from __future__ import annotations

import importlib
from typing import Any

from hybrid_humming.errors import LayoutError
from hybrid_humming.spec import PackLayout, Spec
from hybrid_humming.weight import CanonicalWeight, Facts, QWeight

FAMILIES = ("portable", "hopper")


def pack(weight: CanonicalWeight, layout: PackLayout) -> QWeight:
    """Return `weight` packed in `layout`; every value is kept. Raises LayoutError when the two don't fit."""
    if (layout.n, layout.k, layout.experts) != (weight.n, weight.k, weight.experts):
        raise LayoutError(
            f"layout {layout} is for {[layout.experts, layout.n, layout.k]}, but the weight is "
            f"{[weight.experts, weight.n, weight.k]} (experts, N, K); choose a layout for this weight"
        )
    tensors: dict[str, Any] = _module(layout).pack(weight, layout)
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
