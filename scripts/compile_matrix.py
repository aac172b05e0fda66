"""Make the compile matrix's checked-in data again: tests/compile/representatives.json and tests/compile/baseline/TRITON.json.

python scripts/compile_matrix.py            measure every representative again, under every Triton of the compile tests: minutes
python scripts/compile_matrix.py --list     choose the representatives again, from the catalogs, then measure all
python scripts/compile_matrix.py --new      add what the catalogs have and the list has not, measure only what has no baseline

Then `python scripts/generate_docs.py`, and look at the difference: a baseline that got worse should have a reason.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.compile import matrix, rows  # noqa: E402
from tests.compile.harness import TRITONS, missing, version_of  # noqa: E402


def main() -> None:
    new = "--new" in sys.argv[1:]
    if new or "--list" in sys.argv[1:]:
        rows.write(rows.chosen(kept=rows.representatives() if new else ()))
    for triton in TRITONS:
        if why := missing(triton):
            sys.exit(why)
        ones = matrix.subset(rows.representatives(), triton)
        before = matrix.baseline(version_of(triton)) if new else {}
        found = matrix.measured(tuple(one for one in ones if one.key not in before), triton)
        matrix.write_baseline(version_of(triton), {one.key: found.get(one.key) or before[one.key] for one in ones})
        refused = sorted({one.refused.strip().splitlines()[-1] for one in found.values() if one.refused})
        print(f"Triton {version_of(triton)}: {len(found)} kernels, refused: {refused or 'none'}", flush=True)


if __name__ == "__main__":
    main()
