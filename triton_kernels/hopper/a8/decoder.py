"""ByteDecoder: the PTX that turns a lane's words of 64 k into eight registers of four e4m3 or int8 operands. Imports no Triton.

Operands of the PTX, for `inline_asm_elementwise(pack=4)`, where every tensor element is one of four in a lane:

    $0..$7     registers j = 4 p + 2 h + r, four operands each: outputs of an 8-bit type
    then, per plane of width w, an int32 tensor of four words: w = 4 the words; w = 2 words 0, 0, 1, 1; w = 1 the word four times
    then, folded, two int32 tensors of the exponents of 128 k, a byte each: rows r = 0 and r = 1, four copies of a word
    or, with zero points, four int32 tensors that hold a value in each byte, four copies of a word: (p, r) = (0, 0), (0, 1) ...
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from hybrid_humming.errors import FormatError
from hybrid_humming.fragment.eight import FOLDED_UNIT, REGISTERS, Gather, byte_recipe

AND_OR = "0xea"  # lop3 table of (a & b) | c
BYTES, SIGNS = 0x01010101, "0x80808080"


@dataclass(frozen=True, kw_only=True)
class ByteDecoder:
    """How one encoding becomes 8-bit operands; all that a kernel needs, as a constant of it. Made by `byte_decoder`.

    folded  the exponents of a row's groups go into the operands
    zero   a row's zero point, an integer of at most 127, is subtracted
    asm    PTX of the first and of the second 64 k of a step; they differ where exponents are folded in
    unit   power of two by which decoded operands are still to be multiplied
    """

    encoding: str
    operand: str
    planes: tuple[int, ...]
    zero: bool
    folded: bool
    asm: tuple[str, str]
    constraints: str
    unit: float


@functools.cache
def byte_decoder(encoding: str, operand: str, *, folded: bool = False) -> ByteDecoder:
    """Return the ByteDecoder of `encoding` to `operand` (e4m3 | int8); raises FormatError where there is none."""
    recipe = byte_recipe(encoding, operand)
    if folded:
        return _folded(encoding, operand)
    zero = recipe.kind == "zero"
    inputs = 4 * (len(recipe.planes) + (4 if zero else 0))
    lines = ["{", ".reg .b32 t, x, y, z, s;"]
    for j, gathers in enumerate(recipe.gathers):
        if recipe.kind == "bits":
            lines += _gather(f"${j}", gathers, recipe.planes)
        elif recipe.kind == "sign":
            lines += [*_gather("x", gathers, recipe.planes), f"and.b32 z, x, {BYTES:#x};", f"mad.lo.u32 ${j}, z, 0x81, x;"]
        else:
            lines += _gather("x", gathers, recipe.planes)
            lines += _less_zero(j, f"${REGISTERS + 4 * (len(recipe.planes) + 2 * (j // 4) + j % 2)}", operand)
    return ByteDecoder(
        encoding=encoding,
        operand=operand,
        planes=recipe.planes,
        zero=zero,
        folded=False,
        asm=("\n".join([*lines, "}"]),) * 2,
        constraints=",".join(["=&r"] * REGISTERS + ["r"] * inputs),
        unit=recipe.unit,
    )


def _folded(encoding: str, operand: str) -> ByteDecoder:
    """MXFP4 with the group's exponent in the operand: a table of eight bytes for each (p, r), which the codes select from."""
    if (encoding, operand) != ("e2m1", "e4m3"):
        raise FormatError(f"exponents are folded into e4m3 operands of e2m1 weights, not {operand} ones of {encoding}")
    blocks = []
    for q in (0, 1):
        lines = ["{", ".reg .b32 d, l, h, x, y, v;"]
        for word in range(4):
            p, r = divmod(word, 2)
            code = f"${REGISTERS + word}"
            lines += [
                # d of this row and 32 k; bytes 0 .. 3 and 4 .. 7 of |value| * 2**(d - 5), where a step of d is 8.
                f"prmt.b32 d, ${REGISTERS + 4 * (1 + r)}, 0, {0x4440 + 2 * q + p:#x};",
                "mad.lo.u32 l, d, 0x08080800, 0x14100800;", "mad.lo.u32 h, d, 0x08080808, 0x24201c18;",
                f"and.b32 x, {code}, 0x77777777;", "prmt.b32 v, l, h, x;",
                f"lop3.b32 ${4 * p + r}, {code}, {SIGNS}, v, {AND_OR};",
                "shr.u32 x, x, 16;", f"shl.b32 y, {code}, 4;", "prmt.b32 v, l, h, x;",
                f"lop3.b32 ${4 * p + 2 + r}, y, {SIGNS}, v, {AND_OR};",
            ]  # fmt: skip
        blocks.append("\n".join([*lines, "}"]))
    return ByteDecoder(
        encoding=encoding,
        operand=operand,
        planes=(4,),
        zero=False,
        folded=True,
        asm=(blocks[0], blocks[1]),
        constraints=",".join(["=&r"] * REGISTERS + ["r"] * 12),
        unit=FOLDED_UNIT,
    )


def _gather(target: str, gathers: tuple[Gather, ...], planes: tuple[int, ...]) -> list[str]:
    """PTX that collects the bits of one register in `target`."""
    lines = []
    for i, gather in enumerate(gathers):
        source = f"${REGISTERS + 4 * gather.plane + gather.word * (4 // planes[gather.plane])}"
        if gather.shift:
            lines.append(f"{'shl.b32' if gather.shift > 0 else 'shr.u32'} t, {source}, {abs(gather.shift)};")
            source = "t"
        mask = f"{gather.mask * BYTES:#x}"
        lines.append(f"lop3.b32 {target}, {source}, {mask}, {target}, {AND_OR};" if i else f"and.b32 {target}, {source}, {mask};")
    return lines


def _less_zero(j: int, zero: str, operand: str) -> list[str]:
    """PTX of x - zero in each byte: two's complement, or sign and magnitude in e4m3's linear range."""
    lines = [f"or.b32 x, x, {SIGNS};", f"sub.u32 x, x, {zero};"]  # no byte borrows from its neighbour
    if operand == "int8":
        return [*lines, f"xor.b32 ${j}, x, {SIGNS};"]
    return [
        *lines, f"xor.b32 x, x, {SIGNS};", f"and.b32 s, x, {SIGNS};", "shr.u32 z, s, 7;", "mul.lo.u32 y, z, 0xff;",
        "xor.b32 x, x, y;", "add.u32 x, x, z;", f"or.b32 ${j}, x, s;",
    ]  # fmt: skip
