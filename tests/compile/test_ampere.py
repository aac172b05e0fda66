"""The Ampere kernels, compiled for each of their SMs: mma.sync, no local memory, shared memory as planned and within the SM."""

import pytest

from hybrid_humming.device import DeviceInfo
from hybrid_humming.triton_kernels.ampere.catalog import SMS
from hybrid_humming.triton_kernels.hopper.plan import stream_shared_bytes
from tests.compile.gemm_jobs import planned
from tests.compile.harness import TRITONS, Job, compile_all

GPUS = ("a100", "a10", "jetson-orin", "l40s", "rtx-pro-6000", "gb10")  # one of each SM
# One format of each way to decode and to scale; what sm_80 lacks is in the PTX for int8, zero points, and 8-bit floats.
LINES = (
    "int4 g128 x bf16", "int8 channel x bf16", "uint4 g64 zp x bf16", "uint3 g32 zp:fp32 x bf16", "e4m3 b128x128 x bf16",
    "e5m2 channel x fp16", "e4m3 channel x fp16", "e2m3 g128 x bf16", "nvfp4 x bf16", "mxfp4 x fp16",
)  # fmt: skip
CASES = [(line, "a100", 16) for line in LINES] + [("e4m3 channel x bf16", "l40s", 16), ("nvfp4 x bf16", "l40s", 16)]
CASES += [("int4 g128 x bf16", gpu, m) for gpu in GPUS for m in (1, 64)]
CASES += [(line, "a10", 1024) for line in ("int4 g128 x bf16", "nvfp4 x bf16")]
OTHER_TRITONS = [("int4 g128 x bf16", gpu, 1) for gpu in GPUS] + [("e4m3 b128x128 x bf16", "a100", 16)]


def job(line, gpu, m):
    return Job("tests.compile.gemm_jobs:first_kernel", {"line": line, "device": gpu, "m": m, "family": "ampere"})


def check(case, cases, triton):
    built = compile_all([job(*c) for c in cases], triton)[job(*case)]
    assert built.ok, built.error
    problem, layout, plan = planned(*case, family="ampere")
    device = DeviceInfo.named(case[1])
    assert built.spills == 0 and built.stack_bytes == 0
    assert built.shared_bytes <= device.shared_per_block_bytes
    assert built.registers * plan.tile.num_warps * 32 * plan.tile.ctas_per_sm <= 65536
    if plan.kernel == "gluon.ampere_stream":
        assert "mma.sync.aligned.m16n8k16" in built.ptx
        assert built.undecoded or built.sass_count("HMMA.16816") > 0
        assert built.undecoded or built.sass_count("LDGSTS") > 0
        assert built.shared_bytes == stream_shared_bytes(plan.tile, problem, layout)
    return built


@pytest.mark.compile
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c)))
def test_uses_mma_sync_from_registers_that_hold_it(case):
    check(case, CASES, "3.6.0")


@pytest.mark.compile
@pytest.mark.timeout(600)
@pytest.mark.parametrize("triton", [t for t in TRITONS if t != "3.6.0"])
@pytest.mark.parametrize("case", OTHER_TRITONS, ids=lambda c: "-".join(map(str, c)))
def test_other_tritons_compile_it_too(case, triton):
    check(case, OTHER_TRITONS, triton)


def test_one_gpu_of_each_sm_is_compiled_for():
    assert {DeviceInfo.named(gpu).sm for gpu in GPUS} == set(SMS)
