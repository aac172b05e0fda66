"""Make the planner's table of measured tiles from a run of hopper_check: `python -m bench.tuned_from_check hopper_check.jsonl`.

Writes hybrid_humming/plan/tuned/nvidia-h200.json: for each (spec, N, K, bucket of M) the fastest tile whose result was right. A
bucket that was not timed takes the row of the next larger M with the same block_m: that tile runs it no slower.
"""

import argparse
import json
import re
from pathlib import Path

OUT = Path(__file__).resolve().parents[1] / "hybrid_humming" / "plan" / "tuned" / "nvidia-h200.json"
BUCKETS = (1, 2, 4, 8, 16)
LABEL = re.compile(r"^(?P<spec>.+) \[\d+,\d+,\d+\] (?P<kernel>\w+) (?P<tile>.+)$")
FIELDS = {"bm": "block_m", "bn": "block_n", "bk": "block_k", "warps": "num_warps", "stages": "num_stages"}
WRONG = 4e-3  # relative error above which a timing does not count


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
        tile = {FIELDS.get(name, name): int(value) for name, value in pairs} | {"mma": "mma_sync"}
        rows.append({"spec": label["spec"], "n": found["n"], "k": found["k"], "m": found["m"],
                     "kernel": f"gluon.gemm_{label['kernel']}", "tile": tile, "us": round(found["us"], 2)})  # fmt: skip
    return rows


def table(rows: list[dict]) -> list[dict]:
    """The fastest row of each problem, for every bucket of M up to the largest that was timed."""
    best: dict[tuple, dict] = {}
    for row in sorted(rows, key=lambda r: r["us"], reverse=True):
        best[row["spec"], row["n"], row["k"], row["m"]] = row
    chosen = []
    for spec, n, k in sorted({key[:3] for key in best}):
        for m in BUCKETS:
            source = next((best[spec, n, k, timed] for timed in BUCKETS if timed >= m and (spec, n, k, timed) in best), None)
            if source is not None and (source["m"] == m or source["tile"]["block_m"] == max(8, m)):
                chosen.append(source | {"m": m})
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    parser.add_argument("--note", default="H200, Triton 3.6.0, cold L2, CUDA-graph replay, bench/hopper_check.py")
    options = parser.parse_args()
    rows = table(measured(options.results.read_text().splitlines()))
    OUT.parent.mkdir(exist_ok=True)
    body = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    OUT.write_text(f'{{"note": {json.dumps(options.note)},\n "rows": [\n{body}\n]}}\n')
    print(f"{len(rows)} rows in {OUT}")


if __name__ == "__main__":
    main()
