"""Write the generated parts of README and docs, each between a `generated` and an `end` comment.

python scripts/generate_docs.py            write
python scripts/generate_docs.py --check    exit 1 and name the files that are out of date
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from hybrid_humming import env  # noqa: E402

# File -> what stands between its two comments.
PARTS: dict[str, Callable[[], str]] = {
    "docs/env.md": env.table,
}
MARKED = re.compile(r"(<!-- generated: [^\n]*-->\n).*?(<!-- end -->)", re.S)


def updated(path: str) -> str:
    """The text of the file with its generated part made anew."""
    text = (ROOT / path).read_text()
    new, count = MARKED.subn(lambda found: f"{found[1]}\n{PARTS[path]()}\n\n{found[2]}", text)
    if count != 1:
        raise SystemExit(f"{path}: expected one generated part, found {count}")
    return new


def main() -> int:
    stale = [path for path in PARTS if updated(path) != (ROOT / path).read_text()]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path} is out of date: run python scripts/generate_docs.py")
        return bool(stale)
    for path in stale:
        (ROOT / path).write_text(updated(path))
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
