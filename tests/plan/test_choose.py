"""Planning is a pure function of values: no GPU, no Triton."""

import dataclasses
import random

import pytest

from hybrid_humming.device import DeviceInfo
from hybrid_humming.errors import FallbackRefused, PlanError, UnsupportedProblem
from hybrid_humming.plan import KernelEntry, LayoutEntry, Plan, Tile, choose, m_bucket, registry
from hybrid_humming.plan.choose import check_plan, choose_layout, choose_plan, survey
from hybrid_humming.spec import PackLayout, Problem, Spec

H200, A100 = DeviceInfo.named("h200"), DeviceInfo.named("a100")
SPEC = Spec.parse("int4 g128 x bf16")
FP8 = Spec.parse("int4 g128 x e4m3 token")
LAYOUT = PackLayout(family="plain", encoding="int4", n=256, k=512, padded_n=256, padded_k=512)


def entry(name, *, cost=1.0, multiplies="bf16", reject=None, family="plain", tiles=None):
    tiles = (Tile(), Tile(block_m=64)) if tiles is None else tiles
    return KernelEntry(
        name=name,
        family=family,
        launcher="nowhere:launch",
        device="cuda",
        reject=lambda problem, layout, device: reject,
        tiles=lambda problem, layout, device: tiles,
        check=lambda tile, problem, layout, device: f"block_m={tile.block_m} > 128" if tile.block_m > 128 else None,
        cost_us=lambda tile, problem, layout, device: cost * tile.block_m / min(tile.block_m, problem.m),
        multiplies=lambda problem, device: multiplies,
        workspace=lambda tile, problem, layout, device: 4 * problem.m * problem.n * (tile.split_k - 1),
    )


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_kernels", {})
    monkeypatch.setattr(registry, "_layouts", {})
    choose._survey.cache_clear()
    yield
    choose._survey.cache_clear()


def test_cheapest_legal_candidate_wins():
    registry.register_kernel(entry("slow", cost=3.0))
    registry.register_kernel(entry("fast", cost=1.0))
    assert choose_plan(Problem(spec=SPEC, m=16, n=256, k=512), LAYOUT, H200).kernel == "fast"
    wide = choose_plan(Problem(spec=SPEC, m=64, n=256, k=512), LAYOUT, H200)
    assert (wide.tile.block_m, wide.source) == (16, "heuristic")


def test_every_rejection_is_kept_with_its_reason():
    registry.register_kernel(entry("good"))
    registry.register_kernel(entry("picky", reject="K=512 is not a multiple of 768"))
    registry.register_kernel(entry("other", family="hopper"))
    registry.register_kernel(entry("bare", tiles=()))
    reasons = {r.kernel: r.reason for r in survey(Problem(spec=SPEC, m=1, n=256, k=512), LAYOUT, H200).rejections}
    assert reasons == {
        "picky": "K=512 is not a multiple of 768",
        "other": "reads weights in the hopper layout, not in plain",
        "bare": "no tile of this kernel fits the problem",
    }


def test_no_kernel_lists_every_reason():
    registry.register_kernel(entry("picky", reject="K=512 is not a multiple of 768"))
    with pytest.raises(UnsupportedProblem, match=r"int4 g128 x bf16 \[M=1 N=256 K=512\].*h200(.|\n)*picky: K=512 is not"):
        choose_plan(Problem(spec=SPEC, m=1, n=256, k=512), LAYOUT, H200)


def test_a_kernel_of_another_device_kind_is_rejected():
    registry.register_kernel(entry("gpu only"))
    with pytest.raises(UnsupportedProblem, match="runs on cuda, not on cpu"):
        choose_plan(Problem(spec=SPEC, m=1, n=256, k=512), LAYOUT, DeviceInfo.named("cpu"))


