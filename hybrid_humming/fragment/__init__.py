"""Where a weight's bits lie in a lane's words, and how they get from there into an MMA operand. Pure Python.

A block of 64 (N) x 64 (K) codes of b bits belongs to 128 lanes (4 warps x 32; lane = 4g + t) of 32 codes each:

    code (s, h, r, e) of a lane  =  q[64 nb + 16 warp + g + 8 r,  64 kb + 16 s + 8 h + 2 t + e]      s 0..3, h r e 0..1

The two codes e = 0, 1 are one operand register (low and high 16 bits), so 16 registers a block, eight a half:

    half = s // 2      register j = 4 (s % 2) + 2 h + r      j = 0..7

The b bits are split over planes whose widths are powers of two (PLANES, no padding); a lane holds p words of a plane of
width p. Half `i` reads words p/2 * i and up of planes of at least 2, and half of the one word of a plane of width 1.

A `Recipe` says how eight registers come out of one half's words, as a small graph of nodes:

    word(plane, word)          a packed word
    turn(node, k)              rotated right by k bits
    choose(node, node, mask)   the mask's bits from the first, the others from the second

and a register is the OR of nodes under masks. The packer follows each bit of a register back through the graph, so the
place of a bit is never written down twice: the graph that unpacks is the layout. Masks hold 16 bits and stand for both
halves of the word.

Two recipes: `integer` (a window of the mantissa that holds the code, at an offset of the register's own, so that one
turned word serves several registers) and `float` (sign, exponent and mantissa at the places they have in the operand).
Formats that the hardware converts itself (`NATIVE`) keep whole bytes, pairs side by side.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from hybrid_humming.dtypes import ElementFormat, parse_format
from hybrid_humming.errors import FormatError
from hybrid_humming.fragment.search import FOURS, REGISTERS, Four, Group, Pair, mask_of, singles, solve, solve_pair

PLANES = {1: (1,), 2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 7: (4, 2, 1), 8: (8,)}
MANTISSA = {"bf16": 7, "fp16": 10}
EXPONENT = {"bf16": 8, "fp16": 5}
NATIVE = ("e4m3", "e5m2")
HALVES = 2

Bit = tuple[int, int, int]
"""(plane, word, bit): one bit of a lane's words."""


@dataclass(frozen=True)
class Node:
    """One step of a recipe: kind is word | turn | choose; see the module's head."""

    kind: str
    plane: int = 0
    word: int = 0
    amount: int = 0
    mask: int = 0
    sources: tuple[Node, ...] = ()

    def bits(self) -> tuple[Bit, ...]:
        """Return where each of the 32 bits of this node comes from."""
        return _bits(self)


@functools.cache
def _bits(node: Node) -> tuple[Bit, ...]:
    if node.kind == "word":
        return tuple((node.plane, node.word, i) for i in range(32))
    first = node.sources[0].bits()
    if node.kind == "turn":
        return tuple(first[(i + node.amount) % 32] for i in range(32))
    second = node.sources[1].bits()
    return tuple(first[i] if node.mask >> (i % 16) & 1 else second[i] for i in range(32))


@dataclass(frozen=True)
class Register:
    """One operand register: the OR of `parts` (node, 16-bit mask). Code bit c is at `target[c]` of each 16 bits."""

    parts: tuple[tuple[Node, int], ...]
    target: tuple[int, ...]
    offset: int = 0
    """integer: the code is shifted left by this inside the mantissa."""


