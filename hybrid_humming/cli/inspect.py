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
from hybrid_humming.errors import DeviceError

if TYPE_CHECKING:
    from hybrid_humming.checkpoint import LayerReport

ROWS_OF_X = (1, 1024)  # a decoding step, a prompt


def inspect(
    path: Annotated[Path, typer.Argument(help="A folder with config.json and safetensors, or one such file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
    arch: Annotated[
        str | None,
        typer.Option("--arch", "--device", help="Say what would run there: a name (h200, b300 ...) or sm90 ..."),
    ] = None,
    gptq_zero_points: Annotated[str | None, typer.Option(help="v1 or v2, for GPTQ files that don't say which.")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Count layers that no spec holds (HQQ axis 0) as 16-bit weights.")] = False,
) -> None:
    """List the quantized layers of a checkpoint: spec line, shape, bytes, and why if one can't be read.

    Reads config and headers only, no weights. Exit code 1 if a layer can't be read.

    Example: hybrid-humming inspect ./Qwen3-8B-GPTQ-Int4
    """
    from hybrid_humming.checkpoint import ReadOptions
    from hybrid_humming.checkpoint import inspect as inspect_checkpoint

    reports = inspect_checkpoint(path, options=ReadOptions(gptq_zero_points=gptq_zero_points, plain=plain))
    runs = would_run(reports, arch) if arch else []
    if as_json:
        rows = [as_row(report) | ({"runs": runs_of(report, runs)} if arch else {}) for report in reports]
        print(json.dumps({"path": str(path), "layers": rows, "summary": summary(reports), "runs": runs}, indent=1))
    else:
        show(reports, runs)
        show_runs(runs)
    raise typer.Exit(0 if all(report.supported for report in reports) else 1)


def as_row(report: LayerReport) -> dict[str, object]:
    """Return one layer as a JSON object."""
    return {**asdict(report), "shape": list(report.shape), "supported": report.supported}


def would_run(reports: Sequence[LayerReport], arch: str) -> list[dict[str, object]]:
    """Return for each distinct problem what runs it on `arch`, for few rows of x and for many; plans need no GPU."""
    import hybrid_humming as hh
    from hybrid_humming.errors import HybridHummingError

    device = named_device(arch)
    counts = Counter((report.spec, report.shape[-2:]) for report in reports if report.spec)
    found: list[dict[str, object]] = []
    for (spec, (n, k)), layers in counts.items():
        for m in ROWS_OF_X:
            row: dict[str, object] = {"device": device, "spec": spec, "n": n, "k": k, "m": m, "layers": layers}
            try:
                plan = hh.explain(str(spec), m=m, n=n, k=k, device=device).plan
            except HybridHummingError as error:
                found.append({**row, "kernel": None, "multiplies": None, "fallback": None, "reason": str(error.args[0])})
                continue
            found.append(
                {**row, "kernel": plan.kernel, "multiplies": plan.multiplies, "fallback": plan.fallback or None, "reason": None}
            )
    return found


def runs_of(report: LayerReport, runs: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """Return the rows of `runs` that one layer stands for."""
    problem = (report.spec, *report.shape[-2:])
    return [run for run in runs if (run["spec"], run["n"], run["k"]) == problem]


def short(found: Sequence[dict[str, object]]) -> str:
    """Return what multiplies one layer, in a few words: `int8`, `bf16 for int8`, and both where few rows and many differ."""
    words = []
    for run in found:
        asked = str(run["spec"]).partition(" x ")[2].split()[0]
        fallback = f"{run['multiplies']} for {asked}" if run["fallback"] else str(run["multiplies"])
        words.append(fallback if run["kernel"] else "nothing")
    return " / ".join(dict.fromkeys(words)) or "?"


def named_device(arch: str) -> str:
    """Return the name of a GPU for `arch`: a name as it is, or the first GPU of sm90, sm_103 ..."""
    from hybrid_humming.device import DeviceInfo, device_names

    number = arch.lower().removeprefix("sm").removeprefix("_")
    if not number.isdigit():
        return DeviceInfo.of(arch).name
    infos = [DeviceInfo.named(name) for name in device_names()]
    of_sm = [info.name for info in infos if info.sm == int(number)]
    if not of_sm:
        known = ", ".join(f"sm{sm}" for sm in sorted({info.sm for info in infos if info.sm}))
        raise DeviceError(f"no GPU of {arch} is in the table; it has {known}")
    return of_sm[0]


def show_runs(runs: Sequence[dict[str, object]]) -> None:
    """Print what would run, a line for each distinct problem and number of rows."""
    for i, run in enumerate(runs):
        if i == 0:
            print(f"\nOn {run['device']}")
        what = f"{run['kernel']}, multiplies {run['multiplies']}" if run["kernel"] else f"nothing: {run['reason']}"
        layers = f"{run['layers']} layer{'' if run['layers'] == 1 else 's'}"
        print(f"  {run['spec']}  N={run['n']} K={run['k']} M={run['m']} ({layers}): {what}")
        if run["fallback"]:
            print(f"    falls back: {run['fallback']}")


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


def show(reports: Sequence[LayerReport], runs: Sequence[dict[str, object]] = ()) -> None:
    """Print a line for each layer, with what multiplies it if `runs` are given, then the totals."""
    from rich.console import Console

    console = Console(no_color=env.no_color(), highlight=False, soft_wrap=True)
    head = ("layer", "spec", "shape", "stored", "packed", *((f"on {runs[0]['device']}",) if runs else ()), "")
    rows = [head]
    for report in reports:
        shape = "x".join(map(str, report.shape)) or "?"
        spec = report.spec or (f"plain {report.plain}" if report.plain else None)
        packed = size_text(report.packed_bytes) if spec else "?"
        there = (short(runs_of(report, runs)),) if runs else ()
        rows.append((report.name, spec or "?", shape, size_text(report.stored_bytes), packed, *there, report.reason or "ok"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(head) - 1)]
    for i, row in enumerate(rows):
        cells = [cell.rjust(w) if 2 <= j <= 4 else cell.ljust(w) for j, (cell, w) in enumerate(zip(row[:-1], widths, strict=True))]
        style = "bold" if i == 0 else None if row[-1] == "ok" else "red"
        console.print("  ".join((*cells, row[-1])).rstrip(), style=style, markup=False)
    total = summary(reports)
    specs = ", ".join(f"{count} x '{spec}'" for spec, count in total["specs"].items())  # type: ignore[attr-defined]
    console.print(
        f"{total['layers']} quantized layer{'' if total['layers'] == 1 else 's'}, {total['unsupported']} can't be read"
        + (f": {specs}" if specs else "")
        + f". {size_text(total['stored_bytes'])} in the files, {size_text(total['packed_bytes'])} packed, "
        f"{size_text(total['bytes_in_16_bits'])} in 16 bits",
        markup=False,
    )


def _numel(shape: tuple[int, ...]) -> int:
    count = 1 if shape else 0
    for size in shape:
        count *= size
    return count


def size_text(count: object) -> str:
    """Return a number of bytes in the unit that suits it: `1.6 kB`."""
    value = float(count)  # type: ignore[arg-type]
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
