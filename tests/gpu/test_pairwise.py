"""The pairwise cover of the 16-bit family (tests/kernels/cover.json), through hh.gemm and the planner's own choice.

Every case: against float64, outputs poisoned with NaN, three repeats with equal bits. What was planned, run and skipped is printed,
and kept in $OUT/pairwise.jsonl where OUT is set.
"""

import collections
import concurrent.futures
import json
import multiprocessing
import os
from pathlib import Path

import pytest
import torch

import hybrid_humming as hh
from tests.kernels.cases import Case
from tests.kernels.cover import Choice, load

if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs an sm_90 GPU", allow_module_level=True)

CHOICES = load()
CHUNKS = 16


def compile_ahead(index):
    """Compile the kernel of one case into Triton's cache, with no GPU; a child process of the pool below."""
    choice = CHOICES[index]
    invariant = choice.option == "batch invariant"
    bias = choice.option == "bias"
    problem = hh.Problem(spec=choice.spec, m=choice.m, n=choice.n, k=choice.k, bias=bias, batch_invariant=invariant)
    hh.compile_gemm(problem, "h200")


@pytest.fixture(scope="module")
def kernels_in_the_cache():
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker not in (None, "gw0"):  # one pool for all workers; the others find its kernels, or compile their own
        return
    with concurrent.futures.ProcessPoolExecutor(
        min(14, os.cpu_count() or 2), mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        list(pool.map(compile_ahead, range(len(CHOICES)), chunksize=8))


def run(choice: Choice) -> tuple[str, str]:
    """(kernel that ran, what was wrong with its result)."""
    case = Case(str(choice.spec), choice.m, choice.n, choice.k, device="cuda", bias=choice.option == "bias")
    options = hh.Options(batch_invariant=choice.option == "batch invariant")
    x = case.x
    if choice.option == "strided x":
        wide = torch.full((choice.m, choice.k + 24), float("nan"), dtype=x.dtype, device="cuda")
        wide[:, 8 : choice.k + 8] = x
        x = wide[:, 8 : choice.k + 8]
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[case.spec.out_dtype]
    out = torch.full((choice.m, choice.n), float("nan"), dtype=dtype, device="cuda")

    def call():
        hh.gemm(x, case.qweight, bias=case.bias, out=out, options=options)

    call()
    first = out.clone()
    if choice.option == "captured":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        call = graph.replay
    for _ in range(2):
        out.fill_(float("nan"))
        call()
        if not torch.equal(out, first):
            return case.qweight.layout.family, "two runs differ"
    if options.batch_invariant and not torch.equal(hh.gemm(x[:1], case.qweight, bias=case.bias, options=options), out[:1]):
        return case.qweight.layout.family, "a row alone has other bits"
    wrong = "" if case.holds(first) else f"error {case.error(first):.3e}, torch {case.torch_err:.3e}"
    return case.qweight.layout.family, wrong


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_pair_of_settings(chunk, kernels_in_the_cache):
    mine, rows = CHOICES[chunk::CHUNKS], []
    for choice in mine:
        family, wrong = run(choice)
        rows.append({"case": str(choice), "layout": family, "wrong": wrong})
    families = collections.Counter(row["layout"] for row in rows)
    print(f"pairwise {chunk}: planned {len(mine)}, run {len(rows)}, skipped {len(mine) - len(rows)}; layouts {dict(families)}")
    if "OUT" in os.environ:
        with (Path(os.environ["OUT"]) / "pairwise.jsonl").open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    bad = [f"{row['case']}: {row['wrong']}" for row in rows if row["wrong"]]
    assert not bad, "\n".join(bad[:20])
