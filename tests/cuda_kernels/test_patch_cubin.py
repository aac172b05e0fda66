"""The editor against ptxas and nvdisasm: the promised field changes, and nothing else."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid_humming.cuda_kernels.patch import EDITS, BitField, count_edits, hidden_reason, patch_cubin
from hybrid_humming.cuda_kernels.patch import fields as f
from hybrid_humming.errors import PatchError
from hybrid_humming.jit.elf import read_cubin
from tests.cuda_kernels.machine_code import CVT, LDSM, MMA_TYPES, assemble, disassemble, disassembler, kernel, mma

CASES = {  # edit -> (a kernel with legal and with other types, how many of its instructions the edit is for, target)
    "qmma_e3m4_a": (mma("e5m2", "e4m3", times=3) + mma("e4m3", "e5m2"), 3, "sm_120a"),
    "qmma_e3m4_b": (mma("e5m2", "e5m2", times=2, kind="mxf8f6f4") + mma("e5m2", "e3m2"), 2, "sm_121a"),
    "omma_e0m3_a": (mma("e2m1", "e2m1", times=3, kind="nvfp4"), 3, "sm_120a"),
    "omma_e0m3_b": (mma("e2m1", "e2m1", times=2, kind="nvfp4") + mma("e5m2", "e2m1"), 2, "sm_121a"),
    "f2fp_down_e3m4": ("".join(CVT.values()), 1, "sm_100a"),
    "f2fp_down_e0m3": ("".join(CVT.values()), 1, "sm_103a"),
    "f2fp_up_e3m4": ("".join(CVT.values()), 1, "sm_120a"),
    "f2fp_up_e0m3": ("".join(CVT.values()), 1, "sm_121a"),
    "ldsm_s4_to_s8": (LDSM, 1, "sm_90a"),
    "ldsm_s2_to_s4": (LDSM, 1, "sm_120a"),
}


def cubin_of(name: str) -> tuple[bytes, int, int]:
    body, count, target = CASES[name]
    return assemble(kernel(body), target), count, int(target[3:-1])


def changed_words(before: bytes, after: bytes) -> dict[int, tuple[int, int]]:
    """Offset of each instruction that differs -> (word, word); asserts that nothing outside instructions does."""
    assert len(before) == len(after)
    words = dict(read_cubin(before).words(before)), dict(read_cubin(after).words(after))
    outside = set(range(len(before))) - {offset + i for offset in words[0] for i in range(16)}
    assert all(before[i] == after[i] for i in outside)
    return {offset: (word, words[1][offset]) for offset, word in words[0].items() if word != words[1][offset]}


def test_every_edit_has_a_case():
    assert set(CASES) == set(EDITS)


@pytest.mark.parametrize("name", CASES)
def test_only_the_promised_fields_change(name):
    cubin, count, sm = cubin_of(name)
    edit = EDITS[name]
    patched = patch_cubin(cubin, {edit: count}, sm=sm)
    changed = changed_words(cubin, patched)
    assert len(changed) == count
    for before, after in changed.values():
        assert edit.field.get(before) == edit.source and edit.field.get(after) == edit.target
        assert before & ~edit.field.mask == after & ~edit.field.mask
    assert count_edits(cubin, edit) == (count, 0) and count_edits(patched, edit) == (0, count)
    assert patch_cubin(patched, {edit: count}, sm=sm) == patched


@pytest.mark.skipif(disassembler() != "13.1", reason="another nvdisasm than 13.1 prints hidden types in another way")
@pytest.mark.parametrize("name", CASES)
def test_the_disassembler_sees_the_hidden_type(name):
    cubin, count, sm = cubin_of(name)
    edit = EDITS[name]
    patched = patch_cubin(cubin, {edit: count}, sm=sm)
    start = next(s for s in read_cubin(cubin).sections if s.name.startswith(".text")).offset
    offsets = {offset - start for offset in changed_words(cubin, patched)}
    before, after = disassemble(cubin), disassemble(patched)
    gone = set(before) - set(after)
    different = {offset for offset in after if before.get(offset) != after[offset]}
    if edit.hidden == "e0m3":  # nvdisasm 13.1 has its name
        assert gone == set() and different == offsets
        assert all("E0M3" in after[offset] and "E0M3" not in before[offset] for offset in offsets)
    else:  # it prints nothing for a type that it knows and hides
        assert gone == offsets and different == set()
    assert all(edit.instruction in before[offset] for offset in offsets)


def test_a_code_that_means_nothing_prints_invalid():
    cubin, _, _ = cubin_of("qmma_e3m4_a")
    start = next(s for s in read_cubin(cubin).sections if s.name.startswith(".text")).offset
    offset, word = next((o, w) for o, w in read_cubin(cubin).words(cubin) if EDITS["qmma_e3m4_a"].matches(w))
    image = bytearray(cubin)
    image[offset : offset + 16] = f.QMMA_A.set(word, 6).to_bytes(16, "little")
    assert "INVALID" in disassemble(bytes(image))[offset - start]


@pytest.mark.parametrize("kind", ["f8f6f4", "mxf8f6f4"])
@pytest.mark.parametrize("a", MMA_TYPES)
def test_the_type_table_is_what_the_assembler_writes(a, kind):
    for b in MMA_TYPES:
        words = [w for _, w in _words(assemble(kernel(mma(a, b, kind=kind)), "sm_120a")) if EDITS["qmma_e3m4_a"].matches(w)]
        assert [(f.QMMA_A.get(w), f.QMMA_B.get(w)) for w in words] == [(f.QMMA_CODES[a], f.QMMA_CODES[b])]


def test_the_conversion_table_is_what_the_assembler_writes():
    words = [w for _, w in _words(assemble(kernel("".join(CVT.values())), "sm_120a")) if w & 0xFFF == f.F2FP]
    down = sorted(f.F2FP_DOWN.get(w) for w in words if f.F2FP_DOWN.get(w))
    up = sorted(f.F2FP_UP.get(w) for w in words if not f.F2FP_DOWN.get(w))
    assert down == sorted(f.F2FP_DOWN_CODES[t] for t in ("e5m2", "e4m3", "e2m1"))
    assert up == sorted(f.F2FP_UP_CODES[t] for t in ("e5m2", "e4m3", "e2m1"))


def _words(cubin: bytes) -> list[tuple[int, int]]:
    return list(read_cubin(cubin).words(cubin))


@given(st.permutations(range(128)), st.integers(1, 6), st.integers(0, 2**128 - 1), st.data())
def test_a_field_gives_back_what_was_set_and_touches_nothing_else(bits, width, word, data):
    field = BitField(tuple(bits[:width]))
    code = data.draw(st.integers(0, 2**width - 1))
    after = field.set(word, code)
    assert field.get(after) == code and after & ~field.mask == word & ~field.mask
    assert field.set(word, field.get(word)) == word
    with pytest.raises(ValueError, match="does not fit"):
        field.set(word, 2**width)


@pytest.mark.parametrize("promised", [0, 1, 2, 4])
def test_another_count_than_promised_is_refused(promised):
    cubin, count, sm = cubin_of("qmma_e3m4_a")
    assert count == 3
    with pytest.raises(PatchError, match=f"3 QMMA .* promised {promised}"):
        patch_cubin(cubin, {EDITS["qmma_e3m4_a"]: promised}, sm=sm)


def test_a_kernel_without_the_instruction_is_refused():
    cubin = assemble(kernel(mma("e4m3", "e4m3")), "sm_120a")
    with pytest.raises(PatchError, match="0 QMMA"):
        patch_cubin(cubin, {EDITS["qmma_e3m4_a"]: 1}, sm=120)


def test_a_cubin_edited_in_part_is_refused():
    cubin, count, sm = cubin_of("qmma_e3m4_a")
    offset, word = next((o, w) for o, w in _words(cubin) if EDITS["qmma_e3m4_a"].matches(w) and f.QMMA_A.get(w) == 1)
    image = bytearray(cubin)
    image[offset : offset + 16] = f.QMMA_A.set(word, 2).to_bytes(16, "little")
    with pytest.raises(PatchError, match="edited in part"):
        patch_cubin(bytes(image), {EDITS["qmma_e3m4_a"]: count}, sm=sm)


@pytest.mark.parametrize("target", ["sm_120f", "sm_120"])
def test_a_cubin_that_runs_elsewhere_in_its_family_is_refused(target):
    body = CVT["down_e5m2"] if target == "sm_120f" else "st.global.f32 [%rd1], %f0;\n"
    with pytest.raises(PatchError, match=f"built for {target}.*sm_120a"):
        patch_cubin(assemble(kernel(body), target), {EDITS["f2fp_down_e3m4"]: 1}, sm=120)


def test_scales_of_32_values_are_refused():
    cubin = assemble(kernel(mma("e2m1", "e2m1", kind="mxfp4")), "sm_120a")
    with pytest.raises(PatchError, match="2X"):
        patch_cubin(cubin, {EDITS["omma_e0m3_a"]: 1}, sm=120)


def test_another_sm_is_refused():
    cubin, count, _ = cubin_of("qmma_e3m4_a")
    with pytest.raises(PatchError, match="the cubin is for sm_120, the kernel for sm_121"):
        patch_cubin(cubin, {EDITS["qmma_e3m4_a"]: count}, sm=121)
    image = bytearray(cubin_of("f2fp_down_e3m4")[0])
    struct.pack_into("<I", image, 48, struct.unpack_from("<I", image, 48)[0] & ~0xFF00 | 110 << 8)
    with pytest.raises(PatchError, match="sm_110 has no such instruction"):
        patch_cubin(bytes(image), {EDITS["f2fp_down_e3m4"]: 1}, sm=110)


@pytest.mark.parametrize("sm", [107, 130])
def test_rubin_and_later_are_refused_by_name(sm):
    image = bytearray(cubin_of("qmma_e3m4_a")[0])
    struct.pack_into("<I", image, 48, struct.unpack_from("<I", image, 48)[0] & ~0xFF00 | sm << 8)
    with pytest.raises(PatchError, match="Rubin"):
        patch_cubin(bytes(image), {EDITS["qmma_e3m4_a"]: 3}, sm=sm)
    assert "Rubin" in hidden_reason("e3m4", sm)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda c: c[:40], "cut off"),
        (lambda c: c[:-200], "cut off"),
        (lambda c: c[: len(c) // 2], "cut off"),
        (lambda c: b"ptx!" + c[4:], "not a cubin"),
        (lambda c: c[:4] + b"\x01" + c[5:], "class 1"),
        (lambda c: c[:5] + b"\x02" + c[6:], "byte order 2"),
        (lambda c: c[:18] + b"\x3e\x00" + c[20:], "machine 62"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused(damage, message):
    cubin, count, sm = cubin_of("qmma_e3m4_a")
    with pytest.raises(PatchError, match=message):
        patch_cubin(damage(cubin), {EDITS["qmma_e3m4_a"]: count}, sm=sm)


def test_any_prefix_of_a_cubin_raises_nothing_but_the_typed_error():
    cubin, count, sm = cubin_of("omma_e0m3_a")
    for length in range(0, len(cubin), 97):
        with pytest.raises(PatchError):
            patch_cubin(cubin[:length], {EDITS["omma_e0m3_a"]: count}, sm=sm)


def test_the_environment_switch_turns_editing_off(monkeypatch):
    monkeypatch.setenv("HYBRID_HUMMING_HIDDEN_FORMATS", "0")
    cubin, count, sm = cubin_of("qmma_e3m4_a")
    with pytest.raises(PatchError, match="HYBRID_HUMMING_HIDDEN_FORMATS=0"):
        patch_cubin(cubin, {EDITS["qmma_e3m4_a"]: count}, sm=sm)
    assert "HYBRID_HUMMING_HIDDEN_FORMATS=0" in hidden_reason("e3m4", 120)


def test_where_the_hidden_types_exist():
    assert [sm for sm in (75, 80, 89, 90, 100, 103, 107, 110, 120, 121) if hidden_reason("e3m4", sm) is None] == [
        100,
        103,
        120,
        121,
    ]
    assert hidden_reason("e0m3", 100, 16) is None
    assert "4X" in hidden_reason("e0m3", 120, 32)
