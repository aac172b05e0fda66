"""Instruction descriptors: the word and back, and the edit of a PTX text with its refusals."""

import contextlib
import dataclasses
import itertools

import pytest

from hybrid_humming.cuda_kernels.patch import InstructionDescriptor, patch_ptx, read_descriptors
from hybrid_humming.cuda_kernels.patch.descriptor import SCALED_KINDS, TYPES
from hybrid_humming.errors import FormatError, HybridHummingError, PatchError
from tests.cuda_kernels.machine_code import assemble, disassemble


def descriptor(kind: str, a: str, b: str, m: int = 128, n: int = 128) -> InstructionDescriptor:
    scale = {"mxf8f6f4": "e8m0", "mxf4": "e8m0", "mxf4nvf4": "e4m3"}.get(kind, "")
    return InstructionDescriptor(kind=kind, a=a, b=b, m=m, n=n, scale=scale, accumulator="int32" if kind == "i8" else "fp32")


def ptx(*words: int, kind: str = "f8f6f4", modifiers: str = "", target: str = "sm_100a", more: str = "") -> str:
    """One tcgen05.mma for each descriptor."""
    scales = ", [%r7], [%r8]" if "block" in modifiers or "scale" in modifiers else ""
    body = ""
    for i, word in enumerate(words):
        body += f"mov.b32 %r{20 + i}, {word - (word >> 31 << 32)};\n"
        body += f"tcgen05.mma.cta_group::1.kind::{kind}{modifiers} [ %r6 + 0 ], %rd2, %rd3, %r{20 + i}{scales}, %p1;\n"
    return (
        f".version 8.8\n.target {target}\n.address_size 64\n.visible .entry k(.param .u64 p) {{\n"
        ".reg .b64 %rd<6>; .reg .b32 %r<60>; .reg .pred %p<3>;\n"
        "ld.param.u64 %rd0, [p]; ld.global.u64 %rd2, [%rd0]; ld.global.u64 %rd3, [%rd0+8];\n"
        f"ld.global.u32 %r6, [%rd0+16]; ld.global.u32 %r7, [%rd0+20]; ld.global.u32 %r8, [%rd0+24]; setp.ne.u32 %p1, %r7, 0;\n"
        f"{body}{more}ret;\n}}\n"
    )


def sass(text: str, target: str = "sm_100a") -> list[str]:
    return list(disassemble(assemble(text.split("\n", 3)[3], target)).values())


@pytest.mark.parametrize("kind", TYPES)
def test_a_descriptor_reads_back_as_it_was_written(kind):
    for a, b in itertools.product(TYPES[kind], repeat=2):
        for m, n in ((128, 8), (256, 256), (128, 128)):
            made = descriptor(kind, a, b, m, n)
            assert InstructionDescriptor.decode(made.encode(), kind) == made
    flags = dataclasses.replace(made, negate_a=True, transpose_b=True, **({"a_scale_id": 2} if kind in SCALED_KINDS else {}))
    assert InstructionDescriptor.decode(flags.encode(), kind) == flags


def test_known_words():
    assert descriptor("f8f6f4", "e5m2", "e5m2").encode() == 0x8200490  # what Triton writes for this tile
    assert descriptor("f8f6f4", "e3m4", "e3m4").encode() == 0x8200910
    assert descriptor("mxf4nvf4", "e0m3", "e0m3").encode() == 0x8200000
    assert descriptor("f8f6f4", "e3m4", "e2m1").hidden == ("e3m4",)


@pytest.mark.parametrize("bit", range(32))
def test_every_bit_of_a_descriptor_matters(bit):
    word = descriptor("f8f6f4", "e5m2", "e5m2").encode()
    with contextlib.suppress(HybridHummingError):
        assert InstructionDescriptor.decode(word ^ 1 << bit, "f8f6f4") != InstructionDescriptor.decode(word, "f8f6f4")


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"kind": "f7", "a": "e4m3", "b": "e4m3", "m": 128, "n": 64}, PatchError),
        ({"kind": "f8f6f4", "a": "e0m3", "b": "e4m3", "m": 128, "n": 64}, FormatError),
        ({"kind": "mxf4", "a": "e0m3", "b": "e2m1", "m": 128, "n": 64, "scale": "e8m0"}, FormatError),
        ({"kind": "mxf4nvf4", "a": "e2m1", "b": "e2m1", "m": 128, "n": 64}, FormatError),
        ({"kind": "mxf8f6f4", "a": "e4m3", "b": "e4m3", "m": 128, "n": 64, "scale": "e4m3"}, FormatError),
        ({"kind": "f8f6f4", "a": "e4m3", "b": "e4m3", "m": 96, "n": 64}, PatchError),
        ({"kind": "f8f6f4", "a": "e4m3", "b": "e4m3", "m": 128, "n": 12}, PatchError),
    ],
)
def test_an_impossible_descriptor_is_refused(fields, error):
    with pytest.raises(error):
        InstructionDescriptor(**fields)


