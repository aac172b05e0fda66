"""What the Ampere catalog promises: legal tiles within shared memory, a kernel for every M, nothing of Hopper changed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybrid_humming as hh
from hybrid_humming.device import DeviceInfo, device_names
from hybrid_humming.errors import PlanError
from hybrid_humming.pack import make_layout
from hybrid_humming.plan import survey
from hybrid_humming.spec import Problem, Spec
from hybrid_humming.triton_kernels.ampere.catalog import DEQUANT_MATMUL, ENTRIES, SMS, STREAM, reject_spec
from hybrid_humming.triton_kernels.hopper.plan import stream_shared_bytes
from hybrid_humming.weight import Facts
from tests.kernels.cases import WEIGHT_ONLY

GPUS = tuple(name for name in device_names() if DeviceInfo.named(name).sm in SMS)
LINES = [f"{half} x {x}" for half in WEIGHT_ONLY for x in ("bf16", "fp16")]
HELD = [line for line in LINES if reject_spec(Spec.parse(line), DeviceInfo.named("a100")) is None]
LIMITS = {80: 164 << 10, 86: 100 << 10, 87: 164 << 10, 89: 100 << 10, 120: 100 << 10, 121: 100 << 10}  # of an SM


def planned(line, m, n, k, **changes):
    spec = Spec.parse(line)
    return Problem(spec=spec, m=m, n=n, k=k, **changes), make_layout("ampere", spec, n, k, facts=Facts())


def test_one_gpu_of_each_sm_is_planned_for_and_most_formats_are_held():
    assert {DeviceInfo.named(name).sm for name in GPUS} == set(SMS) == set(LIMITS)
    assert len(HELD) >= len(LINES) - 8, sorted(set(LINES) - set(HELD))


@settings(max_examples=150, deadline=None)
@given(
    line=st.sampled_from(HELD), name=st.sampled_from(GPUS), m=st.integers(1, 8192), n=st.integers(1, 2000),
    blocks=st.integers(1, 60), invariant=st.booleans(),
)  # fmt: skip
def test_every_tile_on_offer_is_legal_and_fits(line, name, m, n, blocks, invariant):
    problem, layout = planned(line, m, 8 * n, 256 * blocks, batch_invariant=invariant)
    device, runs = DeviceInfo.named(name), False
    for entry in ENTRIES:
        if entry.reject(problem, layout, device) is not None:
            continue
        for tile in entry.tiles(problem, layout, device):
            runs = True
            assert entry.check(tile, problem, layout, device) is None
            assert 0 < entry.cost_us(tile, problem, layout, device) < 1e8
            need = stream_shared_bytes(tile, problem, layout) + 1024
            assert entry is DEQUANT_MATMUL or need * tile.ctas_per_sm <= LIMITS[device.sm]
            assert not tile.dependent_launch
    assert runs, "no kernel of the ampere layout runs it"


@pytest.mark.parametrize("name", ["a100", "l40s", "rtx-5090"])
def test_few_rows_stream_and_many_are_dequantized(name):
    for m, kernel in ((1, STREAM), (17, STREAM), (64, STREAM), (2048, DEQUANT_MATMUL)):
        problem = Problem(spec=Spec.parse("int4 g128 x bf16"), m=m, n=4096, k=4096)
        assert hh.choose_plan(problem, device=name).kernel == kernel.name


@pytest.mark.parametrize("line", HELD)
def test_a_hopper_gpu_plans_as_if_this_family_were_not_there(line):
    for n, k in ((264, 512), (4096, 4096)):
        layout = hh.choose_layout(line, n, k, "h200")
        assert layout.family != "ampere"
        for m in (1, 64, 1024):
            found = survey(Problem(spec=Spec.parse(line), m=m, n=n, k=k), layout, DeviceInfo.named("h200"))
            assert not any(candidate.entry.family == "ampere" for candidate in found.candidates)


def test_a_weight_packed_for_an_older_gpu_runs_on_a_newer_one():
    problem, layout = planned("int4 g128 x bf16", 8, 4096, 4096)
    assert hh.choose_plan(problem, layout, "h200").kernel == STREAM.name


@pytest.mark.parametrize(("line", "name", "message"), [
    ("int4 g128 x bf16", "h200", "h200 is sm_90"), ("int4 g128 x bf16", "t4", "t4 is sm_75"),
    ("int4 g128 x e4m3 token", "l40s", "multiplies bf16 and fp16 activations only"), ("int4 g24 x bf16", "a100", "span 24 weights"),
    ("uint4 tensor zp x bf16", "a100", "not to the whole tensor"),
])  # fmt: skip
def test_what_the_layout_cant_hold_is_refused_with_the_reason(line, name, message):
    assert message in str(reject_spec(Spec.parse(line), DeviceInfo.named(name)))


def test_dependent_launch_is_refused_before_sm_90():
    problem, layout = planned("int4 g128 x bf16", 8, 4096, 4096)
    plan = hh.choose_plan(problem, layout, "a100")
    with pytest.raises(PlanError, match="dependent_launch needs sm_90"):
        hh.plan.check_plan(plan.replace(dependent_launch=True), problem, layout, DeviceInfo.named("a100"))
