"""The editors on what NVRTC compiles: the same promises as on Triton's output."""

import functools
import re

import pytest

from hybrid_humming.cuda_kernels.patch import EDITS, InstructionDescriptor, count_edits, patch_cubin, patch_ptx, read_descriptors
from hybrid_humming.errors import PatchError
from hybrid_humming.jit.elf import read_cubin
from hybrid_humming.jit.nvrtc import compile_cuda
from tests.cuda_kernels import nvrtc_sources as sources
from tests.cuda_kernels.machine_code import assemble, disassemble

pytest.importorskip("cuda.bindings", reason="cuda-bindings and NVRTC come with the extra cuda13")
STEPS = 3
DESCRIPTORS = {  # hidden type -> (kind, what the asm appends, the legal descriptor)
    "e3m4": ("f8f6f4", "", InstructionDescriptor(kind="f8f6f4", a="e5m2", b="e5m2", m=128, n=64)),
    "e0m3": (
        "mxf4nvf4.block_scale.block16",
        ", [%5], [%6]",
        InstructionDescriptor(kind="mxf4nvf4", a="e2m1", b="e2m1", m=128, n=64, scale="e4m3"),
    ),
}


@functools.cache
def build(text: str, sm: int, folder, **defines):
    path = folder / "k.cu"
    path.write_text("".join(f"#define {name} {value}\n" for name, value in defines.items()) + text)
    return compile_cuda(path, "k", sm=sm)


def warp_kernel(folder, sm: int, mma: str, a: str, b: str):
    tail = sources.SCALES if "block_scale" in mma else ""
    return build(sources.WARP_MMA, sm, folder, STEPS=STEPS, MMA=f'"{mma.format(a, b)}"', TAIL=f'"{tail}"').cubin


@pytest.mark.parametrize("sm", [120, 121])
@pytest.mark.parametrize(("name", "mma", "types"), [
    ("qmma_e3m4_a", sources.QMMA, ("e5m2", "e4m3")), ("qmma_e3m4_b", sources.QMMA, ("e4m3", "e5m2")),
    ("omma_e0m3_a", sources.OMMA, ("e2m1", "e2m1")), ("omma_e0m3_b", sources.OMMA, ("e2m1", "e2m1")),
])  # fmt: skip
def test_only_the_promised_fields_of_a_cubin_change(tmp_path, name, mma, types, sm):
    cubin, edit = warp_kernel(tmp_path, sm, mma, *types), EDITS[name]
    assert count_edits(cubin, edit) == (STEPS, 0)
    patched = patch_cubin(cubin, {edit: STEPS}, sm=sm)
    assert count_edits(patched, edit) == (0, STEPS) and patch_cubin(patched, {edit: STEPS}, sm=sm) == patched
    before, after = (dict(read_cubin(image).words(image)) for image in (cubin, patched))
    assert sum(before[offset] != after[offset] for offset in before) == STEPS
    assert all(before[offset] & ~edit.field.mask == after[offset] & ~edit.field.mask for offset in before)
    inside = {offset + i for offset in before if before[offset] != after[offset] for i in range(16)}
    assert all(x == y for i, (x, y) in enumerate(zip(cubin, patched, strict=True)) if i not in inside)
    with pytest.raises(PatchError, match=f"{STEPS} .MMA instructions .* promised {STEPS + 1}"):
        patch_cubin(cubin, {edit: STEPS + 1}, sm=sm)


def test_a_cubin_of_another_sm_is_refused(tmp_path):
    cubin = warp_kernel(tmp_path, 120, sources.QMMA, "e5m2", "e5m2")
    with pytest.raises(PatchError, match="the cubin is for sm_120, the kernel for sm_121"):
        patch_cubin(cubin, {EDITS["qmma_e3m4_a"]: STEPS}, sm=121)


@pytest.mark.parametrize("sm", [100, 103])
@pytest.mark.parametrize("fmt", DESCRIPTORS)
def test_the_descriptors_of_a_ptx_are_edited_and_assemble(tmp_path, fmt, sm):
    kind, tail, legal = DESCRIPTORS[fmt]
    text = build(sources.TENSOR_MMA, sm, tmp_path, STEPS=STEPS, KIND=f'"{kind}"', TAIL=f'"{tail}"', DESCRIPTOR=hex(legal.encode()))
    ptx = text.asm["ptx"]
    assert [site.descriptor for site in read_descriptors(ptx)] == [legal] * STEPS
    edited = patch_ptx(ptx, a=fmt, b=fmt, promised=STEPS, sm=sm)
    assert [(site.descriptor.a, site.descriptor.b) for site in read_descriptors(edited)] == [(fmt, fmt)] * STEPS
    changed = [x for x, y in zip(ptx.splitlines(), edited.splitlines(), strict=True) if x != y]
    assert changed and all("mov.b32" in line for line in changed)
    assert patch_ptx(edited, a=fmt, b=fmt, promised=STEPS, sm=sm) == edited
    body = re.sub(r"^\.(version|target|address_size).*$", "", edited, flags=re.M)  # Triton's ptxas is older than NVRTC's PTX
    wanted = read_descriptors(edited)[0].word
    lines = [line for line in disassemble(assemble(body, f"sm_{sm}a")).values() if "UMOV" in line or "MMA" in line]
    assert sum("MMA" in line for line in lines) == STEPS and any(f"{wanted:#x}" in line for line in lines)
