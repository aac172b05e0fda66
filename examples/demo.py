"""A real model's linear layers quantized in several formats and run on real sentences; scripts/demo sets up what it needs.

    python examples/demo.py                  on the GPU if there is one, else on the CPU
    python examples/demo.py --layers         a row for each of the 37 layers
    python examples/demo.py --spec "int3 g128 x bf16" --spec "mxfp4 x e4m3 token"

Exit code 1 if a result is not finite, or a kernel disagrees with the CPU backend.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import minilm
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor

import hybrid_humming as hh
from hybrid_humming.plan import m_bucket

SPECS = (
    "int8 channel x bf16",
    "int4 g128 x bf16",
    "uint3 g64 zp x fp16",
    "mxfp4 x bf16",
    "nvfp4 x bf16",
    "e4m3 channel x e4m3 token",
    "int4 g128 x int8 token",
)
AGREE = 4e-3  # most relative L2 distance of two results that differ in the order of the sum and one rounding to bf16 or fp16


@dataclass
class Row:
    """What one layer came to, or the layers of one kind taken together."""

    layer: str
    count: int
    m: int
    n: int
    k: int
    spec: str
    kernel: str
    error: float
    before_bytes: int
    after_bytes: int
    us: float


@torch.no_grad()
def capture(model: minilm.MiniLM, ids: Tensor, mask: Tensor) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
    """The model's embeddings, and for each linear layer its input [M, K] and output [M, N]."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def keep(name: str):
        def hook(module, inputs, output):
            seen[name] = (inputs[0].flatten(0, -2), output.flatten(0, -2))

        return hook

    handles = [m.register_forward_hook(keep(n)) for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
    embeddings, _ = model(ids, mask)
    for handle in handles:
        handle.remove()
    return embeddings, seen


def median_us(call, device: str, repeats: int = 5) -> float:
    """Median time of one call in microseconds, after two that don't count."""
    times = []
    for i in range(repeats + 2):
        if device == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e3)
        else:
            started = time.perf_counter()
            call()
            times.append((time.perf_counter() - started) * 1e6)
        del times[: i < 2]
    return statistics.median(times)


def kernel_that_ran(layer: hh.Linear, m: int) -> str:
    """Name of the kernel that the launch recorded for this layer."""
    for row in hh.report().rows:
        if (row.spec, row.n, row.k, row.m_bucket) == (str(layer.spec), layer.out_features, layer.in_features, m_bucket(m)):
            return row.plan.kernel
    raise RuntimeError(f"no launch of {layer} was recorded")


@torch.no_grad()
def quantized_rows(model: minilm.MiniLM, seen: dict[str, tuple[Tensor, Tensor]], device: str) -> Iterator[Row]:
    """Run each quantized layer on its real input and compare with what the fp32 layer gave."""
    for name, layer in model.named_modules():
        if not isinstance(layer, hh.Linear):
            continue
        x, want = seen[name]
        got = layer(x)
        yield Row(
            layer=name,
            count=1,
            m=len(x),
            n=layer.out_features,
            k=layer.in_features,
            spec=str(layer.spec),
            kernel=kernel_that_ran(layer, len(x)),
            error=float((got - want).norm() / want.norm()),
            before_bytes=4 * layer.out_features * layer.in_features,
            after_bytes=layer.qweight_value.nbytes,
            us=median_us(lambda layer=layer, x=x: layer(x), device),
        )


def by_kind(rows: list[Row]) -> list[Row]:
    """Rows of the same layer in different encoder layers as one: worst error, summed bytes, median time."""
    kinds: dict[tuple, list[Row]] = {}
    for row in rows:
        kinds.setdefault((re.sub(r"\.\d+\.", ".*.", row.layer), row.kernel), []).append(row)
    return [
        Row(
            layer=kind,
            count=len(same),
            m=same[0].m,
            n=same[0].n,
            k=same[0].k,
            spec=same[0].spec,
            kernel=kernel,
            error=max(r.error for r in same),
            before_bytes=sum(r.before_bytes for r in same),
            after_bytes=sum(r.after_bytes for r in same),
            us=statistics.median(r.us for r in same),
        )
        for (kind, kernel), same in kinds.items()
    ]


