"""Check the Ampere kernels on a Hopper GPU, as sm_80 would run them, then time int4 beside humming: `python -m bench.ampere_check`.

The kernels are compiled for the GPU at hand from the same source, with the decoders and scales that keep to sm_80's instructions
(`target_sm` answers 80), and with the tiles that an A100 and an L40S would get. Every part runs in a process of its own with a
time limit; kernels are compiled ahead by a pool of processes. Results: $OUT/ampere_check.jsonl, one object a line, and a table.

    python -m bench.ampere_check --budget 190 --parts check,invariant,time
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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OUT = Path(os.environ.get("OUT", ".")) / "ampere_check.jsonl"
MODULE = "bench.ampere_check"
HERE = "h200"  # the GPU that runs it: what is compiled ahead is compiled for it
LIKE = ("a100", "l40s")  # whose tiles are checked: 164 and 100 KB of shared memory
ROWS = (1, 17, 64, 300, 1024)
N, K = 328, 1280  # N is no multiple of a tile, K has groups of every size
MAIN, SHAPE, TIMED, CANDIDATES = "int4 g128 x bf16", (8192, 8192), (1, 8, 16, 32, 64), 8
INVARIANT = (MAIN, "nvfp4 x bf16", "uint4 g64 zp x fp16")
PARTS = 4  # processes that check side by side
HALVES = (
    "int1 g128", "int2 g16", "int3 g32", "int4 g128", "int5 g64", "int6 channel", "int7 g256", "int8 tensor", "int8 channel",
    "uint1 g64 zp", "uint2 g32 zp", "uint3 channel zp", "uint4 g64 zp", "uint8 g128 zp", "uint4 g64 zp:fp16",
    "uint2 channel zp:fp32", "mxfp4", "nvfp4", "mxint4", "mxfp6", "mxfp8", "e3m2 g32", "e2m3 g64", "e4m3 channel", "e4m3 b128x128",
    "e5m2 tensor", "e3m4 g128", "e0m1 channel", "e0m3 g128", "e4m1 g32", "int4 g64:e5m3+channel", "int4 g128:fp32",
    "int4 g128:e4m3+tensor", "int4 channel+tensor",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One problem and the plan that runs it: the `rank`-th that the planner would take on `like`.

    hot  each row of x picks a column of W, and y is fp32: decoding and scaling bit by bit
    """

    spec: str
    m: int
    like: str
    n: int = N
    k: int = K
    rank: int = 0
    hot: bool = False
    invariant: bool = False

    def label(self) -> str:
        marks = "".join(f" {name}" for name in ("hot", "invariant") if getattr(self, name))
        return f"{self.spec} [{self.m},{self.n},{self.k}] as {self.like}#{self.rank}{marks}"


def emit(row: dict[str, Any]) -> None:
    with OUT.open("a") as file:
        print(json.dumps(row), file=file)


# ---- what runs ----
def as_sm80() -> None:
    """Make the family's launchers keep to sm_80's instructions, whatever the GPU."""
    from hybrid_humming.triton_kernels.ampere import launch

    launch.target_sm = lambda device: 80  # type: ignore[assignment]


def planned(case: Case) -> tuple[Any, Any, Any] | None:
    """(problem, layout, plan) of a case; None where the planner has no plan of that rank."""
    from hybrid_humming.device import DeviceInfo
    from hybrid_humming.ops import load_catalogs
    from hybrid_humming.pack import make_layout
    from hybrid_humming.plan import survey
    from hybrid_humming.plan.choose import make_plan
    from hybrid_humming.spec import Problem, Spec
    from hybrid_humming.weight import Facts

    load_catalogs()
    spec = Spec.parse(case.spec)
    if case.hot:
        spec = spec.replace(out_dtype="fp32")
    layout = make_layout("ampere", spec, case.n, case.k, facts=Facts())
    problem = Problem(spec=spec, m=case.m, n=case.n, k=case.k, batch_invariant=case.invariant)
    device = DeviceInfo.named(case.like)
    found = survey(problem, layout, device).candidates
    if case.rank >= len(found):
        return None
    return problem, layout, make_plan(found[case.rank], problem, layout, device)


