"""One results file: `<date>-<suite>-<device>.json`, written as rows come, and only rows whose check passed in this run.

    {"meta": {"device", "driver", "cuda", "torch", "triton", "python", "commit", "dirty", "date", "peers": {name: version}, "roof"},
     "rows": [{"problem", "spec", "n", "k", "m", "experts", "top_k", "routing", "setting", "us", "us_p10", "us_p90", "plan",
               "err_l2", "peers": {name: us}, "peers_p10", "peers_p90", "ratios": {name: peer / ours, paired}, "roof_us", "bytes",
               "samples", "published": {name: us}}]}

Everything from `peers_p10` on is beyond what every suite has to carry. Readers are `compare.py` and `plot.py`.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.shapes import Point

ROOT = Path(__file__).resolve().parent.parent
ROW_DEFAULTS = {"experts": 0, "top_k": 0, "routing": "", "setting": "plain", "plan": "", "peers": {}}
FLUSH_SECONDS = 2.0


class UncheckedRow(RuntimeError):
    """A row was offered whose problem and plan did not pass a correctness check in this run."""


class Record:
    """Collects rows and keeps the file on disk up to date; a run cut short loses two seconds at most."""

    def __init__(self, path: Path, meta: dict[str, Any]) -> None:
        self.path, self.meta = path, meta
        self.rows: list[dict[str, Any]] = []
        self._passed: dict[tuple[Any, ...], float] = {}
        self._flushed = 0.0

    def passed(self, what: Any, plan: str, err_l2: float) -> None:
        """Note that `what` (a Point, or the name of another problem), run by `plan`, passed its check with this error."""
        self._passed[what, plan] = err_l2

    def has_passed(self, what: Any, plan: str) -> bool:
        """Return whether `passed` was called for this problem and plan."""
        return (what, plan) in self._passed

    def add(self, what: Any, row: dict[str, Any]) -> None:
        """Add a row about `what`; raises UncheckedRow unless it passed with the row's plan."""
        row = ROW_DEFAULTS | row
        if not self.has_passed(what, row["plan"]):
            raise UncheckedRow(f"{what} with plan {row['plan'] or 'none'!r} has no passed check in this run; a row needs one")
        if isinstance(what, Point):
            row = {"spec": what.spec, "n": what.n, "k": what.k, "m": what.m} | row
        self.rows.append(row | {"err_l2": self._passed[what, row["plan"]]})
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the file; a reader never sees half of it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        lines = ",\n  ".join(json.dumps(row) for row in self.rows)
        part.write_text(f'{{"meta": {json.dumps(self.meta, indent=1)},\n "rows": [\n  {lines}\n ]}}\n')
        os.replace(part, self.path)
        self._flushed = time.monotonic()


def load(path: str | Path) -> dict[str, Any]:
    """Return the results file at `path`; raises SystemExit with the reason if it is none."""
    try:
        data = json.loads(Path(path).read_text())
        rows, meta = data["rows"], data["meta"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"{path} is no results file of this bench: {error}") from None
    return {"meta": meta, "rows": [ROW_DEFAULTS | row for row in rows]}


def row_key(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what identifies a row: the problem and the setting, never the plan."""
    names = ("problem", "spec", "n", "k", "m", "experts", "top_k", "routing", "setting")
    return tuple(row.get(name) for name in names)


def default_path(suite: str, device: str) -> Path:
    """Return where a run writes: the folder $OUT, or bench/results/."""
    folder = Path(os.environ.get("OUT") or ROOT / "bench" / "results")
    slug = device.lower().removeprefix("nvidia ").replace(" ", "-")
    return folder / f"{datetime.date.today().isoformat()}-{suite}-{slug}.json"


def environment(peers: dict[str, str], device: str = "cuda") -> dict[str, Any]:
    """Return the meta of a run on the current CUDA device (or "cpu"); `peers` maps a peer to its version."""
    import torch
    import triton

    commit, dirty = _commit()
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "driver": _driver(),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "commit": commit,
        "dirty": dirty,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "peers": peers,
    }


def ratios_of(rows: Iterable[dict[str, Any]]) -> dict[tuple[str, int, int, int], float]:
    """Return (spec, n, k, m) -> our time over the best peer's, the worse of the settings; rows without peers are left out."""
    found: dict[tuple[str, int, int, int], float] = {}
    for row in rows:
        if row.get("problem") == "dense" and row["peers"]:
            key = (row["spec"], row["n"], row["k"], row["m"])
            found[key] = max(found.get(key, 0.0), row["us"] / min(row["peers"].values()))
    return found


def _commit() -> tuple[str, bool | None]:
    """The commit and whether files differ from it: from git, else $BENCH_COMMIT or the file .bench_commit ("<hash> [dirty]")."""
    named = os.environ.get("BENCH_COMMIT") or _text(ROOT / ".bench_commit")
    if named:
        word, *rest = named.split()
        return word, "dirty" in rest
    head = _git("rev-parse", "--short=12", "HEAD")
    return (head, bool(_git("status", "--porcelain"))) if head else ("unknown", None)


def _git(*args: str) -> str:
    try:
        done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _driver() -> str:
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(query, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.split("\n")[0].strip() or "unknown"


def _text(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""
