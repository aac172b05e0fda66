"""A layer's codes some rows at a time, so that a layer is packed without ever lying in memory as one code a byte.

One stored tensor of a layer holds its codes and nothing else. Its rows (or its experts) lie along one dimension, so a piece of it
decodes by itself; where that is the first dimension, a piece is read from the file alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from hybrid_humming.checkpoint.files import TensorInfo
from hybrid_humming.lazy import Tensor, torch

CODES = 1 << 21  # codes in a piece, or one block of rows
ROWS = 64  # a piece begins at a multiple of these: what every layout packs together


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """How to take the codes out of a layer's stored tensor `part`.

    decode    that tensor, or a part of it along `dim`, and how many rows (or experts) that holds -> uint8 codes [rows, K], or
              [experts, N, K]
    dim       the dimension along which rows (or experts) lie
    rows      how many of them `units` elements of that dimension hold
    unsorted  the columns lie as x has them, and the weight's transform says how to sort them (act-order)
    """

    part: str
    decode: Callable[[Tensor, int], Tensor]
    dim: int = 0
    rows: int = 1
    units: int = 1
    unsorted: bool = False

    def codes(self, stored: Tensor, *shape: int) -> Tensor:
        """Return the codes of the whole tensor; of a tensor on the meta device, codes [shape] there."""
        return torch.empty(shape, dtype=torch.uint8, device="meta") if stored.is_meta else self.decode(stored, shape[0])

    def spans(self, shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        """Ranges of rows of a weight [N, K], or of experts of one [E, N, K], in pieces of about CODES codes."""
        count, each = shape[0], max(1, math.prod(shape[1:]))
        step = math.lcm(self.rows, ROWS) if len(shape) == 2 else self.rows
        step *= max(1, CODES // (each * step))
        yield from ((begin, min(begin + step, count)) for begin in range(0, count, step))

    def read(self, parts: Mapping[str, TensorInfo], tensors: Mapping[str, Tensor], begin: int, end: int) -> Tensor:
        """Return the codes of rows or experts begin .. end; of the tensors at hand where the part is there, else of the file."""
        first, last = begin // self.rows * self.units, -(-end * self.units // self.rows)
        if self.part in tensors:
            stored = tensors[self.part]
            part = stored.narrow(self.dim, first, min(last, stored.shape[self.dim]) - first)
            return self.decode(part, end - begin)
        info = parts[self.part]
        return self.decode(info.read((first, min(last, info.shape[0]))), end - begin)
