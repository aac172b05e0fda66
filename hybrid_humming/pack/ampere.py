"""Ampere layout, version 1: the bytes of the Hopper layout (hybrid_humming/pack/hopper.py), for the GPUs that have mma.sync alone.

m16n8k16 takes its 16-row operand from the same registers on SM80 to SM121, and m16n8k8 of SM75 takes half of them at a time. The
family has a name of its own because a family names the kernels that read it.
"""

from __future__ import annotations

import dataclasses

from hybrid_humming.pack import hopper
from hybrid_humming.pack.hopper import empty, pack, pack_beside, shapes, unpack, write
from hybrid_humming.spec import PackLayout, Spec
from hybrid_humming.weight import Facts

VERSION = 1

__all__ = ["VERSION", "empty", "make_layout", "pack", "pack_beside", "shapes", "unpack", "write"]


def make_layout(spec: Spec, n: int, k: int, experts: int, facts: Facts) -> PackLayout:
    """Return the layout of a weight [n, k]; see `hopper.make_layout`."""
    return dataclasses.replace(hopper.make_layout(spec, n, k, experts, facts), family="ampere", version=VERSION)
