"""Check and time the portable kernels on this GPU: correctness first, then every tile of the catalog beside torch.

    python bench/portable_check.py [--n 8192 --k 8192 --spec "int4 g128 x bf16"]

Times are of CUDA-graph replays that cycle over weight copies of more than the L2 cache, median of 20; "torch" is the bf16
matmul of the same sizes, replayed in turns with ours. A tile whose result is wrong gets no time.
"""

import argparse
import importlib
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import hybrid_humming as hh
from hybrid_humming.device import DeviceInfo
from hybrid_humming.jit.args import GemmArgs
from hybrid_humming.plan import KernelEntry, Plan, Tile
from hybrid_humming.triton_kernels.portable.catalog import DEQUANT_MATMUL, ENTRIES, GEMM, GEMV

MS = (1, 2, 16, 64, 256, 1024)
EXTRA: dict[str, list[Tile]] = {  # beside the catalog's own
    GEMV.name: [
        Tile(block_m=1, block_n=n, block_k=k, num_warps=w, num_stages=2, split_k=s, mma="fma")
        for n, k, w in ((128, 128, 4), (256, 128, 4), (128, 256, 4), (64, 128, 2), (512, 128, 8))
        for s in (4, 8, 16, 32)
    ],
    GEMM.name: [
        Tile(block_m=16, block_n=n, block_k=k, num_warps=w, num_stages=st, split_k=s, mma="mma_sync")
        for n, k, w, st in ((128, 128, 8, 4), (64, 128, 4, 5), (64, 256, 4, 3), (128, 64, 4, 5), (32, 256, 4, 4))
        for s in (2, 4, 8)
    ]
    + [
        Tile(block_m=m, block_n=n, block_k=k, num_warps=w, num_stages=st, split_k=s, mma="wgmma")
        for m, n, k, w, st in ((64, 64, 64, 4, 4), (64, 128, 128, 8, 3), (64, 256, 64, 8, 3), (128, 256, 64, 8, 3))
        for s in (1, 2, 4)
    ],
    DEQUANT_MATMUL.name: [
        Tile(block_n=n, block_k=k, num_warps=w, num_stages=2, mma="library")
        for n, k, w in ((128, 128, 4), (128, 64, 4), (256, 64, 4), (256, 128, 8), (64, 256, 4))
    ],
}


def graph_of(calls) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def median_us(graphs: list[torch.cuda.CUDAGraph], calls: int, rounds: int = 20) -> list[float]:
    """Median microseconds of one call in each graph; the graphs are replayed in turns."""
    times: list[list[float]] = [[] for _ in graphs]
    for _ in range(rounds):
        for graph, found in zip(graphs, times, strict=True):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            found.append(begin.elapsed_time(end) * 1e3 / calls)
    return [statistics.median(t) for t in times]


