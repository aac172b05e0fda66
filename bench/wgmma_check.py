"""Check the wgmma kernel on a GPU, then time its tiles beside cuBLAS, interleaved: `python -m bench.wgmma_check`.

Cases, checks and the pool of compilers are bench.hopper_check's. Every part runs in a process of its own with a time limit, so
that a hang costs one part. Results: $OUT/wgmma_check.jsonl, one object a line, and a short table at the end.

    python -m bench.wgmma_check --budget 230 [--parts check,invariant,time] [--formats] [--specs 'mxfp4 x bf16;nvfp4 x bf16']

`check` compares with float64, `invariant` a row alone with the same row among others, for tiles that keep K whole; `time` takes
int4 g128 at three shapes, or the formats of --specs at the first shape.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.hopper_check import SHAPES, Case, args_of, check, launcher, precompile, problem_of

OUT = Path(os.environ.get("OUT", ".")) / "wgmma_check.jsonl"
ROWS = (32, 64, 128, 256, 512, 1024, 4096)
MAIN = "int4 g128 x bf16"
INVARIANT = (MAIN, "mxfp4 x bf16", "e4m3 channel x bf16", "nvfp4 x bf16")
FORMATS = (
    "int1 g128", "int2 g128", "int3 g128", "int5 g128", "int6 g128", "int7 g128", "int8 g128", "int8 channel",
    "uint4 g128 zp", "uint4 g32 zp", "uint8 g64 zp", "uint3 g64 zp", "uint4 g128 zp:fp32", "uint4 channel zp",
    "int4 g64", "int4 g32", "int4 g16", "int4 g256", "int4 tensor", "int4 g32:fp32", "mxfp4", "nvfp4", "mxint4",
    "e4m3 channel", "e4m3 b128x128", "e5m2 g128", "e3m2 g32", "e2m3 g128", "e0m3 g128", "e2m1 g16:e5m2+channel", "mxfp8",
)  # fmt: skip


def tile(bm: int, bn: int, stages: int, ctas: int = 1, stream_k: bool = True, raster: int = 0, **more: Any) -> dict[str, Any]:
    """A wgmma tile."""
    return {"block_m": bm, "block_n": bn, "block_k": 128, "num_warps": bn // 16, "num_stages": stages, "ctas_per_sm": ctas,
            "stream_k": stream_k, "raster_m": raster} | more  # fmt: skip


TILES = {
    32: (tile(32, 64, 6, 2), tile(32, 128, 8, 1), tile(32, 128, 4, 2), tile(32, 64, 4, 3)),
    64: (tile(64, 64, 5, 2), tile(64, 128, 8, 1), tile(32, 128, 4, 2)),
    128: (tile(128, 64, 3, 2), tile(128, 128, 5, 1), tile(64, 128, 8, 1), tile(64, 64, 5, 2)),
    256: (tile(128, 128, 5, 1), tile(256, 128, 3, 1), tile(128, 128, 5, 1, False), tile(128, 64, 3, 2)),
    512: (
        tile(128, 64, 3, 2, False, 4),
        tile(128, 128, 5, 1, False),
        tile(256, 128, 3, 1, False),
        tile(256, 128, 3, 1),
        tile(128, 128, 5, 1),
    ),
    1024: (tile(256, 128, 3, 1, False, 4), tile(256, 128, 3, 1, True, 4), tile(128, 128, 5, 1, False, 8)),
    4096: (tile(256, 128, 3, 1, False, 4), tile(256, 128, 3, 1, False, 8), tile(256, 128, 3, 1, True, 8)),
}


def check_cases(formats: bool) -> Iterator[Case]:
    tiles = (
        tile(16, 64, 6, 2), tile(32, 64, 6, 2), tile(32, 128, 4, 2), tile(64, 64, 5, 2), tile(64, 128, 8, 1),
        tile(128, 64, 3, 2), tile(128, 128, 5, 1), tile(128, 128, 5, 1, False, 8), tile(256, 128, 3, 1, True, 4),
        tile(256, 128, 3, 1, False, 4), tile(64, 64, 5, 2, True, 0, dependent_launch=True),
    )  # fmt: skip
    for one in tiles:
        # Ragged rows and columns; K off the step; tiles shared by many CTAs; several tiles a CTA.
        for m, n, k in ((5, 200, 1920), (17, 1000, 640), (300, 2304, 4096), (129, 20000, 1024)):
            yield Case(MAIN, n, k, m, "wgmma", one)
    yield Case(MAIN, 328, 1280, 40, "wgmma", tile(64, 64, 5, 2), True, "fp32")
    yield Case("int4 channel x bf16", 100, 200, 33, "wgmma", tile(64, 64, 5, 2))
    if formats:
        for act in ("bf16", "fp16"):
            for name in FORMATS:
                for one in (tile(32, 64, 3), tile(128, 128, 3, 1, False)):
                    case = Case(f"{name} x {act}", 328, 1280, 7, "wgmma", one, bias=name.endswith("8"))
                    if allowed(case):
                        yield case


def allowed(case: Case) -> bool:
    """Whether the kernel takes a case at all, and its tile on an H200."""
    from hybrid_humming.device import DeviceInfo
    from hybrid_humming.triton_kernels.hopper import wgmma_tiles

    problem, layout, plan = problem_of(case)
    device = DeviceInfo.named("h200")
    return not wgmma_tiles.reject(problem, layout, device) and not wgmma_tiles.check(plan.tile, problem, layout, device)


def time_cases(shape: tuple[int, int], spec: str = MAIN) -> Iterator[Case]:
    n, k = shape
    for m in ROWS:
        for one in TILES[m]:
            while one["num_stages"] > 2 and not allowed(Case(spec, n, k, m, "wgmma", one)):
                one = one | {"num_stages": one["num_stages"] - 1}
            case = Case(spec, n, k, m, "wgmma", one)
            if allowed(case):
                yield case


def invariant_tiles() -> Iterator[dict[str, Any]]:
    """Tiles that keep K whole."""
    for bm, bn, stages in ((16, 64, 6), (32, 64, 6), (64, 128, 6), (128, 128, 4), (256, 128, 3)):
        yield tile(bm, bn, stages, 1, False)


def invariant(spec: str) -> dict[str, Any]:
    """Count the rows of y that change with the tile or with the other rows of x."""
    import torch

    from hybrid_humming import reference
    from hybrid_humming.pack import pack

    n, k, cases = 712, 4096, [Case(spec, 712, 4096, 300, "wgmma", one) for one in invariant_tiles()]
    problem, layout, _ = problem_of(cases[0])
    packed = pack(reference.quantize(torch.randn(n, k, device="cuda"), problem.spec), layout)
    x = torch.randn(300, k, device="cuda").to(torch.bfloat16)
    found = []
    for case in cases:
        for rows in (x, x[37:38], x[20:61]):
            out = torch.full((rows.shape[0], n), float("nan"), device="cuda", dtype=torch.bfloat16)
            args, plan = args_of(dataclasses.replace(case, m=rows.shape[0]), packed, rows, out)
            launcher(case)(args, plan)
            found.append({300: out[37], 1: out[0], 41: out[17]}[rows.shape[0]])
    different = [i for i, row in enumerate(found) if not torch.equal(row, found[0])]
    return {"kind": "invariant", "spec": spec, "rows": len(found), "different": different}


def emit(row: dict[str, Any]) -> None:
    with OUT.open("a") as file:
        print(json.dumps(row), file=file)


def time_shape(shape: tuple[int, int], budget: float, spec: str = MAIN) -> None:
    """Replay the graphs of every tile of an M and of cuBLAS in turns."""
    import torch

    from bench.timer import CudaBackend, Library, Spread, copies_for, graph_of
    from hybrid_humming import reference
    from hybrid_humming.pack import pack

    began, backend, (n, k) = time.perf_counter(), CudaBackend(), shape
    problem, layout, _ = problem_of(Case(spec, n, k, 1, "wgmma", TILES[32][0]))
    weight = reference.quantize(torch.randn(n, k, device="cuda"), problem.spec)
    packed = pack(weight, layout)
    copies = [
        dataclasses.replace(packed, qweight=packed.qweight.clone(), scale=packed.scale.clone())
        for _ in range(copies_for(packed.nbytes))
    ]
    decoded = reference.dequantize(weight, torch.float32).to(torch.bfloat16)
    dense = [decoded.clone() for _ in range(3)]
    for m in ROWS:
        x = torch.randn(m, k, device="cuda").to(torch.bfloat16)
        out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        if time.perf_counter() - began > budget:
            emit({"kind": "skipped", "case": f"{n}x{k} M={m}"})
            continue
        want = x.float() @ weight_rows(weight).T if m <= 512 else None
        few = slice(0, 2 if m >= 1024 else None)
        graphs = {"cublas": graph_of(
            Library(calls=[functools.partial(torch.mm, x, w.T, out=out) for w in dense[few]]), backend)}  # fmt: skip
        errors = {}
        for case in (c for c in time_cases(shape, spec) if c.m == m):
            try:
                calls = []
                for copy in copies[few]:
                    args, plan = args_of(case, copy, x, out)
                    calls.append(functools.partial(launcher(case), args, plan))
                out.fill_(float("nan"))
                calls[0]()
                exact = x.float() @ decoded.float().T if want is None else want
                errors[case.label()] = float((out.float() - exact).norm() / exact.norm())
                graphs[case.label()] = graph_of(Library(calls=calls), backend)
            except Exception:
                emit({"kind": "error", "case": case.label(), "error": traceback.format_exc()[-800:]})
        taken: dict[str, list[float]] = {name: [] for name in graphs}
        for _ in range(15):
            for name, (graph, length) in graphs.items():
                taken[name].append(backend.replay_us(graph) / length)
        base = Spread.of(taken["cublas"])
        emit({"kind": "base", "spec": spec, "n": n, "k": k, "m": m, "cublas_us": base.us, "p10": base.us_p10, "p90": base.us_p90})
        for name, err in errors.items():
            spread = Spread.of(taken[name]) if name in taken else None
            if spread:
                emit({"kind": "time", "spec": spec, "n": n, "k": k, "m": m, "case": name, "us": spread.us, "p10": spread.us_p10,
                      "p90": spread.us_p90, "err": err, "cublas_us": base.us})  # fmt: skip
        del graphs


def weight_rows(weight: Any) -> Any:
    """The weight in fp32, unrounded."""
    import torch

    from hybrid_humming import reference

    return reference.dequantize(weight, torch.float32)


def child(part: str, budget: float, formats: bool) -> None:
    kind, _, which = part.partition(":")
    if kind == "time":
        time_shape(SHAPES[int(which)], budget)
        return
    if kind == "spec":
        time_shape(SHAPES[0], budget, which)
        return
    if kind == "invariant":
        for spec in INVARIANT:
            emit(invariant(spec))
        return
    index, count = (int(v) for v in which.split("/"))
    began = time.perf_counter()
    for i, case in enumerate(check_cases(formats)):
        if i % count != index:
            continue
        if time.perf_counter() - began > budget:
            emit({"kind": "skipped", "case": case.label()})
            continue
        try:
            emit(check(case))
        except Exception:
            emit({"kind": "error", "case": case.label(), "error": traceback.format_exc()[-800:]})


def run_parts(parts: list[str], budget: float, formats: bool, together: bool) -> None:
    """Run each part in a process that ends, one way or the other, soon after its budget."""
    each = budget if together else budget / len(parts)
    command = [sys.executable, "-m", "bench.wgmma_check", "--budget", str(each), *(["--formats"] if formats else []), "--child"]

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


def table() -> None:
    rows = [json.loads(line) for line in OUT.read_text().splitlines()]
    checks, errors = [r for r in rows if r["kind"] == "check"], [r for r in rows if r["kind"] == "error"]
    bad = [r for r in checks if not r["ok"]]
    skipped = sum(r["kind"] == "skipped" for r in rows)
    print(f"\nchecks {len(checks)}, failed {len(bad)}, errors {len(errors)}, skipped {skipped}")
    for r in bad[:30]:
        print(f"  BAD {r['case']}: err {r['err']:.2e} torch {r['torch_err']:.2e} equal {r['equal']} one_hot {r['one_hot']}")
    for r in errors[:8]:
        print(f"  ERROR {r['case']}: {r['error'].splitlines()[-1][:200]}")
    for r in (r for r in rows if r["kind"] == "invariant"):
        print(f"invariant {r['spec']}: {len(r['different'])} of {r['rows']} rows differ {r['different']}")
    for base in (r for r in rows if r["kind"] == "base"):
        print(f"{base['spec']} {base['n']}x{base['k']} M={base['m']}: cuBLAS bf16 {base['cublas_us']:.1f} us")
        same = (r for r in rows if r["kind"] == "time" and all(r[f] == base[f] for f in ("spec", "n", "k", "m")))
        for r in sorted(same, key=lambda r: r["us"]):
            flag = "" if r["err"] < 4e-3 else f"  WRONG err {r['err']:.1e}"
            print(f"   {r['us']:7.1f} us  {r['cublas_us'] / r['us']:.2f}x  {r['case'].split('] ')[1]}{flag}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--budget", type=float, default=230)
    parser.add_argument("--parts", default="check,time")
    parser.add_argument("--formats", action="store_true", help="check every format too")
    parser.add_argument("--specs", default="", help="formats to time, separated by semicolons; without: int4 g128 at three shapes")
    parser.add_argument("--child")
    options = parser.parse_args()
    if options.child:
        child(options.child, options.budget, options.formats)
        return
    began = time.perf_counter()
    OUT.unlink(missing_ok=True)
    parts = options.parts.split(",")
    cases = list(check_cases(options.formats)) if "check" in parts else []
    if "invariant" in parts:
        cases += [Case(spec, 712, 4096, 300, "wgmma", one) for spec in INVARIANT for one in invariant_tiles()]
    specs = [s.strip() for s in options.specs.split(";") if s.strip()]
    if "time" in parts:
        wanted = [(SHAPES[0], spec) for spec in specs] or [(shape, MAIN) for shape in SHAPES]
        cases += [c for shape, spec in wanted for c in time_cases(shape, spec)]
    distinct = list({(c.spec, c.n % 16, c.bias, c.out_dtype, str(c.tile)): c for c in cases}.values())
    workers = min(14, os.cpu_count() or 2)
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for case, error in zip(distinct, pool.map(precompile, distinct, chunksize=1), strict=True):
            if error:
                print(f"COMPILE {case.label()}: {error.splitlines()[-1][:300]}", flush=True)
    print(f"compiled {len(distinct)} in {time.perf_counter() - began:.0f} s", flush=True)
    if "check" in parts:
        left = options.budget - (time.perf_counter() - began)
        share = left * (0.35 if "time" in parts else 0.9)
        run_parts([f"check:{i}/4" for i in range(4)], share, options.formats, together=True)
        print(f"checked after {time.perf_counter() - began:.0f} s", flush=True)
    if "invariant" in parts:
        run_parts(["invariant"], 20, options.formats, together=False)
    if "time" in parts:
        left = options.budget - (time.perf_counter() - began)
        run_parts(
            [f"spec:{spec}" for spec in specs] or [f"time:{i}" for i in range(len(SHAPES))], left, options.formats, together=False
        )
    table()
    print(f"{time.perf_counter() - began:.0f} s in all")


if __name__ == "__main__":
    main()
