"""Check the input quantizers on a GPU bit for bit, then time them: `python -m bench.quantize_check`.

Every part runs in a process of its own with a time limit, so that a hang costs one part. Kernels are compiled ahead by a pool of
processes. Results: $OUT/quantize_check.jsonl, one object a line, and a short table at the end.

    python -m bench.quantize_check --budget 150 --parts bits,probe,time,humming,tiles

bits     each case of `quantize_cases.bit_cases` against the reference: codes, scales and padding, outputs poisoned before
probe    what the interpreter can't show: division by multiply-adds, hardware conversions, the product with a power of two
time     CUDA-graph replays, x cold in the L2 where 512 copies of it exceed the L2, beside a copy of the same bytes
humming  its quantizer, timed in turns with ours
tiles    other tiles than the launcher's own
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import json
import multiprocessing
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

OUT = Path(os.environ.get("OUT", ".")) / "quantize_check.jsonl"
WORKERS = 4  # processes that check bits side by side
L2_BYTES = 60_000_000
GRACE_S = 15.0
PEER_FORMATS = {"e4m3 token": "e4m3 channel", "e4m3 g128": "e4m3 b128x128", "int8 token": "int8 channel"}


def emitter() -> Callable[[dict[str, Any]], None]:
    file = OUT.open("a")
    return lambda row: print(json.dumps(row), file=file, flush=True)


# ---- compile ahead ----
def jobs(parts: list[str]) -> list[tuple[Any, Any]]:
    """(case, tile) to compile, each once; those of one program that differ in M alone only where that changes the kernel."""
    from bench.quantize_cases import bit_cases, time_cases

    wanted: list[tuple[Any, Any]] = []
    if "bits" in parts:
        wanted += [(case, None) for case in bit_cases()]
    if "probe" in parts:
        wanted += probe_cases()
    if "time" in parts or "humming" in parts:
        wanted += [(case, None) for case in time_cases()]
    if "tiles" in parts:
        wanted += list(tile_cases())
    return list(dict.fromkeys(wanted))


def probe_cases() -> list[tuple[Any, Any]]:
    from bench.quantize_cases import Case
    from bench.quantize_probe import STATIC

    cases = [Case(activation, 4096, 4096, "fp32", static=True) for activation in STATIC]
    return [(case, None) for case in (*cases, *(Case(a, 4096, 4096, "fp32") for a in ("mxfp8", "mxfp4", "mxfp6")))]


def precompile(job: tuple[Any, Any]) -> str:
    """Compile a case with no GPU into the cache of compiled kernels; an error text, or empty."""
    case, tile = job
    try:
        from bench.quantize_cases import arguments
        from hybrid_humming.jit.offline import compiling_for
        from hybrid_humming.triton_kernels.quantize.launch import quantize

        with compiling_for(90) as built:
            quantize(arguments(case, "meta"), tile)
        spilled = max(b.spill_bytes for b in built)
        return f"spills {spilled} bytes" if spilled else ""
    except Exception:
        return traceback.format_exc()[-1200:]


def compile_all(parts: list[str], emit: Callable[[dict[str, Any]], None]) -> None:
    work, began = jobs(parts), time.perf_counter()
    workers = min(15, os.cpu_count() or 2)
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for (case, tile), error in zip(work, pool.map(precompile, work, chunksize=4), strict=True):
            if error:
                emit({"kind": "compile", "case": case.label(), "tile": str(tile), "error": error})
                print(f"COMPILE {case.label()}: {error.splitlines()[-1][:200]}", flush=True)
    print(f"compiled {len(work)} cases in {time.perf_counter() - began:.0f} s", flush=True)


# ---- bits ----
def check_bits(case: Any) -> dict[str, Any]:
    import torch

    from bench.quantize_cases import arguments, differences, expected, memory, nearly, poison
    from hybrid_humming.triton_kernels.quantize.launch import quantize

    args = arguments(case, "cuda")
    quantize(args)
    want = expected(args, "cpu" if case.m <= 64 else "cuda")
    wrong = nearly(args, want) if case.close else differences(args, want)
    first = [memory(t).clone() for t in (args.values, args.scale)]
    poison(args, 0xA5)
    quantize(args)
    repeats = all(torch.equal(a, memory(t)) for a, t in zip(first, (args.values, args.scale), strict=True))
    return {"kind": "bits", "case": case.label(), "ok": not wrong and repeats, "wrong": wrong, "repeats": repeats}


def bits_part(index: int, budget: float, emit: Callable[[dict[str, Any]], None]) -> None:
    from bench.quantize_cases import bit_cases

    guarded([(c.label(), functools.partial(check_bits, c)) for c in list(bit_cases())[index::WORKERS]], budget, emit)


def guarded(work: list[tuple[str, Callable[[], dict[str, Any]]]], budget: float, emit: Callable[[dict[str, Any]], None]) -> None:
    """Emit the row of each piece of work, an error in its place where it raises, and what there was no time for."""
    began = time.perf_counter()
    for label, run in work:
        if time.perf_counter() - began > budget:
            emit({"kind": "skipped", "case": label})
            continue
        try:
            emit(run())
        except Exception:
            emit({"kind": "error", "case": label, "error": traceback.format_exc()[-1200:]})
            if "CUDA error" in traceback.format_exc():
                raise


# ---- probes ----
def probe_part(budget: float, emit: Callable[[dict[str, Any]], None]) -> None:
    from bench import quantize_probe as probe

    def row(name: str, run: Callable[[], dict[str, Any]]) -> tuple[str, Callable[[], dict[str, Any]]]:
        def one() -> dict[str, Any]:
            made = run()
            return {"kind": "probe", "case": name, "ok": not made["wrong"], **made}

        return name, one

    work = [row("division", probe.division), row("division, bounded", functools.partial(probe.division, bound=2.0**20))]
    work += [row(f"{a}: every 256th fp32", functools.partial(probe.conversions, a, 0)) for a in probe.STATIC]
    work += [row(f"{a}: power of two", functools.partial(probe.powers_of_two, a)) for a in ("mxfp8", "mxfp4", "mxfp6")]
    work += [
        row(f"{a}: every 256th fp32 + {offset}", functools.partial(probe.conversions, a, offset))
        for offset in probe.PATTERNS[1:]
        for a in probe.STATIC
    ]
    guarded(work, budget, emit)


# ---- time ----
class Stopwatch:
    """Times launches on a rotation of inputs, and a copy of as many bytes, in turns."""

    def __init__(self) -> None:
        import torch

        from bench.timer import CudaBackend

        self.backend = CudaBackend()
        self.buffer = torch.randint(0, 255, (1 << 30,), dtype=torch.uint8, device="cuda")  # source of copies

    def inputs(self, case: Any) -> list[Any]:
        """Arguments on as many copies of x as a cold L2 needs, at most 512; they share their outputs up to the L2's size."""
        from bench.quantize_cases import arguments
        from bench.timer import copies_for

        args = arguments(case, "cuda")
        count = copies_for(args.x.numel() * args.x.element_size())
        return [args, *(args._replace(x=args.x.clone()) for _ in range(count - 1))]

    def copies(self, nbytes: int, count: int) -> list[Callable[[], Any]]:
        """Calls that move `nbytes` each, half read and half written."""
        half = max(16, nbytes // 32 * 16)
        slots = max(1, min(count, self.buffer.numel() // (2 * half)))
        parts = self.buffer[: 2 * slots * half].view(slots, 2, half)
        return [functools.partial(parts[i, 1].copy_, parts[i, 0]) for i in range(slots)]

    def run(self, calls: dict[str, list[Callable[[], Any]]], samples: int = 11) -> Any:
        from bench.timer import Library, time_interleaved

        return time_interleaved({name: Library(calls=c) for name, c in calls.items()}, self.backend, samples=samples)


def time_case(watch: Stopwatch, case: Any, tile: Any = None) -> dict[str, Any]:
    from bench.quantize_cases import DTYPES, moved_bytes
    from hybrid_humming.triton_kernels.quantize.launch import quantize

    inputs, nbytes = watch.inputs(case), moved_bytes(case)
    ours = [functools.partial(quantize, args, tile) for args in inputs]
    timing = watch.run({"ours": ours, "copy": watch.copies(nbytes, len(inputs))})
    us, copy = timing.times["ours"], timing.times["copy"].us
    x_bytes = case.m * case.k * DTYPES[case.dtype].itemsize
    return {
        "kind": "tile" if tile else "time", "case": case.label(), "activation": case.activation, "m": case.m, "k": case.k,
        "us": us.us, "p10": us.us_p10, "p90": us.us_p90, "bytes": nbytes, "copy_us": copy, "share": copy / us.us,
        "gbps": nbytes / us.us * 1e-3, "cold": x_bytes * len(inputs) > L2_BYTES, "tile": str(tile) if tile else "",
    }  # fmt: skip


def time_part(budget: float, emit: Callable[[dict[str, Any]], None]) -> None:
    from bench.quantize_cases import time_cases

    watch = Stopwatch()
    guarded([(c.label(), functools.partial(time_case, watch, c)) for c in time_cases()], budget, emit)


def tile_cases() -> Iterator[tuple[Any, Any]]:
    """Tiles beside the launcher's own: more or fewer threads a row, fewer or more groups a program."""
    from bench.quantize_cases import Case
    from hybrid_humming.triton_kernels.quantize.launch import InputTile

    for m in (16, 64, 16384):
        for warps in (4, 8, 16, 32):
            yield Case("e4m3 token", m, 8192), InputTile(unit=8192, num_warps=warps)
        for groups, warps in ((4, 1), (8, 2), (8, 4), (16, 4), (32, 4), (32, 8), (64, 8)):
            yield Case("e4m3 g128", m, 8192), InputTile(unit=128, groups=groups, num_warps=warps)
        for groups, warps in ((16, 1), (32, 2), (64, 2), (128, 4), (256, 8)):
            yield Case("mxfp8", m, 8192), InputTile(unit=32, groups=groups, num_warps=warps)


def tiles_part(budget: float, emit: Callable[[dict[str, Any]], None]) -> None:
    watch = Stopwatch()
    guarded([(f"{c.label()} {t}", functools.partial(time_case, watch, c, t)) for c, t in tile_cases()], budget, emit)


# ---- humming ----
def humming_part(budget: float, emit: Callable[[dict[str, Any]], None]) -> None:
    """Time its quantizer and ours in turns, as its layer's config makes it run. Without the package: a note."""
    import torch

    from bench import peer_humming
    from bench.quantize_cases import Case
    from hybrid_humming.spec import Spec
    from hybrid_humming.triton_kernels.quantize.launch import quantize

    missing = peer_humming.Humming().missing()
    if missing:
        emit({"kind": "note", "text": f"humming: {missing}"})
        return
    from humming.forward import may_process_input

    watch = Stopwatch()
    work = []
    for activation, weight in PEER_FORMATS.items():
        for k in (8192, 4096):
            config = []

            def config_of(activation: str = activation, weight: str = weight, k: int = k, config: list[Any] = config) -> Any:
                if not config:
                    layer = peer_humming._layer(Spec.parse(f"{weight} x {activation}"), torch.empty(256, k, device="cuda"))
                    try:
                        config.append(layer.humming_config)
                        return config[0]
                    except Exception:  # a release that makes it while the weight is transformed
                        layer.load_from_unquantized(torch.randn(256, k, device="cuda", dtype=torch.bfloat16))
                        layer.transform()
                    config.append(layer.humming_config)
                return config[0]

            for m in (1, 16, 64, 256, 1024, 4096, 16384):
                case = Case(activation, m, k)

                def one(case: Any = case, config_of: Callable[[], Any] = config_of) -> dict[str, Any]:
                    inputs = watch.inputs(case)
                    theirs = [functools.partial(may_process_input, config_of(), args.x) for args in inputs]
                    timing = watch.run({"ours": [functools.partial(quantize, a) for a in inputs], "humming": theirs})
                    return {
                        "kind": "peer", "case": case.label(), "m": case.m, "k": case.k, "us": timing.times["ours"].us,
                        "humming_us": timing.times["humming"].us, "ratio": timing.ratios["humming"].us,
                    }  # fmt: skip

                work.append((f"humming {case.label()}", one))
    guarded(work, budget, emit)


# ---- parts ----
def child(part: str, budget: float) -> None:
    emit = emitter()
    name, _, index = part.partition(":")
    if name == "bits":
        bits_part(int(index), budget, emit)
    else:
        {"probe": probe_part, "time": time_part, "humming": humming_part, "tiles": tiles_part}[name](budget, emit)


def run_together(parts: list[str], budget: float) -> None:
    """Run each part in a process that ends, one way or the other, soon after its budget."""
    running = []
    for part in parts:
        command = [sys.executable, "-m", "bench.quantize_check", "--child", part, "--budget", str(budget)]
        running.append((part, subprocess.Popen(command)))
    limit = time.perf_counter() + budget + GRACE_S
    for part, process in running:
        try:
            code = process.wait(timeout=max(1.0, limit - time.perf_counter()))
            if code:
                print(f"{part}: exit code {code}", flush=True)
        except subprocess.TimeoutExpired:
            process.kill()
            print(f"{part}: killed after {budget + GRACE_S:.0f} s", flush=True)


def table() -> None:
    """Print what failed, then times by case and M."""
    rows = [json.loads(line) for line in OUT.read_text().splitlines()]
    for kind in ("bits", "probe"):
        made = [r for r in rows if r["kind"] == kind]
        bad = [r for r in made if not r["ok"]]
        print(f"{kind}: {len(made)} run, {len(bad)} failed")
        for r in bad[:15]:
            print(f"  BAD {r['case']}: {json.dumps({k: r[k] for k in ('wrong', 'first', 'repeats') if k in r})[:400]}")
    errors = [r for r in rows if r["kind"] == "error"]
    print(f"errors {len(errors)}, skipped {sum(r['kind'] == 'skipped' for r in rows)}")
    for r in errors[:6]:
        print(f"  ERROR {r['case']}: {r['error'].splitlines()[-1][:200]}")
    for r in (r for r in rows if r["kind"] == "note"):
        print(r["text"])
    for r in (r for r in rows if r["kind"] in ("time", "peer", "tile")):
        if r["kind"] == "peer":
            print(f"  {r['case']:42} {r['us']:8.2f} us, humming {r['humming_us']:8.2f} us ({r['ratio']:.2f}x)")
        else:
            cold = "" if r["cold"] else " x in L2"
            print(
                f"  {r['case']:42} {r['us']:8.2f} us  {100 * r['share']:4.0f} % of a copy, {r['gbps']:5.0f} GB/s{cold} {r['tile']}"
            )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--budget", type=float, default=150)
    parser.add_argument("--parts", default="bits,probe,time,humming,tiles")
    parser.add_argument("--child")
    options = parser.parse_args()
    if options.child:
        child(options.child, options.budget)
        return
    began = time.perf_counter()
    OUT.unlink(missing_ok=True)
    parts = options.parts.split(",")

    def left(share: float) -> float:
        return max(5.0, (options.budget - (time.perf_counter() - began)) * share - GRACE_S * 0.3)

    compile_all(parts, emitter())
    together = [f"bits:{i}" for i in range(WORKERS)] if "bits" in parts else []
    together += ["probe"] if "probe" in parts else []
    if together:
        run_together(together, left(0.5))
        print(f"checked after {time.perf_counter() - began:.0f} s", flush=True)
    for part, share in (("time", 0.6), ("humming", 0.6), ("tiles", 1.0)):
        if part in parts and options.budget - (time.perf_counter() - began) > 8:
            run_together([part], left(share))
            print(f"{part} done after {time.perf_counter() - began:.0f} s", flush=True)
    table()
    print(f"{time.perf_counter() - began:.0f} s in all")


if __name__ == "__main__":
    main()
