"""What the Hopper catalog promises the planner: every tile on offer is legal, every weight runs at every M, measured rows win."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybrid_humming as hh
from hybrid_humming.device import DeviceInfo
from hybrid_humming.pack import make_layout
from hybrid_humming.plan import Tile
from hybrid_humming.plan.tuned import tuned
from hybrid_humming.spec import Problem, Spec
from hybrid_humming.triton_kernels.hopper.catalog import DEQUANT_MATMUL, ENTRIES, STREAM, reject_spec
from hybrid_humming.triton_kernels.hopper.stream_tiles import resident
from hybrid_humming.weight import Facts
from tests.kernels.cases import WEIGHT_ONLY

GPUS = ("h100", "h100-pcie", "h200", "gh200", "h20")
H200 = DeviceInfo.named("h200")
LINES = [f"{half} x {x}" for half in WEIGHT_ONLY for x in ("bf16", "fp16")]
HELD = [line for line in LINES if reject_spec(Spec.parse(line), H200) is None]
MEASURED = [(8192, 8192), (28672, 4096), (4096, 14336)]


def planned(line, m, n, k, **changes):
    spec = Spec.parse(line)
    return Problem(spec=spec, m=m, n=n, k=k, **changes), make_layout("hopper", spec, n, k, facts=Facts())


@settings(max_examples=200, deadline=None)
@given(
    line=st.sampled_from(HELD), name=st.sampled_from(GPUS), m=st.integers(1, 8192), n=st.integers(1, 2000),
    blocks=st.integers(1, 60), invariant=st.booleans(), bias=st.booleans(),
)  # fmt: skip
def test_every_tile_on_offer_is_legal(line, name, m, n, blocks, invariant, bias):
    problem, layout = planned(line, m, 8 * n, 256 * blocks, batch_invariant=invariant, bias=bias)
    device = DeviceInfo.named(name)
    runs = False
    for entry in ENTRIES:
        if entry.reject(problem, layout, device) is not None:
            continue
        tiles = list(entry.tiles(problem, layout, device))
        runs |= bool(tiles)
        assert len(set(tiles)) == len(tiles)
        for tile in tiles:
            assert entry.check(tile, problem, layout, device) is None
            assert 0 < entry.cost_us(tile, problem, layout, device) < 1e7
            assert entry is DEQUANT_MATMUL or resident(tile, problem, layout, device) >= 1
            partials = 4 * tile.split_k * m * 8 * n if tile.split_k > 1 else 0
            assert entry.workspace(tile, problem, layout, device) >= partials
    assert runs, "no kernel of the hopper layout runs it"


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize("line", HELD)
def test_a_weight_packed_for_hopper_runs_at_every_m(line, invariant):
    for n, k in ((8, 512), (4096, 4096), (152064, 8192)):
        if hh.choose_layout(line, n, k, "h200").family != "hopper":
            continue
        for m in (1, 3, 16, 17, 100, 513, 8192):
            problem = hh.Problem(spec=hh.Spec.parse(line), m=m, n=n, k=k, batch_invariant=invariant)
            assert hh.choose_plan(problem, device="h200").kernel.startswith("gluon.")


@pytest.mark.parametrize("name", GPUS)
def test_batch_invariance_runs_one_tile_for_every_m(name):
    device, found = DeviceInfo.named(name), set()
    for m in (1, 2, 7, 64, 300, 4096):
        problem, layout = planned("int4 g128 x bf16", m, 4096, 4096, batch_invariant=True)
        assert DEQUANT_MATMUL.reject(problem, layout, device) is not None
        found.update(STREAM.tiles(problem, layout, device))
    assert len(found) == 1
    other = found.pop().replace(num_stages=2)
    assert "one tile" in str(STREAM.check(other, problem, layout, device))


@pytest.mark.parametrize("m", [1, 2, 4, 8, 16])
@pytest.mark.parametrize(("n", "k"), MEASURED)
def test_a_measured_tile_is_the_choice_and_the_model_agrees_on_its_time(n, k, m):
    problem, layout = planned("int4 g128 x bf16", m, n, k)
    row = tuned(problem, H200)
    assert row is not None
    _, tile, us = row
    plan = hh.choose_plan(problem, layout, H200)
    assert (plan.source, plan.tile, plan.kernel) == ("tuned", tile, "gluon.gemm_stream")
    assert abs(STREAM.cost_us(tile, problem, layout, H200) / us - 1) < 0.12


@pytest.mark.parametrize(("n", "k"), MEASURED)
def test_a_gpu_without_measurements_chooses_by_its_own_numbers(n, k):
    problem, layout = planned("int4 g128 x bf16", 8, n, k)
    times = {}
    for name in ("h200", "h100", "h20"):
        device = DeviceInfo.named(name)
        times[name] = min(STREAM.cost_us(t, problem, layout, device) for t in STREAM.tiles(problem, layout, device))
        assert name == "h200" or hh.choose_plan(problem, layout, device).source == "heuristic"
    assert times["h200"] < times["h100"] and times["h200"] < times["h20"]  # more bandwidth; more SMs


NOT_HELD = [
    ("int4 g128 x bf16", "t4", "is for sm_90, t4 is sm_75"),
    ("int4 g128 x e4m3 token", "h200", "multiplies bf16 and fp16 activations only, not e4m3"),
    ("int4 g24 x bf16", "h200", "scales along K span 24 weights"),
    ("uint4 tensor zp x bf16", "h200", "not to the whole tensor"),
]


@pytest.mark.parametrize(("line", "name", "message"), NOT_HELD)
def test_what_the_layout_cant_hold_goes_to_the_portable_one(line, name, message):
    assert message in str(reject_spec(Spec.parse(line), DeviceInfo.named(name)))
    assert hh.choose_layout(line, 264, 384, name).family == "portable"


def test_shards_inside_a_block_and_experts_go_to_the_portable_layout():
    assert hh.choose_layout("e4m3 b128x128 x bf16", 256, 256, "h200").family == "hopper"
    assert hh.choose_layout("e4m3 b128x128 x bf16", 256, 256, "h200", inside_block=True).family == "portable"
    assert hh.choose_layout("int4 g128 x bf16", 256, 256, "h200", experts=4).family == "portable"


GOOD = Tile(block_m=16, block_n=64, block_k=512, num_warps=8, num_stages=3, ctas_per_sm=2, mma="mma_sync")
REFUSED = [
    (STREAM, GOOD.replace(block_m=24), r"block_m=24 must be one of \(8, 16, 32, 64\)"),
    (STREAM, GOOD.replace(block_n=48), "block_n=48 must be 16, 32, 64 or 128"),
    (STREAM, GOOD.replace(num_warps=2), "num_warps=2 must be 4, 8 or 16"),
    (STREAM, GOOD.replace(block_k=1024), "block_k=1024 must be 256 or 512: 2 slices of K"),
    (STREAM, GOOD.replace(num_stages=1), "num_stages=1 must be at least 2"),
    (STREAM, GOOD.replace(num_stages=40), "bytes of shared memory, h200 has 232448 a block"),
    (STREAM, GOOD.replace(split_k=9), r"split_k=9 must lie in 1..8 \(K=4096, block_k=512\)"),
    (STREAM, GOOD.replace(ctas_per_sm=3), "ctas_per_sm=3 of 8 warps must come to at most 512 threads"),
    (STREAM, GOOD.replace(block_m=64), "block_m=64: 8 warps x ctas_per_sm=2 leave too few registers"),
    (DEQUANT_MATMUL, Tile(block_n=32), "block_n=32 must be 64 or 128"),
    (DEQUANT_MATMUL, Tile(block_n=64, block_k=64), "block_k=64 must be 128, 256 or 512"),
    (DEQUANT_MATMUL, Tile(block_n=64, block_k=256, num_warps=4), "num_warps=4 must be 8"),
]


@pytest.mark.parametrize(("entry", "tile", "message"), REFUSED, ids=lambda v: v if isinstance(v, str) else None)
def test_a_tile_that_a_kernel_cant_run_is_refused_with_the_number(entry, tile, message):
    reason = entry.check(tile, *planned("int4 g128 x bf16", 16, 4096, 4096), H200)
    assert reason is not None and re.search(message, reason), reason
