"""FP8 bytes -> 16-bit floats by integer operations, for GPUs without cvt from FP8. Imports no Triton.

A byte at the top of 16 bits has its sign in place; its exponent and mantissa move down to where the operand type has them. What
comes out is value * 2**-gap (`decoder.exponent_gap`), subnormals included; NaN and infinity get the operand's own exponent of ones,
which no multiplication by a power of two takes away.
"""

from __future__ import annotations

from collections.abc import Callable

from hybrid_humming.dtypes import ElementFormat
from hybrid_humming.fragment import EXPONENT

AND_OR = "0xea"  # lop3 table: (a & b) | c


def widen(fmt: ElementFormat, operand: str, target: str, word: str, *, high: bool, new: Callable[[], str]) -> list[str]:
    """Return the PTX that puts two bytes of `word` (its upper two for `high`) into `target` as operand bits.

    fmt   e4m3 or e5m2;  new   gives a fresh 32-bit register
    """
    down = EXPONENT[operand] - fmt.exponent_bits
    spread = "0x3424" if high else "0x1404"
    if down == 0:  # e5m2 is the top byte of fp16
        return [f"prmt.b32 {target}, {word}, 0, {spread};"]
    magnitude = 0x7F00 >> down
    # NaN is all ones in e4m3; in e5m2 an exponent of ones. Adding the lowest such bit then carries out of the magnitude.
    step = magnitude & -magnitude if fmt.specials == "fn" else (magnitude & -magnitude) << fmt.mantissa_bits
    carry = 0x8000 >> down
    x, m, t = new(), new(), new()
    lines = [
        f"prmt.b32 {x}, {word}, 0, {spread};",
        f"shr.u32 {m}, {x}, {down};",
        f"and.b32 {m}, {m}, {_twice(magnitude)};",
        f"add.u32 {t}, {m}, {_twice(step)};",
    ]
    if down == 1:
        lines.append(f"lop3.b32 {m}, {t}, {_twice(carry)}, {m}, {AND_OR};")
    else:
        lines += [
            f"and.b32 {t}, {t}, {_twice(carry)};",
            f"mul.lo.u32 {t}, {t}, {2**down - 1};",  # ones from the carry up to the top of the exponent
            f"or.b32 {m}, {m}, {t};",
        ]
    return [*lines, f"lop3.b32 {target}, {x}, 0x80008000, {m}, {AND_OR};"]


def _twice(mask: int) -> str:
    return f"0x{mask:04x}{mask:04x}"
