"""One bit or one index wrong, anywhere between the checkpoint's codes and the product: each must show.

A mutant is the library's own function or CUDA source with one piece of text exchanged, a bit of a descriptor in the compiled
kernel, or a bit of an editor's table. The untouched program passes the same check.
"""

import contextlib
import dataclasses
import inspect
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from hybrid_humming.cuda_kernels.patch import EDITS, BitField, descriptor, patch_cubin
from hybrid_humming.cuda_kernels.sm100 import config, launch, maps
from hybrid_humming.errors import HybridHummingError
from hybrid_humming.jit.elf import read_cubin
from hybrid_humming.pack import umma
from hybrid_humming.plan import Tile
from tests.cuda_kernels import problems
from tests.cuda_kernels.machine_code import assemble, kernel, mma
from tests.emulation.encodings import read_warp_mma
from tests.emulation.memory import Fault
from tests.emulation.mma import decode, warp_mma

pytest.importorskip("cuda.bindings", reason="cuda-bindings and NVRTC come with the extra cuda13")
# (spec, m, n, k, block_m, CTAs)
NVFP4 = ("nvfp4 x nvfp4", 34, 136, 288, 32, 1)
MXFP8 = ("mxfp8 x mxfp8", 34, 136, 288, 32, 1)
MIXED = ("mxfp6 x e3m4 g32:e8m0", 20, 136, 256, 32, 1)
FLOAT8 = ("e2m3 channel x e3m4 token", 20, 136, 256, 32, 1)
PAIR = ("nvfp4 x nvfp4", 50, 260, 288, 32, 2)
INT4 = ("int4 g16:e4m3 x e0m3 g16:e4m3", 34, 136, 288, 32, 1)


def fails(case) -> bool:
    """Whether the case, packed, prepared and emulated anew, is wrong, refused, or hangs."""
    line, m, n, k, block_m, ctas = case
    tile = Tile(block_m=block_m, block_n=128, block_k=128, multicast=ctas, num_stages=2)
    try:
        error, _ = problems.problem(line, m, n, k, sm=100, tile=tile).emulate()
    except (Fault, HybridHummingError, ValueError, IndexError, RuntimeError):
        return True
    return not error < 3e-3


@pytest.fixture
def compiled_anew():
    launch.compile_gemm.cache_clear()
    yield
    launch.compile_gemm.cache_clear()


@pytest.mark.parametrize("case", [NVFP4, MXFP8, MIXED, FLOAT8, PAIR, INT4])
def test_untouched_it_is_right(case):
    assert not fails(case)


PYTHON = [  # module, function, text, what stands in its place, the case that shows it
    (umma, "pack_codes", "codes[..., 0::2] | codes[..., 1::2] << 4", "codes[..., 1::2] | codes[..., 0::2] << 4", NVFP4),
    (umma, "pack_codes", "b >> 2 | c << 4", "b >> 2 | c << 3", FLOAT8),
    (umma, "tile_scales", "(-1, 4, 32)", "(-1, 32, 4)", NVFP4),
    (umma, "tile_scales", ".movedim(-2, -4)", ".movedim(-2, -5)", MXFP8),
    (umma, "_sign_magnitude", "value < 0, zero - value", "value < 0, zero + value", INT4),
    (launch, "tile_x_scales", "permute(0, 3, 2, 1, 4)", "permute(0, 3, 1, 2, 4)", NVFP4),
    (launch, "tile_x_scales", "view(-1, 4, 32, columns, 4)", "view(-1, 32, 4, columns, 4)", MXFP8),
    (launch, "prepare", "scale_columns = padded_k // config.block // 4", "scale_columns = padded_k // config.block // 4 - 1", PAIR),
    (launch, "prepare", "padded_k * spec.bits // 8", "padded_k * spec.bits // 8 - 32", FLOAT8),
    (launch, "prepare", "_int(int(args.scale.numel() > 1))", "_int(0)", FLOAT8),
    (maps, "operand_map", "STEP_BYTES * 8 // slot // scale", "STEP_BYTES * 4 // slot // scale", NVFP4),
    (maps, "operand_map", "slots=spread,", "slots=False,", MIXED),
    (maps, "operand_map", "slots=spread,", "slots=spread, swizzled=False,", MXFP8),
    (maps, "scale_map", "box_rows=config.vector", "box_rows=config.vector - 1", NVFP4),
    (config, "slot_bits", '("f8f6f4", "mxf8f6f4")', '("f8f6f4",)', MIXED),
]  # fmt: skip


