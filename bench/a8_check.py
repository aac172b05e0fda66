"""Check the kernels for 8-bit activations on a GPU, then time their tiles beside the peers': `python -m bench.a8_check`.

Every part runs in a process of its own with a time limit, so that a hang costs one part. Kernels are compiled ahead by a pool of
processes. Results: $OUT/a8_check.jsonl, one object a line, and a short table at the end.

    python -m bench.a8_check --budget 500 [--parts check,precision,invariant,time] [--formats]
                             [--specs 'mxfp4 x e4m3 token;int8 channel x int8 token'] [--shapes 1] [--rows 1,16,64]
                             [--peers cublaslt,deepgemm,humming]

`check` compares with float64 of the quantized operands (poisoned output, ragged sizes, one-hot x bit by bit, 50 repeats
bit-equal); `precision` shows the error of each way to accumulate up to K = 32768; `invariant` counts rows that change with the tile
or with the other rows; `time` replays the tiles of an M and the peers in turns, plain, with a cold L2.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import functools
import json
import multiprocessing
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from bench.a8_cases import (
    BLOCK,
    FP8,
    INT4_FP8,
    INT4_INT8,
    INT8,
    MX,
    ROWS,
    SHAPES,
    Case,
    args_of,
    check_cases,
    compiled_alike,
    invariant_cases,
    launcher,
    precompile,
    problem_of,
    tile,
    time_cases,
    torch_dtype,
)

OUT = Path(os.environ.get("OUT", ".")) / "a8_check.jsonl"
DEFAULT = (FP8, BLOCK, INT8, MX, INT4_FP8, INT4_INT8)
PEERS = "cublaslt,deepgemm,humming"
PRECISION_K = (4096, 16384, 32768)


def emit(row: dict[str, Any]) -> None:
    with OUT.open("a") as file:
        print(json.dumps(row), file=file)


# ---- correctness ----
def check(case: Case) -> dict[str, Any]:
    """Errors of one case against float64, beside the one rounding to y; repeats must be bit-equal, no element left unwritten."""
    import torch

    from hybrid_humming import reference
    from hybrid_humming.pack import pack

    problem, layout, _ = problem_of(case)
    spec = problem.spec
    torch.manual_seed(case.m * 7 + case.n + case.k)
    weight = reference.quantize(torch.randn(case.n, case.k, device="cuda"), spec)
    x = reference.quantize_input(torch.randn(case.m, case.k, device="cuda"), spec)
    bias = torch.randn(case.n, device="cuda").to(torch.bfloat16) if case.bias else None
    out = torch.full((case.m, case.n), float("nan"), device="cuda", dtype=torch_dtype(str(spec.out_dtype)))
    packed = pack(weight, layout)
    zero = torch.randint(-128, 128, (case.m,), device="cuda", dtype=torch.int32) if case.zero else None
    args, plan = args_of(case, packed, x, out, bias, zero)
    run = launcher(case)
    run(args, plan)
    torch.cuda.synchronize()
    first = out.clone()
    equal = True
    for _ in range(50 if case.tile["stream_k"] else 5):
        out.fill_(float("nan"))
        run(args, plan)
        equal = equal and torch.equal(first, out)
    real = reference.dequantize_input(x, spec, torch.float64)
    if zero is not None:
        real = real - zero[:, None].double() * x.scale.double()
    exact = real @ reference.dequantize(weight, torch.float64).T
    exact = exact if bias is None else exact + bias
    err, rounding = relative(first, exact), relative(exact.to(out.dtype), exact)
    # int32 sums are exact and five roundings of fp32 follow; the tensor core's FP8 sums keep some 14 bits.
    own = 1e-6 if spec.activation == "int8" else 3e-3 if case.fast else 3e-4
    wrong = identity(case, weight, packed) if case.m < 9 else None
    return {"kind": "check", "case": case.label(), "err": err, "rounding": rounding, "equal": equal, "one_hot": wrong,
            "ok": bool(equal and err <= 1.1 * rounding + own and not wrong)}  # fmt: skip


def identity(case: Case, weight: Any, packed: Any) -> int:
    """Wrong elements when each row of x picks one column of W: codes, order and scales bit by bit (fp32 output)."""
    import torch

    from hybrid_humming import reference
    from hybrid_humming.reference.activation import QuantizedInput

    case = dataclasses.replace(case, m=8, out_dtype="fp32", bias=False)
    spec = problem_of(case)[0].spec
    columns = torch.randint(0, case.k, (case.m,), device="cuda")
    hot = torch.nn.functional.one_hot(columns, case.k)
    like = reference.quantize_input(torch.ones(case.m, case.k, device="cuda"), spec)
    scale = None if like.scale is None else (torch.ones_like(like.scale.float()).to(like.scale.dtype))
    x = QuantizedInput(hot.to(like.values.dtype), scale, like.global_scale)
    out = torch.full((case.m, case.n), float("nan"), device="cuda")
    args, plan = args_of(case, packed, x, out)
    launcher(case)(args, plan)
    want = reference.dequantize(weight, torch.float64)[:, columns].T
    return int((~torch.isclose(out.double(), want, rtol=1e-6, atol=0, equal_nan=True)).sum())


def relative(found: Any, exact: Any) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def precision() -> None:
    """Error of each way to accumulate, fp32 output where the library gives it, over K."""
    import torch

    from bench.peers import DeepGemm
    from hybrid_humming import reference
    from hybrid_humming.pack import pack
    from hybrid_humming.spec import Spec

    for k in PRECISION_K:
        w, v = torch.randn(256, k, device="cuda"), torch.randn(64, k, device="cuda")
        w[:, 0] *= 8  # the largest products come first, and the rest is added to a sum that is large already
        for spec in (FP8, BLOCK, INT8):
            parsed = Spec.parse(spec)
            weight, x = reference.quantize(w, parsed), reference.quantize_input(v, parsed)
            exact = reference.dequantize_input(x, parsed, torch.float64) @ reference.dequantize(weight, torch.float64).T
            row: dict[str, Any] = {"kind": "precision", "spec": spec, "k": k}
            for fast in (False, True) if spec == FP8 else (False,):
                case = Case(spec, 256, k, 64, "w8a8", tile(64, 64, 6, 2, False), out_dtype="fp32", fast=fast)
                layout = problem_of(case)[1]
                out = torch.empty(64, 256, device="cuda")
                args, plan = args_of(case, pack(weight, layout), x, out)
                launcher(case)(args, plan)
                row["ours fast" if fast else "ours"] = relative(out, exact)
            if spec == FP8:
                codes, scale = weight.codes.view(torch.float8_e4m3fn), weight.scale.T.contiguous()
                for fast in (False, True):
                    y = torch._scaled_mm(x.values, codes.T, scale_a=x.scale, scale_b=scale, out_dtype=torch.bfloat16,
                                         use_fast_accum=fast)  # fmt: skip
                    row["cublaslt fast" if fast else "cublaslt"] = relative(y, exact)
            if spec == BLOCK and not DeepGemm().missing():
                built = DeepGemm().build(parsed, w.to(torch.bfloat16))
                calls = built.calls(v.to(torch.bfloat16), "plain")
                calls.calls[0]()
                row["deepgemm (its own codes, against fp32 of x and W)"] = relative(calls.out, v.double() @ w.double().T)
            emit(row)


def invariant(spec: str) -> dict[str, Any]:
    """Count the rows of y that change with the tile or with the other rows of x."""
    import torch

    from hybrid_humming import reference
    from hybrid_humming.pack import pack
    from hybrid_humming.reference.activation import QuantizedInput

    cases = list(invariant_cases(spec))
    problem, layout, _ = problem_of(cases[0])
    packed = pack(reference.quantize(torch.randn(712, 4096, device="cuda"), problem.spec), layout)
    x = reference.quantize_input(torch.randn(300, 4096, device="cuda"), problem.spec)
    found = []
    for case in cases:
        for part, row in ((slice(0, 300), 37), (slice(37, 38), 0), (slice(20, 61), 17)):
            some = QuantizedInput(x.values[part], x.scale[part] if x.scale.dim() == 2 else x.scale)
            out = torch.full((some.values.shape[0], 712), float("nan"), device="cuda", dtype=torch.bfloat16)
            args, plan = args_of(dataclasses.replace(case, m=out.shape[0]), packed, some, out)
            launcher(case)(args, plan)
            found.append(out[row])
    different = [i for i, row in enumerate(found) if not torch.equal(row, found[0])]
    return {"kind": "invariant", "spec": spec, "rows": len(found), "different": different}


# ---- time ----
def peers_of(spec: Any, float_weight: Any, rows: tuple[int, ...], names: str) -> dict[str, Any]:
    """The peers that run here and cover the spec, compiled for every M."""
    from bench.peers import all_peers

    found = {}
    for peer in all_peers():
        why = peer.missing() if peer.name in names.split(",") else "not asked for"
        why = why or peer.covers(spec, *float_weight.shape)
        if why:
            emit({"kind": "no peer", "peer": peer.name, "spec": str(spec), "why": why})
            continue
        try:
            built = peer.build(spec, float_weight)
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda job: job(), built.jobs(rows, ["plain"])))
            found[peer.name] = built
        except Exception:
            emit({"kind": "no peer", "peer": peer.name, "spec": str(spec), "why": traceback.format_exc()[-400:]})
    return found


def torch_calls(spec: str, weight: Any, codes: list[Any], x: Any) -> dict[str, list[Any]]:
    """torch's own 8-bit products on the same codes: accumulation in full for FP8, int32 for INT8."""
    import torch

    if spec == FP8:
        scale, out = weight.scale.T.contiguous(), torch.empty(x.values.shape[0], weight.n, device="cuda", dtype=torch.bfloat16)
        mm = functools.partial(torch._scaled_mm, scale_a=x.scale, scale_b=scale, out_dtype=torch.bfloat16, out=out)
        return {"cublaslt": [functools.partial(mm, x.values, w.T, use_fast_accum=False) for w in codes]}
    if spec == INT8 and x.values.shape[0] > 16:
        return {"int_mm": [functools.partial(torch._int_mm, x.values, w.T) for w in codes]}
    return {}


