"""gemm.cu and small_m.cu for every SM and kind: the instructions in their machine code, registers, shared memory as planned."""

import re

import pytest

import hybrid_humming as hh
from hybrid_humming.cuda_kernels.patch import InstructionDescriptor, read_descriptors
from hybrid_humming.cuda_kernels.sm100.config import KINDS, GemmConfig
from hybrid_humming.cuda_kernels.sm100.launch import compile_gemm, compile_small
from hybrid_humming.errors import CompileError, UnsupportedProblem
from tests.cuda_kernels.machine_code import disassemble

pytest.importorskip("cuda.bindings", reason="cuda-bindings and NVRTC come with the extra cuda13")
OPERANDS = {  # kind -> (w, x, instruction in SASS)
    "f16": ("bf16", "bf16", "UTCHMMA"),
    "f8f6f4": ("e2m3", "e3m4", "UTCQMMA"),
    "mxf8f6f4": ("e2m1", "e4m3", "UTCQMMA"),
    "mxf4": ("e2m1", "e2m1", "UTCOMMA"),
    "nvf4": ("e0m3", "e2m1", r"UTCOMMA\S*\.(4X|BLOCK16)"),
}
SMALL = {"WARPS": 8, "M_TILES": 1, "X_TYPE": 2, "SCALE": 2, "BIAS": 0, "OUT": 2}


def config(kind: str, sm: int, ctas: int, block_m: int = 64) -> GemmConfig:
    return GemmConfig(sm=sm, kind=kind, w=OPERANDS[kind][0], x=OPERANDS[kind][1], out="bf16", block_m=block_m, ctas=ctas, stages=3)


def lines(cubin: bytes, pattern: str) -> list[str]:
    return [text for text in disassemble(cubin).values() if re.search(pattern, text)]


def test_every_kind_is_compiled():
    assert set(OPERANDS) == set(KINDS)


TENSOR = [(kind, 1 + i % 2, 100) for i, kind in enumerate(KINDS)] + [(kind, 2 - i % 2, 103) for i, kind in enumerate(KINDS)]


@pytest.mark.parametrize(("kind", "ctas", "sm"), [*TENSOR, ("mxf4", 1, 110)])
def test_tensor_memory_multiplies_what_tma_loads(kind, ctas, sm):
    made = config(kind, sm, ctas)
    built = compile_gemm(made)
    assert built.spill_bytes == 0 and built.registers * made.threads <= 65536
    vector = made.vector
    suffix = r"\.2CTA" if ctas == 2 else ""
    mma = lines(built.cubin, OPERANDS[made.kind][2])
    assert len(mma) == 4 and all(re.search(suffix, line) for line in mma)
    assert len(lines(built.cubin, r"UTMALDG\.2D")) == (4 if vector else 2)
    assert bool(lines(built.cubin, "UTCCP")) == bool(vector)
    assert lines(built.cubin, r"LDTM") and lines(built.cubin, "UTCATOMSWS|UTCBAR")
    register = re.search(r"expect_tx\S* _, \[%r\d+\], (%r\d+)", built.asm["ptx"])[1]
    loaded = int(re.search(rf"mov\.b32\s+{register}, (\d+)", built.asm["ptx"])[1])
    assert loaded == ctas * (128 * 128 + 64 // ctas * 128 + 2 * 512 * vector) <= ctas * made.stage_bytes


@pytest.mark.parametrize("kind", KINDS)
def test_the_descriptor_in_the_code_is_the_one_asked_for(kind):
    """Kernels without scale ids keep it as a constant of the PTX; the others add the id of each step to it."""
    made = config(kind, 100, 1)
    words = {site.word for site in read_descriptors(compile_gemm(made).asm["ptx"])}
    ids = {0: {0}, 1: {0, 1, 2, 3}, 2: {0, 2}, 4: {0}}[made.vector]
    assert words == {made.descriptor.encode() | i << 4 | i << 29 for i in ids}
    name = KINDS[kind][0].split(".")[0]
    for word in words:
        read = InstructionDescriptor.decode(word, name)
        assert (read.a, read.b, read.m, read.n) == (made.w, made.x, 128, 64)


def test_a_kind_that_an_sm_lacks_is_refused():
    with pytest.raises(CompileError, match="sm_120a"):
        compile_gemm(config("f8f6f4", 120, 1))
    with pytest.raises(UnsupportedProblem, match="sm_90 multiplies no"):
        config("nvf4", 90, 1)
    with pytest.raises(UnsupportedProblem, match="pairs of CTAs"):
        GemmConfig(sm=90, kind="f8f6f4", w="e4m3", x="e4m3", out="bf16", block_m=64, ctas=2)
    with pytest.raises(UnsupportedProblem, match="block_m=16"):
        config("nvf4", 100, 1, block_m=16)


@pytest.mark.parametrize("block_m", [16, 32, 64, 128])
def test_the_sibling_on_hopper_multiplies_with_wgmma(block_m):
    built = compile_gemm(GemmConfig(sm=90, kind="f8f6f4", w="e4m3", x="e5m2", out="fp32", block_m=block_m, stages=3))
    assert built.spill_bytes == 0 and built.registers * 384 <= 65536
    assert len(lines(built.cubin, rf"QGMMA\.64x{block_m}x32\.F32\.E4M3\.E5M2")) == 4
    assert len(lines(built.cubin, r"UTMALDG\.2D")) == 2 and lines(built.cubin, "SYNCS")


@pytest.mark.parametrize("sm", [80, 89, 90, 100, 103, 110, 120, 121])
def test_the_kernel_for_few_rows_compiles_everywhere(sm):
    built = compile_small(sm, tuple(SMALL.items()))
    assert built.spill_bytes == 0 and len(lines(built.cubin, r"HMMA\.16816\.F32\.BF16")) == 8


@pytest.mark.parametrize(("line", "m", "entry"), [("int4 g128 x bf16", 16, "small_m"), ("mxfp8 x mxfp8", 512, "gemm")])
def test_what_a_plan_launches_is_compiled_without_a_gpu(line, m, entry):
    problem = hh.Problem(spec=hh.Spec.parse(line), m=m, n=4096, k=4096)
    plan, compiled = hh.compile_gemm(problem, "b200")
    assert plan.kernel.startswith("cuda.") and compiled[0].entry == entry and compiled[0].sm == 100 and compiled[0].cubin
