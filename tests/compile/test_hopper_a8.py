"""The kernels for 8-bit activations, compiled: QGMMA or IGMMA, nothing serialised, no local memory in the loop, the registers and
shared memory planned."""

import re
import subprocess
from pathlib import Path

import pytest

from hybrid_humming.pack import make_layout
from hybrid_humming.plan import Tile
from hybrid_humming.spec import Problem, Spec
from hybrid_humming.triton_kernels.hopper.a8 import tiles, w4_tiles
from hybrid_humming.weight import Facts
from tests.compile.harness import SIDE, Job, compile_all
from tests.compile.hopper_loops import loop_of, overwritten_in_flight

FP8, BLOCK, INT8 = "e4m3 channel x e4m3 token", "e4m3 b128x128 x e4m3 g128", "int8 channel x int8 token"


def tile(block_m, block_n, num_stages, ctas_per_sm=1, stream_k=True, raster_m=0):
    rows = block_n if block_m < 128 else block_m
    return {
        "block_m": block_m, "block_n": block_n, "block_k": 128, "num_warps": 4 if rows == 64 else 8, "num_stages": num_stages,
        "ctas_per_sm": ctas_per_sm, "stream_k": stream_k, "raster_m": raster_m, "mma": "wgmma", "warp_specialize": True,
    }  # fmt: skip


