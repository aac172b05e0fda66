"""Draw a results file: `python -m bench.plot results.json` writes PNG, SVG and the data as CSV beside it.

One row of panels a spec and shape: latency over M, a roofline over M (achieved 10^12 op/s under the roof that this run measured),
and the share of that roof. M is logarithmic; lines are labelled where they end; colours are told apart by colour-blind readers and
in grey.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.record import load
from bench.shapes import flops

# Okabe and Ito's palette; ours is the darkest and thickest.
STYLES: dict[str, tuple[str, str, float]] = {
    "ours": ("#000000", "o", 2.2),
    "humming": ("#D55E00", "s", 1.4),
    "cublas": ("#0072B2", "^", 1.4),
    "cublaslt": ("#009E73", "v", 1.4),
    "deepgemm": ("#CC79A7", "D", 1.4),
    "marlin": ("#E69F00", "x", 1.0),
}
ROOF = ("#888888", "", 1.0)
NAMES = {"cublas": "cuBLAS bf16", "cublaslt": "cuBLASLt FP8", "deepgemm": "DeepGEMM", "marlin": "marlin (published)"}


def series(rows: Sequence[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Return name -> [(M, us), ...] of one spec, shape and setting: ours, each peer, and the roof."""
    found: dict[str, list[tuple[int, float]]] = {}
    for row in sorted(rows, key=lambda r: r["m"]):
        times = {"ours": row["us"]} | row["peers"] | row.get("published", {})
        if "roof_us" in row:
            times["roof"] = row["roof_us"]
        for name, us in times.items():
            found.setdefault(name, []).append((row["m"], us))
    return found


def panels(data: dict[str, Any], setting: str) -> dict[tuple[str, int, int], list[dict[str, Any]]]:
    """Return (spec, n, k) -> its dense rows in `setting`."""
    found: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for row in data["rows"]:
        if row["problem"] == "dense" and row["setting"] == setting:
            found.setdefault((row["spec"], row["n"], row["k"]), []).append(row)
    return found