def test_fallback_is_named_and_can_be_refused():
    registry.register_kernel(entry("widening"))
    problem = Problem(spec=FP8, m=4, n=256, k=512)
    assert "no kernel for e4m3 operands" in choose_plan(problem, LAYOUT, H200).fallback
    assert "a100 (sm_80) has no e4m3 tensor cores" in choose_plan(problem, LAYOUT, A100).fallback
    with pytest.raises(FallbackRefused, match=r"e4m3 activations are multiplied as bf16.*fallback='allow'"):
        choose_plan(problem, LAYOUT, A100, fallback="error")
    registry.register_kernel(entry("native", cost=9.0, multiplies="e4m3"))
    choose._survey.cache_clear()
    assert choose_plan(problem, LAYOUT, H200, fallback="error").kernel == "native"


def test_a_users_plan_is_obeyed_and_checked():
    registry.register_kernel(entry("fast"))
    problem = Problem(spec=SPEC, m=16, n=256, k=512)
    plan = choose_plan(problem, LAYOUT, H200).replace(block_m=64, split_k=3)
    checked = check_plan(plan, problem, LAYOUT, H200)
    assert (checked.source, checked.tile.block_m, checked.workspace_bytes) == ("user", 64, 4 * 16 * 256 * 2)
    with pytest.raises(PlanError, match=r"block_m=256 > 128"):
        check_plan(plan.replace(block_m=256), problem, LAYOUT, H200)
    with pytest.raises(PlanError, match=r"unknown kernel 'fsat'.*Did you mean 'fast'"):
        check_plan(plan.replace(kernel="fsat"), problem, LAYOUT, H200)
    with pytest.raises(PlanError, match=r"no field 'blokc_m'.*Did you mean 'block_m'"):
        plan.replace(blokc_m=16)


def test_a_tuned_row_overrides_the_model_while_it_is_legal(monkeypatch):
    registry.register_kernel(entry("fast"))
    registry.register_kernel(entry("slow", cost=9.0))
    problem = Problem(spec=SPEC, m=16, n=256, k=512)
    monkeypatch.setattr(choose, "tuned", lambda problem, device: ("slow", Tile(block_m=64), 3.5))
    plan = choose_plan(problem, LAYOUT, H200)
    assert (plan.kernel, plan.tile.block_m, plan.source, plan.cost_us) == ("slow", 64, "tuned", 3.5)
    choose._survey.cache_clear()
    monkeypatch.setattr(choose, "tuned", lambda problem, device: ("slow", Tile(block_m=512), 3.5))
    assert choose_plan(problem, LAYOUT, H200).kernel == "fast"


def test_plans_are_made_for_powers_of_two_of_m():
    assert [m_bucket(m) for m in (0, 1, 2, 3, 16, 17, 8192, 8193)] == [1, 1, 2, 4, 16, 32, 8192, 16384]


def test_plan_survives_json():
    rng = random.Random(0)
    for _ in range(50):
        tile = Tile(block_m=rng.choice([8, 16, 64]), num_stages=rng.randint(1, 8), stream_k=rng.random() < 0.5)
        plan = Plan(kernel="k", tile=tile, multiplies="bf16", workspace_bytes=rng.randint(0, 10), source="user")
        assert Plan.from_json(plan.to_json()) == plan


def test_layouts_are_asked_in_order_of_preference(monkeypatch):
    made = lambda family, spec, n, k, experts, facts: dataclasses.replace(LAYOUT, family=family, n=n, k=k)  # noqa: E731
    monkeypatch.setattr(choose, "make_layout", made)

    def layout(family, preference, reason):
        return LayoutEntry(
            family=family,
            preference=preference,
            reject=lambda spec, n, k, device: reason,
        )

    registry.register_layout(layout("plain", 0, None))
    registry.register_layout(layout("special", 5, "sm_80 has no wgmma"))
    assert choose_layout(SPEC, 256, 512, A100).family == "plain"
    registry.register_layout(layout("best", 3, None))
    assert choose_layout(SPEC, 256, 512, A100).family == "best"
    assert choose_layout(SPEC, 256, 512, A100, family="plain").family == "plain"
    with pytest.raises(ValueError, match=r"special: sm_80 has no wgmma"):
        choose_layout(SPEC, 256, 512, A100, family="special")


def test_a_name_can_be_registered_only_once():
    registry.register_kernel(entry("fast"))
    with pytest.raises(PlanError, match="'fast' is registered already"):
        registry.register_kernel(entry("fast"))
