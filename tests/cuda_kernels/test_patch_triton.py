"""The editors on what Triton compiles, for the SMs whose machine code they know."""

import pytest
import triton
import triton.language as tl

from hybrid_humming.cuda_kernels.patch import EDITS, count_edits, patch_cubin, patch_ptx, read_descriptors
from hybrid_humming.jit.compile import compile_triton

pytestmark = pytest.mark.compile


@triton.jit
def tile_kernel(a_ptr, b_ptr, c_ptr, BLOCK: tl.constexpr):
    i, j = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    acc = tl.dot(tl.load(a_ptr + i * BLOCK + j), tl.trans(tl.load(b_ptr + i * BLOCK + j)))
    tl.store(c_ptr + i * BLOCK + j, acc)


@triton.jit
def scaled_kernel(a_ptr, b_ptr, s_ptr, c_ptr, BLOCK: tl.constexpr):
    i, j = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    half, groups = tl.arange(0, BLOCK // 2)[None, :], tl.arange(0, BLOCK // 16)[None, :]
    a, b = tl.load(a_ptr + i * (BLOCK // 2) + half), tl.load(b_ptr + i * (BLOCK // 2) + half)
    scale = tl.load(s_ptr + i * (BLOCK // 16) + groups)
    tl.store(c_ptr + i * BLOCK + j, tl.dot_scaled(a, scale, "e2m1", tl.trans(b), scale, "e2m1"))


def build(sm: int, fmt: str):
    if fmt == "e3m4":
        kinds = {"a_ptr": "*fp8e5", "b_ptr": "*fp8e5", "c_ptr": "*fp32"}
        return compile_triton(tile_kernel, kinds, {"BLOCK": 128}, sm=sm, aligned=tuple(kinds))
    kinds = {"a_ptr": "*u8", "b_ptr": "*u8", "s_ptr": "*fp8e4nv", "c_ptr": "*fp32"}
    return compile_triton(scaled_kernel, kinds, {"BLOCK": 128}, sm=sm, aligned=tuple(kinds))


@pytest.mark.parametrize("sm", [100, 103])
@pytest.mark.parametrize("fmt", ["e3m4", "e0m3"])
def test_the_descriptors_of_a_triton_kernel_are_edited(sm, fmt):
    if fmt == "e0m3" and triton.__version__.startswith("3.6"):
        pytest.skip("Triton 3.6's TritonGPUAutomaticWarpSpecialization pass fails on this kernel")
    text = build(sm, fmt).asm["ptx"]
    sites = read_descriptors(text)
    edited = patch_ptx(text, a=fmt, b=fmt, promised=len(sites), sm=sm)
    assert {(s.descriptor.a, s.descriptor.b) for s in sites} == {{"e3m4": ("e5m2", "e5m2"), "e0m3": ("e2m1", "e2m1")}[fmt]}
    assert {(s.descriptor.a, s.descriptor.b) for s in read_descriptors(edited)} == {(fmt, fmt)}
    changed = [x for x, y in zip(text.splitlines(), edited.splitlines(), strict=True) if x != y]
    assert changed and all("mov.b32" in line for line in changed)


@pytest.mark.parametrize("fmt", ["e3m4", "e0m3"])
def test_the_instructions_of_a_triton_cubin_are_edited(fmt):
    cubin = build(120, fmt).cubin
    edits = [EDITS[name] for name in EDITS if name.startswith(("qmma_e3m4", "omma_e0m3")) and fmt in name]
    promised = {edit: count_edits(cubin, edit)[0] for edit in edits}
    assert set(promised.values()) == {2 * 128 * 128 * 128 // (16 * 8 * (32 if fmt == "e3m4" else 64)) // 8}
    patched = patch_cubin(cubin, promised, sm=120)
    assert all(count_edits(patched, edit) == (0, n) for edit, n in promised.items())
