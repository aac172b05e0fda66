"""The wgmma kernel, compiled: wgmma instructions, nothing serialised, no local memory, the registers and shared memory planned."""

import subprocess
from pathlib import Path

import pytest

from hybrid_humming.pack import make_layout
from hybrid_humming.plan import Tile
from hybrid_humming.spec import Problem, Spec
from hybrid_humming.triton_kernels.hopper.wgmma_tiles import registers, shared_bytes
from hybrid_humming.weight import Facts
from tests.compile.harness import SIDE, Job, compile_all
from tests.compile.sass import beside_products, is_mma, loop_of, overwritten, written

N, K = 256, 1024


def tile(block_m, block_n, num_stages, ctas_per_sm, stream_k=True, raster_m=0):
    return {
        "block_m": block_m, "block_n": block_n, "block_k": 128, "num_warps": block_n // 16, "num_stages": num_stages,
        "ctas_per_sm": ctas_per_sm, "stream_k": stream_k, "raster_m": raster_m, "mma": "wgmma", "warp_specialize": True,
    }  # fmt: skip


# (spec, tile): each way of scaling, each width of planes, each tile that the catalog offers.
CASES = (
    ("int4 g128 x bf16", tile(8, 64, 5, 3)), ("int4 g128 x bf16", tile(16, 64, 4, 4)), ("int4 g128 x bf16", tile(16, 128, 3, 2)),
    ("int4 g128 x bf16", tile(32, 64, 4, 3)), ("int4 g128 x bf16", tile(32, 128, 4, 2)), ("nvfp4 x bf16", tile(128, 64, 3, 2)),
    ("int4 g128 x bf16", tile(128, 64, 3, 2, False, 4)), ("mxfp4 x bf16", tile(128, 64, 3, 2)),
    ("int4 g128 x bf16", tile(16, 64, 6, 2)), ("int4 g128 x bf16", tile(32, 64, 6, 2)), ("int4 g128 x bf16", tile(32, 128, 7, 1)),
    ("int4 g128 x bf16", tile(64, 64, 4, 2)), ("int4 g128 x bf16", tile(64, 128, 6, 1)), ("int4 g128 x bf16", tile(128, 128, 4, 1)),
    ("int4 g128 x bf16", tile(256, 128, 3, 1, True, 4)), ("int4 g128 x fp16", tile(256, 128, 3, 1, False, 4)),
    ("int8 channel x bf16", tile(64, 128, 5, 1)), ("int3 g64 x bf16", tile(32, 64, 6, 2)), ("int7 g128 x bf16", tile(64, 64, 4, 2)),
    ("mxfp4 x bf16", tile(128, 128, 4, 1)), ("mxfp4 x fp16", tile(32, 128, 6, 1)), ("nvfp4 x bf16", tile(64, 128, 6, 1)),
    ("e4m3 b128x128 x bf16", tile(128, 128, 4, 1)), ("uint4 g64 zp x bf16", tile(64, 64, 4, 2)),
    ("uint4 g32 zp x fp16", tile(32, 128, 6, 1)), ("uint4 g128 zp:fp32 x bf16", tile(128, 128, 4, 1)),
)  # fmt: skip
JOBS = [
    Job("tests.compile.hopper_build:built", {"kernel": "gluon.gemm_wgmma", "line": s, "tile": t, "n": N, "k": K}) for s, t in CASES
]

pytestmark = pytest.mark.compile


@pytest.mark.parametrize("job", JOBS, ids=str)
def test_the_wgmma_kernel_stays_in_registers_and_in_its_shared_memory(job):
    built = compile_all(JOBS, "3.6.0")[job]
    assert built.ok, built.error
    sizes, spec = Tile(**job.kwargs["tile"]), Spec.parse(job.kwargs["line"])
    assert built.sass_count("HGMMA") > 0 and built.sass_count("HMMA") == 0
    assert built.spills == 0 and built.stack_bytes == 0
    assert built.registers <= registers(sizes)
    problem = Problem(spec=spec, m=5, n=N, k=K)
    assert built.shared_bytes == shared_bytes(sizes, problem, make_layout("hopper", spec, N, K, facts=Facts()))


@pytest.mark.parametrize("job", JOBS, ids=str)
def test_the_assembler_does_not_serialise_its_products(job, tmp_path):
    """ptxas warns (C7510 and its like) where it makes each wgmma wait for the one before."""
    built = compile_all(JOBS, "3.6.0")[job]
    assert built.ok, built.error
    source = tmp_path / "kernel.ptx"
    source.write_text(built.ptx)
    ptxas = SIDE / "3.6.0" / "triton" / "backends" / "nvidia" / "bin" / "ptxas"
    done = subprocess.run([ptxas, "-v", "-arch=sm_90a", source, "-o", tmp_path / "kernel.cubin"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "C75" not in done.stderr and "serializ" not in done.stderr, done.stderr


@pytest.mark.parametrize("job", JOBS, ids=str)
def test_a_running_product_keeps_its_operand_and_decoding_runs_beside_it(job):
    built = compile_all(JOBS, "3.6.0")[job]
    assert built.ok, built.error
    body = loop_of((Path(built.folder) / "kernel.sass").read_text())
    assert not overwritten(body)
    # Of all that is no wgmma: scaling sums waits for the products, decoding should not.
    assert beside_products(body) >= 0.6 * sum(not is_mma(text) for text in body), f"{beside_products(body)} of {len(body)}"


def test_an_operand_without_its_wait_would_be_seen():
    built = compile_all(JOBS, "3.6.0")[JOBS[0]]
    body = loop_of((Path(built.folder) / "kernel.sass").read_text())
    unguarded = [text for text in body if not text.startswith("WARPGROUP.DEPBAR")]
    assert len(unguarded) < len(body) and overwritten(unguarded)
    assert written("LDS.128 R8, [R48]") == {8, 9, 10, 11} and written("STS [R4], R5") == set()
    assert written("LOP3.LUT P0, R60, R8, 0xf000f, R86.reuse, 0xea, !PT") == {60}