@pytest.mark.parametrize(("a", "b"), [("e3m4", "e3m4"), ("e3m4", "e4m3"), ("e2m1", "e3m4")])
def test_the_hidden_8_bit_type_reaches_the_machine_code(a, b):
    legal = {"e3m4": "e5m2"}
    word = descriptor("f8f6f4", legal.get(a, a), legal.get(b, b)).encode()
    text = ptx(word, word)
    edited = patch_ptx(text, a=a, b=b, promised=2, sm=100)
    want = descriptor("f8f6f4", a, b).encode()
    assert [s.word for s in read_descriptors(edited)] == [want, want]
    assert patch_ptx(edited, a=a, b=b, promised=2, sm=100) == edited
    before, after = sass(text), sass(edited)
    different = [(x, y) for x, y in zip(before, after, strict=True) if x != y]
    assert different and all("UMOV" in x and hex(want) in y for x, y in different)
    assert sum("UTCQMMA" in line for line in after) == 2


@pytest.mark.parametrize("modifiers", [".block_scale.block16", ".block_scale.scale_vec::4X"])
def test_the_hidden_4_bit_type_reaches_the_machine_code(modifiers):
    text = ptx(descriptor("mxf4nvf4", "e2m1", "e2m1").encode(), kind="mxf4nvf4", modifiers=modifiers)
    edited = patch_ptx(text, a="e0m3", b="e0m3", promised=1, sm=100)
    assert read_descriptors(edited)[0].descriptor == descriptor("mxf4nvf4", "e0m3", "e0m3")
    assert any("UTCOMMA" in line for line in sass(edited)) and any(hex(0x8200000) in line for line in sass(edited))


E5M2 = descriptor("f8f6f4", "e5m2", "e5m2").encode()
E4M3 = descriptor("f8f6f4", "e4m3", "e4m3").encode()
E2M1 = descriptor("mxf4nvf4", "e2m1", "e2m1").encode()


@pytest.mark.parametrize(
    ("text", "asked", "message"),
    [
        (ptx(E5M2), {"promised": 2}, "1 tcgen05.mma carry e5m2 x e5m2 .* promised 2"),
        (ptx(E4M3), {}, "0 tcgen05.mma"),
        (ptx(E5M2, E4M3), {"promised": 2}, "1 tcgen05.mma"),
        (ptx(E5M2), {"b": "e4m3"}, "0 tcgen05.mma"),
        (ptx(E5M2, descriptor("f8f6f4", "e3m4", "e3m4").encode()), {"promised": 2}, "edited in part"),
        (ptx(E5M2, target="sm_100f"), {}, "the PTX is for sm_100f"),
        (ptx(E5M2, target="sm_103a"), {}, "the PTX is for sm_103a"),
        (ptx(E5M2), {"sm": 107}, "Rubin"),
        (ptx(E5M2), {"sm": 120}, "edit the cubin"),
        (ptx(E5M2, more="st.global.u32 [%rd0], %r20;\n"), {}, "used 1 times for something else"),
        (ptx(E5M2, more="mov.b32 %r20, 7;\n"), {}, "2 constants"),
        (ptx(E5M2).replace("mov.b32 %r20, 136316048", "mov.b32 %r20, %r7"), {}, "2 constants define|constants"),
        (
            ptx(E2M1 | 1 << 23, kind="mxf4nvf4", modifiers=".block_scale.block32"), {"a": "e0m3", "b": "e0m3"}, "block16",
        ),
    ],
)  # fmt: skip
def test_a_text_that_is_not_what_was_promised_is_refused(text, asked, message):
    with pytest.raises(PatchError, match=message):
        patch_ptx(text, **({"a": "e3m4", "b": "e3m4", "promised": 1, "sm": 100} | asked))


def test_the_environment_switch_turns_editing_off(monkeypatch):
    monkeypatch.setenv("HYBRID_HUMMING_HIDDEN_FORMATS", "0")
    with pytest.raises(PatchError, match="HYBRID_HUMMING_HIDDEN_FORMATS=0"):
        patch_ptx(ptx(E5M2), a="e3m4", b="e3m4", promised=1, sm=100)
