"""`hybrid-humming bench`: the repository's bench suite, ours and the peers on the GPU at hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

import hybrid_humming


def bench(
    specs: Annotated[str | None, typer.Option(help="Spec lines and suites, comma-separated.")] = None,
    shapes: Annotated[str | None, typer.Option(help="NxK, peer, or models, comma-separated.")] = None,
    ms: Annotated[str | None, typer.Option(help="Values of M, comma-separated.")] = None,
    settings: Annotated[str | None, typer.Option(help="plain, chain or both.")] = None,
    sections: Annotated[str | None, typer.Option(help="Which sections, comma-separated.")] = None,
    peers: Annotated[str | None, typer.Option(help="Which peers; none for ours alone.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Time for the whole run.")] = None,
    out: Annotated[Path | None, typer.Option(help="Results file.")] = None,
) -> None:
    """Check and time ours and the peers' kernels, write a results file and print a table.

    Runs from a checkout of the repository. Without a GPU it says what it skipped. Exit code 1 if a check failed.

    Example: hybrid-humming bench --specs "int4 g128 x bf16" --shapes 8192x8192 --ms 1,16,1024
    """
    root = Path(hybrid_humming.__file__).resolve().parents[1]
    if not (root / "bench" / "run.py").is_file():
        print(
            f"the bench suite is in the repository and not in the installed package ({root}): "
            "clone the repository, pip install -e '.[bench,cli]' there, and run it again",
            file=sys.stderr,
        )
        raise typer.Exit(2)
    given = {
        "specs": specs,
        "shapes": shapes,
        "ms": ms,
        "settings": settings,
        "sections": sections,
        "peers": peers,
        "seconds": seconds,
        "out": out and out.absolute(),
    }
    options = [part for name, value in given.items() if value is not None for part in (f"--{name}", str(value))]
    done = subprocess.run([sys.executable, "-m", "bench.run", *options], cwd=root)
    raise typer.Exit(done.returncode)
