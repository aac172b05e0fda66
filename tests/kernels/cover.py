"""Pairwise cover of the 16-bit family: every two settings of different parameters meet in some case of `cover.json`.

    python -m tests.kernels.cover      writes cover.json anew (needs allpairspy)

The cases are committed, so that a run on a GPU, the list of what it ran and what it skipped, and the check on a CPU that no pair
is missing all speak of the same ones.
"""

import itertools
import json
from dataclasses import dataclass
from pathlib import Path

from hybrid_humming.spec import Spec

from .cases import WEIGHT_ONLY

FILE = Path(__file__).with_suffix(".json")
PARAMETERS = {
    "weight": tuple(WEIGHT_ONLY),
    "activation": ("bf16", "fp16"),
    "m": (1, 2, 7, 8, 15, 16, 17, 33, 63, 64, 65, 127, 128, 129, 300, 1024),
    "shape": ((72, 512), (200, 1280), (1000, 768), (328, 4096), (136, 416), (2304, 1920)),
    "option": ("plain", "bias", "fp32 out", "fp16 out", "batch invariant", "strided x", "captured"),
}


@dataclass(frozen=True)
class Choice:
    """One case of the cover: a setting of each parameter."""

    weight: str
    activation: str
    m: int
    shape: tuple[int, int]
    option: str

    @property
    def spec(self) -> Spec:
        """The case's spec, with its output type."""
        out = {"fp32 out": " -> fp32", "fp16 out": " -> fp16"}.get(self.option, "")
        return Spec.parse(f"{self.weight} x {self.activation}{out}")

    @property
    def n(self) -> int:
        """Rows of W."""
        return self.shape[0]

    @property
    def k(self) -> int:
        """Columns of W: the shape's, or the next multiple of what the scales span."""
        spec = self.spec
        unit = spec.group_size or 1
        return -(-self.shape[1] // unit) * unit

    def __str__(self) -> str:
        return f"{self.spec} [{self.m}, {self.n}, {self.k}] {self.option}"


def load() -> list[Choice]:
    """The committed cases."""
    rows = json.loads(FILE.read_text())
    return [Choice(**{**row, "shape": tuple(row["shape"])}) for row in rows]


def pairs() -> set[tuple]:
    """Every pair of settings of two parameters."""
    return {
        (a, x, b, y) for a, b in itertools.combinations(PARAMETERS, 2) for x in PARAMETERS[a] for y in PARAMETERS[b]
    }  # fmt: skip


def met(choices: list[Choice]) -> set[tuple]:
    """The pairs that meet in some case."""
    return {
        (a, getattr(c, a), b, getattr(c, b)) for c in choices for a, b in itertools.combinations(PARAMETERS, 2)
    }  # fmt: skip


def main() -> None:
    """Write cover.json."""
    from allpairspy import AllPairs

    found = [Choice(*row) for row in AllPairs(list(PARAMETERS.values()))]
    rows = [json.dumps({name: getattr(c, name) for name in PARAMETERS}) for c in found]
    FILE.write_text("[\n" + ",\n".join(rows) + "\n]\n")
    print(f"{len(found)} cases cover {len(pairs())} pairs")


if __name__ == "__main__":
    main()