def time_spec(spec: str, shape: tuple[int, int], rows: tuple[int, ...], budget: float, names: str) -> None:
    """Replay the graphs of every tile of an M and of the peers in turns."""
    import torch

    from bench.timer import CudaBackend, Library, Spread, copies_for, graph_of
    from hybrid_humming import reference
    from hybrid_humming.pack import pack

    began, backend, (n, k) = time.perf_counter(), CudaBackend(), shape
    every = list(time_cases(spec, shape, rows))
    problem = problem_of(every[0])[0]
    float_weight = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
    weight = reference.quantize(float_weight.float(), problem.spec)
    layouts = {c.folded: problem_of(c)[1] for c in every}
    packed = {folded: pack(weight, layout) for folded, layout in layouts.items()}
    copies = {
        folded: [dataclasses.replace(p, qweight=p.qweight.clone(), scale=p.scale.clone()) for _ in range(copies_for(p.nbytes))]
        for folded, p in packed.items()
    }
    codes = []
    if spec in (FP8, INT8):
        plain = (weight.codes ^ 128).view(torch.int8) if spec == INT8 else weight.codes.view(torch.float8_e4m3fn)
        codes = [plain.clone() for _ in copies[False]]
    peers = peers_of(problem.spec, float_weight, rows, names)
    decoded = reference.dequantize(weight, torch.float32)
    for m in rows:
        if time.perf_counter() - began > budget:
            emit({"kind": "skipped", "case": f"{spec} {n}x{k} M={m}"})
            continue
        wide = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        x = reference.quantize_input(wide.float(), problem.spec)
        out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        exact = reference.dequantize_input(x, problem.spec) @ decoded.T
        graphs, errors = {}, {}
        few = slice(0, 2 if m >= 1024 else None)
        for name, built in peers.items():
            try:
                graphs[f"{name}{' fast' if name == 'cublaslt' else ''}"] = graph_of(
                    Library(calls=built.calls(wide, "plain").calls[few]), backend)  # fmt: skip
            except Exception:
                emit({"kind": "no peer", "peer": name, "spec": spec, "why": traceback.format_exc()[-400:]})
        for name, calls in torch_calls(spec, weight, codes, x).items():
            graphs[name] = graph_of(Library(calls=calls[few]), backend)
        theirs = list(graphs)
        for case in (c for c in every if c.m == m):
            try:
                calls = []
                for copy in copies[case.folded][few]:
                    args, plan = args_of(case, copy, x, out)
                    calls.append(functools.partial(launcher(case), args, plan))
                out.fill_(float("nan"))
                calls[0]()
                errors[case.label()] = float((out.float() - exact).norm() / exact.norm())
                graphs[case.label()] = graph_of(Library(calls=calls), backend)
            except Exception:
                emit({"kind": "error", "case": case.label(), "error": traceback.format_exc()[-800:]})
        taken: dict[str, list[float]] = {name: [] for name in graphs}
        for _ in range(15):
            for name, (graph, length) in graphs.items():
                taken[name].append(backend.replay_us(graph) / length)
        spreads = {name: Spread.of(values) for name, values in taken.items()}
        base = {name: spreads[name].us for name in theirs}
        emit({"kind": "base", "spec": spec, "n": n, "k": k, "m": m, "peers": base})
        for name, err in errors.items():
            if name in spreads:
                emit({"kind": "time", "spec": spec, "n": n, "k": k, "m": m, "case": name, "us": spreads[name].us,
                      "p10": spreads[name].us_p10, "p90": spreads[name].us_p90, "err": err, "fast": " fast [" in name})  # fmt: skip
        del graphs