@pytest.mark.parametrize(("module", "name", "text", "instead", "case"), PYTHON, ids=lambda v: v if isinstance(v, str) else "")
def test_a_mutant_of_packer_or_launch_shows(monkeypatch, module, name, text, instead, case):
    original = getattr(module, name)
    source = inspect.getsource(original)
    assert source.count(text) == 1
    made = dict(vars(module))
    exec("from __future__ import annotations\n" + source.replace(text, instead), made)
    for place in (module, launch, maps, config, problems):
        if getattr(place, name, None) is original:
            monkeypatch.setattr(place, name, made[name])
    assert fails(case)


CUDA = [  # file, text, what stands in its place, the case that shows it
    ("tensor_memory.cuh", "(u64)2 << 61", "(u64)4 << 61", MXFP8),
    ("tensor_memory.cuh", "(u64)(1024 >> 4) << 32", "(u64)(512 >> 4) << 32", MXFP8),
    ("tensor_memory.cuh", "(u64)(128 >> 4) << 32", "(u64)(64 >> 4) << 32", NVFP4),
    ("tensor_memory.cuh", "(u64)(128 >> 4) << 32 | (u64)1 << 46", "(u64)(128 >> 4) << 32", NVFP4),
    ("gemm.cu", "w + 2 * i, x + 2 * i, DESCRIPTOR", "w + 2 * i, x + 1 * i, DESCRIPTOR", FLOAT8),
    ("gemm.cu", "id = i * VECTOR % 4", "id = (i * VECTOR + 1) % 4", MXFP8),
    ("gemm.cu", "w_scales + 4 * scale,", "w_scales + 2 * scale,", NVFP4),
    ("gemm.cu", " + tiles.m(tile) % 128 / 32", "", NVFP4),
    ("gemm.cu", "m + rank * X_ROWS", "m", PAIR),
    ("gemm.cu", "(step | i) != 0", "step != 0", FLOAT8),
    ("gemm.cu", "n / 128 * scale_columns + column", "n / 256 * scale_columns + column", PAIR),
    ("gemm.cu", "barrier_wait(full + 8 * ring.index, ring.phase)", "barrier_wait(full + 8 * ring.index, ring.phase ^ 1)", FLOAT8),
    ("gemm.cu", "column + (part * 32 << 16)", "column + (part * 16 << 16)", FLOAT8),
]  # fmt: skip


@pytest.mark.parametrize(("file", "text", "instead", "case"), CUDA, ids=lambda v: v if isinstance(v, str) else "")
def test_a_mutant_of_the_kernel_shows(compiled_anew, monkeypatch, tmp_path, file, text, instead, case):
    for path in Path(launch.FOLDER).glob("*.cu*"):
        shutil.copy(path, tmp_path)
    source = (tmp_path / file).read_text()
    assert source.count(text) >= 1
    (tmp_path / file).write_text(source.replace(text, instead, 1))
    monkeypatch.setattr(launch, "FOLDER", tmp_path)
    assert fails(case)


# Bits of the instruction descriptor that mean something to the kind: types, shape, accumulator, scales, signs, transposition.
FLIPPED = [(FLOAT8, bit) for bit in (4, 7, 9, 10, 13, 15, 16, 17, 19, 24)] + [
    (NVFP4, bit) for bit in (4, 7, 8, 10, 17, 23, 27, 29, 31)
]


@pytest.mark.parametrize(("case", "bit"), FLIPPED)
def test_a_flipped_bit_of_the_compiled_descriptor_shows(case, bit):
    line, m, n, k, block_m, ctas = case
    run = problems.problem(
        line, m, n, k, sm=100, tile=Tile(block_m=block_m, block_n=128, block_k=128, multicast=ctas, num_stages=2)
    )
    ptx = run.prepared.compiled.asm["ptx"]
    word = re.search(r"kind::\w+\S* \[%r\d+\], %rd\d+, %rd\d+, (%r\d+)", ptx)[1]
    constant = rf"(mov\.b32\s+{re.escape(word)}, )(-?\d+);"
    found = re.findall(constant, ptx)
    assert len(found) == 1
    value = (int(found[0][1]) & 0xFFFFFFFF) ^ 1 << bit
    edited = re.sub(constant, rf"\g<1>{value};", ptx)
    with contextlib.suppress(Fault, ValueError, NotImplementedError):
        assert not run.emulate(ptx=edited)[0] < 3e-3