def precompile(case: Case) -> str:
    """Compile a case with no GPU into the cache that the launch will look in; an error text, or empty."""
    from hybrid_humming.ahead import compile_gemm

    as_sm80()
    try:
        made = planned(case)
        if made is None:
            return ""
        problem, layout, plan = made
        _, built = compile_gemm(problem, HERE, layout=layout, plan=plan)
        spilled = [one.spill_bytes for one in built if one.spill_bytes]
        return f"spills {spilled[0]} bytes" if spilled else ""
    except Exception:
        return traceback.format_exc()[-1500:]


# ---- correctness ----
def check_cases() -> Iterator[Case]:
    for i, half in enumerate(HALVES):
        for activation in ("bf16", "fp16"):
            spec = f"{half} x {activation}"
            for j, m in enumerate(ROWS):
                yield Case(spec, m, LIKE[(i + j) % 2])
            yield Case(spec, 8, LIKE[i % 2], hot=True)


def invariant_cases() -> Iterator[Case]:
    for spec in INVARIANT:
        for m in ROWS:
            yield Case(spec, m, HERE, invariant=True)


def check(case: Case) -> dict[str, Any]:
    """Errors of one case against float64, beside torch's own; repeats must be bit-equal, and no element left unwritten."""
    import torch

    import hybrid_humming as hh
    from hybrid_humming import reference
    from hybrid_humming.pack import pack

    made = planned(case)
    assert made is not None
    problem, layout, plan = made
    spec = problem.spec
    torch.manual_seed(case.m)
    weight = reference.quantize(torch.randn(case.n, case.k, device="cuda"), spec)
    dtype = torch.bfloat16 if spec.activation == "bf16" else torch.float16
    columns = torch.randint(0, case.k, (case.m,), device="cuda")
    x = torch.nn.functional.one_hot(columns, case.k).to(dtype) if case.hot else torch.randn(case.m, case.k, device="cuda").to(dtype)
    qweight = pack(weight, layout)
    out = torch.full((case.m, case.n), float("nan"), device="cuda", dtype=torch.float32 if case.hot else dtype)
    options = hh.Options(batch_invariant=case.invariant)
    hh.gemm(x, qweight, out=out, plan=plan, options=options)
    torch.cuda.synchronize()
    first, equal = out.clone(), True
    for _ in range(30 if plan.tile.split_k > 1 else 3):
        out.fill_(float("nan"))
        hh.gemm(x, qweight, out=out, plan=plan, options=options)
        equal = equal and torch.equal(first, out)
    row = {"kind": "check", "case": case.label(), "kernel": plan.kernel, "tile": str(plan.tile), "equal": equal}
    if case.hot:
        want = reference.dequantize(weight, torch.float64)[:, columns].T
        loose = spec.zero_point in ("fp32", "fp16", "bf16")  # a float zero point is subtracted with one rounding
        close = torch.isclose(first.double(), want, rtol=2**-7 if loose else 1e-6, atol=1e-3 if loose else 0, equal_nan=True)
        wrong = int((~close).sum())
        return row | {"wrong": wrong, "ok": equal and not wrong}
    exact = reference.gemm(x, weight)
    rounded = x @ reference.dequantize(weight, torch.float64).to(dtype).T
    err, torch_err = (float((y.double() - exact).norm() / exact.norm()) for y in (first, rounded))
    return row | {"err": err, "torch_err": torch_err, "ok": bool(equal and err <= 2 * torch_err + 1e-6)}


def invariant(spec: str) -> dict[str, Any]:
    """Row 0 of x [M, K] must have the same bits for every M."""
    import torch

    import hybrid_humming as hh
    from hybrid_humming import reference
    from hybrid_humming.pack import pack

    rows, first = {}, None
    for m in ROWS:
        made = planned(Case(spec, m, HERE, invariant=True))
        assert made is not None
        problem, layout, plan = made
        dtype = torch.bfloat16 if problem.spec.activation == "bf16" else torch.float16
        generator = torch.Generator("cuda").manual_seed(5)
        weight = reference.quantize(torch.randn(N, K, device="cuda", generator=generator), problem.spec)
        x = torch.randn(max(ROWS), K, device="cuda", generator=generator).to(dtype)[:m].contiguous()
        y = hh.gemm(x, pack(weight, layout), plan=plan, options=hh.Options(batch_invariant=True))[0]
        first = y if first is None else first
        rows[m] = torch.equal(y, first)
    return {"kind": "invariant", "case": spec, "equal": rows, "ok": all(rows.values())}


# ---- time ----
def time_cases() -> Iterator[Case]:
    for m in TIMED:
        for like in (HERE, LIKE[0]):
            for rank in range(CANDIDATES if like == HERE else 1):
                yield Case(MAIN, m, like, *SHAPE, rank=rank)


