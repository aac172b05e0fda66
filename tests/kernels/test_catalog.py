"""What the portable catalog promises the planner, over many problems and every named GPU."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid_humming.device import DeviceInfo, device_names
from hybrid_humming.pack.portable import make_layout
from hybrid_humming.plan import Tile
from hybrid_humming.spec import Problem, Spec
from hybrid_humming.triton_kernels.portable.catalog import DEQUANT_MATMUL, ENTRIES, GEMM, GEMV
from hybrid_humming.weight import Facts
from tests.kernels.cases import QUANTIZED, WEIGHT_ONLY

GPUS = [name for name in device_names() if name != "cpu"]
LINES = [f"{half} x {x}" for half in WEIGHT_ONLY for x in ("bf16", "fp16")] + QUANTIZED
H200 = DeviceInfo.named("h200")


def planned(line, m, n, k, **changes):
    spec = Spec.parse(line)
    return Problem(spec=spec, m=m, n=n, k=k, **changes), make_layout(spec, n, k, 0, Facts())


@settings(max_examples=300, deadline=None)
@given(
    line=st.sampled_from(LINES), name=st.sampled_from(GPUS), m=st.integers(1, 8192), n=st.integers(1, 1000),
    blocks=st.integers(1, 40), invariant=st.booleans(), bias=st.booleans(),
)  # fmt: skip
def test_every_tile_on_offer_is_legal(line, name, m, n, blocks, invariant, bias):
    k = blocks * (264 if "g24" in line else 256)
    problem, layout = planned(line, m, n * 8, k, batch_invariant=invariant, bias=bias)
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
            assert 0 < entry.cost_us(tile, problem, layout, device) < 1e9
            assert entry.workspace(tile, problem, layout, device) >= (4 * tile.split_k * m * n * 8 if tile.split_k > 1 else 0)
    assert runs, "no portable kernel runs it"


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("line", ["int4 g128 x fp16", "nvfp4 x bf16", "e4m3 b128x128 x e4m3 g128", "int8 channel x int8 token"])
def test_batch_invariant_tiles_walk_k_alike_for_every_m(line, name):
    walks = set()
    for m in (1, 2, 7, 64, 300, 4096):
        problem, layout = planned(line, m, 4096, 4096, batch_invariant=True)
        device = DeviceInfo.named(name)
        kernels = [e for e in ENTRIES if e.reject(problem, layout, device) is None]
        assert kernels == [GEMM]
        walks.add(tuple((t.block_m, t.block_n, t.block_k, t.split_k, t.num_warps) for t in GEMM.tiles(problem, layout, device)))
    assert len(walks) == 1


REFUSED = [
    (GEMM, Tile(block_m=8), "int4 g128 x bf16", 16, "block_m=8 must be a power of two of at least 16"),
    (GEMM, Tile(block_n=96), "int4 g128 x bf16", 16, "block_n=96 must be a power of two of at least 16"),
    (GEMM, Tile(block_k=16), "int4 g128 x bf16", 16, "block_k=16 must be a power of two of at least 32"),
    (GEMM, Tile(split_k=65), "int4 g128 x bf16", 16, r"split_k=65 must lie in 1..64 \(K=4096, block_k=64\)"),
    (GEMM, Tile(block_k=256, block_n=256, num_stages=5), "int4 g128 x bf16", 16, "bytes of shared memory, h200 has 232448"),
    (GEMM, Tile(block_k=64), "mxfp8 x mxfp8", 16, "block_k=64 is more than 32"),
    (GEMM, Tile(block_m=64), "int8 channel x int8 token", 64, "block_m=64: quantized activations need fewer than 64 rows"),
    (GEMM, Tile(num_warps=3), "int4 g128 x bf16", 16, "num_warps=3 must be 1, 2, 4, 8 or 16"),
    (GEMV, Tile(block_m=2), "int4 g128 x bf16", 3, "block_m=2 must be 1, 2 or 4 and hold all M=3 rows"),
    (GEMV, Tile(block_m=4, block_n=48), "int4 g128 x bf16", 3, "block_n=48 must be a power of two in 32..512"),
    (GEMV, Tile(block_m=4, split_k=0), "int4 g128 x bf16", 3, r"split_k=0 must lie in 1..64"),
    (DEQUANT_MATMUL, Tile(block_n=8), "int4 g128 x bf16", 512, "block_n=8 must be a power of two in 16..256"),
]


@pytest.mark.parametrize(("entry", "tile", "line", "m", "message"), REFUSED, ids=lambda v: v if isinstance(v, str) else None)
def test_a_tile_that_a_kernel_cant_run_is_refused_with_the_number(entry, tile, line, m, message):
    import re

    reason = entry.check(tile, *planned(line, m, 4096, 4096), H200)
    assert reason is not None and re.search(message, reason), reason


def test_a_gpu_without_tensor_cores_for_x_is_told_so():
    problem, layout = planned("int4 g128 x bf16", 512, 4096, 4096)
    t4 = DeviceInfo.named("t4")
    assert GEMM.multiplies(problem, t4) == "fp32"
    assert {tile.mma for tile in GEMM.tiles(problem, layout, t4)} == {"fma"}
    assert "no bf16 tensor cores" in str(DEQUANT_MATMUL.reject(problem, layout, t4))
    assert "without tensor cores" in GEMM.note
