"""gemm.cu and small_m.cu as NVRTC compiles them, run on the emulator: the product of the packed weight, for every kind."""

import pytest

from hybrid_humming.plan import Tile
from tests.cuda_kernels.problems import problem

pytest.importorskip("cuda.bindings", reason="cuda-bindings and NVRTC come with the extra cuda13")
ROUNDING = 3e-3  # relative error of a y rounded to bf16


def tile(block_m: int, ctas: int = 1, stages: int = 2) -> Tile:
    return Tile(block_m=block_m, block_n=128, block_k=128, multicast=ctas, num_stages=stages, mma="tcgen05")


CASES = [  # spec, m, n, k, SM, tile, instruction
    ("nvfp4 x nvfp4", 40, 136, 544, 100, tile(32), "umma mxf4nvf4 e2m1 e2m1"),
    ("nvfp4 x nvfp4", 130, 300, 288, 103, tile(64, 2), "umma mxf4nvf4 e2m1 e2m1"),
    ("nvfp4 x nvfp4", 257, 130, 288, 100, tile(256, 2), "umma mxf4nvf4 e2m1 e2m1"),
    ("int4 g16:e4m3 x e0m3 g16:e4m3", 33, 136, 288, 100, tile(64), "umma mxf4nvf4 e0m3 e0m3"),
    ("int4 g16:e4m3 x nvfp4", 70, 264, 272 + 240, 103, tile(32, 2), "umma mxf4nvf4 e0m3 e2m1"),
    ("mxfp4 x mxfp4", 70, 130, 352, 100, tile(128), "umma mxf4nvf4 e2m1 e2m1"),
    ("mxfp8 x mxfp8", 70, 130, 352, 100, tile(64), "umma mxf8f6f4 e4m3 e4m3"),
    ("mxfp4 x mxfp8", 70, 270, 384, 103, tile(64, 2), "umma mxf8f6f4 e2m1 e4m3"),
    ("mxfp6 x e3m4 g32:e8m0", 40, 130, 352, 100, tile(32), "umma mxf8f6f4 e2m3 e3m4"),
    ("e4m3 channel x e4m3 token", 40, 200, 208, 100, tile(16), "umma f8f6f4 e4m3 e4m3"),
    ("e2m3 channel x e3m4 token", 40, 200, 272, 100, tile(32), "umma f8f6f4 e2m3 e3m4"),
    ("e3m2 channel x e3m4 token", 40, 200, 272, 103, tile(32, 2), "umma f8f6f4 e3m2 e3m4"),
    ("e2m1 channel x e5m2 tensor", 40, 200, 256, 100, tile(32), "umma f8f6f4 e2m1 e5m2"),
    ("e3m4 tensor x e3m4 token -> fp32", 17, 130, 400, 110, tile(32), "umma f8f6f4 e3m4 e3m4"),
    ("e4m3 channel x e4m3 token", 40, 200, 208, 90, tile(32, stages=3), "wgmma e4m3 e4m3"),
    ("e5m2 tensor x e4m3 token", 100, 70, 272, 90, tile(64), "wgmma e5m2 e4m3"),
]


@pytest.mark.parametrize(("line", "m", "n", "k", "sm", "how", "instruction"), CASES, ids=lambda v: str(v).replace(" ", "_")[:32])
def test_the_compiled_kernel_gives_the_reference_product(line, m, n, k, sm, how, instruction):
    run = problem(line, m, n, k, sm=sm, tile=how, bias="bf16" if m % 2 else "")
    error, counts = run.emulate()
    assert error < (1e-6 if "fp32" in line else ROUNDING)
    tiles = -(-m // how.block_m) * -(-n // (128 * how.multicast))
    steps = -(-k // (256 if "mxf4" in instruction else 128))
    issued = 2 * 4 if sm == 90 else 1  # warps that issue a wgmma; tcgen05 takes one thread of a pair of CTAs
    assert counts[instruction] == 4 * tiles * steps * issued
    assert set(counts) - {"tma", "scale copy"} == {instruction}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("line", "how"), [("nvfp4 x nvfp4", tile(32, 2)), ("e4m3 channel x e3m4 token", tile(32))])
def test_no_order_in_which_hardware_works_changes_the_result(line, how, seed):
    run = problem(line, 70, 264, 544, sm=100, tile=how)
    assert run.emulate(seed=seed)[0] < ROUNDING


SMALL = [
    ("int4 g128 x bf16", 11, 40, 384, 8), ("int4 g128 x fp16", 3, 24, 256, 8), ("int4 channel x bf16", 17, 40, 392, 16),
    ("int4 g256:fp32 x bf16 -> fp32", 30, 17, 512, 32),
]  # fmt: skip


@pytest.mark.parametrize("sm", [90, 100])
@pytest.mark.parametrize(("line", "m", "n", "k", "block_m"), SMALL)
def test_the_kernel_for_few_rows_gives_the_reference_product(line, m, n, k, block_m, sm):
    run = problem(line, m, n, k, sm=sm, tile=tile(block_m), family="portable", bias="fp32" if m % 2 else "")
    error, counts = run.emulate()
    assert error < (1e-6 if "fp32" in line else ROUNDING)
    assert set(counts) == {"mma.sync fp16" if "fp16" in line else "mma.sync bf16"}