def draw(data: dict[str, Any], setting: str) -> Any:
    """Return a matplotlib figure; raises ValueError when no dense row has this setting."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "bench"  # the same data gives the same file
    import matplotlib.pyplot as plt

    groups = panels(data, setting)
    if not groups:
        raise ValueError(f"no dense rows in setting {setting}")
    figure, axes = plt.subplots(len(groups), 3, figsize=(14, 0.6 + 3.2 * len(groups)), squeeze=False, layout="constrained")
    for (latency, roofline, share), ((spec, n, k), rows) in zip(axes, groups.items(), strict=True):
        times = series(rows)
        rates = {name: [(m, flops(n, k, m) / us * 1e-6) for m, us in points] for name, points in times.items()}
        _panel(latency, times, f"{spec}   N={n} K={k}   {setting}", "µs")
        _panel(roofline, rates, "roofline over M", "10¹² op/s")
        if "roof" in times:
            floor = dict(times["roof"])
            shares = {name: [(m, 100 * floor[m] / us) for m, us in points if m in floor] for name, points in times.items()}
            _panel(share, shares, "share of the measured roof", "%", linear=True)
        else:
            share.set_axis_off()
    meta = data["meta"]
    peers = ", ".join(f"{name} {version}" for name, version in meta.get("peers", {}).items())
    figure.supxlabel(
        f"{meta.get('device')}, driver {meta.get('driver')}, torch {meta.get('torch')}, triton {meta.get('triton')}; "
        f"commit {meta.get('commit')}{' (with local changes)' if meta.get('dirty') else ''}, {str(meta.get('date'))[:10]}; {peers}",
        fontsize=8,
    )
    return figure


def _panel(axes: Any, lines: dict[str, list[tuple[int, float]]], title: str, unit: str, *, linear: bool = False) -> None:
    ends = []
    for name, points in lines.items():
        colour, marker, width = ROOF if name == "roof" else STYLES.get(name, ("#56B4E9", ".", 1.2))
        style = "--" if name == "roof" else ":" if name == "marlin" else "-"
        ms, values = zip(*points, strict=True)
        axes.plot(ms, values, style, color=colour, marker=marker, markersize=4, linewidth=width, zorder=3 if name == "ours" else 2)
        ends.append((values[-1], ms[-1], NAMES.get(name, name), colour))
    axes.set_xscale("log", base=2)
    axes.set_yscale("linear" if linear else "log")
    ms = sorted({m for points in lines.values() for m, _ in points})
    axes.set_xticks(ms, [str(m) for m in ms], fontsize=8, rotation=45)
    axes.minorticks_off()
    axes.set_xlim(ms[0] / 1.3, ms[-1] * 16)  # room for the labels
    low, high = (limit(v for points in lines.values() for _, v in points) for limit in (min, max))
    low, high = (0.0, high * 1.05) if linear else (low / 1.6, high * 1.6)
    axes.set_ylim(low, high)
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_ylabel(unit, fontsize=9)
    axes.set_xlabel("M", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(True, color="#DDDDDD", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    _label(axes, ends)


def _label(axes: Any, ends: list[tuple[float, int, str, str]]) -> None:
    """Write each line's name beside its end; names that would overlap are moved apart, from the top down."""
    to_share = axes.transData + axes.transAxes.inverted()  # share of the panel's height, on either kind of axis
    ceiling = 1.0
    for value, m, name, colour in sorted(ends, reverse=True):
        x, y = to_share.transform((m, value))
        at = min(y, ceiling)
        line = {"arrowstyle": "-", "color": colour, "linewidth": 0.5, "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 3}
        axes.annotate(
            name, (m, value), xytext=(x + 0.05, at), textcoords="axes fraction", color=colour, fontsize=8, va="center",
            annotation_clip=False, arrowprops=line if y - at > 0.01 else None,
        )  # fmt: skip
        ceiling = at - 0.075


def write_csv(data: dict[str, Any], path: Path) -> None:
    """Write what the figure shows, one line a point."""
    with path.open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["spec", "n", "k", "m", "setting", "library", "us", "us_p10", "us_p90", "roof_us", "source"])
        for row in data["rows"]:
            if row["problem"] != "dense":
                continue
            head = [row["spec"], row["n"], row["k"], row["m"], row["setting"]]
            roof = row.get("roof_us", "")
            out.writerow([*head, "ours", row["us"], row["us_p10"], row["us_p90"], roof, "measured"])
            for name, us in row["peers"].items():
                low, high = (row.get(f"peers_{p}", {}).get(name, "") for p in ("p10", "p90"))
                out.writerow([*head, name, us, low, high, roof, "measured"])
            for name, us in row.get("published", {}).items():
                out.writerow([*head, name, us, "", "", roof, "published ratio to humming"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Write `<stem>-<setting>.png`, `.svg` and `<stem>.csv` beside the results file, or into --out."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.plot", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("results", type=Path)
    parser.add_argument("--out", type=Path, help="folder to write into (default: beside the results)")
    parser.add_argument("--specs", help="only these spec lines, comma-separated")
    options = parser.parse_args(arguments)
    data = load(options.results)
    if options.specs:
        wanted = {line.strip() for line in options.specs.split(",")}
        data["rows"] = [row for row in data["rows"] if row.get("spec") in wanted]
    folder = options.out or options.results.parent
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / options.results.stem
    write_csv(data, stem.with_suffix(".csv"))
    written = [stem.with_suffix(".csv")]
    for setting in dict.fromkeys(row["setting"] for row in data["rows"] if row["problem"] == "dense"):
        figure = draw(data, setting)
        for suffix, extra in ((".png", {"dpi": 130}), (".svg", {"metadata": {"Date": None}})):
            path = stem.with_name(f"{stem.name}-{setting}{suffix}")
            figure.savefig(path, facecolor="white", **extra)
            written.append(path)
    if len(written) == 1:
        print(f"{options.results}: no dense rows to draw", file=sys.stderr)
        return 1
    print("\n".join(str(path) for path in written))
    return 0


if __name__ == "__main__":
    sys.exit(main())
