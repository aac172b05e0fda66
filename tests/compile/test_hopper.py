"""Hopper kernels, compiled: tensor cores, no local memory, the shared memory that the planner counts on, few instructions."""

import pytest

from hybrid_humming.pack import make_layout
from hybrid_humming.plan import Tile
from hybrid_humming.spec import Problem, Spec
from hybrid_humming.triton_kernels.hopper.plan import stream_shared_bytes
from hybrid_humming.weight import Facts
from tests.compile.harness import TRITONS, Job, compile_all
from tests.compile.test_hopper_decode import loop_of

N, K = 192, 1024


def tile(block_m, block_n, block_k, num_warps, num_stages, ctas_per_sm, split_k=1):
    return {
        "block_m": block_m, "block_n": block_n, "block_k": block_k, "num_warps": num_warps, "num_stages": num_stages,
        "ctas_per_sm": ctas_per_sm, "split_k": split_k, "mma": "mma_sync",
    }  # fmt: skip


FEW, MORE = tile(8, 64, 512, 8, 4, 2), tile(16, 64, 512, 8, 3, 2)
# (spec, tile, ceiling): the ceiling is on the main loop's instructions for each weight that a lane decodes, scales and
# multiplies, all pipes; measured with Triton 3.6.0, a kernel that needs more has lost something.
STREAM = (
    ("int4 g128 x bf16", FEW, 2.25), ("int4 g128 x bf16", tile(16, 128, 256, 8, 3, 2), 2.8),
    ("int4 g128 x bf16", tile(8, 32, 256, 4, 6, 4, 2), 2.6), ("int4 g128 x bf16", tile(32, 64, 256, 8, 4, 2), 3.4),
    ("int4 g128 x bf16", tile(64, 128, 256, 8, 4, 1), 4.6), ("int1 g128 x bf16", FEW, 2.0), ("int3 g64 x bf16", MORE, 2.85),
    ("int7 g128 x bf16", MORE, 3.65), ("int8 channel x bf16", tile(8, 64, 256, 8, 4, 2), 2.8), ("nvfp4 x bf16", MORE, 4.0),
    ("mxfp4 x fp16", FEW, 2.9), ("e2m3 g128 x bf16", MORE, 3.6), ("e4m3 b128x128 x bf16", tile(16, 64, 256, 8, 4, 2), 3.5),
    ("uint4 g64 zp x bf16", FEW, 3.1), ("uint4 g64 zp:fp32 x bf16", FEW, 4.7),
    ("uint4 g32 zp x fp16", tile(8, 32, 256, 4, 4, 4), 4.2), ("uint3 channel zp:fp16 x bf16", tile(16, 64, 512, 16, 3, 1), 4.75),
)  # fmt: skip
STREAM_JOBS = [Job("tests.compile.hopper_build:built", {"kernel": "gluon.gemm_stream", "line": s, "tile": t}) for s, t, _ in STREAM]
CEILINGS = {str(job): ceiling for job, (_, _, ceiling) in zip(STREAM_JOBS, STREAM, strict=True)}
DEQUANT = {"block_m": 16, "block_n": 64, "block_k": 256, "num_warps": 8, "num_stages": 1, "mma": "library"}
DEQUANT_LINES = (
    "int4 g128 x bf16", "int3 g64 x bf16", "int8 channel x fp16", "nvfp4 x bf16", "uint4 g32 zp:fp32 x bf16",
    "e4m3 b128x128 x bf16",
)  # fmt: skip
DEQUANT_JOBS = [
    Job("tests.compile.hopper_build:built", {"kernel": "gluon.hopper_dequant_matmul", "line": line, "tile": DEQUANT, "m": 300})
    for line in DEQUANT_LINES
]
JOBS = STREAM_JOBS + DEQUANT_JOBS
OTHER_TRITONS = STREAM_JOBS[:4] + DEQUANT_JOBS[:1]


def shared_bytes(job):
    spec, sizes = Spec.parse(job.kwargs["line"]), Tile(**job.kwargs["tile"])
    problem = Problem(spec=spec, m=5, n=N, k=K)
    return stream_shared_bytes(sizes, problem, make_layout("hopper", spec, N, K, facts=Facts()))


pytestmark = pytest.mark.compile


@pytest.mark.parametrize("job", STREAM_JOBS, ids=str)
def test_the_stream_kernel_stays_in_registers_and_in_its_shared_memory(job):
    built = compile_all(JOBS, "3.6.0")[job]
    assert built.ok, built.error
    assert built.sass_count("HMMA.16816") > 0
    assert built.spills == 0 and built.stack_bytes == 0
    assert built.registers * job.kwargs["tile"]["num_warps"] * 32 * job.kwargs["tile"]["ctas_per_sm"] <= 65536
    assert built.shared_bytes == shared_bytes(job)


@pytest.mark.parametrize("job", STREAM_JOBS, ids=str)
def test_the_stream_kernel_takes_few_instructions(job):
    built = compile_all(JOBS, "3.6.0")[job]
    assert built.ok, built.error
    tile = job.kwargs["tile"]
    weights = tile["block_n"] * tile["block_k"] / (32 * tile["num_warps"])
    assert sum(loop_of(built.folder).values()) / weights <= CEILINGS[str(job)]


@pytest.mark.parametrize("job", DEQUANT_JOBS, ids=str)
def test_dequantization_stays_in_registers_and_stores_whole_sectors(job):
    built = compile_all(JOBS, "3.6.0")[job]
    assert built.ok, built.error
    assert built.spills == 0 and built.stack_bytes == 0
    assert built.sass_count("STG.E.128") > 0 and built.sass_count("STG") == built.sass_count("STG.E.128")


@pytest.mark.parametrize("triton", [t for t in TRITONS if t != "3.6.0"])
@pytest.mark.parametrize("job", OTHER_TRITONS, ids=str)
def test_other_tritons_compile_it_too(job, triton):
    built = compile_all(OTHER_TRITONS, triton)[job]
    assert built.ok, built.error
    assert built.spills == 0
