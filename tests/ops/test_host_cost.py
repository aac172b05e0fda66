"""What a call of hh.gemm costs the host, without the kernel: between the user's line and the launch."""

import time

import torch

import hybrid_humming as hh

LIMIT_US = 45.0  # some 15 on an idle core of 2024; three times that, for a shared runner


def best_us(call, batches=30, calls=100):
    """Microseconds of one call in the quietest of the batches."""
    best = float("inf")
    for _ in range(batches):
        began = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - began) / calls * 1e6)
    return best


def test_a_planned_call_costs_the_host_little():
    qweight = hh.quantize(torch.randn(64, 256), "int4 g128 x bf16")
    x, out = torch.randn(1, 256).bfloat16(), torch.empty(1, 64, dtype=torch.bfloat16)
    hh.gemm(x, qweight, out=out)
    launched = []
    for prepared in qweight.prepared.values():
        prepared.launch = lambda args, plan: launched.append(1)
    cost = best_us(lambda: hh.gemm(x, qweight))
    assert len(launched) == 3000, "the launch was not reached by the way that is timed"
    assert cost < LIMIT_US, f"{cost:.1f} us"