# ---- parts ----
def child(part: str, options: argparse.Namespace) -> None:
    kind, _, which = part.partition(":")
    began = time.perf_counter()
    if kind == "time":
        index, _, spec = which.partition("/")
        time_spec(spec, SHAPES[int(index)], options.rows, options.budget, options.peers)
    elif kind == "precision":
        precision()
    elif kind == "invariant":
        for spec in options.specs:
            emit(invariant(spec))
    else:
        index, count = (int(v) for v in which.split("/"))
        for i, case in enumerate(check_cases(options.formats, options.specs)):
            if i % count != index:
                continue
            if time.perf_counter() - began > options.budget:
                emit({"kind": "skipped", "case": case.label()})
                continue
            try:
                emit(check(case))
            except Exception:
                emit({"kind": "error", "case": case.label(), "error": traceback.format_exc()[-800:]})


def run_parts(parts: list[str], options: argparse.Namespace, budget: float, together: bool) -> None:
    """Run each part in a process that ends, one way or the other, soon after its budget."""
    each = budget if together else budget / len(parts)
    command = [
        sys.executable, "-m", "bench.a8_check", "--budget", str(each), *(["--formats"] if options.formats else []),
        "--rows", ",".join(map(str, options.rows)), "--peers", options.peers, "--specs", ";".join(options.specs), "--child",
    ]  # fmt: skip

    def finish(part: str, process: subprocess.Popen[bytes]) -> None:
        try:
            if process.wait(timeout=each + 20):
                print(f"{part}: exit code {process.returncode}")
        except subprocess.TimeoutExpired:
            process.kill()
            print(f"{part}: killed after {each + 20:.0f} s")

    if together:
        running = [(part, subprocess.Popen([*command, part])) for part in parts]
        for part, process in running:
            finish(part, process)
    else:
        for part in parts:
            finish(part, subprocess.Popen([*command, part]))


