"""Measured choices: `plan/tuned/<device>.json`, written by `hybrid_humming.tuning`, read here.

{"rows": [{"spec": "int4 g128 x bf16", "n": 8192, "k": 8192, "m": 16, "kernel": "...", "tile": {...}, "us": 13.6}]}
"""

from __future__ import annotations

import functools
import json
from importlib import resources

from hybrid_humming.device import DeviceInfo
from hybrid_humming.plan.types import Tile
from hybrid_humming.spec import Problem

Row = tuple[str, Tile, float]


def tuned(problem: Problem, device: DeviceInfo) -> Row | None:
    """Return (kernel, tile, us) measured for this spec, N, K and M bucket on this device; None if there is none."""
    return _table(device.name).get((str(problem.spec), problem.n, problem.k, problem.m))


@functools.cache
def _table(device: str) -> dict[tuple[str, int, int, int], Row]:
    file = resources.files("hybrid_humming") / "plan" / "tuned" / f"nvidia-{device}.json"
    if not file.is_file():
        return {}
    rows = json.loads(file.read_text())["rows"]
    return {(r["spec"], r["n"], r["k"], r["m"]): (r["kernel"], Tile().replace(**r["tile"]), float(r["us"])) for r in rows}
