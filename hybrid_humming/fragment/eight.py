"""The same for 8-bit operands: where a narrow weight's bits lie in a lane's words, and how they become e4m3 or int8. Pure Python.

A block of 64 (N) x 64 (K) codes of b bits belongs to 128 lanes (4 warps x 32; lane = 4g + t) of 32 codes each:

    code (p, h, r, e) of a lane = q[64 nb + 16 warp + g + 8 r,  64 kb + 32 p + 16 h + 4 t + e]      e 0..3, p h r 0..1

The four codes e are the bytes of one operand register, so 8 registers a block: register j = 4 p + 2 h + r. The b bits are split
over planes as for 16 bits (PLANES). Each register gathers its bits from the planes' words by shifts and masks that stand for all
four bytes, and one `kind` of finish makes the operand of them:

    bits    the gathered byte is the operand
    sign    byte = x + 0x81 * (x & 1): x = 2 m + s is m, or -(m + 1) where s is set, in twice the unit of e4m3's linear range
    zero    x - z for each byte, z the row's zero point

MXFP4 has a fourth way, `folded`: its group's exponent goes into the operand, so that a sum needs no scale along K. A word holds
the eight codes of one (p, r), selectors of a byte table that is made for each group: 0 and |value| * 2**(d - 5) in e4m3, exact for
d = 0 .. 11 above the least exponent of the row. Magnitudes lie in nibbles 4 h + e, signs where they are wanted (FOLDED_SIGN).

What is stored is not the canonical code but what the finish wants (`stored`); `unit` is the power of two that a decoded operand is
still to be multiplied by. e4m3's bytes 0x00 .. 0x10 are linear: k is k * 2**-9.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

from hybrid_humming.dtypes import ElementFormat, parse_format
from hybrid_humming.errors import FormatError
from hybrid_humming.fragment import PLANES

REGISTERS = 8
OPERANDS = ("e4m3", "int8")
E4M3_BIAS, E4M3_MANTISSA = 7, 3
FOLDED_SPAN = 11  # the largest d
FOLDED_UNIT = 2.0**5
FOLDED_SIGN = (4, 0)  # shift of a code's sign, bit 3 of its byte, for h = 0 and 1
LINEAR = 2.0**9  # over the unit of e4m3's linear range


@dataclass(frozen=True)
class Gather:
    """Bits of one word: shifted to the left by `shift` (right where negative), under the 8-bit `mask` of each byte."""

    plane: int
    word: int
    shift: int
    mask: int


@dataclass(frozen=True)
class ByteRecipe:
    """How a lane's words become 8 registers of four operands.

    stored   canonical code -> stored code
    target   position of each stored bit in the gathered byte, lowest bit first
    gathers  of each register;  unit: see the module's head
    """

    encoding: str
    operand: str
    kind: str
    planes: tuple[int, ...]
    stored: tuple[int, ...]
    target: tuple[int, ...]
    gathers: tuple[tuple[Gather, ...], ...]
    unit: float


@functools.cache
def byte_recipe(encoding: str, operand: str) -> ByteRecipe:
    """Return the recipe that unpacks `encoding` into `operand` (e4m3 | int8).

    Raises FormatError where the operand can't hold every value of the encoding times one power of two.
    """
    fmt = parse_format(encoding)
    if operand not in OPERANDS:
        raise FormatError(f"operand type {operand!r}: 8-bit register fragments are e4m3 or int8")
    if fmt.kind not in ("int", "uint", "float") or not 1 <= fmt.bits <= 7:
        raise FormatError(f"{fmt} is no weight format of 7 bits or fewer")
    kind, target, stored, unit = _integer(fmt, operand) if fmt.is_integer else _float(fmt, operand)
    planes = PLANES[fmt.bits]
    gathers = _mixed(target) if encoding == "e2m1" else _gathers(target, planes)
    return ByteRecipe(encoding, operand, kind, planes, stored, target, gathers, unit)


Form = tuple[str, tuple[int, ...], tuple[int, ...], float]
"""(kind, target, stored, unit)"""


def _integer(fmt: ElementFormat, operand: str) -> Form:
    bits, codes = fmt.bits, range(2**fmt.bits)
    half = 2 ** (bits - 1)
    if fmt.kind == "uint":
        if operand == "e4m3" and bits > 4:
            raise FormatError(
                f"{fmt} less a zero point reaches {2**bits - 1}; e4m3 holds whole numbers of 4 significant bits exactly"
            )
        return "zero", tuple(range(bits)), tuple(codes), LINEAR if operand == "e4m3" else 1.0
    if operand == "int8":
        return "bits", tuple(range(8 - bits, 8)), tuple(code ^ half for code in codes), 2.0 ** (bits - 8)
    if bits > 4:
        raise FormatError(f"{fmt} reaches -{half}; e4m3 holds whole numbers of 4 significant bits exactly: use int8 activations")
    values = (code - half for code in codes)
    return "sign", tuple(range(bits)), tuple(2 * v if v >= 0 else 2 * (-v - 1) + 1 for v in values), LINEAR / 2


def _float(fmt: ElementFormat, operand: str) -> Form:
    x, y = fmt.exponent_bits, fmt.mantissa_bits
    if operand != "e4m3":
        raise FormatError(f"{fmt} weights have fractions; multiply them by e4m3 activations, not by {operand}")
    if x > 3 or y > E4M3_MANTISSA:
        raise FormatError(f"{fmt} does not fit e4m3: at most 3 bits of exponent and {E4M3_MANTISSA} of mantissa do")
    low = E4M3_MANTISSA - y if x else 0
    target = (*range(low, low + x + y), 7)
    # A whole-number format (x = 0) reads in the linear range; others keep exponent and mantissa, and only the bias differs.
    unit = 2.0 ** (E4M3_BIAS - fmt.bias) if x else LINEAR
    return "bits", target, tuple(range(2**fmt.bits)), unit


# ---- where the bits lie ----
def _gathers(target: tuple[int, ...], planes: tuple[int, ...]) -> tuple[tuple[Gather, ...], ...]:
    """Each register's gathers: the highest stored bits come from the widest plane."""
    registers: list[list[Gather]] = [[] for _ in range(REGISTERS)]
    left = list(target)
    for plane, width in enumerate(planes):
        mine, left = tuple(left[-width:]), left[: len(left) - width]
        fields = _fields(mine)
        for j in range(REGISTERS):
            word, field = divmod(j, 8 // width)
            registers[j] += [Gather(plane, word, shift, mask) for shift, mask in fields[field]]
    return tuple(map(tuple, registers))


@functools.cache
def _fields(mine: tuple[int, ...]) -> tuple[tuple[tuple[int, int], ...], ...]:
    """The 8 bits of a byte as fields of len(mine): (shift, mask) pairs that bring each to the positions `mine`; the fewest."""
    best: tuple[tuple[tuple[int, int], ...], ...] | None = None
    for fields in _partitions(tuple(sorted(set(range(8)) - set(mine))), len(mine)):
        ways = tuple(_moves(mine, sources) for sources in (mine, *fields))
        if best is None or sum(map(len, ways)) < sum(map(len, best)):
            best = ways
    assert best is not None
    return best


def _moves(mine: tuple[int, ...], sources: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """(shift, mask) pairs that bring the positions `sources` to `mine`, in the order that needs the fewest shifts."""
    best: dict[int, int] = {}
    for order in itertools.permutations(sources):
        shifts: dict[int, int] = {}
        for to, at in zip(mine, order, strict=True):
            shifts[to - at] = shifts.get(to - at, 0) | 1 << to
        if not best or len(shifts) < len(best):
            best = shifts
    return tuple(sorted(best.items(), key=lambda item: abs(item[0])))


def _partitions(positions: tuple[int, ...], size: int) -> list[tuple[tuple[int, ...], ...]]:
    """Every way to cut `positions` into fields of `size`."""
    if not positions:
        return [()]
    first, rest = positions[0], positions[1:]
    found = []
    for others in itertools.combinations(rest, size - 1):
        remain = tuple(p for p in rest if p not in others)
        found += [((first, *others), *more) for more in _partitions(remain, size)]
    return found


def _mixed(target: tuple[int, ...]) -> tuple[tuple[Gather, ...], ...]:
    """e2m1: two words of a pair hold a register each as it is, and two more between them: five instructions for four registers
    fewer than words that keep to themselves."""
    assert target == (2, 3, 4, 7)
    registers = []
    for p in range(2):
        u, v = 2 * p, 2 * p + 1
        registers += [
            (Gather(0, u, 0, 0x9C),),
            (Gather(0, v, 0, 0x9C),),
            (Gather(0, u, 3, 0x18), Gather(0, v, 1, 0x84)),
            (Gather(0, u, -2, 0x18), Gather(0, v, 2, 0x84)),
        ]
    return tuple(registers)


def places(recipe: ByteRecipe, register: int) -> tuple[tuple[int, int, int], ...]:
    """Return (plane, word, position in the byte) of each stored bit of a register, lowest bit first."""
    found = []
    for position in recipe.target:
        gather = next(g for g in recipe.gathers[register] if g.mask >> position & 1)
        found.append((gather.plane, gather.word, position - gather.shift))
    return tuple(found)