def table_of(words: tuple[str, ...], numbers: tuple[str, ...]) -> Table:
    """An empty table: columns of words to the left, of numbers to the right."""
    table = Table(box=None, pad_edge=False)
    for head in words:
        table.add_column(head, no_wrap=True)
    for head in numbers:
        table.add_column(head, justify="right", no_wrap=True)
    return table


def layer_table(groups: list[list[Row]]) -> Table:
    """A row for each layer, or kind of layer, of each spec."""
    numbers = ("layers", "M", "N", "K", "error", "MB fp32", "MB", "us a call")
    table = table_of(("layer", "spec", "what ran it"), numbers)
    for rows in groups:
        for r in rows:
            table.add_row(
                r.layer.removeprefix("encoder.").replace("attention.", "attn."), r.spec, r.kernel, str(r.count), str(r.m),
                str(r.n), str(r.k), f"{r.error:.2%}", f"{r.before_bytes / 1e6:.3f}", f"{r.after_bytes / 1e6:.3f}", f"{r.us:.0f}",
            )  # fmt: skip
        table.add_row()
    return table


def effect_table(effects: list[tuple[str, Tensor, int]], reference: Tensor, before_bytes: int) -> Table:
    """What quantization does to the sentence embeddings."""
    table = table_of(("spec",), ("cosine, mean", "cosine, worst", "finds its paraphrase", "weight MB", "of fp32"))
    for spec, embeddings, after_bytes in effects:
        cosine = (embeddings * reference).sum(-1)
        found = int((nearest(embeddings) == torch.arange(len(reference), device=reference.device) ^ 1).sum())
        table.add_row(
            spec, f"{float(cosine.mean()):.5f}", f"{float(cosine.min()):.5f}", f"{found} of {len(reference)}",
            f"{after_bytes / 1e6:.2f}", f"{after_bytes / before_bytes:.1%}",
        )  # fmt: skip
    return table


def nearest(embeddings: Tensor) -> Tensor:
    """Index of each sentence's nearest other sentence."""
    return (embeddings @ embeddings.T).fill_diagonal_(-1).argmax(dim=1)


def without_gpu(specs: list[str], model: minilm.MiniLM, seen: dict, console: Console) -> bool:
    """Compile for an H200 and interpret; returns whether every interpreted result agrees."""
    import kernels

    interpreter = subprocess.Popen(
        [sys.executable, str(Path(kernels.__file__)), *specs],
        env={**os.environ, "TRITON_INTERPRET": "1"}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    table = table_of(("spec", "kernel and tile"), ("M", "N", "K", "registers", "spilled", "shared KB", "seconds"))
    linear = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)]
    problems = dict.fromkeys((spec, m_bucket(len(seen[name][0])), *layer.weight.shape) for spec in specs for name, layer in linear)
    console.print(f"No GPU here. Compiling {len(problems)} distinct problems for an H200, without a cache: some seconds\n")
    with progress(console) as bar:
        task = bar.add_task("compiling for an H200", total=len(problems))
        for spec, m, n, k in problems:
            plan, compiled, seconds = kernels.compile_for_h200(spec, m, n, k)
            table.add_row(
                spec, str(plan), str(m), str(n), str(k), "+".join(str(c.registers) for c in compiled),
                "+".join(str(c.spill_bytes) for c in compiled),
                "+".join(f"{c.shared_bytes / 1e3:.0f}" for c in compiled), f"{seconds:.2f}",
            )  # fmt: skip
            bar.advance(task)
    console.print(
        "Compiled for an H200 on this machine, a row for each distinct problem. Where a plan is two kernels (the weight is"
    )
    console.print(
        "dequantized, then multiplied), registers, spilled bytes and shared memory are those of the first + the second:\n"
    )
    console.print(table)
    return interpreted(interpreter, len(specs), console)


