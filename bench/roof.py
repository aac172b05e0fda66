"""The floor under any time: reading the bytes, or multiplying at the rate of the matrix units, both measured in the same run.

    read    a read-only kernel over N bytes, cold L2, in a graph: plain, or in a chain behind the writer with dependent launch
    matrix  the vendor's library at 8192 cubed: bf16, FP8 (tensor scales, fast accumulation), int8

A roof at other bytes is interpolated in bytes between the measured sizes; below the smallest it is scaled by nothing: a launch
has a price that fewer bytes do not lower.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.timer import COLD_BYTES, Backend, Library, time_interleaved

SIZES_MB = (2.0, 8.8, 17.3, 34.6, 68.2, 134.2)
# (words a load, warps, loads in flight, programs per SM): the four that won at one of the sizes on an H200.
CONFIGS = ((1024, 4, 4, 2), (1024, 4, 4, 4), (2048, 8, 4, 1), (2048, 8, 2, 4))
MATRIX = 8192
SAMPLES = 11


@dataclass(frozen=True, kw_only=True)
class Roof:
    """Measured roofs of one device. `read_us`: setting -> ((bytes, us), ...) by size; `tera_ops`: operand format -> 10**12 op/s."""

    read_us: Mapping[str, Sequence[tuple[float, float]]]
    tera_ops: Mapping[str, float]

    def read(self, nbytes: float, setting: str) -> float:
        """Return the microseconds of reading `nbytes`."""
        points = sorted(self.read_us[setting])
        if nbytes <= points[0][0]:
            return points[0][1]
        for (b0, t0), (b1, t1) in itertools.pairwise(points):
            if nbytes <= b1:
                return t0 + (t1 - t0) * (nbytes - b0) / (b1 - b0)
        (b0, t0), (b1, t1) = points[-2:]
        return t1 + (t1 - t0) * (nbytes - b1) / (b1 - b0)

    def gemm(self, nbytes: float, operations: float, multiplies: str, setting: str) -> float:
        """Return the microseconds that no GEMM of these bytes and operations beats: the larger of reading and multiplying."""
        rate = self.tera_ops.get(multiplies) or self.tera_ops["bf16"]
        return max(self.read(nbytes, setting), operations / rate * 1e-6)

    def to_json(self) -> dict[str, Any]:
        """Return what a results file keeps in its meta."""
        return {"read_us": {s: [list(p) for p in points] for s, points in self.read_us.items()}, "tera_ops": dict(self.tera_ops)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Roof:
        """Return the roof that `to_json` wrote."""
        return cls(
            read_us={s: [(float(b), float(t)) for b, t in points] for s, points in data["read_us"].items()},
            tera_ops={name: float(rate) for name, rate in data["tera_ops"].items()},
        )


def measure(backend: Backend, settings: Sequence[str], *, sizes_mb: Sequence[float] = SIZES_MB) -> Roof:
    """Return the roofs of the current CUDA device."""
    read: dict[str, list[tuple[float, float]]] = {setting: [] for setting in settings}
    for megabytes in sizes_mb:
        words = int(megabytes * 1e6) // 4
        for setting in settings:
            read[setting].append((words * 4.0, _read_us(words, setting == "chain", backend)))
    return Roof(read_us=read, tera_ops=_matrix_rates(backend))


def _read_us(words: int, chained: bool, backend: Backend) -> float:
    """Return the best configuration's time; each buffer is cold when its turn comes."""
    import torch

    from bench.read_kernel import read
    from bench.writer import make_writer

    copies = max(2, -(-COLD_BYTES // (words * 4)))
    buffers = [torch.randint(-(2**31), 2**31 - 1, (words,), device="cuda", dtype=torch.int32) for _ in range(copies)]
    sink = torch.zeros(1 << 16, device="cuda", dtype=torch.int32)
    writer = make_writer(torch.randn(16, 8192, device="cuda").bfloat16()) if chained else None
    libraries = {
        str(config): Library(calls=[_bind(read, b, sink, config, chained) for b in buffers], writer=writer) for config in CONFIGS
    }
    return min(spread.us for spread in time_interleaved(libraries, backend, samples=SAMPLES).times.values())


def _bind(read: Callable[..., Any], buffer: Any, sink: Any, config: tuple[int, ...], dependent: bool) -> Callable[[], Any]:
    return lambda: read(buffer, sink, config, dependent)


def _matrix_rates(backend: Backend) -> dict[str, float]:
    import torch

    size = MATRIX
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    calls: dict[str, Callable[[], Any]] = {"bf16": lambda: a @ b.T}
    if torch.cuda.get_device_capability() >= (8, 9):
        x, w, one = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn), torch.ones(1, device="cuda")
        calls["e4m3"] = lambda: torch._scaled_mm(x, w.T, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
    i, j = (torch.randint(-127, 127, (size, size), device="cuda", dtype=torch.int8) for _ in range(2))
    calls["int8"] = lambda: torch._int_mm(i, j.T)
    libraries = {name: Library(calls=[call, call]) for name, call in calls.items()}
    times = time_interleaved(libraries, backend, samples=SAMPLES).times
    rates = {name: 2 * size**3 / spread.us * 1e-6 for name, spread in times.items()}
    return rates | {"fp16": rates["bf16"]}