def compile_peer() -> None:
    """Have humming compile what it will be timed with, into its own cache, while ours is checked."""
    from bench.peer_humming import Humming
    from bench.session import random_weight
    from hybrid_humming.spec import Spec

    peer = Humming()
    if why := peer.missing():
        print(f"humming is left out: {why}", flush=True)
        return
    jobs = peer.build(Spec.parse(MAIN), random_weight(*SHAPE)).jobs(TIMED, ("plain",))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda job: job(), jobs))


def time_m(m: int) -> None:
    """Time the planner's first choices, then the best of them beside humming and our Hopper family, interleaved."""
    import torch

    from bench import check as checking
    from bench.ours import OurWeight
    from bench.peer_humming import Humming
    from bench.peers import Marlin
    from bench.session import random_weight, random_x
    from bench.timer import CudaBackend, Library, Spread, graph_of, time_interleaved
    from hybrid_humming import pack as packing
    from hybrid_humming.pack import pack
    from hybrid_humming.spec import Spec

    backend, weight = CudaBackend(), random_weight(*SHAPE)
    hopper = OurWeight(MAIN, weight)
    canonical = packing.unpack(hopper.qweight)
    ampere = OurWeight(MAIN, weight)
    first = planned(Case(MAIN, m, HERE, *SHAPE))
    assert first is not None
    ampere.qweight = pack(canonical, first[1])
    ampere.copies = [ampere.qweight] + [
        ampere.qweight.replace(**{name: t.clone() for name, t in ampere.qweight.tensors().items()}) for _ in hopper.copies[1:]
    ]
    x, judge = random_x(m, SHAPE[1]), ampere.judge()
    plans = {}
    for case in time_cases():
        if case.m == m and (made := planned(case)) is not None:
            plans.setdefault(str(made[2]), made[2])
    taken = {}
    for name, plan in plans.items():
        calls = ampere.calls(x, plan)
        calls.calls[0]()
        verdict = judge.ours(calls.out, x)
        if not verdict.passed:
            emit({"kind": "check", "case": f"{MAIN} [{m},{SHAPE[0]},{SHAPE[1]}] {name}", "ok": False, "err": verdict.err_l2,
                  "torch_err": verdict.torch_err_l2, "equal": True})  # fmt: skip
            continue
        graph, length = graph_of(Library(calls=calls.calls), backend)
        taken[name] = Spread.of([backend.replay_us(graph) / length for _ in range(9)])
        emit({"kind": "tile", "m": m, "plan": name, "us": taken[name].us})
    order = sorted(taken, key=lambda name: taken[name].us)
    sides = {"best": Library(calls=ampere.calls(x, plans[order[0]]).calls)}
    sides["planned"] = Library(calls=ampere.calls(x, next(iter(plans.values()))).calls)
    sides["hopper"] = Library(calls=hopper.calls(x, hopper.plan(m, "plain")).calls)
    peer = Humming()
    why = peer.missing()
    if not why:
        theirs = peer.build(Spec.parse(MAIN), weight)
        for job in theirs.jobs([m], ("plain",)):
            job()
        calls, mine = theirs.calls(x, "plain"), ampere.calls(x, plans[order[0]])
        mine.calls[0]()
        calls.calls[0]()
        torch.cuda.synchronize()
        verdict = checking.peer(calls.out, mine.out, x, weight)
        why = "" if verdict.passed else verdict.reason
        if not why:
            sides["humming"] = Library(calls=calls.calls)
    timing = time_interleaved(sides, backend)
    us = {name: spread.us for name, spread in timing.times.items()}
    row = {"kind": "time", "m": m, "plan": order[0], "us": us, "without_humming": why,
           "spread": {name: (spread.us_p10, spread.us_p90) for name, spread in timing.times.items()}}  # fmt: skip
    marlin = Marlin.ratio(MAIN, *SHAPE, m)
    if "humming" in us and marlin is not None:
        row |= {"to_humming": us["humming"] / us["best"], "bar": 0.9 / marlin}
    emit(row)