def compile_ahead(cases: list[Case], began: float) -> None:
    distinct = list({compiled_alike(c): c for c in cases}.values())
    workers = min(14, os.cpu_count() or 2)
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for case, error in zip(distinct, pool.map(precompile, distinct, chunksize=1), strict=True):
            if error:
                print(f"COMPILE {case.label()}: {error.splitlines()[-1][:300]}", flush=True)
    print(f"compiled {len(distinct)} in {time.perf_counter() - began:.0f} s", flush=True)


def table() -> None:
    rows = [json.loads(line) for line in OUT.read_text().splitlines()] if OUT.exists() else []
    checks, errors = [r for r in rows if r["kind"] == "check"], [r for r in rows if r["kind"] == "error"]
    bad = [r for r in checks if not r["ok"]]
    skipped = sum(r["kind"] == "skipped" for r in rows)
    print(f"\nchecks {len(checks)}, failed {len(bad)}, errors {len(errors)}, skipped {skipped}")
    for r in bad[:30]:
        print(f"  BAD {r['case']}: err {r['err']:.2e} rounding {r['rounding']:.2e} equal {r['equal']} one_hot {r['one_hot']}")
    for r in errors[:8]:
        print(f"  ERROR {r['case']}: {r['error'].splitlines()[-1][:200]}")
    for r in (r for r in rows if r["kind"] == "precision"):
        found = ", ".join(f"{name} {value:.1e}" for name, value in r.items() if isinstance(value, float))
        print(f"precision {r['spec']} K={r['k']}: {found}")
    for r in (r for r in rows if r["kind"] == "invariant"):
        print(f"invariant {r['spec']}: {len(r['different'])} of {r['rows']} rows differ {r['different']}")
    for why in sorted({f"{r['peer']} ({r['spec']}): {r['why'].splitlines()[-1][:150]}" for r in rows if r["kind"] == "no peer"}):
        print(f"no peer {why}")
    for base in (r for r in rows if r["kind"] == "base"):
        peers = ", ".join(f"{name} {us:.1f}" for name, us in base["peers"].items())
        print(f"{base['spec']} {base['n']}x{base['k']} M={base['m']}: {peers}")
        like = {fast: [us for name, us in base["peers"].items() if name.endswith(" fast") == fast or name == "humming"]
                for fast in (False, True)}  # fmt: skip
        same = (r for r in rows if r["kind"] == "time" and all(r[f] == base[f] for f in ("spec", "n", "k", "m")))
        for r in sorted(same, key=lambda r: r["us"]):
            best = min(like[r["fast"]], default=float("nan"))
            flag = "" if r["err"] < 4e-3 else f"  WRONG err {r['err']:.1e}"
            tail = r["case"].split("] ")[1]
            how = "fast" if r["fast"] else "folded" if " folded" in r["case"] else ""
            print(f"   {r['us']:7.1f} us  {best / r['us']:.2f}x {how:6} {tail}{flag}")


