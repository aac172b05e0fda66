"""The kernels for 8-bit activations, compiled: QGMMA or IGMMA, nothing serialised, no local memory in the loop, the registers and
shared memory planned."""

import re
import subprocess
from pathlib import Path

import pytest

from hybrid_humming.plan import Tile
from hybrid_humming.spec import Problem, Spec
from hybrid_humming.triton_kernels.hopper.a8.tiles import registers, shared_bytes
from tests.compile.harness import SIDE, Job, compile_all

FP8, BLOCK, INT8 = "e4m3 channel x e4m3 token", "e4m3 b128x128 x e4m3 g128", "int8 channel x int8 token"


def tile(block_m, block_n, num_stages, ctas_per_sm=1, stream_k=True, raster_m=0):
    rows = block_n if block_m < 128 else block_m
    return {
        "block_m": block_m, "block_n": block_n, "block_k": 128, "num_warps": 4 if rows == 64 else 8, "num_stages": num_stages,
        "ctas_per_sm": ctas_per_sm, "stream_k": stream_k, "raster_m": raster_m, "mma": "wgmma", "warp_specialize": True,
    }  # fmt: skip


# (spec, tile, fast): each way of scaling, each pair of operand types, each tile that the catalog offers.
CASES = (
    (FP8, tile(16, 64, 8, 2), False), (FP8, tile(64, 128, 7), False), (FP8, tile(128, 64, 4, 2), False),
    (FP8, tile(256, 128, 4, 1, False, 8), False), (FP8, tile(128, 256, 4, 1, False, 8), True),
    (BLOCK, tile(64, 64, 6, 2), False), (BLOCK, tile(128, 128, 6), False), (BLOCK, tile(256, 128, 4, 1, False, 8), False),
    (INT8, tile(16, 64, 8, 2), False), (INT8, tile(128, 256, 4, 1, False, 8), False),
    ("e5m2 tensor x e4m3 tensor -> fp32", tile(128, 128, 4), False), ("mxfp8 x e5m2 g32:e8m0", tile(16, 64, 8, 2), False),
    ("int8 g64 x int8 token", tile(32, 64, 8, 2), False),
)  # fmt: skip
JOBS = [
    Job("tests.compile.hopper_a8_build:built", {"kernel": "gluon.gemm_w8a8", "line": line, "tile": t, "fast": fast})
    for line, t, fast in CASES
]
LOCAL_BYTES = 32  # of a thread, outside of the loop

pytestmark = pytest.mark.compile


def loop_of(sass: str) -> list[str]:
    """The instructions of the innermost loop around the first product."""
    found = [(int(at, 16), text) for at, text in re.findall(r"^\s+/\*([0-9a-f]{4,5})\*/\s+(.*?);", sass, re.M)]
    first = next(at for at, text in found if "GMMA" in text)
    loops = []
    for at, text in found:
        target = re.search(r"BRA.*?0x([0-9a-f]+)", text)
        if target and int(target[1], 16) <= first <= at:
            loops.append((int(target[1], 16), at))
    begin, end = min(loops, key=lambda loop: loop[1] - loop[0])
    return [text for at, text in found if begin <= at <= end]


@pytest.mark.parametrize("job", JOBS, ids=str)
def test_the_w8a8_kernel_stays_in_registers_and_in_its_shared_memory(job):
    built = compile_all(JOBS, "3.6.0")[job]
    assert built.ok, built.error
    sizes, spec = Tile(**job.kwargs["tile"]), Spec.parse(job.kwargs["line"])
    product, other = ("IGMMA", "QGMMA") if spec.activation == "int8" else ("QGMMA", "IGMMA")
    assert built.sass_count(product) > 0 and built.sass_count(other) == built.sass_count("HGMMA") == 0
    loop = loop_of(Path(built.folder, "kernel.sass").read_text())
    assert any(product in text for text in loop)
    assert not [text for text in loop if re.search(r"\b(LDL|STL)\b", text)]
    assert built.stack_bytes <= LOCAL_BYTES
    assert built.registers <= registers(sizes)
    assert built.shared_bytes == shared_bytes(sizes, Problem(spec=spec, m=5, n=256, k=1024))


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