class Bench:
    """Copies of one weight, x of each M, and the truth."""

    def __init__(self, line: str, n: int, k: int) -> None:
        self.spec, self.n, self.k = hh.Spec.parse(line), n, k
        self.device = DeviceInfo.of("cuda")
        weight = torch.randn(n, k, device="cuda") * 0.1
        first = hh.quantize(weight, self.spec, layout="portable")
        self.layout = first.layout
        copies = max(2, -(-2 * self.device.l2_bytes // first.nbytes) + 1)
        self.weights = [first] + [
            first.replace(qweight=first.qweight.clone(), scale=first.scale.clone()) for _ in range(copies - 1)
        ]
        self.dense = hh.dequantize(first)
        dtype = self.spec.activation_format.torch_storage
        self.torch_weights = [self.dense.to(dtype).clone() for _ in range(max(2, -(-2 * self.device.l2_bytes // (2 * n * k)) + 1))]
        self.dtype = dtype

    def prepare(self, entry: KernelEntry, tile: Tile, m: int, x, outs):
        """Calls of the kernel, one a weight copy, and the last output; None when the tile is refused."""
        problem = hh.Problem(spec=self.spec, m=m, n=self.n, k=self.k)
        if entry.reject(problem, self.layout, self.device) or entry.check(tile, problem, self.layout, self.device):
            return None
        need = entry.workspace(tile, problem, self.layout, self.device)
        workspace = torch.empty(need, dtype=torch.uint8, device="cuda") if need else None
        plan = Plan(kernel=entry.name, tile=tile, multiplies=entry.multiplies(problem, self.device), workspace_bytes=need)
        module, _, function = entry.launcher.partition(":")
        launch = getattr(importlib.import_module(module), function)
        calls = []
        for weight, out in zip(self.weights, outs, strict=True):
            args = GemmArgs(
                x, weight.qweight, weight.scale, weight.zero_point, weight.secondary_scale, None, None, None, out, workspace,
                problem, self.layout, {},
            )  # fmt: skip
            calls.append(lambda args=args: launch(args, plan))
        return calls

    def run(self, m: int, deadline: float) -> list[tuple[float, str]]:
        x = torch.randn(m, self.k, device="cuda").to(self.dtype)
        outs = [torch.empty(m, self.n, dtype=self.dtype, device="cuda") for _ in self.weights]
        truth = x.double() @ self.dense.double().T
        limit = 2 * ((x @ self.torch_weights[0].T).double() - truth).norm()
        torch_outs = [torch.empty(m, self.n, dtype=self.dtype, device="cuda") for _ in self.torch_weights]
        torch_calls = [lambda w=w, o=o: torch.mm(x, w.T, out=o) for w, o in zip(self.torch_weights, torch_outs, strict=True)]
        torch_calls[0]()
        reference = graph_of(torch_calls)
        rows, torch_us = [], []
        problem = hh.Problem(spec=self.spec, m=m, n=self.n, k=self.k)
        for entry in ENTRIES:
            if entry.reject(problem, self.layout, self.device):
                continue
            own = list(entry.tiles(problem, self.layout, self.device))
            extra = [t.replace(block_m=1 << (m - 1).bit_length()) if entry is GEMV else t for t in EXTRA[entry.name]]
            for tile in dict.fromkeys(own + extra):
                if time.monotonic() > deadline:
                    print(f"M={m}: out of time, tiles left out")
                    break
                try:
                    calls = self.prepare(entry, tile, m, x, outs)
                    if calls is None:
                        continue
                    outs[0].fill_(float("nan"))
                    calls[0]()
                    error = (outs[0].double() - truth).norm()
                    if not error <= limit:
                        print(f"WRONG  M={m} {entry.name} [{tile}]: error {error:.3e}, limit {limit:.3e}")
                        continue
                    us, ref = median_us([graph_of(calls), reference], 1)
                    us, ref = us / len(calls), ref / len(torch_calls)
                except Exception as problem_found:  # a tile that does not compile is a result of its own
                    print(f"FAILED M={m} {entry.name} [{tile}]: {str(problem_found)[:200]}")
                    continue
                source = "catalog" if tile in own else "extra"
                cost = entry.cost_us(tile, problem, self.layout, self.device)
                rows.append((us, f"{entry.name:24} {source:7} model {cost:7.1f}  {tile}"))
                torch_us.append(ref)
        rows.sort()
        print(f"\nM={m}: torch {statistics.median(torch_us):.1f} us, {len(rows)} tiles")
        for us, text in rows[:8]:
            print(f"  {us:8.1f} us  {text}")
        chosen = hh.choose_plan(problem, self.layout, self.device)
        planned = next((us for us, text in rows if chosen.kernel in text and text.endswith(str(chosen.tile))), float("nan"))
        return [(rows[0][0], rows[0][1]), (statistics.median(torch_us), "torch"), (planned, str(chosen))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=8192)
    parser.add_argument("--k", type=int, default=8192)
    parser.add_argument("--spec", default="int4 g128 x bf16")
    parser.add_argument("--seconds", type=float, default=110.0)
    parser.add_argument("--m", type=int, nargs="*", default=list(MS))
    options = parser.parse_args()
    torch.manual_seed(0)
    bench = Bench(options.spec, options.n, options.k)
    begin, table = time.monotonic(), []
    for i, m in enumerate(options.m):
        deadline = begin + options.seconds * (i + 1) / len(options.m)
        table.append((m, bench.run(m, deadline)))
    print(f"\n{options.spec} N={options.n} K={options.k} on {bench.device.name}, torch {torch.__version__}; us")
    print(f"{'M':>5} {'best':>8} {'planned':>8} {'torch':>8} {'torch/best':>10}  best tile")
    for m, ((us, text), (ref, _), (planned, plan)) in table:
        print(f"{m:5} {us:8.1f} {planned:8.1f} {ref:8.1f} {ref / us:10.2f}  {' '.join(text.split())}   planned: {plan}")


if __name__ == "__main__":
    main()
