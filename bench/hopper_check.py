"""Check the Hopper kernels on a GPU, then time tiles against the read roof and cuBLAS: `python -m bench.hopper_check`.

Every part runs in a process of its own with a time limit, so that a hang costs one part. Kernels are compiled ahead by a pool of
processes. Results: $OUT/hopper_check.jsonl, one object a line, and a short table at the end.

    python -m bench.hopper_check --budget 420 --parts check,time
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OUT = Path(os.environ.get("OUT", ".")) / "hopper_check.jsonl"
SHAPES = ((8192, 8192), (28672, 4096), (4096, 14336))


@dataclass(frozen=True)
class Case:
    """One kernel, problem and tile."""

    spec: str
    n: int
    k: int
    m: int
    kernel: str
    tile: dict[str, Any]
    bias: bool = False
    out_dtype: str | None = None

    def label(self) -> str:
        tile = " ".join(f"{k.replace('block_', 'b').replace('num_', '')}={v}" for k, v in self.tile.items())
        return f"{self.spec} [{self.m},{self.n},{self.k}] {self.kernel} {tile}"


def stream(bm: int, bn: int, bk: int, warps: int, stages: int, split: int = 1, **more: Any) -> dict[str, Any]:
    """A stream tile; as many CTAs a SM as 512 threads make."""
    tile = {"block_m": bm, "block_n": bn, "block_k": bk, "num_warps": warps, "num_stages": stages, "split_k": split}
    return tile | {"ctas_per_sm": 16 // warps} | more


# ---- running one case ----
def problem_of(case: Case) -> tuple[Any, Any, Any]:
    """(problem, layout, plan) of a case."""
    from hybrid_humming.pack import make_layout
    from hybrid_humming.plan import Plan, Tile
    from hybrid_humming.spec import Problem, Spec
    from hybrid_humming.weight import Facts

    spec = Spec.parse(case.spec)
    if case.out_dtype:
        spec = spec.replace(out_dtype=case.out_dtype)
    layout = make_layout("hopper", spec, case.n, case.k, facts=Facts())
    problem = Problem(spec=spec, m=case.m, n=case.n, k=case.k, bias=case.bias)
    plan = Plan(kernel=f"gluon.gemm_{case.kernel}", tile=Tile(**case.tile), multiplies=spec.activation)
    return problem, layout, plan


def launcher(case: Case) -> Any:
    import importlib

    return importlib.import_module(f"hybrid_humming.triton_kernels.hopper.{case.kernel}").launch


def args_of(case: Case, qweight: Any, x: Any, out: Any, bias: Any = None) -> tuple[Any, Any]:
    """(GemmArgs, plan) of a case on the device of x."""
    import torch

    from hybrid_humming.jit.args import GemmArgs

    problem, layout, plan = problem_of(case)
    tile = plan.tile
    workspace = None
    if tile.split_k > 1 or tile.stream_k:
        workspace = torch.empty(scratch_bytes(case, tile, problem, layout, x.device), dtype=torch.uint8, device=x.device)
    return GemmArgs(
        x=x, qweight=qweight.qweight, scale=qweight.scale, zero_point=qweight.zero_point,
        secondary_scale=qweight.secondary_scale, x_scale=None, x_global_scale=None, bias=bias, out=out, workspace=workspace,
        problem=problem, layout=layout, memo={},
    ), plan  # fmt: skip


def scratch_bytes(case: Case, tile: Any, problem: Any, layout: Any, device: Any) -> int:
    """Bytes that the kernel of a case passes between CTAs; at least 16, so that a tile's kernel is the same one at any M."""
    from hybrid_humming.device import DeviceInfo
    from hybrid_humming.triton_kernels.hopper import plan, wgmma_tiles

    if case.kernel == "wgmma":
        return max(16, wgmma_tiles.workspace(tile, problem, layout, DeviceInfo.of(device)))
    return plan.workspace_bytes(tile, problem, layout)