@dataclass(frozen=True)
class Recipe:
    """How the words of one lane become operand registers, for one encoding and one 16-bit operand type.

    kind    integer | float | native
    halves  [2][8] registers; for `native` each register's two codes are the bytes of `parts[0]` under its mask
    """

    encoding: str
    operand: str
    kind: str
    planes: tuple[int, ...]
    halves: tuple[tuple[Register, ...], ...]

    def place(self, s: int, h: int, r: int, e: int) -> tuple[Bit, ...]:
        """Return (plane, word, bit) of each bit of the lane's code (s, h, r, e), lowest code bit first."""
        register = self.halves[s // 2][4 * (s % 2) + 2 * h + r]
        if self.kind == "native":
            (node, base), bits = register.parts[0], parse_format(self.encoding).bits
            return tuple((node.plane, node.word, base + 8 * e + c) for c in range(bits))
        found = []
        for position in register.target:
            node = next(n for n, mask in register.parts if mask >> position & 1)
            found.append(node.bits()[16 * e + position])
        return tuple(found)


@functools.cache
def recipe(encoding: str, operand: str) -> Recipe:
    """Return the recipe that unpacks `encoding` into `operand` (bf16 | fp16).

    Raises FormatError where the operand can't hold every value of the encoding times one power of two.
    """
    fmt = parse_format(encoding)
    if operand not in MANTISSA:
        raise FormatError(f"operand type {operand!r}: register fragments are bf16 or fp16")
    if fmt.kind not in ("int", "uint", "float") or not 1 <= fmt.bits <= 8:
        raise FormatError(f"{fmt} is no weight format; allowed are int1..int8, uint1..uint8 and eXmY of 8 bits or fewer")
    planes = PLANES[fmt.bits]
    if encoding in NATIVE:
        return Recipe(encoding, operand, "native", planes, tuple(_native(half) for half in range(HALVES)))
    if fmt.is_integer:
        return Recipe(encoding, operand, "integer", planes, tuple(_integer(fmt, operand, half) for half in range(HALVES)))
    refuse(fmt, operand)
    return Recipe(encoding, operand, "float", planes, tuple(_float(fmt, operand, half) for half in range(HALVES)))


def refuse(fmt: ElementFormat, operand: str) -> None:
    """Raise FormatError if `operand` can't hold the values of a float format times one power of two."""
    x, limit = fmt.exponent_bits, EXPONENT[operand]
    finite = fmt.specials == "none"
    # An all-ones exponent of the operand means infinity or NaN, so a finite format must not reach it.
    if x > limit or (x == limit and finite):
        raise FormatError(
            f"{fmt} (exponents of {x} bits, largest {fmt.largest:.4g}) does not fit {operand} (exponents of {limit} bits"
            f"{', the topmost taken by infinity and NaN' if x == limit else ''}); use bf16 activations for {fmt} weights"
        )
    if fmt.mantissa_bits > MANTISSA[operand] + (x == 0):
        raise FormatError(f"{fmt} has {fmt.mantissa_bits} mantissa bits, {operand} only {MANTISSA[operand]}")


# ---- graph ----
def word(plane: int, index: int) -> Node:
    """Return the node of a packed word."""
    return Node("word", plane=plane, word=index)


def turn(node: Node, amount: int) -> Node:
    """Return `node` rotated right by `amount` (negative: left), |amount| < 16; itself for 0."""
    if not -16 < amount < 16:
        raise ValueError(f"turn by {amount}: must stay inside 16 bits")
    return node if amount == 0 else Node("turn", amount=amount, sources=(node,))


def choose(first: Node, second: Node, mask: int) -> Node:
    """Return the mask's bits from `first` and the others from `second`."""
    return Node("choose", mask=mask, sources=(first, second))


def _turn_for(node: Node, amount: int, mask: int) -> Node:
    """`node` turned right by `amount` modulo 16, in the direction that keeps every bit of `mask` inside its own 16 bits if any."""
    amount %= 16
    if amount == 0:
        return node
    inside_right = not mask & (0xFFFF << (16 - amount)) & 0xFFFF
    inside_left = not mask & ((1 << (16 - amount)) - 1)
    return turn(node, amount - 16 if inside_left and not inside_right else amount)


# ---- field words: 16-bit strings that hold whole codes ----
def fields_per_word(bits: int) -> int:
    """Return how many codes a field word holds in each 16 bits."""
    return {1: 8, 2: 8, 3: 4, 4: 4, 5: 2, 6: 2, 7: 2, 8: 2}[bits]


def _field_words(bits: int, half: int, used: tuple[tuple[int, ...], ...]) -> list[Node]:
    """Return the field words of one half. `used[i]`: the positions that plane i fills (their widths in PLANES order)."""
    planes = PLANES[bits]
    count = REGISTERS // fields_per_word(bits)
    if bits == 1:
        return [turn(word(0, 0), 8) if half else word(0, 0)]
    if len(planes) == 1:
        return [word(0, count * half + i) for i in range(count)]
    words = []
    for i in range(count):
        parts = [_slice(plane, p, count, half, i, used[plane]) for plane, p in enumerate(planes)]
        node = parts[-1]
        for plane in reversed(range(len(planes) - 1)):
            node = choose(parts[plane], node, mask_of(used[plane]))
        words.append(node)
    return words


def _slice(plane: int, p: int, count: int, half: int, i: int, used: tuple[int, ...]) -> Node:
    """Return the turned word of a plane of width p that fills `used` of field word i of `count`."""
    per_word = 16 // len(used)
    index = count * half + i
    step = len(used)  # turns by 0, step, 2 step ... read every bit once, as `used` has each remainder modulo step once
    return _turn_for(word(plane, index // per_word), step * (index % per_word), mask_of(used))


# ---- integers ----
def window(bits: int, operand: str) -> int:
    """Return how many registers share one turned word: their codes lie side by side in the mantissa of `operand`.

    No more than it takes to keep the number of turns, and at most 4: each offset needs constants of its own.
    """
    fields = fields_per_word(bits)
    turns = -(-fields // min(4, max(1, MANTISSA[operand] // bits)))
    return -(-fields // turns)


def _integer(fmt: ElementFormat, operand: str, half: int) -> tuple[Register, ...]:
    bits, fields = fmt.bits, fields_per_word(fmt.bits)
    stride = bits
    used, at = [], 0
    for p in PLANES[bits]:
        share = p * 16 // 2 * fields // REGISTERS
        used.append(tuple(range(at, at + share)))
        at += share
    registers = []
    for node in _field_words(bits, half, tuple(used)):
        for field in range(fields):
            offset = bits * (field % window(bits, operand))
            target = tuple(offset + c for c in range(bits))
            source = _turn_base(node, stride * field - offset)
            registers.append(Register(((source, mask_of(target)),), target, offset))
    return tuple(registers)


def _turn_base(node: Node, amount: int) -> Node:
    """`node` turned right by `amount`; two turns in a row become one."""
    if node.kind == "turn" and -16 < node.amount + amount < 16:
        return turn(node.sources[0], node.amount + amount)
    return turn(node, amount)


def _native(half: int) -> tuple[Register, ...]:
    # parts[0] = (word, bit of the low byte): the pair is 16 bits of one word.
    registers = []
    for j in range(REGISTERS):
        node = word(0, 4 * half + j // 2)
        registers.append(Register(((node, 16 * (j % 2)),), ()))
    return tuple(registers)


# ---- floats ----
def target_bits(fmt: ElementFormat, operand: str) -> tuple[int, ...]:
    """Return where each code bit of a float format goes in `operand`, lowest code bit first.

    Mantissa and exponent keep their order around the operand's exponent boundary and the sign goes to the top, so the
    operand reads as value * 2**-k. e0mY goes where e1m(Y-1) would: its magnitude is linear through the first binade.
    """
    x, y = fmt.exponent_bits, fmt.mantissa_bits
    if x == 0:
        y -= 1
        x = 1
    low = MANTISSA[operand] - y
    return (*range(low, low + x + y), 15)


def _float(fmt: ElementFormat, operand: str, half: int) -> tuple[Register, ...]:
    target, fields, planes = target_bits(fmt, operand), fields_per_word(fmt.bits), PLANES[fmt.bits]
    if fmt.bits == 4 and len(singles(target, 4)[0]) < 4:
        pair = solve_pair(target)
        reads = _pair(pair, half) if pair else _four(FOURS[target], half) if target in FOURS else None
        if reads is not None:
            return tuple(_read(node, ((k, target),), target) for node, k in reads)
    groups, used = solve(target, fields, planes)
    return tuple(_read(node, field, target) for node in _field_words(fmt.bits, half, used) for field in groups)


def _pair(pair: Pair, half: int) -> list[tuple[Node, int]]:
    """(field word, turn) of eight registers: three from each of the two words, two from what both have left."""
    a, b = word(0, 2 * half), word(0, 2 * half + 1)
    both = _join(a, b, pair.turns, pair.left, pair.right)
    return [(node, k) for node in (a, b) for k in pair.singles] + [(both, 0), (both, pair.second)]


def _four(four: Four, half: int) -> list[tuple[Node, int]]:
    """(field word, turn) of eight registers: two from each of the two words, two and two from what both have left."""
    a, b = word(0, 2 * half), word(0, 2 * half + 1)
    first, second = (_join(a, b, *join) for join in four.joins)
    return [(node, k) for node, copy in zip((a, b, first, second), four.copies, strict=True) for k in (0, copy)]


def _join(a: Node, b: Node, turns: tuple[int, int], left: frozenset[int], right: frozenset[int]) -> Node:
    """Positions `left` from `a` turned and `right` from `b` turned."""
    first, second = (_turn_for(n, k, mask_of(tuple(p))) for n, k, p in zip((a, b), turns, (left, right), strict=True))
    return choose(first, second, mask_of(tuple(left)))


def _read(node: Node, field: tuple[Group, ...], target: tuple[int, ...]) -> Register:
    """The register that `field` reads from a field word."""
    parts = []
    for amount, positions in field:
        mask = mask_of(positions)
        # The second half of a one-bit plane is a turned word already: two turns in a row become one.
        base, more = (node.sources[0], node.amount) if node.kind == "turn" else (node, 0)
        parts.append((_turn_for(base, amount + more, mask), mask))
    return Register(tuple(parts), target)
