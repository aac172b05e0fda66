"""What the catalogs of the kernels for 8-bit activations say: which specs, which tiles, what each refuses with the number."""

import pytest

from hybrid_humming.device import DeviceInfo
from hybrid_humming.pack import make_layout
from hybrid_humming.plan import Tile
from hybrid_humming.spec import Problem, Spec
from hybrid_humming.triton_kernels.hopper.a8 import catalog, tiles, w4_tiles
from hybrid_humming.weight import Facts

H200 = DeviceInfo.named("h200")
W8A8, W4A8 = catalog.W8A8, catalog.W4A8


def problem_of(line: str, m: int = 16, n: int = 8192, k: int = 8192, facts: Facts | None = None, **more):
    spec = Spec.parse(line)
    return Problem(spec=spec, m=m, n=n, k=k, **more), make_layout("hopper_a8", spec, n, k, facts=facts or Facts())


HELD = {
    W8A8: ("e4m3 channel x e4m3 token", "e4m3 b128x128 x e4m3 g128", "int8 channel x int8 token", "mxfp8 x mxfp8",
           "e5m2 tensor x e4m3 tensor", "int8 g64 x int8 g128"),
    W4A8: ("int4 g128 x e4m3 token", "int4 g128 x int8 token", "mxfp4 x e4m3 token", "nvfp4 x e4m3 token",
           "uint4 g32 zp x int8 token", "int3 channel x e4m3 tensor", "e3m2 g32 x e5m2 token", "int7 g128 x int8 token",
           "int4 g128 x e4m3 g128",
           "mxfp4 x mxfp8", "int4 channel x int8 g64"),
}  # fmt: skip


@pytest.mark.parametrize("entry, line", [(entry, line) for entry, lines in HELD.items() for line in lines])
@pytest.mark.parametrize("m", [1, 16, 100, 512, 8192])
def test_every_m_has_tiles_and_each_has_a_cost(entry, line, m):
    problem, layout = problem_of(line, m)
    assert entry.reject(problem, layout, H200) is None
    other = W4A8 if entry is W8A8 else W8A8
    assert "bits" in other.reject(problem, layout, H200)
    found = list(entry.tiles(problem, layout, H200))
    assert found
    for tile in found:
        assert entry.check(tile, problem, layout, H200) is None
        assert 0 < entry.cost_us(tile, problem, layout, H200) < 1e6
        assert entry.workspace(tile, problem, layout, H200) >= 0
    invariant = problem.replace(batch_invariant=True)
    assert [tile for tile in entry.tiles(invariant, layout, H200) if tile.stream_k] == []


@pytest.mark.parametrize(
    "entry, line, said",
    [(W8A8, "e4m3 g16 x e4m3 token", "32, 64 and 128"), (W8A8, "e4m3 b64x128 x e4m3 token", "128 rows"),
     (W8A8, "e4m3 channel x e4m3 g256", "256 along K"), (W8A8, "e4m3 channel x int8 token", "not e4m3 x int8"),
     (W4A8, "int4 g128 x int4 token", "not int4"), (W4A8, "uint4 g128 zp:bf16 x e4m3 token", "whole zero points"),
     (W4A8, "int4 g96 x e4m3 token", "span 96"), (W4A8, "uint4 g16 zp x e4m3 token", "groups of 16")],
)  # fmt: skip
def test_what_is_not_held_is_refused_with_the_reason(entry, line, said):
    problem = Problem(spec=Spec.parse(line), m=16, n=768, k=768)
    layout = make_layout("portable", problem.spec, 768, 768, facts=Facts())
    assert said in entry.reject(problem, layout, H200)
    assert "sm_90" in entry.reject(problem, layout, DeviceInfo.named("a100"))


def w8(**changes) -> Tile:
    return Tile(block_m=128, block_n=128, block_k=128, num_warps=8, num_stages=4).replace(**changes)


def w4(**changes) -> Tile:
    return Tile(block_m=64, block_n=128, block_k=128, num_warps=8, num_stages=4).replace(**changes)


@pytest.mark.parametrize(
    "tile, line, said",
    [(w8(block_m=24), "e4m3 channel x e4m3 token", "block_m=24"), (w8(block_k=64), "e4m3 channel x e4m3 token", "block_k=64"),
     (w8(block_n=256), "e4m3 channel x e4m3 token", "a thread has 240"),
     (w8(num_warps=4), "int8 channel x int8 token", "take turns"),
     (w8(block_m=256, stream_k=True), "e4m3 channel x e4m3 token", "keeps K whole"),
     (w8(split_k=2), "int8 channel x int8 token", "split_k=2"),
     (w8(num_stages=8), "e4m3 channel x e4m3 token", "bytes of shared memory"),
     (w8(multicast=4), "int8 channel x int8 token", "multicast=4"),
     (w8(multicast=2, stream_k=True), "int8 channel x int8 token", "whole tiles"),
     (w4(block_n=256), "int4 g128 x e4m3 token", "block_n=256"), (w4(num_warps=4), "int4 g128 x e4m3 token", "num_warps=4"),
     (w4(block_m=128), "mxfp4 x e4m3 token", "2 sums at a time"), (w4(), "nvfp4 x e4m3 token", "4 sums at a time"),
     (w4(ctas_per_sm=2, num_stages=8), "int4 g128 x int8 token", "bytes of shared memory")],
)  # fmt: skip
def test_a_tile_that_cannot_run_is_refused_with_its_number(tile, line, said):
    problem, layout = problem_of(line)
    entry = W8A8 if problem.spec.bits == 8 else W4A8
    assert said in entry.check(tile, problem, layout, H200)


def test_folded_exponents_admit_the_large_tiles():
    problem, layout = problem_of("mxfp4 x e4m3 token", 4096, facts=Facts(row_exponent_span=5))
    assert layout.folded
    assert max(tile.block_m for tile in W4A8.tiles(problem, layout, H200)) == 128


def test_fp8_is_promoted_unless_speed_is_asked_for():
    problem, _ = problem_of("e4m3 channel x e4m3 token")
    assert tiles.promotes(problem) and not tiles.promotes(problem.replace(fast_accumulation=True))
    grouped, _ = problem_of("e4m3 b128x128 x e4m3 g128", fast_accumulation=True)
    assert tiles.promotes(grouped), "a scale that varies along K needs its own sums"
    assert not tiles.promotes(problem_of("int8 channel x int8 token")[0])
    assert w4_tiles.keeps_sum(problem_of("int4 channel x int8 token")[0])
    assert not w4_tiles.keeps_sum(problem_of("int4 channel x e4m3 token")[0])


@pytest.mark.parametrize("m, n", [(1, 64), (512, 8192), (4096, 8192), (700, 1000)])
def test_pairs_get_whole_pairs(m, n):
    _, layout = problem_of("e4m3 channel x e4m3 token", m, n, 1024)
    work = tiles.split(w8(multicast=2), m, layout, 132)
    assert work.ctas % 2 == 0 and work.ctas <= 132 and not work.shared
    assert work.tiles_n * 2 * 128 >= layout.padded_n and work.ctas <= 2 * work.tiles_m * work.tiles_n
