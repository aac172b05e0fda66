"""The smaller sections of a run: quantizing the input, host time of a call, seconds to the first result with empty caches."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

import hybrid_humming as hh
from bench import record
from bench.cold_start import COLD_SHAPE
from bench.timer import Library, time_interleaved
from hybrid_humming.spec import Spec

if TYPE_CHECKING:
    from bench.session import Session

HOST_SHAPE = (1024, 1024)  # small: the device is never what the host waits for
CHILD_SECONDS = 90.0
CACHES = ("HYBRID_HUMMING_CACHE_DIR", "TRITON_CACHE_DIR", "HUMMING_CACHE_DIR", "HUMMING_TMP_DIR", "XDG_CACHE_HOME")


def quantize_input(session: Session) -> None:
    """Time the quantization of x alone, as `hh.quantize_input` does it."""
    lines = {p.spec for p in session.todo if Spec.parse(p.spec).quantizes_activation}
    points = [p for p in session.todo if p.spec in lines and (p.n, p.k) == (session.todo[0].n, session.todo[0].k)]
    for point in points:
        if session.left() < 5:
            session.note(f"quantize_input: out of time before {point}")
            return
        session.guarded(f"quantize_input {point}", _quantize_point, session, point)


def _quantize_point(session: Session, point: Any) -> None:
    from bench.session import random_x
    from hybrid_humming.reference import dequantize_input

    spec = Spec.parse(point.spec)
    x = random_x(point.m, point.k, device=session.device)
    quantized = hh.quantize_input(x, spec)
    apart = (dequantize_input(quantized, spec, torch.float32) - x.float()).norm() / x.float().norm()
    step = 2.0 ** -min(spec.activation_format.bits - 1, 4)
    what = (point, "quantize_input")
    if not float(apart) < step:
        session.failures.append(f"quantize_input {point}: {float(apart):.2e} from x")
        return
    session.record.passed(what, "quantize_input", float(apart))
    timing = time_interleaved({"ours": Library(calls=[lambda: hh.quantize_input(x, spec)] * 8)}, session.backend, samples=11)
    ours = timing.times["ours"]
    row = {"problem": "quantize_input", "spec": point.spec, "n": point.n, "k": point.k, "m": point.m, "plan": "quantize_input"}
    session.record.add(what, row | {"us": ours.us, "us_p10": ours.us_p10, "us_p90": ours.us_p90, "samples": 11})


def host(session: Session) -> None:
    """Time what the host spends on one call: ours, and torch.mm beside it."""
    from bench.session import random_weight, random_x

    (n, k), device = HOST_SHAPE, session.device
    for line in dict.fromkeys(p.spec for p in session.todo):
        if session.left() < 5:
            session.note("host: out of time")
            return

        def one(line: str = line) -> None:
            qweight = hh.quantize(random_weight(n, k, device), line)
            x, wide = random_x(1, k, device=device), random_weight(n, k, device)
            spec = qweight.spec
            want = hh.dequantize(qweight) @ x.float().T
            y = hh.gemm(x, qweight, spec)
            apart = float((y.float().T - want).norm() / want.norm())
            what = ("host", line)
            if not apart < 0.1:
                session.failures.append(f"host {line}: {apart:.2e} from the reference")
                return
            session.record.passed(what, "hh.gemm", apart)
            out = torch.empty_like(y)
            ours, torch_mm = host_us(lambda: hh.gemm(x, qweight, spec, out=out)), host_us(lambda: torch.mm(x, wide.T))
            row = {"problem": "host", "spec": line, "n": n, "k": k, "m": 1, "plan": "hh.gemm", "peers": {"cublas": torch_mm[1]}}
            session.record.add(what, row | {"us": ours[1], "us_p10": ours[0], "us_p90": ours[2], "samples": 15})
            session.say(f"host {line}: {ours[1]:.1f} us a call, torch.mm {torch_mm[1]:.1f}")

        session.guarded(f"host {line}", one)


def host_us(call: Callable[[], Any], *, calls: int = 200, repeats: int = 15) -> tuple[float, float, float]:
    """Return the 10th percentile, median and 90th percentile of the host's microseconds to enqueue one call."""
    for _ in range(20):
        call()
    taken = []
    for _ in range(repeats):
        _synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        taken.append((time.perf_counter() - began) / calls * 1e6)
    _synchronize()
    taken.sort()
    return taken[round(repeats * 0.1)], statistics.median(taken), taken[round((repeats - 1) * 0.9)]


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def cold_start(session: Session) -> None:
    """Time a fresh process with empty caches from import to its first result, for the first three specs: ours, then humming."""
    for line in list(dict.fromkeys(p.spec for p in session.todo))[:3]:
        if session.left() < 20:
            session.note(f"cold_start: out of time before {line}")
            return
        ours = _child(session, line, "ours")
        if ours is None:
            session.failures.append(f"cold_start {line}: {session.notes[-1]}")
            continue
        beside = _child(session, line, "humming") if any(p.name == "humming" for p in session.peers) else None
        what = ("cold_start", line)
        session.record.passed(what, "first result", ours["err_l2"])
        row: dict[str, Any] = {"problem": "cold_start", "spec": line, "n": COLD_SHAPE[0], "k": COLD_SHAPE[1], "m": 16}
        row |= {"plan": "first result", "us": ours["us"], "us_p10": ours["us"], "us_p90": ours["us"], "samples": 1}
        session.record.add(what, row | {"peers": {"humming": beside["us"]} if beside else {}})
        text = f", humming {beside['us'] * 1e-6:.2f} s" if beside else ""
        session.say(f"first result of {line}: {ours['us'] * 1e-6:.2f} s{text}")


def _child(session: Session, line: str, side: str) -> dict[str, float] | None:
    """Return {"us", "err_l2"} of a fresh process whose caches are empty, or None after a note."""
    with tempfile.TemporaryDirectory(prefix="cold_start_") as folder:
        caches = dict.fromkeys(CACHES, folder)
        command = [sys.executable, "-m", "bench.cold_start", side, line]
        try:
            limit = min(CHILD_SECONDS, session.left())
            done = subprocess.run(
                command, cwd=record.ROOT, env=os.environ | caches, capture_output=True, text=True, timeout=limit
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            session.note(f"cold_start {side} {line}: over {limit:.0f} s")
            return None
    if done.returncode:
        session.note(
            f"cold_start {side} {line}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else done.returncode}"
        )
        return None
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found
