"""Time several libraries on one problem, their graph replays interleaved, so that clock and neighbour drift hits all alike.

    plain   a CUDA graph of L calls; time of a replay over L
    chain   a graph of L times (a small kernel that writes x, then the call), minus the same graph with the writers alone, over L:
            what serving looks like. Dependent launch is allowed here; back-to-back launches of one GEMM would overlap and flatter

Each library brings one call per weight copy, enough copies that a call never finds its weight in the L2 (`copies_for`).
Every sample replays each library's graph once, ours first: ours, peer, ours, peer ... A ratio is the median over samples of the
peer's time over ours in the same sample. What runs the graphs is handed in, so that the arithmetic is tested without a GPU.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Call = Callable[[], Any]

COLD_BYTES = 256_000_000  # over four times the L2 of an H200 (60 MB)
MAX_COPIES = 512
SAMPLES = 31
TARGET_US = 1_000.0  # a replay shorter than this is mostly event noise
CAP_US = 6_000.0


class TimerError(RuntimeError):
    """A measurement that can't be a time, or libraries that can't be timed together."""


class Backend(Protocol):
    """Runs calls and graphs of calls; `CudaBackend` on a GPU, a simulation in tests."""

    def warm(self, calls: Sequence[Call]) -> None:
        """Run each call once, outside any graph, and wait: compilation and handles stay out of the capture."""

    def capture(self, calls: Sequence[Call]) -> Any:
        """Return a graph of the calls in order."""

    def replay_us(self, graph: Any) -> float:
        """Replay `graph` once and return the microseconds that the device took."""


@dataclass(frozen=True, kw_only=True)
class Library:
    """One side of a comparison: a call per weight copy and, in a chain, the kernel that writes this library's x."""

    calls: Sequence[Call]
    writer: Call | None = None


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Microseconds of one call: median, 10th and 90th percentile of the samples."""

    us: float
    us_p10: float
    us_p90: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Return the spread of unsorted samples."""
        ordered = sorted(samples)
        last = len(ordered) - 1
        return cls(us=statistics.median(ordered), us_p10=ordered[round(last * 0.1)], us_p90=ordered[round(last * 0.9)])


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Spread of each library, and of each later one's paired ratio to the first (above 1: the first is faster)."""

    times: dict[str, Spread]
    ratios: dict[str, Spread]


def copies_for(weight_bytes: int, *, cold_bytes: int = COLD_BYTES) -> int:
    """Return how many copies of a weight a rotation needs so that each is out of the L2 when its turn comes."""
    return max(2, min(MAX_COPIES, math.ceil(cold_bytes / max(1, weight_bytes))))


def time_interleaved(libraries: Mapping[str, Library], backend: Backend, *, samples: int = SAMPLES) -> Timing:
    """Return the times of every library; the first is the one that ratios are taken to.

    Plain if no library has a writer, chain if each has one; raises TimerError for a mixture and for a time that is not positive.
    """
    chained = {library.writer is not None for library in libraries.values()}
    if len(chained) != 1 or not all(library.calls for library in libraries.values()):
        raise TimerError(f"{', '.join(libraries)}: each needs calls, and either all or none a writer")
    graphs = {name: graph_of(library, backend) for name, library in libraries.items()}
    writers = {
        id(library.writer): graph_of(Library(calls=[library.writer]), backend)
        for library in libraries.values()
        if library.writer is not None
    }
    taken: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(samples):
        alone = {key: backend.replay_us(graph) / length for key, (graph, length) in writers.items()}
        for name, (graph, length) in graphs.items():
            us = backend.replay_us(graph) / length
            taken[name].append(us - alone.get(id(libraries[name].writer), 0.0))
    times = {name: Spread.of(values) for name, values in taken.items()}
    for name, spread in times.items():
        if not spread.us > 0 or not math.isfinite(spread.us_p90):
            raise TimerError(f"{name}: {spread.us:.3f} us a call; the writers alone took as long as writers and calls")
    first, *others = taken
    ratios = {name: Spread.of([p / o for p, o in zip(taken[name], taken[first], strict=True) if o > 0]) for name in others}
    return Timing(times=times, ratios=ratios)


def graph_of(library: Library, backend: Backend) -> tuple[Any, int]:
    """Return a captured graph and its number of calls: whole rotations of at least TARGET_US, or a cut one of about CAP_US."""
    writer = library.writer
    pairs = [(writer, call) if writer is not None else (call,) for call in library.calls]
    backend.warm([step for pair in pairs[:2] for step in pair])
    graph = backend.capture(list(itertools.chain(*pairs)))
    one_rotation = min(backend.replay_us(graph) for _ in range(3))
    length = len(pairs)
    if one_rotation > CAP_US and length > 2:
        length = max(2, int(CAP_US / (one_rotation / length)))
    elif one_rotation < TARGET_US:
        length *= math.ceil(TARGET_US / max(one_rotation, 1.0))
    if length != len(pairs):
        del graph
        graph = backend.capture(list(itertools.chain(*itertools.islice(itertools.cycle(pairs), length))))
        backend.replay_us(graph)
    return graph, length


class CudaBackend:
    """CUDA graphs on a stream of its own, timed by events."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self.stream = torch.cuda.Stream()

    def warm(self, calls: Sequence[Call]) -> None:
        """Run each call once and wait."""
        self.stream.wait_stream(self._torch.cuda.current_stream())
        with self._torch.cuda.stream(self.stream):
            for call in calls:
                call()
        self.stream.synchronize()

    def capture(self, calls: Sequence[Call]) -> Any:
        """Return a CUDA graph of the calls."""
        cuda = self._torch.cuda
        graph = cuda.CUDAGraph()
        cuda.synchronize()
        # Not through torch.cuda.graph: that empties the allocator's cache at every capture, a run makes thousands.
        with cuda.stream(self.stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                for call in calls:
                    call()
            finally:
                graph.capture_end()
        return graph

    def replay_us(self, graph: Any) -> float:
        """Return the device's time of one replay. The stream sleeps first, so that the host's time to launch stays outside."""
        cuda = self._torch.cuda
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        with cuda.stream(self.stream):
            cuda._sleep(200_000)  # cycles: 0.1 ms
            start.record(self.stream)
            graph.replay()
            end.record(self.stream)
        end.synchronize()
        return start.elapsed_time(end) * 1e3
