"""A results file as text: `python -m bench.table results.json` for everything; a run prints `short` last."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from bench.record import load
from bench.shapes import FIRST_MS


def render(data: dict[str, Any]) -> str:
    """Return the dense rows by spec, shape and setting, one column per M, and last where the best peer is furthest ahead."""
    rows = [row for row in data["rows"] if row["problem"] == "dense"]
    if not rows:
        return "no dense rows"
    parts = []
    for spec, setting in dict.fromkeys((row["spec"], row["setting"]) for row in rows):
        parts.append(_block(f"{spec}, {setting}", [r for r in rows if (r["spec"], r["setting"]) == (spec, setting)]))
    return "\n\n".join([*parts, _worst(rows)])


def short(data: dict[str, Any]) -> str:
    """Return one line a spec and setting, each number a geometric mean over the shapes: a table for the end of a run."""
    rows = [row for row in data["rows"] if row["problem"] == "dense"]
    if not rows:
        return "no dense rows"
    ms = [m for m in FIRST_MS if any(row["m"] == m for row in rows)] or sorted({row["m"] for row in rows})[:6]
    head = "best peer's time over ours / share of the roof / cuBLAS bf16's time over ours"
    lines = [f"{head}, over {len({(row['n'], row['k']) for row in rows})} shapes", _cells("", [f"M={m}" for m in ms])]
    for spec, setting in dict.fromkeys((row["spec"], row["setting"]) for row in rows):
        at = {m: [r for r in rows if (r["spec"], r["setting"], r["m"]) == (spec, setting, m)] for m in ms}
        lines.append(_cells(f"{spec}, {setting}", [_cell(at[m]) for m in ms]))
    return "\n".join([*lines, "", _worst(rows)])


def _cell(rows: Sequence[dict[str, Any]]) -> str:
    parts = (
        [best_ratio(row) for row in rows if row["peers"]],
        [row["roof_us"] / row["us"] for row in rows if "roof_us" in row],
        [ratio for row in rows if (ratio := _ratio(row, "cublas")) is not None],
    )
    shown = [f"{geometric_mean(v):.2f}" if v else "-" for v in parts]
    if parts[1]:
        shown[1] = f"{100 * geometric_mean(parts[1]):.0f}%"
    return "/".join(shown) if any(parts) else ""


def _cells(label: str, cells: Sequence[str]) -> str:
    return f"{label:34}" + "".join(f"{cell:>15}" for cell in cells)


def _block(title: str, rows: Sequence[dict[str, Any]]) -> str:
    ms = sorted({row["m"] for row in rows})
    lines = [f"{title:34}" + "".join(f"{f'M={m}':>8}" for m in ms)]
    for n, k in dict.fromkeys((row["n"], row["k"]) for row in rows):
        at = {row["m"]: row for row in rows if (row["n"], row["k"]) == (n, k)}
        lines.append(_line(f"  {n}x{k} us", [_us(at[m]["us"]) if m in at else "" for m in ms]))
        for peer in dict.fromkeys(name for row in at.values() for name in row["peers"]):
            lines.append(_line(f"    x {peer}", [_times(_ratio(at.get(m), peer)) for m in ms]))
        if any("published" in row for row in at.values()):
            lines.append(_line("    x marlin (published)", [_times(_published(at.get(m))) for m in ms]))
        if any("roof_us" in row for row in at.values()):
            lines.append(_line("    share of roof", [_percent(at.get(m)) for m in ms]))
    return "\n".join(lines)


def _worst(rows: Iterable[dict[str, Any]], count: int = 12) -> str:
    """The points where the best peer is furthest ahead."""
    behind = sorted(((best_ratio(row), row) for row in rows if row["peers"]), key=lambda item: item[0])
    lines = [f"x = peer's time over ours (above 1: ours is faster). Furthest behind the best peer, of {len(behind)}:"]
    for ratio, row in behind[:count]:
        best = min(row["peers"], key=lambda name: row["peers"][name])
        lines.append(
            f"  {ratio:5.2f}x {best:9} {row['spec']} {row['n']}x{row['k']} M={row['m']} {row['setting']}: "
            f"{_us(row['us'])} us, {best} {_us(row['peers'][best])}  {row['plan']}"
        )
    if behind:
        lines.append(f"  geometric mean over all points: {geometric_mean([r for r, _ in behind]):.3f}x of the best peer at each")
    return "\n".join(lines)


def best_ratio(row: dict[str, Any]) -> float:
    """Return the fastest peer's time over ours, paired where the row has it."""
    best = min(row["peers"], key=lambda name: row["peers"][name])
    return float(row.get("ratios", {}).get(best, row["peers"][best] / row["us"]))


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of positive values."""
    return math.exp(sum(map(math.log, values)) / len(values))


def _ratio(row: dict[str, Any] | None, peer: str) -> float | None:
    if row is None or peer not in row["peers"]:
        return None
    return float(row.get("ratios", {}).get(peer, row["peers"][peer] / row["us"]))


def _published(row: dict[str, Any] | None) -> float | None:
    return None if row is None or "published" not in row else float(row["published"]["marlin"] / row["us"])


def _line(label: str, cells: Sequence[str]) -> str:
    return f"{label:34}" + "".join(f"{cell:>8}" for cell in cells)


def _us(value: float) -> str:
    return f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _percent(row: dict[str, Any] | None) -> str:
    return "" if row is None or "roof_us" not in row else f"{100 * row['roof_us'] / row['us']:.0f}%"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print every dense row of a results file."""
    parser = argparse.ArgumentParser(prog="python -m bench.table", description=__doc__)
    parser.add_argument("results")
    print(render(load(parser.parse_args(arguments).results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
