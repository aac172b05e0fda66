"""Make the planner's table of measured tiles: `python -m bench.tuned_from_check hopper_check.jsonl bench/results/X-h200.json`.

Writes hybrid_humming/plan/tuned/nvidia-h200.json: for each (spec, N, K, bucket of M) the fastest tile whose result was right, of
those that a sweep (bench.sweep, hopper_check) or a benchmark (bench.run) timed; a problem of fewer than five tiles is left to the
model. A bucket that was not timed takes the row of the next larger M with the same block_m: that tile runs it no slower.
"""

import argparse
import json
import re
from pathlib import Path

OUT = Path(__file__).resolve().parents[1] / "hybrid_humming" / "plan" / "tuned" / "nvidia-h200.json"
BUCKETS = tuple(2**i for i in range(14))
LABEL = re.compile(r"^(?P<spec>.+) \[\d+,\d+,\d+\] (?P<kernel>\w+) (?P<tile>.+)$")
PLAN = re.compile(r"^(?P<kernel>gluon\.gemm_stream) \[(?P<block_m>\d+)x(?P<block_n>\d+)x(?P<block_k>\d+) (?P<rest>.+)\]$")
FIELDS = {"bm": "block_m", "bn": "block_n", "bk": "block_k", "warps": "num_warps", "stages": "num_stages"}
FEWEST = 5  # tiles of one problem that make a choice among them worth keeping
WRONG = 4e-3  # relative error above which a timing does not count


def value_of(text: str) -> int | bool | str:
    """What a label says of a tile's field."""
    return int(text) if text.isdigit() else {"True": True, "False": False}.get(text, text)


def measured(lines: list[str]) -> list[dict]:
    """The timings of correct runs, one row each as the table has them."""
    rows = []
    for line in lines:
        found = json.loads(line)
        if found["kind"] != "time" or found["err"] > WRONG:
            continue
        label = LABEL.match(found["case"])
        assert label is not None, found["case"]
        pairs = (pair.split("=") for pair in label["tile"].split())
        tile = {"mma": "mma_sync"} | {FIELDS.get(name, name): value_of(value) for name, value in pairs}
        rows.append({"spec": label["spec"], "n": found["n"], "k": found["k"], "m": found["m"],
                     "kernel": f"gluon.gemm_{label['kernel']}", "tile": tile, "us": round(found["us"], 2)})  # fmt: skip
    return rows


def benchmarked(text: str) -> list[dict]:
    """The stream kernel's rows of a benchmark file; one was written only beside a passed check."""
    rows = []
    for found in json.loads(text)["rows"]:
        plan = PLAN.match(found["plan"])
        if plan is None or found["problem"] != "dense" or found["setting"] != "plain":
            continue
        tile = {name: int(plan[name]) for name in ("block_m", "block_n", "block_k")}
        for name, _, value in (word.partition("=") for word in plan["rest"].split()):
            tile[FIELDS.get(name, name)] = int(value) if value.isdigit() else value
        rows.append({"spec": found["spec"], "n": found["n"], "k": found["k"], "m": found["m"], "kernel": plan["kernel"],
                     "tile": tile, "us": round(found["us"], 2)})  # fmt: skip
    return rows


def table(rows: list[dict]) -> list[dict]:
    """The fastest row of each problem, for every bucket of M up to the largest that was timed."""
    timed_rows: dict[tuple, list[dict]] = {}
    for row in rows:
        timed_rows.setdefault((row["spec"], row["n"], row["k"], row["m"]), []).append(row)
    best = {key: min(found, key=lambda r: r["us"]) for key, found in timed_rows.items() if len(found) >= FEWEST}
    chosen = []
    for spec, n, k in sorted({key[:3] for key in best}):
        for m in BUCKETS:
            source = next((best[spec, n, k, timed] for timed in BUCKETS if timed >= m and (spec, n, k, timed) in best), None)
            if source is not None and (source["m"] == m or source["tile"]["block_m"] == max(8, m)):
                chosen.append(source | {"m": m})
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--note", default="H200, Triton 3.6.0, cold L2, CUDA-graph replay, bench/hopper_check.py and bench/run.py")
    options = parser.parse_args()
    rows = []
    for file in options.results:
        text = file.read_text()
        rows += measured(text.splitlines()) if file.suffix == ".jsonl" else benchmarked(text)
    rows = table(rows)
    OUT.parent.mkdir(exist_ok=True)
    body = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    OUT.write_text(f'{{"note": {json.dumps(options.note)},\n "rows": [\n{body}\n]}}\n')
    print(f"{len(rows)} rows in {OUT}")


if __name__ == "__main__":
    main()