def precompile(case: Case) -> str:
    """Compile a case with no GPU into Triton's cache; an error text, or empty."""
    import torch

    from hybrid_humming.jit.offline import compiling_for
    from hybrid_humming.pack import pack
    from hybrid_humming.reference import quantize

    if case.kernel == "wgmma":  # reads sizes off the weight: shrink the problem with it
        case = dataclasses.replace(case, n=64 if case.n % 16 == 0 else 72, k=512)
    try:
        problem, layout, _ = problem_of(case)
        spec = problem.spec
        # A tiny weight of the same layout: only dtypes and alignments matter.
        rows = case.n if case.kernel == "wgmma" else 64
        small = quantize(torch.randn(rows, 512 if case.kernel == "wgmma" or spec.granularity == "group" else 256), spec)
        qweight = pack(small, _small_layout(layout, small))
        x = torch.zeros(case.m, case.k, dtype=torch_dtype(spec.activation))
        out = torch.zeros(case.m, case.n, dtype=torch_dtype(str(spec.out_dtype)))
        bias = torch.zeros(case.n, dtype=x.dtype) if case.bias else None
        args, plan = args_of(case, qweight, x, out, bias)
        with compiling_for(90) as built:
            launcher(case)(args, plan)
        if built[0].spill_bytes:
            return f"spills {built[0].spill_bytes} bytes ({built[0].registers} registers)"
        return ""
    except Exception:
        return traceback.format_exc()[-1500:]