# ---- parts ----
def child(part: str, budget: float) -> None:
    as_sm80()
    kind, _, which = part.partition(":")
    began = time.perf_counter()
    todo: list[tuple[str, Any]] = []
    if kind == "check":
        index, count = (int(v) for v in which.split("/"))
        todo = [(case.label(), functools.partial(check, case)) for case in list(check_cases())[index::count]]
    elif kind == "invariant":
        todo = [(spec, functools.partial(invariant, spec)) for spec in INVARIANT]
    elif kind == "peer":
        todo = [("humming's compilation", compile_peer)]
    elif kind == "time":
        todo = [(f"time M={which}", functools.partial(time_m, int(which)))]
    for label, job in todo:
        if time.perf_counter() - began > budget:
            emit({"kind": "skipped", "case": label})
            continue
        try:
            row = job()
            if row is not None:
                emit(row)
        except Exception:
            emit({"kind": "error", "case": label, "error": traceback.format_exc()[-1500:]})


def run_parts(parts: list[str], budget: float, together: bool) -> None:
    """Run each part in a process that ends, one way or the other, soon after its budget."""
    each = budget if together else budget / max(1, len(parts))

    def start(part: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", MODULE, "--child", part, "--budget", str(each)])

    def finish(part: str, process: subprocess.Popen[bytes]) -> None:
        try:
            if process.wait(timeout=each + 20):
                print(f"{part}: exit code {process.returncode}")
        except subprocess.TimeoutExpired:
            process.kill()
            print(f"{part}: killed after {each + 20:.0f} s")

    if together:
        for part, process in [(part, start(part)) for part in parts]:
            finish(part, process)
    else:
        for part in parts:
            finish(part, start(part))


def compile_ahead(cases: list[Case], began: float) -> None:
    workers = min(14, os.cpu_count() or 2)
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for case, error in zip(cases, pool.map(precompile, cases, chunksize=2), strict=True):
            if error:
                print(f"COMPILE {case.label()}: {error.splitlines()[-1][:300]}", flush=True)
    print(f"compiled {len(cases)} in {time.perf_counter() - began:.0f} s", flush=True)


def table() -> None:
    rows = [json.loads(line) for line in OUT.read_text().splitlines()] if OUT.exists() else []
    checks = [r for r in rows if r["kind"] in ("check", "invariant")]
    bad, errors = [r for r in checks if not r["ok"]], [r for r in rows if r["kind"] == "error"]
    skipped = sum(r["kind"] == "skipped" for r in rows)
    print(f"\nchecks {len(checks)}, failed {len(bad)}, errors {len(errors)}, skipped {skipped}")
    for r in bad[:25]:
        print("  BAD " + ", ".join(f"{k} {v:.2e}" if isinstance(v, float) else f"{k} {v}" for k, v in r.items() if k != "kind"))
    for r in errors[:8]:
        print(f"  ERROR {r['case']}: {r['error'].strip().splitlines()[-1][:200]}")
    for r in (r for r in rows if r["kind"] == "time"):
        times = ", ".join(f"{name} {us:.2f} us" for name, us in r["us"].items())
        print(f"{MAIN} {SHAPE[0]}x{SHAPE[1]} M={r['m']}: {times}  {r['plan']}  {r['without_humming']}")
        if "to_humming" in r:
            verdict = "passes" if r["to_humming"] >= r["bar"] else "misses"
            print(f"   {r['to_humming']:.2f}x humming; 0.9 of Marlin's is {r['bar']:.2f}x: {verdict}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--budget", type=float, default=190)
    parser.add_argument("--parts", default="check,invariant,time")
    parser.add_argument("--child")
    options = parser.parse_args()
    if options.child:
        child(options.child, options.budget)
        return
    began = time.perf_counter()
    OUT.unlink(missing_ok=True)
    parts = options.parts.split(",")
    cases = list(check_cases()) if "check" in parts else []
    cases += list(invariant_cases()) if "invariant" in parts else []
    cases += list(time_cases()) if "time" in parts else []
    compile_ahead(cases, began)
    left = options.budget - (time.perf_counter() - began)
    if "check" in parts:
        peer = ["peer"] if "time" in parts else []
        run_parts([f"check:{i}/{PARTS}" for i in range(PARTS)] + peer, left * (0.4 if "time" in parts else 0.9), together=True)
        print(f"checked after {time.perf_counter() - began:.0f} s", flush=True)
    if "invariant" in parts:
        run_parts(["invariant"], 15, together=False)
    if "time" in parts:
        left = options.budget - (time.perf_counter() - began)
        run_parts([f"time:{m}" for m in TIMED], left, together=False)
    table()
    print(f"{time.perf_counter() - began:.0f} s in all")


if __name__ == "__main__":
    main()
