"""ByteDecoder: the PTX that turns a lane's words of 64 k into eight registers of four e4m3 or int8 operands. Imports no Triton.

Operands of the PTX, for `inline_asm_elementwise(pack=4)`, where every tensor element is one of four in a lane:

    $0..$7     registers j = 4 p + 2 h + r, four operands each: outputs of an 8-bit type
    then, per plane of width w, an int32 tensor of four words: w = 4 the words; w = 2 words 0, 0, 1, 1; w = 1 the word four times
    then, with zero points, four int32 tensors that hold a value in each byte, four copies of a word: (p, r) = (0, 0), (0, 1) ...
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from hybrid_humming.fragment.eight import REGISTERS, Gather, byte_recipe

AND_OR = "0xea"  # lop3 table of (a & b) | c
BYTES, SIGNS = 0x01010101, "0x80808080"


@dataclass(frozen=True, kw_only=True)
class ByteDecoder:
    """How one encoding becomes 8-bit operands; all that a kernel needs, as a constant of it. Made by `byte_decoder`.

    zero   a row's zero point, an integer of at most 127, is subtracted
    unit   power of two by which decoded operands are still to be multiplied
    """

    encoding: str
    operand: str
    planes: tuple[int, ...]
    zero: bool
    asm: str
    constraints: str
    unit: float


@functools.cache
def byte_decoder(encoding: str, operand: str) -> ByteDecoder:
    """Return the ByteDecoder of `encoding` to `operand` (e4m3 | int8); raises FormatError where there is none."""
    recipe = byte_recipe(encoding, operand)
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
        asm="\n".join([*lines, "}"]),
        constraints=",".join(["=&r"] * REGISTERS + ["r"] * inputs),
        unit=recipe.unit,
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