FIELDS = [
    ("A_TYPE", (8, 9, 10)),
    ("B_TYPE", (11, 12, 13)),
    ("N8", tuple(range(16, 22))),
    ("M16", tuple(range(23, 28))),
    ("ACC", (5, 6)),
]


@pytest.mark.parametrize(("field", "bits"), FIELDS)
def test_a_descriptor_field_at_another_bit_shows(compiled_anew, monkeypatch, field, bits):
    monkeypatch.setattr(descriptor, field, BitField(bits))
    assert fails(FLOAT8)


@pytest.mark.parametrize(("kind", "fmt", "code"), [("f8f6f4", "e3m4", 3), ("f8f6f4", "e2m3", 4), ("mxf4nvf4", "e0m3", 1)])
def test_another_type_code_shows(compiled_anew, monkeypatch, kind, fmt, code):
    monkeypatch.setitem(descriptor.TYPES, kind, descriptor.TYPES[kind] | {fmt: code})
    assert fails(INT4 if kind == "mxf4nvf4" else FLOAT8)


# ---- the editor of cubins: what the edited instruction multiplies, read back from the machine code ----
PATCHES = {"qmma_e3m4_a": ("e5m2", "e4m3", "f8f6f4"), "qmma_e3m4_b": ("e4m3", "e5m2", "f8f6f4"),
           "omma_e0m3_a": ("e2m1", "e2m1", "nvfp4"), "omma_e0m3_b": ("e2m1", "e2m1", "nvfp4")}  # fmt: skip


def patch_fails(name: str, edit) -> bool:
    """Whether the types in the edited machine code give another product than the hidden type's."""
    a, b, kind = PATCHES[name]
    cubin = assemble(kernel(mma(a, b, kind=kind)), "sm_120a")
    try:
        patched = patch_cubin(cubin, {edit: 1}, sm=120)
        types = [read_warp_mma(word) for _, word in read_cubin(patched).words(patched)]
    except (HybridHummingError, ValueError):
        return True
    ((_, left, right),) = [found for found in types if found]
    random = np.random.default_rng(0)
    width = 16 if kind == "nvfp4" else 127
    codes = random.integers(0, width, (16, 64)), random.integers(0, width, (8, 64))
    hidden = EDITS[name].hidden
    wanted = (hidden, b) if name.endswith("_a") else (a, hidden)
    exact = np.nan_to_num(decode(codes[0], wanted[0])) @ np.nan_to_num(decode(codes[1], wanted[1])).T
    try:
        got = warp_mma(left, right, *codes, np.zeros((16, 8), np.float32))
    except IndexError:  # a narrower type than the codes
        return True
    return not np.allclose(np.nan_to_num(got), exact, rtol=1e-5)


@pytest.mark.parametrize("name", PATCHES)
def test_an_untouched_edit_multiplies_the_hidden_type(name):
    assert not patch_fails(name, EDITS[name])


EDITED = [
    ("qmma_e3m4_a", {"field": BitField((78, 83, 82))}),
    ("qmma_e3m4_a", {"target": 3}),
    ("qmma_e3m4_a", {"target": 6}),
    ("qmma_e3m4_a", {"source": 0}),
    ("qmma_e3m4_b", {"field": BitField((79, 85, 84))}),
    ("qmma_e3m4_b", {"field": BitField((78, 84, 85))}),
    ("qmma_e3m4_b", {"opcodes": (0x47A,)}),
    ("omma_e0m3_a", {"field": BitField((79,))}),
    ("omma_e0m3_a", {"field": BitField((80,))}),
    ("omma_e0m3_b", {"field": BitField((78,))}),
    ("omma_e0m3_b", {"opcodes": (0x47E,)}),
]


@pytest.mark.parametrize(("name", "changes"), EDITED)
def test_a_mutant_of_the_editor_shows(name, changes):
    assert patch_fails(name, dataclasses.replace(EDITS[name], **changes))


def test_there_are_more_than_twenty_of_each_side():
    assert len(PYTHON) + len(FIELDS) + len(FLIPPED) >= 20 and len(CUDA) + len(EDITED) >= 20
