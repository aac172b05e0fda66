"""Time every legal tile of a problem on a GPU, and the planner's own choice beside the best: `python -m bench.sweep`.

    python -m bench.sweep --budget 300 [--specs 'int4 g128 x bf16;mxfp4 x bf16'] [--shapes 5120x25600,10240x8192] [--ms 1,16,64]

For each problem every tile that the Hopper kernels list is checked against float64 and timed roughly; the eight fastest, the choice
of the cost model and that of the tuned table are then timed again in turns. Results: $OUT/sweep.jsonl, one object a line: `time`
rows that bench.tuned_from_check reads, and a `choice` row a problem, with how much longer the planner's choice takes than the best.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import functools
import json
import multiprocessing
import os
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.hopper_check import Case, args_of, launcher, precompile, torch_dtype

OUT = Path(os.environ.get("OUT", ".")) / "sweep.jsonl"
# Shapes that no table was made from: Qwen3-32B down, Llama-3-70B qkv, a 7B's gate_up, DeepSeek-V3's o.
SHAPES = "5120x25600,10240x8192,22016x4096,7168x16384"
FINALISTS = 8


def fields_of(tile: Any) -> dict[str, Any]:
    """The sizes of a tile, and what else of it is not the default."""
    sizes = ("block_m", "block_n", "block_k", "num_warps", "num_stages")
    return {
        f.name: getattr(tile, f.name)
        for f in dataclasses.fields(tile)
        if f.name in sizes or getattr(tile, f.name) != f.default
    }  # fmt: skip


def candidates(spec: str, n: int, k: int, m: int) -> Iterator[tuple[Case, float]]:
    """Every legal tile of both kernels with the cost model's estimate in microseconds, cheapest first."""
    from hybrid_humming.device import DeviceInfo
    from hybrid_humming.pack import make_layout
    from hybrid_humming.spec import Problem, Spec
    from hybrid_humming.triton_kernels.hopper import catalog
    from hybrid_humming.weight import Facts

    device, parsed = DeviceInfo.named("h200"), Spec.parse(spec)
    layout, problem = make_layout("hopper", parsed, n, k, facts=Facts()), Problem(spec=parsed, m=m, n=n, k=k)
    found = []
    for entry in (catalog.STREAM, catalog.WGMMA):
        if entry.reject(problem, layout, device):
            continue
        for tile in entry.tiles(problem, layout, device):
            if entry.check(tile, problem, layout, device) is None:
                case = Case(spec, n, k, m, entry.name.removeprefix("gluon.gemm_"), fields_of(tile))
                found.append((case, entry.cost_us(tile, problem, layout, device)))
    yield from sorted(found, key=lambda pair: pair[1])


def planned(spec: str, n: int, k: int, m: int) -> tuple[str, dict[str, Any], str]:
    """(kernel, tile, source) of the plan that hh.gemm would run."""
    import hybrid_humming as hh

    parsed = hh.Spec.parse(spec)
    plan = hh.choose_plan(hh.Problem(spec=parsed, m=m, n=n, k=k), hh.choose_layout(parsed, n, k, "h200"), "h200")
    return plan.kernel.removeprefix("gluon.gemm_"), fields_of(plan.tile), plan.source


