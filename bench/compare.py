"""What changed between two results files: `python -m bench.compare A.json B.json`.

A row is slower or faster when B/A leaves the noise band of its own spread: the standard error of both medians, widened so that
among all rows of a comparison of equal things none is expected outside, and never narrower than 2 %. Peers did not change between
two commits: by how much they moved, over all rows, is the machine's drift and is taken out.

Exit code 0: nothing slower. 1: a row, or the geometric mean of all, is slower. 2: the files can't be compared.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.record import load, row_key

LEAST_BAND = 0.02
FALSE_ALARMS = 0.001  # chance that a comparison of two equal runs calls any row slower
ESTIMATE = 1.3  # a spread is itself an estimate, from some 31 samples
P10_TO_P90 = 2.563  # of a normal distribution, in standard deviations
MEDIAN = 1.2533  # standard error of a median, in those of a mean


@dataclass(frozen=True, kw_only=True)
class Change:
    """One row in both files. `ratio`: B's time over A's without the drift; `band`: what noise explains of it."""

    a: dict[str, Any]
    b: dict[str, Any]
    ratio: float
    band: float

    @property
    def verdict(self) -> str:
        """slower, faster or same."""
        if self.ratio > 1 + self.band:
            return "slower"
        return "faster" if self.ratio < 1 / (1 + self.band) else "same"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Every common row, and the drift that was taken out. `mean_band`: noise of the geometric mean."""

    changes: tuple[Change, ...]
    drift: float
    mean: float
    mean_band: float
    only_a: int
    only_b: int

    @property
    def exit_code(self) -> int:
        """1 if anything is slower."""
        slower = any(change.verdict == "slower" for change in self.changes)
        return 1 if slower or self.mean > 1 + self.mean_band else 0


def compare(a: dict[str, Any], b: dict[str, Any]) -> Comparison:
    """Return what changed from results `a` to results `b`; raises ValueError when they share no row."""
    rows_a, rows_b = ({row_key(row): row for row in data["rows"]} for data in (a, b))
    common = [key for key in rows_a if key in rows_b]
    if not common:
        raise ValueError("no row is in both files")
    pairs = [(rows_a[key], rows_b[key]) for key in common]
    drift = _drift(pairs)
    width = ESTIMATE * statistics.NormalDist().inv_cdf(1 - FALSE_ALARMS / (2 * len(pairs)))
    errors = [math.hypot(_standard_error(x), _standard_error(y)) for x, y in pairs]
    changes = tuple(
        Change(a=x, b=y, ratio=y["us"] / x["us"] / drift, band=max(LEAST_BAND, width * error))
        for (x, y), error in zip(pairs, errors, strict=True)
    )
    mean = math.exp(sum(math.log(change.ratio) for change in changes) / len(changes))
    mean_band = max(LEAST_BAND, 4 * math.hypot(*errors) / len(errors))
    gone, new = len(rows_a) - len(common), len(rows_b) - len(common)
    return Comparison(changes=changes, drift=drift, mean=mean, mean_band=mean_band, only_a=gone, only_b=new)


def _drift(pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> float:
    """Return the median over rows and common peers of B's peer time over A's; 1.0 without peers."""
    moved = [y["peers"][name] / x["peers"][name] for x, y in pairs for name in x["peers"] if name in y["peers"]]
    return statistics.median(moved) if moved else 1.0


def _standard_error(row: dict[str, Any]) -> float:
    """Return the relative standard error of a row's median."""
    sigma = (row["us_p90"] - row["us_p10"]) / P10_TO_P90 / row["us"]
    return float(MEDIAN * max(0.0, sigma) / math.sqrt(row.get("samples", 31)))


def render(found: Comparison, *, everything: bool = False, colour: bool = False) -> str:
    """Return the table: changed rows, the worst first; or every row."""
    shown = [c for c in found.changes if everything or c.verdict != "same"]
    shown.sort(key=lambda change: -change.ratio)
    lines = []
    if shown:
        lines.append(f"{'':7}{'A us':>9}{'B us':>9}{'B/A':>8}{'noise':>8}  row")
    for change in shown:
        word = f"{change.verdict:7}"
        if colour and change.verdict == "slower":
            word = f"\033[1m{word}\033[0m"
        line = f"{word}{change.a['us']:9.2f}{change.b['us']:9.2f}{change.ratio:8.3f}{f'±{change.band:.1%}':>8}  {_name(change.a)}"
        if change.a["plan"] != change.b["plan"]:
            line += f"\n{'':41}  plan was {change.a['plan']}, is {change.b['plan']}"
        lines.append(line)
    tally = {word: sum(c.verdict == word for c in found.changes) for word in ("slower", "faster", "same")}
    lines.append(
        f"{len(found.changes)} rows in both: {tally['slower']} slower, {tally['faster']} faster, {tally['same']} within noise. "
        f"Geometric mean B/A {found.mean:.3f} (noise ±{found.mean_band:.1%})."
    )
    if abs(found.drift - 1) >= 0.0005:
        lines.append(f"The peers moved by {found.drift - 1:+.1%} between the runs; that is taken out of B/A.")
    if found.only_a or found.only_b:
        lines.append(f"Only in A: {found.only_a} rows. Only in B: {found.only_b}.")
    return "\n".join(lines)


def _name(row: dict[str, Any]) -> str:
    sizes = f"{row.get('n')}x{row.get('k')} M={row.get('m')}"
    if row.get("experts"):
        sizes += f" experts={row['experts']} top_k={row.get('top_k')} {row.get('routing')}"
    return f"{row['problem']} {row.get('spec', '')} {sizes} {row['setting']}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare two files; see the module's head for the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("a", help="results of before")
    parser.add_argument("b", help="results of after")
    parser.add_argument("--all", action="store_true", help="show every row, not only the changed ones")
    parser.add_argument("--any-device", action="store_true", help="compare results of two kinds of GPU")
    options = parser.parse_args(arguments)
    try:
        a, b = load(options.a), load(options.b)
    except SystemExit as error:
        print(error, file=sys.stderr)
        return 2
    devices = [data["meta"].get("device") for data in (a, b)]
    if devices[0] != devices[1] and not options.any_device:
        print(f"A ran on {devices[0]}, B on {devices[1]}; a comparison needs one device (or --any-device)", file=sys.stderr)
        return 2
    try:
        found = compare(a, b)
    except ValueError as error:
        print(f"{options.a} and {options.b}: {error}", file=sys.stderr)
        return 2
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    print(
        f"A {a['meta'].get('commit')} {a['meta'].get('date')}   B {b['meta'].get('commit')} {b['meta'].get('date')}   {devices[0]}"
    )
    print(render(found, everything=options.all, colour=colour))
    print("verdict: slower" if found.exit_code else "verdict: no row is slower beyond noise")
    return found.exit_code


if __name__ == "__main__":
    sys.exit(main())