def specs_of(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(";") if part.strip())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--budget", type=float, default=500)
    parser.add_argument("--parts", default="check,precision,invariant,time")
    parser.add_argument("--formats", action="store_true", help="check every format too")
    parser.add_argument("--specs", default=DEFAULT, type=specs_of, help="formats to check and time, separated by semicolons")
    parser.add_argument("--shapes", type=int, default=1, help="how many of the three shapes to time")
    parser.add_argument("--rows", default=ROWS, type=lambda text: tuple(int(v) for v in text.split(",")))
    parser.add_argument("--peers", default=PEERS)
    parser.add_argument("--child")
    options = parser.parse_args()
    if options.child:
        child(options.child, options)
        return
    began = time.perf_counter()
    OUT.unlink(missing_ok=True)
    parts = options.parts.split(",")
    timed = [(shape, spec) for spec in options.specs for shape in range(options.shapes)]
    cases = list(check_cases(options.formats, options.specs)) if "check" in parts else []
    if "precision" in parts:
        for spec in (FP8, BLOCK, INT8):
            base = Case(spec, 256, PRECISION_K[0], 64, "w8a8", tile(64, 64, 6, 2, False), out_dtype="fp32")
            cases += [base, dataclasses.replace(base, fast=True)] if spec == FP8 else [base]
    if "invariant" in parts:
        cases += [c for spec in options.specs for c in invariant_cases(spec)]
    if "time" in parts:
        cases += [c for shape, spec in timed for c in time_cases(spec, SHAPES[shape], options.rows)]
    compile_ahead(cases, began)
    if "check" in parts:
        left = options.budget - (time.perf_counter() - began)
        run_parts([f"check:{i}/4" for i in range(4)], options, left * (0.3 if "time" in parts else 0.9), together=True)
        print(f"checked after {time.perf_counter() - began:.0f} s", flush=True)
    for part in ("precision", "invariant"):
        if part in parts:
            run_parts([part], options, 25, together=False)
    if "time" in parts:
        left = options.budget - (time.perf_counter() - began)
        run_parts([f"time:{shape}/{spec}" for shape, spec in timed], options, left, together=False)
    table()
    print(f"{time.perf_counter() - began:.0f} s in all")


if __name__ == "__main__":
    main()
