"""`hybrid-humming inspect PATH`: the quantized layers of a checkpoint, read from its config and headers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybrid_humming import env

if TYPE_CHECKING:
    from hybrid_humming.checkpoint import LayerReport


def inspect(
    path: Annotated[Path, typer.Argument(help="A folder with config.json and safetensors, or one such file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
    gptq_zero_points: Annotated[str | None, typer.Option(help="v1 or v2, for GPTQ files that don't say which.")] = None,
) -> None:
    """List the quantized layers of a checkpoint: spec line, shape, bytes, and why if one can't be read.

    Reads config and headers only, no weights. Exit code 1 if a layer can't be read.

    Example: hybrid-humming inspect ./Qwen3-8B-GPTQ-Int4
    """
    from hybrid_humming.checkpoint import ReadOptions
    from hybrid_humming.checkpoint import inspect as inspect_checkpoint

    reports = inspect_checkpoint(path, options=ReadOptions(gptq_zero_points=gptq_zero_points))
    if as_json:
        print(
            json.dumps({"path": str(path), "layers": [as_row(report) for report in reports], "summary": summary(reports)}, indent=1)
        )
    else:
        show(reports)
    raise typer.Exit(0 if all(report.supported for report in reports) else 1)


def as_row(report: LayerReport) -> dict[str, object]:
    """Return one layer as a JSON object."""
    return {**asdict(report), "shape": list(report.shape), "supported": report.supported}


def summary(reports: Sequence[LayerReport]) -> dict[str, object]:
    """Return the totals: layers by spec line, bytes in the files, bytes once packed, bytes of the same weights in 16 bits."""
    sizes = [size for report in reports if (size := _numel(report.shape))]
    return {
        "layers": len(reports),
        "unsupported": sum(not report.supported for report in reports),
        "specs": dict(Counter(report.spec for report in reports if report.spec)),
        "stored_bytes": sum(report.stored_bytes for report in reports),
        "packed_bytes": sum(report.packed_bytes for report in reports),
        "bytes_in_16_bits": 2 * sum(sizes),
    }


def show(reports: Sequence[LayerReport]) -> None:
    """Print a line for each layer, then the totals."""
    from rich.console import Console

    console = Console(no_color=env.no_color(), highlight=False, soft_wrap=True)
    rows = [("layer", "spec", "shape", "stored", "packed", "")]
    for report in reports:
        shape = "x".join(map(str, report.shape)) or "?"
        packed = _size(report.packed_bytes) if report.spec else "?"
        rows.append((report.name, report.spec or "?", shape, _size(report.stored_bytes), packed, report.reason or "ok"))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    for i, row in enumerate(rows):
        cells = [cell.rjust(w) if 2 <= j <= 4 else cell.ljust(w) for j, (cell, w) in enumerate(zip(row[:5], widths, strict=True))]
        style = "bold" if i == 0 else None if row[5] == "ok" else "red"
        console.print("  ".join((*cells, row[5])).rstrip(), style=style, markup=False)
    total = summary(reports)
    specs = ", ".join(f"{count} x '{spec}'" for spec, count in total["specs"].items())  # type: ignore[attr-defined]
    console.print(
        f"{total['layers']} quantized layers, {total['unsupported']} can't be read"
        + (f": {specs}" if specs else "")
        + f". {_size(total['stored_bytes'])} in the files, {_size(total['packed_bytes'])} packed, "
        f"{_size(total['bytes_in_16_bits'])} in 16 bits",
        markup=False,
    )


def _numel(shape: tuple[int, ...]) -> int:
    count = 1 if shape else 0
    for size in shape:
        count *= size
    return count


def _size(count: object) -> str:
    value = float(count)  # type: ignore[arg-type]
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