def decoded(block_m, block_n, num_stages, ctas_per_sm=1, stream_k=True):
    return tile(block_m, block_n, num_stages, ctas_per_sm, stream_k) | {"num_warps": block_n // 16}


# (spec, tile, fast): each way of scaling, each pair of operand types, each tile that the catalog offers.
CASES = (
    (FP8, tile(16, 64, 8, 2), False), (FP8, tile(64, 128, 7), False),
    (FP8, tile(256, 128, 4, 1, False, 8), False), (FP8, tile(128, 256, 4, 1, False, 8), True),
    (BLOCK, tile(8, 64, 6, 2), False), (BLOCK, tile(256, 128, 4, 1, False, 8), False),
    (BLOCK, tile(256, 128, 4, 1, False, 8) | {"multicast": 2}, False),
    (INT8, tile(16, 64, 8, 2), False), (INT8, tile(128, 256, 4, 1, False, 8), False),
    ("e5m2 tensor x e4m3 tensor -> fp32", tile(128, 128, 4), False), ("mxfp8 x e5m2 g32:e8m0", tile(16, 64, 8, 2), False),
)  # fmt: skip
# (spec, tile): each kind of sum, each width of planes, each tile that the catalog offers.
DECODED = (
    ("int4 g128 x e4m3 token", decoded(8, 64, 6, 4)), ("int4 g128 x e4m3 token", decoded(128, 128, 6, 1, False)),
    ("int4 g128 x int8 token", decoded(128, 64, 5, 2)),
    ("int4 g128 x int8 token", decoded(128, 128, 6, 1, False) | {"multicast": 2}),
    ("mxfp4 x e4m3 token", decoded(16, 64, 6, 4)), ("mxfp4 x e4m3 token", decoded(64, 64, 6, 2)),
    ("nvfp4 x e4m3 token", decoded(32, 64, 6, 2)), ("int4 channel x int8 token", decoded(128, 128, 6, 1)),
    ("int3 g64 x int8 token", decoded(32, 64, 6, 3)),
    ("int4 g128 x e4m3 g32", decoded(16, 64, 5, 2)), ("int4 g128 x int8 g128", decoded(64, 64, 6, 2)),
    ("uint4 g32 zp x e4m3 token", decoded(16, 64, 5, 2)), ("e3m2 g32 x e5m2 token -> fp16", decoded(32, 128, 4, 1)),
)  # fmt: skip
WHOLE_JOBS = [
    Job("tests.compile.hopper_a8_build:built", {"kernel": "gluon.gemm_w8a8", "line": line, "tile": t, "fast": fast})
    for line, t, fast in CASES
] + [
    Job(
        "tests.compile.hopper_a8_build:built", {"kernel": "gluon.gemm_w8a8", "line": INT8, "tile": tile(64, 64, 6, 2), "zero": True}
    )
]
FOLDED = (decoded(8, 64, 6, 4), decoded(128, 128, 6, 1))
DECODED_JOBS = [
    Job("tests.compile.hopper_a8_build:built", {"kernel": "gluon.gemm_w4a8", "line": line, "tile": t}) for line, t in DECODED
] + [
    Job(
        "tests.compile.hopper_a8_build:built",
        {"kernel": "gluon.gemm_w4a8", "line": "mxfp4 x e4m3 token", "tile": t, "folded": True},
    )
    for t in FOLDED
]
JOBS = WHOLE_JOBS + DECODED_JOBS
LOCAL_BYTES = 32  # of a thread, outside of the loop

pytestmark = pytest.mark.compile


def check(built, spec: Spec) -> list[str]:
    """What every kernel promises; returns its loop."""
    assert built.ok, built.error
    product, other = ("IGMMA", "QGMMA") if spec.activation == "int8" else ("QGMMA", "IGMMA")
    assert built.sass_count(product) > 0 and built.sass_count(other) == built.sass_count("HGMMA") == 0
    loop = loop_of(Path(built.folder, "kernel.sass").read_text())
    assert any(product in text for text in loop)
    assert not [text for text in loop if re.search(r"\b(LDL|STL)\b", text)]
    assert sum("BAR.SYNC" in text for text in loop) == 2, "one arrival a step, and nobody else waits for everybody"
    assert built.stack_bytes <= LOCAL_BYTES
    return loop


@pytest.mark.parametrize("job", WHOLE_JOBS, ids=str)
def test_the_w8a8_kernel_stays_in_registers_and_in_its_shared_memory(job):
    built, sizes, spec = compile_all(JOBS, "3.6.0")[job], Tile(**job.kwargs["tile"]), Spec.parse(job.kwargs["line"])
    loop = check(built, spec)
    assert not [text for text in loop if re.search(r"GMMA\S* R\d+, R\d", text)], "both operands come from shared memory"
    assert built.registers <= tiles.registers(sizes)
    assert built.shared_bytes == tiles.shared_bytes(sizes, Problem(spec=spec, m=5, n=256, k=1024))


@pytest.mark.parametrize("job", DECODED_JOBS, ids=str)
def test_the_w4a8_kernel_stays_in_registers_and_in_its_shared_memory(job):
    built, sizes, spec = compile_all(JOBS, "3.6.0")[job], Tile(**job.kwargs["tile"]), Spec.parse(job.kwargs["line"])
    loop = check(built, spec)
    products = [text for text in loop if "GMMA" in text]
    assert all(re.search(r"GMMA\S* R\d+, R\d+(\.\w+)*, gdesc", text) for text in products), "W comes from registers"
    assert not overwritten_in_flight(loop)
    assert built.registers <= w4_tiles.registers(sizes)
    problem, layout = Problem(spec=spec, m=5, n=256, k=1024), make_layout("hopper_a8", spec, 256, 1024, facts=Facts())
    assert built.shared_bytes == w4_tiles.shared_bytes(sizes, problem, layout)


@pytest.mark.parametrize("job", [job for job in JOBS if "multicast" in job.kwargs["tile"]], ids=str)
def test_a_pair_of_ctas_shares_x(job):
    built = compile_all(JOBS, "3.6.0")[job]
    assert built.ok, built.error
    sass = Path(built.folder, "kernel.sass").read_text()
    assert len(re.findall(r"UTMALDG\.2D\.MULTICAST", sass)) == len(re.findall(r"UTMALDG\.2D", sass)) == 1, "x is read for both"
    assert re.search(r"UTMALDG\.3D ", sass) and not re.search(r"UTMALDG\.3D\.MULTICAST", sass), "each reads its own W"
    # Each slot is given back to both producers: two arrivals in the loop, two at the end of a segment.
    assert len(re.findall(r"SYNCS\.ARRIVE\.TRANS64\.RED", sass)) == 4
    assert len(re.findall(r"UCGABAR_WAIT", sass)) == 1 and len(re.findall(r"UCGABAR_ARV", sass)) == 2
    assert ".reqnctapercluster 2, 1, 1" in built.ptx


@pytest.mark.parametrize("job", JOBS[::3], ids=str)
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


def test_a_register_that_changes_under_a_product_is_found():
    """The check of machine code itself: it reports the write once the wait before it is taken out."""
    loop = compile_all(JOBS, "3.6.0")[DECODED_JOBS[0]]
    text = loop_of(Path(loop.folder, "kernel.sass").read_text())
    assert not overwritten_in_flight(text)
    assert overwritten_in_flight([line for line in text if "DEPBAR" not in line])
