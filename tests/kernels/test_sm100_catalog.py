"""What the catalog of the CUDA kernels promises: legal tiles, a reason for every refusal, the switch of hidden types at once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybrid_humming as hh
from hybrid_humming.cuda_kernels.sm100 import catalog
from hybrid_humming.cuda_kernels.sm100.catalog import ENTRIES, SMALL, SMS, UMMA
from hybrid_humming.device import DeviceInfo, device_names
from hybrid_humming.errors import LayoutError
from hybrid_humming.pack import make_layout
from hybrid_humming.spec import Problem, Spec
from hybrid_humming.weight import Facts

GPUS = [name for name in device_names() if DeviceInfo.named(name).sm in SMS]
LINES = ["nvfp4 x nvfp4", "mxfp4 x mxfp4", "mxfp8 x mxfp8", "mxfp4 x mxfp8", "mxfp6 x mxfp8", "e4m3 channel x e4m3 token"]
HIDDEN = [
    "e0m3 g16:e4m3+tensor x nvfp4",
    "nvfp4 x e0m3 g16:e4m3+tensor",
    "e3m4 channel x e3m4 token",
    "e2m3 g32:e8m0 x e3m4 g32:e8m0",
]


def planned(line, m, n, k, family="umma"):
    spec = Spec.parse(line)
    return Problem(spec=spec, m=m, n=n, k=k), make_layout(family, spec, n, k, facts=Facts())


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(LINES), st.sampled_from(GPUS), st.integers(1, 9000), st.integers(1, 3000), st.integers(1, 80))
def test_every_tile_on_offer_is_legal_and_fits(line, name, m, n, blocks):
    problem, layout = planned(line, m, n, 128 * blocks)
    device = DeviceInfo.named(name)
    assert UMMA.reject(problem, layout, device) is None
    tiles = list(UMMA.tiles(problem, layout, device))
    assert tiles
    for tile in tiles:
        assert UMMA.check(tile, problem, layout, device) is None
        assert 0 < UMMA.cost_us(tile, problem, layout, device) < 1e8
        assert UMMA.check(tile.replace(num_stages=40), problem, layout, device) is not None
        assert "split_k" in UMMA.check(tile.replace(split_k=2), problem, layout, device)


def test_every_gpu_with_tensor_memory_is_planned_for():
    assert {DeviceInfo.named(name).sm for name in GPUS} == set(SMS)
    for name in GPUS:
        for line in LINES:
            assert hh.choose_plan(Problem(spec=Spec.parse(line), m=64, n=1024, k=1024), device=name).kernel == UMMA.name
    assert hh.choose_plan(Problem(spec=Spec.parse("int4 g128 x bf16"), m=8, n=4096, k=4096), device="b200").kernel == SMALL.name


@pytest.mark.parametrize("name", ["b200", "b300"])
@pytest.mark.parametrize("line", HIDDEN)
def test_hidden_types_multiply_where_they_exist_and_a_switch_turns_them_off(monkeypatch, line, name):
    on = str(hh.explain(line, m=64, n=1024, k=1024, device=name))
    assert "kernel      cuda.gemm_umma  (compiled, not run" in on and "fallback" not in on
    monkeypatch.setenv("HYBRID_HUMMING_HIDDEN_FORMATS", "0")
    off = str(hh.explain(line, m=64, n=1024, k=1024, device=name))
    assert "kernel      triton." in off
    hidden = "e0m3" if "e0m3" in line else "e3m4"
    assert f"cuda.gemm_umma: reads weights in the umma layout, not in portable (umma: {hidden} is a hidden type, and " in off
    assert "HYBRID_HUMMING_HIDDEN_FORMATS=0 turns those off" in off
    monkeypatch.delenv("HYBRID_HUMMING_HIDDEN_FORMATS")
    assert str(hh.explain(line, m=64, n=1024, k=1024, device=name)) == on


def test_a_packed_weight_of_a_hidden_type_says_why_it_cannot_run(monkeypatch):
    problem, layout = planned(HIDDEN[0], 64, 1024, 1024)
    monkeypatch.setenv("HYBRID_HUMMING_HIDDEN_FORMATS", "0")
    assert "HYBRID_HUMMING_HIDDEN_FORMATS=0" in UMMA.reject(problem, layout, DeviceInfo.named("b200"))


def test_an_sm_without_hidden_types_says_so():
    thor = next(name for name in GPUS if DeviceInfo.named(name).sm == 110)
    text = str(hh.explain("e3m4 channel x e3m4 token", m=64, n=1024, k=1024, device=thor))
    assert "sm_110 has no e3m4; the hidden types exist on sm_100, sm_103, sm_120, sm_121" in text


def test_without_the_extra_the_reason_names_it(monkeypatch):
    monkeypatch.setattr(catalog.importlib.util, "find_spec", lambda name: None)
    catalog.missing.cache_clear()
    try:
        for entry, line, family in ((UMMA, "nvfp4 x nvfp4", "umma"), (SMALL, "int4 g128 x bf16", "portable")):
            problem, layout = planned(line, 8, 1024, 1024, family)
            assert "install hybrid_humming[cuda13]" in entry.reject(problem, layout, DeviceInfo.named("b200"))
    finally:
        catalog.missing.cache_clear()


def test_an_integer_that_may_hold_its_lowest_code_gets_another_layout():
    spec, device = Spec.parse("int4 g16:e4m3 x nvfp4"), DeviceInfo.named("b200")
    assert hh.choose_layout(spec, 1024, 1024, device, facts=Facts(lowest_code_unused=True)).encoding == "e0m3"
    assert hh.choose_layout(spec, 1024, 1024, device, facts=Facts()).family == "portable"
    with pytest.raises(LayoutError, match="umma: .*int4 counts as e0m3"):
        hh.choose_layout(spec, 1024, 1024, device, facts=Facts(), family="umma")


REFUSED = [
    ("int4 g128 x bf16", 33, 256, "33"),
    ("int4 g64 x bf16", 1, 256, "multiple of 128"),
    ("uint4 g128 zp x bf16", 1, 256, "int4"),
    ("int4 channel x bf16", 1, 257, "even"),
    ("int4 g128:e4m3+tensor x bf16", 1, 256, "int4"),
    ("int8 channel x bf16", 1, 256, "int4"),
]


@pytest.mark.parametrize(("line", "m", "k", "reason"), REFUSED)
def test_the_kernel_for_few_rows_says_what_it_does_not_multiply(line, m, k, reason):
    problem, layout = planned(line, m, 64, k, "portable")
    assert reason in SMALL.reject(problem, layout, DeviceInfo.named("b200"))


def test_nothing_here_is_called_run():
    assert {entry.status for entry in ENTRIES} == {"compiled, not run"}
