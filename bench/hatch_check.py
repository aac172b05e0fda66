"""Check the CUDA C++ kernels on a Hopper GPU and time them beside Triton's: `python -m bench.hatch_check`, under 120 s.

    versions   NVRTC, bindings, driver
    sibling    gemm.cu for sm_90a (TMA, mbarriers, wgmma; the UMMA kernel's source) against float64, ragged shapes
    small      small_m.cu (int4 x 16-bit, mma.sync) against float64
    triton     a cubin that Triton compiled, loaded and launched through the same `Compiled` and loader
    cold_cuda, cold_triton   seconds to compile one int4 x bf16 kernel, caches off, in a fresh process
    time       host microseconds a launch, and a call's time on the GPU, beside the Gluon kernel and cuBLAS
    ldmatrix   LDSM's hidden codes, S4 -> S8 and S2 -> S4, once: what comes out of which byte

Each part runs in a process of its own with a time limit: a fault or hang costs that part alone. Results: $OUT/hatch_check.jsonl,
one object a line. Where NVRTC or cuda-bindings is missing, `--carry FOLDER` names a folder of wheels' files to import from, and
`--build FILE` (on another machine) writes the cubins that `--cubins FILE` then uses in place of compiling.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import hatch_cubins

OUT = Path(os.environ.get("OUT", ".")) / "hatch_check.jsonl"
LIMITS = {"versions": 20, "sibling": 40, "small": 30, "triton": 20, "cold_cuda": 20, "cold_triton": 40, "time": 40, "ldmatrix": 20}
SM = 90

SIBLING = [  # spec, m, n, k, block_m
    ("e4m3 channel x e4m3 token", 1, 136, 144, 16), ("e4m3 channel x e4m3 token", 17, 264, 208, 16),
    ("e4m3 channel x e4m3 token", 100, 1000, 1040, 64), ("e4m3 channel x e4m3 token", 257, 4096, 4096, 128),
    ("e5m2 tensor x e4m3 token", 33, 70, 272, 32), ("e4m3 channel x e5m2 tensor -> fp32", 64, 384, 4096, 64),
]  # fmt: skip
SMALL = [
    ("int4 g128 x bf16", 1, 4096, 4096, 8), ("int4 g128 x fp16", 7, 1000, 1152, 8), ("int4 channel x bf16", 17, 136, 392, 16),
    ("int4 g256:fp32 x bf16 -> fp32", 30, 264, 4096, 32),
]  # fmt: skip


def operands(line: str, m: int, n: int, k: int, family: str, *, whole: bool, device: str = "cuda") -> tuple[Any, Any]:
    """(GemmArgs on the device, exact float64 y). whole: small integers, whose sums no accumulator rounds."""
    import torch

    from hybrid_humming import pack as packing
    from hybrid_humming.jit.args import GemmArgs
    from hybrid_humming.reference import gemm
    from hybrid_humming.reference.activation import quantize_input
    from hybrid_humming.reference.quantize import quantize
    from hybrid_humming.spec import Problem, Spec
    from hybrid_humming.weight import scan

    spec = Spec.parse(line)
    torch.manual_seed(m)
    w, x = torch.randn(n, k), torch.randn(m, k)
    if whole:
        w, x = torch.randint(-1, 2, (n, k)).float(), torch.randint(-1, 2, (m, k)).float()
    weight = quantize(w, spec)
    packed = packing.pack(weight, packing.make_layout(family, spec, n, k, facts=scan(weight)))
    real = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    if spec.quantizes_activation:
        q = quantize_input(x, spec)
        values, x_scale, x_global = q.values, q.scale, q.global_scale
    else:
        values = x = x.to(real[spec.activation])
        x_scale = x_global = None
    bias = torch.randn(n).to(real[str(spec.out_dtype)])
    exact = gemm(x, weight, bias=bias)

    def there(t: Any) -> Any:
        return None if t is None else t.to(device)

    out = torch.full((m, n), torch.nan, dtype=real[str(spec.out_dtype)], device=device)
    args = GemmArgs(
        there(values), there(packed.qweight), there(packed.scale), None, there(packed.secondary_scale), there(x_scale),
        there(x_global), there(bias), out, None, Problem(spec=spec, m=m, n=n, k=k, bias=True), packed.layout, {},
    )  # fmt: skip
    return args, exact


def tile(block_m: int) -> Any:
    from hybrid_humming.plan import Tile

    return Tile(block_m=block_m, block_n=128, block_k=128, num_stages=4)


def run_cuda(args: Any, block_m: int, family: str) -> None:
    from hybrid_humming.cuda_kernels.sm100 import launch
    from hybrid_humming.plan import Plan

    plan = Plan(kernel="cuda", tile=tile(block_m), multiplies="")
    (launch.launch if family == "umma" else launch.launch_small)(args, plan)


def check(cases: list[Any], family: str) -> dict[str, Any]:
    import torch

    rows = []
    for line, m, n, k, block_m in cases:
        for whole in (True, False):
            args, exact = operands(line, m, n, k, family, whole=whole)
            run_cuda(args, block_m, family)
            first = args.out.clone()
            run_cuda(args, block_m, family)
            torch.cuda.synchronize()
            y = args.out.cpu().double()
            error = ((y - exact).norm() / exact.norm()).item()
            # 8-bit wgmma keeps fewer bits than fp32 while it sums: a rounded y of random data may be off by more than its rounding.
            exactly = whole or family == "portable"
            limit = (3e-3 if exactly else 1e-2) if args.out.element_size() == 2 else (1e-6 if exactly else 1e-2)
            equal = bool(torch.equal(first, args.out))
            rows.append(
                {"spec": line, "m": m, "n": n, "k": k, "block_m": block_m, "whole": whole, "err_l2": error, "repeats": equal}
            )
            rows[-1]["ok"] = error < limit and equal
    return {"ok": all(row["ok"] for row in rows), "rows": rows}


def versions() -> dict[str, Any]:
    import torch
    import triton

    found: dict[str, Any] = {"torch": torch.__version__, "triton": triton.__version__, "gpu": torch.cuda.get_device_name()}
    try:
        from cuda.bindings import driver

        found["driver"] = driver.cuDriverGetVersion()[1]
        from hybrid_humming.jit import nvrtc

        found["nvrtc"] = nvrtc.nvrtc_version()
        found["nvrtc_sms"] = nvrtc.supported_sms()
    except Exception as error:
        found["missing"] = f"{type(error).__name__}: {error}"
    return {"ok": "missing" not in found, **found}


def sibling() -> dict[str, Any]:
    return check(SIBLING, "umma")


def small() -> dict[str, Any]:
    return check(SMALL, "portable")


def triton_cubin() -> dict[str, Any]:
    """tests' own scale kernel: y = 2 x, compiled by Triton, launched by the CUDA loader."""
    import re
    import struct

    import torch

    from bench.hatch_kernel import double_kernel
    from hybrid_humming.jit.compile import compile_triton
    from hybrid_humming.jit.cuda import load

    kinds = {"x_ptr": "*fp32", "y_ptr": "*fp32", "count": "i32"}
    built = compile_triton(double_kernel, kinds, {"BLOCK": 1024}, sm=SM)
    listed = re.findall(r"\.param \.(\w)(\d+)", built.asm["ptx"][: built.asm["ptx"].index(")")])
    x = torch.randn(5000, device="cuda")
    y = torch.full_like(x, torch.nan)
    params = [struct.pack("<Q", x.data_ptr()), struct.pack("<Q", y.data_ptr()), struct.pack("<i", x.numel())]
    params += [bytes(int(bits) // 8) for _, bits in listed[len(params) :]]  # Triton's scratch pointers, unused here
    kernel = load(built, sizes=[len(p) for p in params])
    kernel.launch(grid=(5, 1, 1), threads=128, params=params, stream=torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    return {"ok": bool(torch.equal(y, 2 * x)), "params": len(params), "entry": built.entry}


def cold_cuda() -> dict[str, Any]:
    """Import, compile, load, first launch; of an int4 x bf16 kernel and of the wgmma GEMM."""
    import torch

    torch.zeros(1, device="cuda")
    from hybrid_humming.cuda_kernels.sm100 import launch

    found = {}
    for family, line in (("portable", "int4 g128 x bf16"), ("umma", "e4m3 channel x e4m3 token")):
        args, _ = operands(line, 8, 512, 512, family, whole=True)
        begin = time.perf_counter()
        prepared = launch.prepare_small(args, tile(8), SM) if family == "portable" else launch.prepare(args, tile(16), SM, 132)
        compiled = time.perf_counter()
        run_cuda(args, 8 if family == "portable" else 16, family)
        torch.cuda.synchronize()
        found[line] = {
            "compile_s": compiled - begin,
            "nvrtc_s": prepared.compiled.seconds,
            "load_and_launch_s": time.perf_counter() - compiled,
            "registers": prepared.compiled.registers,
        }
    return {"ok": True, "stored": len(hatch_cubins.STORE) > 2, "kernels": found}


def cold_triton() -> dict[str, Any]:
    import torch

    import hybrid_humming as hh

    q = hh.quantize(torch.randn(512, 512), hh.Spec.parse("int4 g128 x bf16"), device="cuda")
    x = torch.randn(8, 512, device="cuda", dtype=torch.bfloat16)
    begin = time.perf_counter()
    hh.gemm(x, q)
    torch.cuda.synchronize()
    first = time.perf_counter() - begin
    begin = time.perf_counter()
    hh.gemm(x, q)
    torch.cuda.synchronize()
    plan = hh.choose_plan(hh.Problem(spec=q.spec, m=8, n=512, k=512), device="cuda")
    return {"ok": True, "first_call_s": first, "second_call_s": time.perf_counter() - begin, "plan": str(plan)}


def host_us(call: Any, count: int = 300) -> float:
    import torch

    call()
    torch.cuda.synchronize()
    spent = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(count):
            call()
        spent.append((time.perf_counter() - begin) / count * 1e6)
        torch.cuda.synchronize()
    return statistics.median(spent)


def device_us(call: Any, count: int = 50) -> float:
    """Median time of one call in a CUDA graph of `count`, warm L2."""
    import torch

    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            call()
    times = []
    for _ in range(7):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / count)
    return statistics.median(times)


def timing() -> dict[str, Any]:
    import torch

    import hybrid_humming as hh

    rows = []
    for m in (1, 8):
        args, _ = operands("int4 g128 x bf16", m, 4096, 4096, "portable", whole=False)
        dense = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        q = hh.quantize(torch.randn(4096, 4096), hh.Spec.parse("int4 g128 x bf16"), device="cuda")
        calls = {
            "small_m.cu": lambda a=args: run_cuda(a, 8, "portable"),
            "hh.gemm (Gluon)": lambda a=args, w=q: hh.gemm(a.x, w, out=a.out),
            "cuBLAS bf16": lambda a=args, w=dense: torch.mm(a.x, w.T),
        }
        for name, call in calls.items():
            rows.append({"kernel": name, "m": m, "n": 4096, "k": 4096, "host_us": host_us(call), "device_us": device_us(call)})
    for m, block_m in ((16, 16), (128, 128), (2048, 128)):
        args, _ = operands("e4m3 channel x e4m3 token", m, 4096, 4096, "umma", whole=False)
        call = lambda a=args, b=block_m: run_cuda(a, b, "umma")  # noqa: E731
        rows.append(
            {"kernel": "gemm.cu sm_90a e4m3", "m": m, "n": 4096, "k": 4096, "host_us": host_us(call), "device_us": device_us(call)}
        )
    return {"ok": True, "rows": rows}


def ldmatrix(edit: str, stride: int) -> dict[str, Any]:
    from bench.hatch_ldmatrix import attempt

    return attempt(edit, stride)


FUNCTIONS: dict[str, Any] = {
    "versions": versions, "sibling": sibling, "small": small, "triton": triton_cubin, "cold_cuda": cold_cuda,
    "cold_triton": cold_triton, "time": timing,
}  # fmt: skip
for _edit in ("none", "ldsm_s4_to_s8", "ldsm_s2_to_s4"):
    for _stride in (16, 8):
        FUNCTIONS[f"ldmatrix:{_edit}:{_stride}"] = functools.partial(ldmatrix, _edit, _stride)


def build(path: Path) -> None:
    """Compile what the parts launch, without a GPU, and write it to a file."""
    from bench import hatch_ldmatrix
    from hybrid_humming.cuda_kernels.sm100 import launch

    timed = [("e4m3 channel x e4m3 token", 8, 16), ("e4m3 channel x e4m3 token", 8, 128)]
    cases = [("umma", line, m, block_m) for line, m, _, _, block_m in SIBLING] + [("umma", *case) for case in timed]
    cases += [("portable", line, m, block_m) for line, m, _, _, block_m in SMALL] + [("portable", "int4 g128 x bf16", 8, 8)]
    for family, line, m, block_m in cases:
        args, _ = operands(line, m, 128, 256, family, whole=True, device="cpu")
        if family == "umma":
            launch.prepare(args, tile(block_m), SM, 132)
        else:
            launch.prepare_small(args, tile(block_m), SM)
    hatch_ldmatrix.build_all()
    hatch_cubins.write(path)


def run_part(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run a part in a process of its own."""
    command = [sys.executable, "-m", "bench.hatch_check", "--part", name, "--carry", str(options.carry)]
    command += ["--cubins", str(options.cubins)] if options.cubins else []
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        caches = {"TRITON_CACHE_DIR": f"{folder}/triton", "XDG_CACHE_HOME": folder, "CUDA_CACHE_DISABLE": "1"}
        limit = LIMITS.get(name.split(":")[0], 20)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit, env={**os.environ, **caches})
        except subprocess.TimeoutExpired:
            return {"part": name, "ok": False, "error": f"no answer in {limit} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        tail = (done.stderr or done.stdout).strip().splitlines()[-6:]
        return {"part": name, "ok": False, "exit": done.returncode, "error": " | ".join(tail)[-1200:]}
    return {"part": name, "seconds": time.perf_counter() - begin, **json.loads(lines[-1])}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(LIMITS), help="names, separated by commas")
    parser.add_argument("--part", help="run this one in this process and print its result")
    parser.add_argument("--carry", type=Path, default=Path(".cache/carry"), help="folder of packages, used where one is missing")
    parser.add_argument("--build", type=Path, help="compile here, without a GPU, and write the cubins to this file")
    parser.add_argument("--cubins", type=Path, help="use the cubins of this file")
    parser.add_argument("--budget", type=float, default=115.0, help="seconds in all: parts that would begin later are left out")
    options = parser.parse_args()
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
        sys.path.append(str(options.carry))
    hatch_cubins.use(options.cubins)
    if options.build:
        build(options.build)
        return 0
    if options.part:
        print(json.dumps(FUNCTIONS[options.part]()))
        return 0
    begin, failed = time.perf_counter(), []
    wanted = [name for name in FUNCTIONS if name.split(":")[0] in options.parts.split(",")]
    for name in wanted:
        row = {"part": name, "ok": False, "error": "left out: the budget is spent"}
        if time.perf_counter() - begin < options.budget:
            row = run_part(name, options)
        with OUT.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{'ok    ' if row['ok'] else 'FAILED'} {name:28} {json.dumps(row)[:400]}", flush=True)
        failed += [] if row["ok"] or name.startswith("ldmatrix") else [name]
    return len(failed)


if __name__ == "__main__":
    raise SystemExit(main())
