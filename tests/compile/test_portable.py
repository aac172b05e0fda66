"""The portable kernels compile for every SM under every Triton, to the instruction that the plan names."""

import pytest

from hybrid_humming.device import DeviceInfo
from tests.compile.gemm_jobs import planned
from tests.compile.harness import INSTALLED, TRITONS, Job, compile_all, version_of

# One GPU of each SM.
GPUS = ("t4", "a100", "a10", "jetson-orin", "l40s", "h200", "b200", "b300", "jetson-thor", "rtx-pro-6000", "gb10", "sm107")
# One format of each way to decode and to scale.
LINES = ("uint3 g64 zp x fp16", "mxfp4 x bf16", "nvfp4 x bf16", "e3m2 g32 x fp16", "e4m3 b128x128 x bf16", "nvfp4 x nvfp4")
EVERYWHERE = [("int4 g128 x bf16", gpu, 16) for gpu in GPUS]
EVERYWHERE += [("e4m3 channel x e4m3 token", gpu, 1024) for gpu in ("a100", "h200", "b200")]
MORE = [("e4m3 channel x e4m3 token", gpu, 1024) for gpu in GPUS if gpu not in ("a100", "h200", "b200")]
MORE += [(line, gpu, 16) for gpu in ("t4", "h200") for line in LINES]
MORE += [("int4 g128 x bf16", "h200", 1), ("int4 g128 x bf16", "h200", 4096)]  # gemv, and dequantize for the library's matmul
CASES = [(case, triton) for triton in TRITONS for case in EVERYWHERE] + [(case, INSTALLED) for case in MORE]
TOO_OLD = {("jetson-thor", "3.6.0"), ("sm107", "3.6.0"), ("sm107", INSTALLED)}  # constraints.txt: 3.7.1 is installed
# What a plan's `mma` is called in PTX and in SASS.
INSTRUCTIONS = {"mma_sync": ("mma.sync.", "HMMA"), "wgmma": ("wgmma.mma_async.", "HGMMA"), "tcgen05": ("tcgen05.mma.", "UTCHMMA")}


def job(line: str, device: str, m: int) -> Job:
    return Job("tests.compile.gemm_jobs:first_kernel", {"line": line, "device": device, "m": m, "family": "portable"})


@pytest.mark.compile
@pytest.mark.timeout(900)  # the first test of each Triton compiles for all of them
@pytest.mark.parametrize(("case", "triton"), CASES, ids=lambda part: part if isinstance(part, str) else "-".join(map(str, part)))
def test_compiles_to_the_instruction_that_the_plan_names(case, triton):
    built = compile_all([job(*c) for c, t in CASES if t == triton], triton)[job(*case)]
    if (case[1], triton) in TOO_OLD:
        assert "CompileError" in built.error and f"Triton {version_of(triton)} does not know sm_" in built.error
        return
    assert built.ok, built.error
    unit = planned(*case, family="portable")[2].tile.mma
    for name, (in_ptx, in_sass) in INSTRUCTIONS.items():
        assert (in_ptx in built.ptx) == (name == unit), f"{unit} was planned; the PTX of {name} is not what follows"
        assert built.undecoded or (built.sass_count(in_sass) > 0) == (name == unit), f"{unit} was planned, but: {built.sass}"


def test_one_gpu_of_each_sm_is_compiled_for():
    assert {DeviceInfo.named(gpu).sm for gpu in GPUS} == {75, 80, 86, 87, 89, 90, 100, 103, 107, 110, 120, 121}
