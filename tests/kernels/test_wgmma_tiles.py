"""How the wgmma kernel shares a problem out: the device functions' own source, run in Python for every CTA."""

from types import SimpleNamespace

import pytest

from hybrid_humming.device import DeviceInfo
from hybrid_humming.pack import make_layout
from hybrid_humming.plan import Tile
from hybrid_humming.spec import Problem, Spec
from hybrid_humming.triton_kernels.hopper import segments, wgmma_tiles
from hybrid_humming.weight import Facts

H200 = DeviceInfo.named("h200")


def python_gl(pid: int, ctas: int) -> SimpleNamespace:
    return SimpleNamespace(
        program_id=lambda axis: pid, num_programs=lambda axis: ctas, minimum=min, maximum=max,
        where=lambda condition, a, b: a if condition else b, cdiv=lambda a, b: -(-a // b),
    )  # fmt: skip


def problem_of(line: str, m: int, n: int, k: int, **more):
    spec = Spec.parse(line)
    return Problem(spec=spec, m=m, n=n, k=k, **more), make_layout("hopper", spec, n, k, facts=Facts())


@pytest.mark.parametrize("stream_k", [True, False])
@pytest.mark.parametrize("m, n, k", [(32, 8192, 8192), (5, 192, 256), (300, 2304, 4096), (129, 20032, 1024), (512, 28672, 4096)])
@pytest.mark.parametrize("block_m, block_n, ctas", [(32, 64, 2), (128, 128, 1), (256, 128, 1)])
def test_every_step_of_every_tile_is_done_once_and_its_sum_has_every_part(monkeypatch, m, n, k, block_m, block_n, ctas, stream_k):
    tile = Tile(block_m=block_m, block_n=block_n, block_k=128, num_warps=block_n // 16, ctas_per_sm=ctas, stream_k=stream_k)
    _, layout = problem_of("int4 g128 x bf16", m, n, k)
    work = wgmma_tiles.work_of(tile, m, layout, 132)
    done: dict[tuple[int, int], int] = {}
    parts: dict[int, list[int]] = {}
    slots: dict[tuple[int, int], int] = {}
    for pid in range(work.ctas):
        monkeypatch.setattr(segments, "gl", python_gl(pid, work.ctas))
        dealt, count = segments.count_segments.fn(work.tiles_m * work.tiles_n, work.steps, work.shared, work.share)
        assert count > 0
        for i in range(count):
            t, begin, end = segments.segment.fn(i, dealt, work.steps, work.shared, work.share)
            assert begin < end
            for step in range(begin, end):
                done[t, step] = done.get((t, step), 0) + 1
            if end - begin < work.steps:
                parts.setdefault(t, []).append(pid)
                slot = segments.slot_of.fn(pid, t, work.steps, work.share)
                assert slots.setdefault((pid, slot), t) == t and slot < 2 * work.ctas
    assert len(done) == work.tiles_m * work.tiles_n * work.steps and set(done.values()) == {1}
    for t, pids in parts.items():
        first, last = t * work.steps // work.share, (t * work.steps + work.steps - 1) // work.share
        assert pids == list(range(first, last + 1))
    assert wgmma_tiles.workspace_bytes(tile, m, layout, 132) == (8 * work.ctas * block_m * block_n if work.shared else 0)


@pytest.mark.parametrize("m, tiles_n, raster_m", [(7, 5, 0), (7, 5, 4), (8, 3, 8), (1, 9, 4)])
def test_a_raster_visits_every_tile_once(monkeypatch, m, tiles_n, raster_m):
    monkeypatch.setattr(segments, "gl", python_gl(0, 1))
    seen = {segments.tile_at.fn(t, m, tiles_n, raster_m) for t in range(m * tiles_n)}
    assert seen == {(i, j) for i in range(m) for j in range(tiles_n)}


@pytest.mark.parametrize("n, k", [(8192, 8192), (192, 256), (28672, 4096)])
def test_the_workspace_of_a_plan_is_enough_for_every_m_that_it_serves(n, k):
    problem, layout = problem_of("int4 g128 x bf16", 512, n, k)
    for tile in wgmma_tiles.tiles(problem, layout, H200):
        need = wgmma_tiles.workspace(tile, problem, layout, H200)
        assert need >= max(wgmma_tiles.workspace_bytes(tile, m, layout, 132) for m in (*range(257, 512, 17), 512))


@pytest.mark.parametrize("line", ["int4 g128 x bf16", "int8 channel x fp16", "mxfp4 x fp16", "nvfp4 x bf16", "uint3 g64 zp x bf16"])
@pytest.mark.parametrize("m", [1, 40, 300, 4096])
def test_offered_tiles_are_legal_and_have_a_cost(line, m):
    problem, layout = problem_of(line, m, 4096, 4096)
    offered = list(wgmma_tiles.tiles(problem, layout, H200))
    assert offered
    for tile in offered:
        assert wgmma_tiles.check(tile, problem, layout, H200) is None
        assert 0 < wgmma_tiles.cost_us(tile, problem, layout, H200) < 1e5


def test_batch_invariance_keeps_k_whole():
    problem, layout = problem_of("int4 g128 x bf16", 300, 4096, 4096, batch_invariant=True)
    assert not any(tile.stream_k for tile in wgmma_tiles.tiles(problem, layout, H200))
    found = wgmma_tiles.check(Tile(block_m=128, block_n=128, block_k=128, num_warps=8, stream_k=True), problem, layout, H200)
    assert found is not None and "batch invariance" in found


@pytest.mark.parametrize(
    "change, number", [({"block_m": 48}, "48"), ({"block_k": 64}, "64"), ({"num_warps": 4}, "4"), ({"num_stages": 9}, "bytes")]
)
def test_an_illegal_tile_is_refused_with_its_number(change, number):
    problem, layout = problem_of("int4 g128 x bf16", 300, 4096, 4096)
    tile = Tile(block_m=128, block_n=128, block_k=128, num_warps=8).replace(**change)
    found = wgmma_tiles.check(tile, problem, layout, H200)
    assert found is not None and number in found


def test_scales_that_fp16_cannot_hold_stay_on_the_sums():
    assert not wgmma_tiles.scales_weights(Spec.parse("mxfp4 x fp16"), 128)
    assert wgmma_tiles.scales_weights(Spec.parse("mxfp4 x bf16"), 128)
    problem, layout = problem_of("mxfp4 x fp16", 4096, 4096, 4096)
    assert max(tile.block_m for tile in wgmma_tiles.tiles(problem, layout, H200)) == 128
