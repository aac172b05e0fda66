"""The dense suite under pytest-benchmark, with the device as its clock.

    pytest bench/bench_dense.py --benchmark-group-by=param:spec
    BENCH_SPECS=w4a16 BENCH_SHAPES=llama-3-70b BENCH_MS=1,16 pytest bench/bench_dense.py

Each round is one replay of a graph; the clock moves by what the device took per call, so host overhead is not in it. Peers are not
beside ours here: a ratio needs interleaved replays, which `bench.run` makes.
"""

import os

import pytest

from bench import shapes
from bench.clock import DeviceClock

POINTS = shapes.in_order(
    shapes.points(
        shapes.parse_specs(os.environ.get("BENCH_SPECS", "w4a16")),
        shapes.parse_shapes(os.environ.get("BENCH_SHAPES", "peer")),
        [int(m) for m in os.environ.get("BENCH_MS", ",".join(map(str, shapes.FIRST_MS))).split(",")],
    )
)
CLOCK = DeviceClock()
ROUNDS = 31


def _gpu() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.fixture(scope="module")
def weights():
    """Weights by (spec, n, k), with their judge; only the newest is kept."""
    if not _gpu():
        pytest.skip(f"needs a CUDA device: {len(POINTS)} points of {len({p.spec for p in POINTS})} specs are not timed")
    from bench.ours import OurWeight
    from bench.session import random_weight

    kept: dict = {}

    def get(point):
        if point.weight not in kept:
            kept.clear()
            ours = OurWeight(point.spec, random_weight(point.n, point.k))
            kept[point.weight] = ours, ours.judge()
        return kept[point.weight]

    return get


@pytest.mark.timeout(120)
@pytest.mark.benchmark(timer=CLOCK, warmup=False)
@pytest.mark.parametrize("point", POINTS, ids=str)
def test_dense(weights, point, benchmark):
    """One row a point: right first, then timed."""
    from bench.session import random_x
    from bench.timer import CudaBackend, Library, graph_of

    ours, judge = weights(point)
    x = random_x(point.m, point.k, ours.input_dtype)
    plan = ours.plan(point.m, "plain")
    side = ours.calls(x, plan)
    side.calls[0]()
    verdict = judge.ours(side.out, ours.multiplied(x))
    assert verdict.passed, f"{point} by {plan}: {verdict.reason}"
    backend = CudaBackend()
    graph, calls = graph_of(Library(calls=side.calls), backend)
    benchmark.extra_info.update(plan=str(plan), err_l2=verdict.err_l2, spec=point.spec, n=point.n, k=point.k, m=point.m)
    benchmark.pedantic(lambda: CLOCK.advance_us(backend.replay_us(graph) / calls), rounds=ROUNDS, iterations=1)
