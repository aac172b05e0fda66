"""One command for a whole GPU call: check, time ours and the peers interleaved, write a results file, print a short table.

    python -m bench.run --specs w4a16 --shapes peer                      what bench/README.md explains
    python -m bench.run --previous bench/results/<file>.json             the worst points of an earlier run first

Everything has a time budget; rows are written as they come, so a run cut short keeps what it has.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench import record, shapes

SECTIONS = ("roof", "dense", "quantize_input", "host", "cold_start")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sections asked for; returns 0, 1 when a check failed, 3 when nothing could be timed."""
    options = parse(arguments)
    todo = plan_points(options)
    import torch

    if not torch.cuda.is_available():
        print(skipped(todo, options.sections))
        return 3 if options.require_gpu else 0
    from bench.session import Session  # imports Triton kernels

    session = Session(options, todo)
    session.run()
    print(session.summary())
    return 1 if session.failures else 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--suite", default="dense", help="name in the results file (default: dense)")
    parser.add_argument("--specs", default="dense", help=f"spec lines and suites, comma-separated: {', '.join(shapes.SUITES)}")
    parser.add_argument("--shapes", default="peer", help=f"NxK, peer, or models, comma-separated: {', '.join(shapes.MODELS)}")
    parser.add_argument("--ms", default=",".join(map(str, shapes.MS)), help="values of M, comma-separated")
    parser.add_argument("--settings", default="plain,chain", help="plain, chain or both")
    parser.add_argument("--sections", default=",".join(SECTIONS), help="which sections, comma-separated")
    parser.add_argument("--seconds", type=float, default=540.0, help="the whole run (default: 540)")
    parser.add_argument("--peer-seconds", type=float, default=150.0, help="for compiling the peers' kernels (default: 150)")
    parser.add_argument("--samples", type=int, default=31, help="graph replays of each library at each point (default: 31)")
    parser.add_argument("--peers", default="humming,cublas,cublaslt,deepgemm", help="which peers; 'none' for ours alone")
    parser.add_argument("--previous", type=Path, help="results file of an earlier run: its worst points come first")
    parser.add_argument("--out", type=Path, help="results file (default: $OUT or bench/results/<date>-<suite>-<device>.json)")
    parser.add_argument(
        "--require-gpu", action="store_true", help="exit 3 when there is no GPU, instead of saying what was skipped"
    )
    options = parser.parse_args(arguments)
    options.start = time.monotonic()
    options.settings = _words(parser, "--settings", options.settings, ("plain", "chain"))
    options.sections = _words(parser, "--sections", options.sections, SECTIONS)
    names = ("humming", "cublas", "cublaslt", "deepgemm")
    options.peers = () if options.peers == "none" else _words(parser, "--peers", options.peers, names)
    return options


def plan_points(options: argparse.Namespace) -> list[shapes.Point]:
    """Return the points to time, the most urgent first."""
    ratios = record.ratios_of(record.load(options.previous)["rows"]) if options.previous else None
    ms = [int(m) for m in options.ms.split(",")]
    return shapes.in_order(shapes.points(shapes.parse_specs(options.specs), shapes.parse_shapes(options.shapes), ms), ratios)


def skipped(todo: Sequence[shapes.Point], sections: Sequence[str]) -> str:
    """Return what a machine without a GPU leaves out."""
    specs, sizes = {p.spec for p in todo}, {(p.n, p.k) for p in todo}
    return (
        f"no CUDA device: skipped {', '.join(sections)}: {len(todo)} points of "
        f"{len(specs)} specs, {len(sizes)} shapes and {len({p.m for p in todo})} values of M; no file was written"
    )


def _words(parser: argparse.ArgumentParser, option: str, text: str, allowed: Sequence[str]) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    wrong = [word for word in words if word not in allowed]
    if wrong or not words:
        parser.error(f"{option} {text!r}: allowed are {', '.join(allowed)}")
    return words


if __name__ == "__main__":
    sys.exit(main())