def _small_layout(layout: Any, small: Any) -> Any:
    return dataclasses.replace(layout, n=small.n, k=small.k, padded_n=-(-small.n // 64) * 64, padded_k=-(-small.k // 64) * 64)


def torch_dtype(name: str) -> Any:
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[name]


# ---- correctness ----
def check_cases() -> Iterator[Case]:
    tiles = (
        stream(8, 64, 512, 16, 3), stream(16, 64, 512, 16, 3), stream(8, 64, 1024, 16, 2), stream(8, 32, 512, 8, 4),
        stream(8, 16, 512, 4, 4), stream(8, 64, 128, 4, 4), stream(16, 128, 256, 16, 4, 2), stream(8, 64, 256, 8, 4, 3),
        stream(32, 64, 256, 8, 3),
    )  # fmt: skip
    for tile in tiles:
        for m, n, k in ((1, 512, 1024), (7, 200, 1920), (16, 1000, 640), (33, 640, 4096)):
            yield Case("int4 g128 x bf16", n, k, m, "stream", tile)
    formats = (
        "int1 g128", "int2 g128", "int3 g128", "int5 g128", "int6 g128", "int7 g128", "int8 g128", "int8 channel",
        "uint4 g128 zp", "uint4 g32 zp", "uint8 g64 zp", "uint3 g64 zp", "uint4 g128 zp:fp32", "uint4 channel zp",
        "int4 g64", "int4 g32", "int4 g256", "int4 tensor", "int4 g32:fp32", "mxfp4", "nvfp4", "mxint4",
        "e4m3 channel", "e4m3 b128x128", "e5m2 g128", "e3m2 g32", "e2m3 g128", "e0m3 g128", "e2m1 g16:e5m2+channel", "mxfp8",
    )  # fmt: skip
    for act in ("bf16", "fp16"):
        for f in formats:
            yield Case(f"{f} x {act}", 328, 1280, 5, "stream", stream(8, 64, 512, 16, 2), bias=f.endswith("8"))
    yield Case("int4 g128 x bf16", 328, 1280, 5, "stream", stream(8, 64, 512, 16, 3), bias=True, out_dtype="fp32")
    yield Case("int4 channel x bf16", 100, 200, 3, "stream", stream(8, 64, 512, 16, 3))


def check(case: Case) -> dict[str, Any]:
    """Errors of one case against float64, beside torch's own; repeats must be bit-equal, and no element left unwritten."""
    import torch

    from hybrid_humming import reference
    from hybrid_humming.pack import pack

    problem, layout, _ = problem_of(case)
    spec = problem.spec
    torch.manual_seed(hash((case.spec, case.n, case.k, case.m)) % 2**31)
    weight = reference.quantize(torch.randn(case.n, case.k, device="cuda"), spec)
    dtype = torch_dtype(spec.activation)
    x = torch.randn(case.m, case.k, device="cuda").to(dtype)
    bias = torch.randn(case.n, device="cuda").to(dtype) if case.bias else None
    out = torch.full((case.m, case.n), float("nan"), device="cuda", dtype=torch_dtype(str(spec.out_dtype)))
    args, plan = args_of(case, pack(weight, layout), x, out, bias)
    run = launcher(case)
    run(args, plan)
    torch.cuda.synchronize()
    first = out.clone()
    equal = True
    for _ in range(50 if case.tile.get("split_k", 1) > 1 or case.tile.get("stream_k") else 5):
        out.fill_(float("nan"))
        run(args, plan)
        equal = equal and torch.equal(first, out)
    exact = reference.gemm(x, weight, bias=bias)
    rounded = x @ reference.dequantize(weight, torch.float64).to(dtype).T
    if bias is not None:
        rounded += bias
    norm = exact.norm()
    err, torch_err = float((first.double() - exact).norm() / norm), float((rounded.double() - exact).norm() / norm)
    ok = bool(equal and err <= 2 * torch_err + 1e-6)
    one_hot = identity(case, weight, layout, run) if case.m < 9 else None
    return {"kind": "check", "case": case.label(), "err": err, "torch_err": torch_err, "equal": equal, "one_hot": one_hot,
            "ok": ok and not one_hot}  # fmt: skip


def identity(case: Case, weight: Any, layout: Any, run: Any) -> int:
    """Wrong elements when each row of x picks one column of W: decoding and scaling bit by bit (fp32 output, rounding once)."""
    import torch

    from hybrid_humming import reference
    from hybrid_humming.pack import pack

    case = dataclasses.replace(case, m=min(case.m, 8), out_dtype="fp32", bias=False)
    columns = torch.randint(0, case.k, (case.m,), device="cuda")
    x = torch.nn.functional.one_hot(columns, case.k).to(torch_dtype(weight.spec.activation))
    out = torch.full((case.m, case.n), float("nan"), device="cuda")
    args, plan = args_of(case, pack(weight, layout), x, out)
    run(args, plan)
    want = reference.dequantize(weight, torch.float64)[:, columns].T
    if rounds_weights(case, weight.spec):
        eps = 2**-7 if weight.spec.activation == "bf16" else 2**-10
        return int(
            (~torch.isclose(out.double(), want, rtol=eps, atol=1e-3 if weight.spec.has_zero_point else 0, equal_nan=True)).sum()
        )
    if weight.spec.zero_point in ("fp32", "fp16", "bf16"):
        return int((~torch.isclose(out.double(), want, rtol=2**-7, atol=1e-3)).sum())
    return int((~torch.isclose(out.double(), want, rtol=1e-6, atol=0, equal_nan=True)).sum())


def rounds_weights(case: Case, spec: Any) -> bool:
    """Whether the kernel rounds the product of weight and scale to the operand type, as torch does."""
    from hybrid_humming.triton_kernels.hopper.plan import groups_in_row
    from hybrid_humming.triton_kernels.hopper.wgmma_tiles import scales_weights

    return case.kernel == "wgmma" and groups_in_row(spec) > 0 and scales_weights(spec, case.tile["block_m"])


# ---- time ----
def time_cases(shape: tuple[int, int]) -> Iterator[Case]:
    n, k = shape
    spec = "int4 g128 x bf16"
    for m in (1, 8, 16):
        bm = 8 if m <= 8 else 16
        if n == 8192:
            tiles = [
                stream(bm, 64, 512, 16, 5), stream(bm, 64, 512, 16, 4), stream(bm, 64, 1024, 16, 3), stream(bm, 64, 1024, 16, 2),
                stream(bm, 64, 256, 8, 8), stream(bm, 64, 512, 8, 4), stream(bm, 32, 512, 8, 5), stream(bm, 32, 1024, 8, 2),
                stream(bm, 32, 1024, 16, 3), stream(bm, 16, 512, 4, 4), stream(bm, 16, 512, 4, 6), stream(bm, 16, 1024, 8, 3),
                stream(bm, 64, 128, 4, 8, 4), stream(bm, 64, 256, 4, 4, 4), stream(bm, 64, 256, 8, 5, 2),
                stream(bm, 128, 256, 16, 6, 2),
                stream(bm, 128, 256, 16, 4, 4), stream(bm, 128, 256, 8, 4, 4), stream(bm, 128, 512, 16, 3, 2),
            ]  # fmt: skip
        elif n == 28672:
            tiles = [
                stream(bm, 64, 128, 4, 6), stream(bm, 64, 128, 4, 8), stream(bm, 64, 256, 4, 4), stream(bm, 64, 256, 8, 4),
                stream(bm, 64, 512, 8, 2), stream(bm, 64, 512, 16, 4), stream(bm, 128, 128, 8, 4), stream(bm, 128, 256, 8, 3),
                stream(bm, 128, 256, 16, 4), stream(bm, 32, 256, 4, 4), stream(bm, 32, 256, 4, 6), stream(bm, 64, 256, 8, 6),
            ]  # fmt: skip
        else:
            tiles = [
                stream(bm, 32, 1024, 16, 3), stream(bm, 32, 1024, 16, 4), stream(bm, 32, 512, 8, 5), stream(bm, 32, 512, 8, 8),
                stream(bm, 16, 512, 4, 6), stream(bm, 16, 1024, 8, 3), stream(bm, 16, 1024, 8, 4), stream(bm, 64, 512, 16, 5, 2),
                stream(bm, 64, 1024, 16, 3, 2), stream(bm, 64, 256, 8, 6, 4), stream(bm, 128, 256, 16, 5, 4),
                stream(bm, 32, 256, 4, 6, 4),
            ]  # fmt: skip
        for tile in tiles:
            yield Case(spec, n, k, m, "stream", tile)


def baselines(backend: Any, buffers: list[Any], sink: Any, dense: list[Any], x: Any, out: Any) -> dict[str, tuple[Any, int]]:
    """Graphs of the read roof in four settings, and of cuBLAS."""
    import torch

    from bench.read_kernel import read
    from bench.timer import Library, graph_of

    graphs = {}
    for config in ((1024, 4, 4, 2), (1024, 4, 4, 4), (2048, 8, 4, 1), (2048, 8, 2, 4)):
        calls = [functools.partial(read, b, sink, config, False) for b in buffers]
        graphs[f"roof {config}"] = graph_of(Library(calls=calls), backend)
    graphs["cublas"] = graph_of(Library(calls=[functools.partial(torch.mm, x, w.T, out=out) for w in dense]), backend)
    return graphs


def time_part(shape: tuple[int, int], budget: float, emit: Any) -> None:
    """Time every case of a shape; each M begins and ends with the roof, and cuBLAS stands beside."""
    import torch

    from bench.timer import CudaBackend, Library, Spread, copies_for, graph_of
    from hybrid_humming import reference
    from hybrid_humming.pack import pack

    began = time.perf_counter()
    backend = CudaBackend()
    n, k = shape
    cases = list(time_cases(shape))
    problem, layout, _ = problem_of(cases[0])
    weight = reference.quantize(torch.randn(n, k, device="cuda"), problem.spec)
    packed = pack(weight, layout)
    nbytes = packed.nbytes

    def clone() -> Any:
        return dataclasses.replace(packed, qweight=packed.qweight.clone(), scale=packed.scale.clone())

    copies = [clone() for _ in range(copies_for(nbytes))]
    dense = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(3)]

    def sample(graphs: dict[str, tuple[Any, int]], samples: int = 15) -> dict[str, Spread]:
        taken: dict[str, list[float]] = {name: [] for name in graphs}
        for _ in range(samples):
            for name, (graph, length) in graphs.items():
                taken[name].append(backend.replay_us(graph) / length)
        return {name: Spread.of(v) for name, v in taken.items()}

    for m in sorted({c.m for c in cases}):
        x = torch.randn(m, k, device="cuda").to(torch.bfloat16)
        out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        total = nbytes + 2 * m * (n + k)
        buffers = [torch.randint(-(2**31), 2**31 - 1, (total // 4,), device="cuda", dtype=torch.int32) for _ in copies]
        sink = torch.zeros(100_000, dtype=torch.int32, device="cuda")
        graphs = baselines(backend, buffers, sink, dense, x, out)
        base = sample(graphs)
        roof = min(s.us for name, s in base.items() if name.startswith("roof"))
        emit({"kind": "base", "n": n, "k": k, "m": m, "bytes": total, "roof_us": roof, "cublas_us": base["cublas"].us,
              "all": {name: s.us for name, s in base.items()}})  # fmt: skip
        exact = reference.gemm(x, weight)
        for case in (c for c in cases if c.m == m):
            if time.perf_counter() - began > budget:
                emit({"kind": "skipped", "case": case.label()})
                continue
            try:
                calls = []
                for copy in copies:
                    args, plan = args_of(case, copy, x, out)
                    calls.append(functools.partial(launcher(case), args, plan))
                out.fill_(float("nan"))
                calls[0]()
                err = float((out.double() - exact).norm() / exact.norm())
                spread = sample({"ours": graph_of(Library(calls=calls), backend)})["ours"]
                emit({"kind": "time", "n": n, "k": k, "m": m, "case": case.label(), "us": spread.us, "p10": spread.us_p10,
                      "p90": spread.us_p90, "err": err, "roof_us": roof, "share": roof / spread.us})  # fmt: skip
            except Exception:
                emit({"kind": "error", "case": case.label(), "error": traceback.format_exc()[-800:]})
        del graphs, buffers


# ---- parts ----
def emitter() -> Any:
    file = OUT.open("a")

    def emit(row: dict[str, Any]) -> None:
        print(json.dumps(row), file=file, flush=True)

    return emit


def child(part: str, budget: float) -> None:
    emit = emitter()
    if part.startswith("check"):
        index, count = (int(v) for v in part.split(":")[1].split("/"))
        began = time.perf_counter()
        for i, case in enumerate(check_cases()):
            if i % count != index:
                continue
            if time.perf_counter() - began > budget:
                emit({"kind": "skipped", "case": case.label()})
                continue
            try:
                emit(check(case))
            except Exception:
                emit({"kind": "error", "case": case.label(), "error": traceback.format_exc()[-800:]})
    else:
        time_part(SHAPES[int(part.split(":")[1])], budget, emit)


def run_children(parts: list[str], budget: float, together: bool) -> None:
    """Run each part in a process that ends, one way or the other, soon after its budget."""

    def start(part: str, seconds: float) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", "bench.hopper_check", "--child", part, "--budget", str(seconds)])

    def finish(part: str, process: subprocess.Popen[bytes], seconds: float) -> None:
        try:
            code = process.wait(timeout=seconds + 45)
            if code:
                print(f"{part}: exit code {code}")
        except subprocess.TimeoutExpired:
            process.kill()
            print(f"{part}: killed after {seconds + 45:.0f} s")

    if together:
        running = [(p, start(p, budget)) for p in parts]
        for part, process in running:
            finish(part, process, budget)
    else:
        for part in parts:
            finish(part, start(part, budget / len(parts)), budget / len(parts))


def table() -> None:
    rows = [json.loads(line) for line in OUT.read_text().splitlines()]
    checks = [r for r in rows if r["kind"] == "check"]
    bad = [r for r in checks if not r["ok"]]
    errors = [r for r in rows if r["kind"] == "error"]
    print(f"\nchecks {len(checks)}, failed {len(bad)}, errors {len(errors)}, skipped {sum(r['kind'] == 'skipped' for r in rows)}")
    for r in bad[:25]:
        print(f"  BAD {r['case']}: err {r['err']:.2e} torch {r['torch_err']:.2e} equal {r['equal']} one_hot {r['one_hot']}")
    for r in errors[:8]:
        print(f"  ERROR {r['case']}: {r['error'].splitlines()[-1][:160]}")
    for base in (r for r in rows if r["kind"] == "base"):
        print(f"{base['n']}x{base['k']} M={base['m']}: roof {base['roof_us']:.2f} us, cuBLAS bf16 {base['cublas_us']:.2f} us")
        times = sorted((r for r in rows if r["kind"] == "time" and (r["n"], r["k"], r["m"]) == (base["n"], base["k"], base["m"])),
                       key=lambda r: r["us"])  # fmt: skip
        for r in times[:7] + times[7:][-1:]:
            flag = "" if r["err"] < 4e-3 else f"  WRONG err {r['err']:.1e}"
            print(f"   {r['us']:6.2f} us  {100 * r['share']:3.0f} %  {r['case'].split('] ')[1]}{flag}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--budget", type=float, default=420)
    parser.add_argument("--parts", default="check,time")
    parser.add_argument("--child")
    options = parser.parse_args()
    if options.child:
        child(options.child, options.budget)
        return
    began = time.perf_counter()
    OUT.unlink(missing_ok=True)
    parts = options.parts.split(",")
    cases = list(check_cases()) if "check" in parts else []
    if "time" in parts:
        cases += [c for shape in SHAPES for c in time_cases(shape)]
    workers = min(14, os.cpu_count() or 2)
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for case, error in zip(cases, pool.map(precompile, cases, chunksize=1), strict=True):
            if error:
                print(f"COMPILE {case.label()}: {error.splitlines()[-1][:300]}", flush=True)
    print(f"compiled {len(cases)} in {time.perf_counter() - began:.0f} s", flush=True)
    left = options.budget - (time.perf_counter() - began)
    if "check" in parts:
        run_children([f"check:{i}/4" for i in range(4)], left * 0.3, together=True)
        print(f"checked after {time.perf_counter() - began:.0f} s", flush=True)
    left = options.budget - (time.perf_counter() - began)
    if "time" in parts:
        run_children([f"time:{i}" for i in range(len(SHAPES))], left, together=False)
    table()
    print(f"{time.perf_counter() - began:.0f} s in all")


if __name__ == "__main__":
    main()
