"""What `bench.run` does on a GPU, section by section, within one process and one budget of seconds."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch

from bench import check, peers, record, roof, sections, shapes, table
from bench.ours import Calls, OurWeight
from bench.shapes import Point
from bench.timer import Backend, CudaBackend, Library, Timing, time_interleaved
from hybrid_humming.spec import Spec

Tensor = torch.Tensor

KEEP_FREE_BYTES = 30 << 30
LOST_CONTEXT = ("illegal memory", "misaligned address", "unspecified launch failure", "device-side assert", "illegal instruction")


class Built:
    """One weight on both sides: ours, the peers that cover it, and the float weight that all were made from."""

    def __init__(self, weight: Tensor, ours: OurWeight, beside: dict[str, peers.PeerWeight]) -> None:
        self.weight, self.ours, self.beside = weight, ours, beside


class Session:
    """A whole run. `failures` lists the points of ours that failed their check."""

    def __init__(
        self,
        options: argparse.Namespace,
        todo: list[Point],
        *,
        device: str = "cuda",
        backend: Backend | None = None,
        writer: Callable[[Tensor], Callable[[], None]] | None = None,
    ) -> None:
        """`device`, `backend` and `writer` (x -> a call that writes it) are handed in by tests; by default they are the GPU's."""
        self.options, self.todo, self.device = options, todo, device
        self.backend: Backend = backend or CudaBackend()
        self._make_writer = writer or _gpu_writer
        self.failures: list[str] = []
        self.notes: list[str] = []
        self.roof: roof.Roof | None = None
        self.peers = self._find_peers()
        meta = record.environment({p.name: peers.version(p) for p in self.peers}, device)
        path = options.out or record.default_path(options.suite, meta["device"])
        self.record = record.Record(path, meta)
        self._built: dict[tuple[str, int, int], Built | None] = {}
        self._cublas: dict[tuple[int, int, bool], peers.PeerWeight] = {}
        self.say(
            f"{meta['device']}, driver {meta['driver']}, torch {meta['torch']}, triton {meta['triton']}, commit {meta['commit']}"
        )

    # ---- the run ----
    def run(self) -> None:
        """Run every section asked for, then write the file."""
        steps: dict[str, Callable[[], None]] = {
            "roof": self.measure_roof,
            "dense": self.dense,
            "quantize_input": lambda: sections.quantize_input(self),
            "host": lambda: sections.host(self),
            "cold_start": lambda: sections.cold_start(self),
        }
        try:
            for name, step in steps.items():
                if name not in self.options.sections:
                    continue
                if self.left() < 5:
                    self.note(f"{name}: no time left")
                    continue
                began = time.monotonic()
                step()
                self.say(f"{name} took {time.monotonic() - began:.1f} s")
        finally:
            self.record.meta["notes"] = self.notes
            self.record.flush()

    def summary(self) -> str:
        """Return the table that a reader sees last."""
        data = {"meta": self.record.meta, "rows": self.record.rows}
        failed = "".join(f"\nFAILED {line}" for line in self.failures)
        return f"{table.short(data)}\n{len(self.record.rows)} rows in {self.record.path}{failed}"

    def measure_roof(self) -> None:
        """Measure the read roof of each setting and the matrix roofs."""
        self.roof = roof.measure(self.backend, self.options.settings)
        self.record.meta["roof"] = self.roof.to_json()
        rates = ", ".join(f"{name} {rate:.0f}" for name, rate in self.roof.tera_ops.items())
        for setting, points in self.roof.read_us.items():
            self.say(f"read roof, {setting}: " + ", ".join(f"{b / 1e6:.1f} MB {us:.1f} us" for b, us in points))
        self.say(f"matrix roof, 10^12 op/s: {rates}")

    def dense(self) -> None:
        """Check every point and compile what the peers need meanwhile; then time the points that passed, in order."""
        with ThreadPoolExecutor(max_workers=16) as pool:
            began = time.monotonic()
            pending: list[Future[Any]] = []
            for key in dict.fromkeys(p.weight for p in self.todo):
                pending += [pool.submit(job) for job in self._peer_jobs(key)]
                self._check_weight(key)
            self._wait(pending, began)
        for point in self.todo:
            if self.left() < 3:
                self.note(f"dense: out of time before {point} and what follows it")
                break
            for setting in self.options.settings:
                self.guarded(f"{point} {setting}", self._time_point, point, setting)

    # ---- parts of dense ----
    def built(self, key: tuple[str, int, int]) -> Built | None:
        """Return the weight of `key` on both sides, built once; None if ours could not be."""
        if key not in self._built:
            self._make_room()
            self._built[key] = self.guarded(f"build {key}", self._build, *key)
            if self._built[key] is None:
                self.failures.append(self.notes[-1])
        return self._built[key]

    def _build(self, spec: str, n: int, k: int) -> Built:
        weight = random_weight(n, k, self.device)
        parsed = Spec.parse(spec)
        beside: dict[str, peers.PeerWeight] = {}
        for peer in self.peers:
            reason = peer.covers(parsed, n, k)
            if reason:
                continue
            if peer.name == "cublas" and (n, k, parsed.activation == "fp16") in self._cublas:
                beside["cublas"] = self._cublas[n, k, parsed.activation == "fp16"]
                continue
            made = self.guarded(f"{peer.name} build {spec} {n}x{k}", peer.build, parsed, weight)
            if made is not None:
                beside[peer.name] = made
        if "cublas" in beside:
            self._cublas[n, k, parsed.activation == "fp16"] = beside["cublas"]
        return Built(weight, OurWeight(spec, weight), beside)

    def _peer_jobs(self, key: tuple[str, int, int]) -> list[Callable[[], Any]]:
        built = self.built(key)
        ms = [p.m for p in self.todo if p.weight == key]
        if built is None:
            return []
        return [job for weight in built.beside.values() for job in weight.jobs(ms, self.options.settings)]

    def _wait(self, pending: Sequence[Future[Any]], began: float) -> None:
        """Wait for the compile jobs until their time is up; what did not finish is left out later, and named."""
        limit = max(0.0, min(self.options.peer_seconds - (time.monotonic() - began), self.left() * 0.6))
        done, late = wait(pending, timeout=limit)
        for future in late:
            future.cancel()
        failed = [str(error).strip().split("\n")[0][:160] for future in done if (error := future.exception()) is not None]
        if late:
            self.note(f"peers: {len(late)} of {len(pending)} compile jobs did not finish in time")
        if failed:
            self.note(f"peers: {len(failed)} compile jobs failed, the first: {failed[0]}")
        self.say(f"checked all; peers: {len(pending)} compile jobs; {time.monotonic() - began:.1f} s")

    def _check_weight(self, key: tuple[str, int, int]) -> None:
        built = self.built(key)
        if built is None:
            return
        judge = built.ours.judge()
        for point in [p for p in self.todo if p.weight == key]:
            if self.guarded(f"check {point}", self._check_point, built, judge, point) is None:
                self.failures.append(f"{point}: {self.notes[-1]}")

    def _check_point(self, built: Built, judge: check.Judge, point: Point) -> bool:
        """Run every plan that will be timed once and hold it against the truth; True whether it passed or not."""
        x = random_x(point.m, point.k, built.ours.input_dtype, self.device)
        multiplied = built.ours.multiplied(x)
        for plan in {str(p): p for p in (built.ours.plan(point.m, s) for s in self.options.settings)}.values():
            calls = built.ours.calls(x, plan)
            calls.calls[0]()
            verdict = judge.ours(calls.out, multiplied)
            if verdict.passed:
                self.record.passed(point, str(plan), verdict.err_l2)
            else:
                self.failures.append(f"{point} by {plan}: {verdict.reason}")
                self.say(f"FAILED {self.failures[-1]}")
        return True

    def _time_point(self, point: Point, setting: str) -> None:
        built = self.built(point.weight)
        if built is None:
            return
        plan = built.ours.plan(point.m, setting)
        if not self.record.has_passed(point, str(plan)):
            return
        x = random_x(point.m, point.k, built.ours.input_dtype, self.device)
        mine = built.ours.calls(x, plan)
        mine.calls[0]()
        sides = {"ours": mine}
        for name, weight in built.beside.items():
            if not self.guarded(f"{name} {point} {setting}", weight.ready, point.m, setting):
                self.note(f"{name} {point} {setting}: left out, its kernel was not compiled in time")
                continue
            theirs = self.guarded(f"{name} {point} {setting}", weight.calls, x, setting)
            if theirs is not None and self._peer_is_right(name, theirs, mine, x, built, point):
                sides[name] = theirs
        timing = time_interleaved(self._libraries(sides, setting), self.backend, samples=self.options.samples)
        self.record.add(point, self._row(point, setting, str(plan), plan.multiplies, timing))

    def _peer_is_right(self, name: str, theirs: Calls, mine: Calls, x: Tensor, built: Built, point: Point) -> bool:
        theirs.out.fill_(float("nan"))
        theirs.calls[0]()
        verdict = check.peer(theirs.out, mine.out, x, built.weight)
        if not verdict.passed:
            self.note(f"{name} {point}: left out, {verdict.reason}")
        return verdict.passed

    def _libraries(self, sides: dict[str, Calls], setting: str) -> dict[str, Library]:
        if setting == "plain":
            return {name: Library(calls=side.calls) for name, side in sides.items()}
        writers: dict[int, Callable[[], None]] = {}  # libraries that read the same x share its writer
        for side in sides.values():
            if side.x.data_ptr() not in writers:
                writers[side.x.data_ptr()] = self._make_writer(side.x)
        return {name: Library(calls=side.calls, writer=writers[side.x.data_ptr()]) for name, side in sides.items()}

    def _row(self, point: Point, setting: str, plan: str, multiplies: str, timing: Timing) -> dict[str, Any]:
        ours, others = timing.times["ours"], {n: t for n, t in timing.times.items() if n != "ours"}
        row: dict[str, Any] = {"problem": "dense", "setting": setting, "plan": plan, "samples": self.options.samples}
        row |= {"us": ours.us, "us_p10": ours.us_p10, "us_p90": ours.us_p90}
        row |= {"peers": {n: t.us for n, t in others.items()}, "ratios": {n: r.us for n, r in timing.ratios.items()}}
        row |= {"peers_p10": {n: t.us_p10 for n, t in others.items()}, "peers_p90": {n: t.us_p90 for n, t in others.items()}}
        weight_bytes, other_bytes = shapes.io_bytes(point.spec, point.n, point.k, point.m)
        row["bytes"] = weight_bytes + other_bytes
        if self.roof is not None:
            operand = Spec.parse(point.spec).activation
            row["roof_us"] = self.roof.gemm(row["bytes"], shapes.flops(point.n, point.k, point.m), operand, setting)
        marlin = peers.Marlin.ratio(point.spec, point.n, point.k, point.m)
        if setting == "plain" and marlin is not None and "humming" in others:
            row["published"] = {"marlin": marlin * others["humming"].us}
        return row

    # ---- small things ----
    def guarded(self, what: str, function: Callable[..., Any], *args: Any) -> Any:
        """Return function(*args), or None after noting an error. A lost CUDA context ends the run: nothing after it is true."""
        try:
            return function(*args)
        except Exception as error:  # whatever a peer raises must not stop the run
            first = str(error).strip().split("\n")[0][:300]
            if any(sign in str(error) for sign in LOST_CONTEXT):
                raise
            self.note(f"{what}: {type(error).__name__}: {first}")
            if isinstance(error, torch.cuda.OutOfMemoryError):
                torch.cuda.empty_cache()
            return None

    def note(self, text: str) -> None:
        """Print a note and keep it for the file."""
        self.notes.append(text)
        self.say(f"note: {text}")

    def say(self, text: str) -> None:
        """Print a line with the seconds since the start."""
        print(f"[{time.monotonic() - self.options.start:6.1f}] {text}", flush=True)

    def left(self) -> float:
        """Return the seconds of the budget that are left."""
        return float(self.options.seconds - (time.monotonic() - self.options.start))

    def _find_peers(self) -> list[peers.Peer]:
        found = []
        for peer in peers.all_peers():
            if peer.name not in self.options.peers:
                continue
            reason = peer.missing()
            if reason:
                self.note(f"{peer.name} is left out: {reason}")
            else:
                found.append(peer)
        return found

    def _make_room(self) -> None:
        """Drop the weights built first while memory is short; they are built again if a point needs them."""
        while self._built and self.device == "cuda" and torch.cuda.mem_get_info()[0] + _cached() < KEEP_FREE_BYTES:
            self._built.pop(next(iter(self._built)))
            self._cublas.clear()
            torch.cuda.empty_cache()


def random_weight(n: int, k: int, device: str = "cuda") -> Tensor:
    """Return a bf16 weight [n, k] like a trained layer's: normal, small; the same for every library and run."""
    generator = torch.Generator(device).manual_seed(0)
    return torch.randn(n, k, device=device, dtype=torch.bfloat16, generator=generator).mul_(0.02)


def random_x(m: int, k: int, dtype: torch.dtype = torch.bfloat16, device: str = "cuda") -> Tensor:
    """Return normal activations [m, k]; the same for every library and run."""
    generator = torch.Generator(device).manual_seed(m)
    return torch.randn(m, k, device=device, dtype=dtype, generator=generator)


def _gpu_writer(x: Tensor) -> Callable[[], None]:
    from bench.writer import make_writer  # imports Triton

    return make_writer(x)


def _cached() -> int:
    return torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