def sweep(spec: str, n: int, k: int, ms: list[int], until: float, emit: Any) -> None:
    """Time the tiles of every M of a shape."""
    import torch

    from bench.timer import CudaBackend, Library, Spread, copies_for, graph_of
    from hybrid_humming import reference
    from hybrid_humming.pack import make_layout, pack
    from hybrid_humming.spec import Spec
    from hybrid_humming.weight import Facts

    parsed, backend = Spec.parse(spec), CudaBackend()
    weight = reference.quantize(torch.randn(n, k, device="cuda"), parsed)
    packed = pack(weight, make_layout("hopper", parsed, n, k, facts=Facts()))
    copies = [
        dataclasses.replace(packed, qweight=packed.qweight.clone(), scale=packed.scale.clone())
        for _ in range(copies_for(packed.nbytes))
    ]
    for m in ms:
        if time.time() > until:
            emit({"kind": "skipped", "case": f"{spec} {n}x{k} M={m}"})
            continue
        dtype = torch_dtype(parsed.activation)
        x = torch.randn(m, k, device="cuda").to(dtype)
        out = torch.empty(m, n, device="cuda", dtype=dtype)
        exact = reference.gemm(x[:64], weight)
        few = copies[: 3 if m >= 1024 else None]
        graphs, errors, estimates = {}, {}, {}
        for case, estimate in candidates(spec, n, k, m):
            try:
                calls = []
                for copy in few:
                    args, plan = args_of(case, copy, x, out)
                    calls.append(functools.partial(launcher(case), args, plan))
                out.fill_(float("nan"))
                calls[0]()
                found = out[:64].double()
                whole = bool(torch.isfinite(out).all())
                errors[case.label()] = float((found - exact).norm() / exact.norm()) if whole else 1.0
                graphs[case.label()] = graph_of(Library(calls=calls), backend)
                estimates[case.label()] = estimate
            except Exception:
                emit({"kind": "error", "case": case.label(), "error": traceback.format_exc()[-600:]})
        rough = {name: min(backend.replay_us(g) / length for _ in range(3)) for name, (g, length) in graphs.items()}
        ranked = sorted(rough, key=lambda name: rough[name])
        kernel, tile, source = planned(spec, n, k, m)
        chosen = Case(spec, n, k, m, kernel, tile).label()
        model = min(estimates, key=lambda name: estimates[name]) if estimates else ""
        final = list(dict.fromkeys(ranked[:FINALISTS] + [name for name in (chosen, model) if name in graphs]))
        taken: dict[str, list[float]] = {name: [] for name in final}
        for _ in range(11):
            for name in final:
                graph, length = graphs[name]
                taken[name].append(backend.replay_us(graph) / length)
        spreads = {name: Spread.of(values) for name, values in taken.items()}
        for name in ranked:
            us = spreads[name].us if name in spreads else rough[name]
            emit({"kind": "time", "n": n, "k": k, "m": m, "case": name, "us": us, "err": errors[name],
                  "estimate_us": estimates[name], "final": name in spreads})  # fmt: skip
        if final:
            best = min(final, key=lambda name: spreads[name].us)
            emit({"kind": "choice", "spec": spec, "n": n, "k": k, "m": m, "tiles": len(ranked), "best": best,
                  "best_us": spreads[best].us, "chosen": chosen, "source": source,
                  "chosen_us": spreads[chosen].us if chosen in spreads else None,
                  "model": model, "model_us": spreads[model].us})  # fmt: skip
        del graphs


def table() -> None:
    """Print the choices, and what went wrong."""
    rows = [json.loads(line) for line in OUT.read_text().splitlines()]
    for r in rows:
        if r["kind"] == "choice":
            over = f"{r['chosen_us'] / r['best_us']:.3f}" if r["chosen_us"] else f"not among them: {r['chosen']}"
            tile = r["best"].split("] ")[1]
            print(f"{r['spec']} {r['n']}x{r['k']} M={r['m']}: best {r['best_us']:.1f} us of {r['tiles']} ({tile}); "
                  f"{r['source']} x {over}, model x {r['model_us'] / r['best_us']:.3f}")  # fmt: skip
    wrong = [r for r in rows if r["kind"] == "time" and r["err"] > 4e-3]
    errors = [r for r in rows if r["kind"] == "error"]
    print(f"{sum(r['kind'] == 'time' for r in rows)} tiles timed, {len(wrong)} wrong, {len(errors)} failed, "
          f"{sum(r['kind'] == 'skipped' for r in rows)} problems skipped")  # fmt: skip
    for r in (wrong + errors)[:12]:
        print("  ", r["case"], r.get("err"), r.get("error", "").splitlines()[-1:])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--budget", type=float, default=300)
    parser.add_argument("--specs", default="int4 g128 x bf16")
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--ms", default="1,16,64,256,1024,4096")
    options = parser.parse_args()
    until = time.time() + options.budget
    OUT.unlink(missing_ok=True)
    specs = [s.strip() for s in options.specs.split(";")]
    shapes = [tuple(int(v) for v in s.split("x")) for s in options.shapes.split(",")]
    ms = [int(m) for m in options.ms.split(",")]
    cases = [case for spec in specs for n, k in shapes for m in ms for case, _ in candidates(spec, n, k, m)]
    distinct = list({(c.spec, c.n % 16, c.kernel, str(c.tile)): c for c in cases}.values())
    with concurrent.futures.ProcessPoolExecutor(
        min(14, os.cpu_count() or 2), mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        for case, error in zip(distinct, pool.map(precompile, distinct, chunksize=2), strict=True):
            if error:
                print(f"COMPILE {case.label()}: {error.splitlines()[-1][:200]}", flush=True)
    print(f"{len(distinct)} kernels compiled, {until - time.time():.0f} s left", flush=True)

    def emit(row: dict[str, Any]) -> None:
        with OUT.open("a") as file:
            print(json.dumps(row), file=file)

    for spec in specs:
        for n, k in shapes:
            sweep(spec, n, k, ms, until, emit)
    table()


if __name__ == "__main__":
    main()