def on_gpu(specs: list[str], model: minilm.MiniLM, seen: dict, console: Console) -> bool:
    """One layer of each spec on the GPU against the CPU backend; returns whether every result agrees."""
    table = table_of(("spec", "kernel"), ("difference",))
    name = "encoder.layer.0.attention.self.query"
    x, weight = seen[name][0], model.get_submodule(name).weight
    agree = 0
    for spec in specs:
        layer = hh.Linear(hh.quantize(weight, spec))
        got = layer(x).cpu().double()
        want = hh.Linear(hh.repack(layer.qweight_value, "cpu"))(x.cpu()).double()
        difference = float((got - want).norm() / want.norm())
        agree += difference <= AGREE
        table.add_row(spec, kernel_that_ran(layer, len(x)), f"{difference:.1e}")
    console.print("Layer 0's query on the GPU, against the CPU backend on the same codes:\n")
    console.print(table)
    if agree < len(specs):
        console.print(f"{len(specs) - agree} of {len(specs)} results are further than {AGREE:g} from the CPU backend")
    return agree == len(specs)


def interpreted(process: subprocess.Popen, count: int, console: Console) -> bool:
    """Print what the interpreting process found, and return whether all of it agrees."""
    table = table_of(("spec", "kernel"), ("difference", "seconds"))
    agree = 0
    console.print("\nInterpreting one layer for each spec")
    with progress(console) as bar:
        task = bar.add_task("interpreting", total=count)
        for line in process.stdout:
            r = json.loads(line)
            agree += r["difference"] <= AGREE
            table.add_row(r["spec"], r["kernel"], f"{r['difference']:.1e}", f"{r['seconds']:.1f}")
            bar.advance(task)
    process.wait()
    console.print("\nThe Triton kernel itself on layer 0's query, in Triton's interpreter (fp16), against the CPU backend:\n")
    console.print(table)
    if agree < count:
        console.print(f"{count - agree} of {count} interpreted results are further than {AGREE:g} from the CPU backend")
    return agree == count


def progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--spec", action="append", help="a spec line; give it again for more")
    parser.add_argument("--layers", action="store_true", help="a row for each of the 37 layers")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(argv)
    specs = [str(hh.Spec.parse(line)) for line in args.spec or SPECS]
    started = time.perf_counter()
    # A cache of its own, so that the seconds are those of compiling.
    cache = tempfile.TemporaryDirectory(prefix="hybrid_humming_demo_")
    os.environ["TRITON_CACHE_DIR"] = cache.name
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 170)

    model = minilm.load().to(args.device)
    ids, mask = (t.to(args.device) for t in minilm.tokenize(minilm.SENTENCES))
    reference, seen = capture(model, ids, mask)
    where = torch.cuda.get_device_name() if args.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    console.print(f"all-MiniLM-L6-v2: {len(seen)} linear layers, {len(ids)} sentences, {int(mask.sum())} tokens, on {where}\n")

    groups, effects, before_bytes = [], [], 0
    with progress(console) as bar:
        task = bar.add_task("quantizing and running", total=len(specs) * len(seen))
        for spec in specs:
            if not console.is_terminal:
                console.print(f"quantizing and running {spec}")
            quantized = copy.deepcopy(model)
            hh.replace_linear(quantized, spec)
            rows = []
            for row in quantized_rows(quantized, seen, args.device):
                rows.append(row)
                bar.advance(task)
            with torch.no_grad():
                embeddings, _ = quantized(ids, mask)
            effects.append((spec, embeddings, sum(r.after_bytes for r in rows)))
            before_bytes = sum(r.before_bytes for r in rows)
            groups.append(rows if args.layers else by_kind(rows))
    console.print("Each layer on its real input. Error: |y - y_fp32| / |y_fp32|, the worst of the layers that share a row.\n")
    console.print(layer_table(groups))
    console.print("End effect: sentence embeddings against the fp32 model\n")
    console.print(effect_table(effects, reference, before_bytes))
    console.print()
    finite = all(bool(torch.isfinite(e).all()) for _, e, _ in effects)
    check = without_gpu if args.device == "cpu" else on_gpu
    good = check(specs, model, seen, console) and finite
    cache.cleanup()
    console.print(f"\n{'done' if good else 'FAILED'} in {time.perf_counter() - started:.0f} s")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
