"""Decoder: the PTX that turns one half of a lane's words into eight operand registers. Imports no Triton.

Operands of the PTX, for `inline_asm_elementwise(pack=2)`, where every tensor element is one of two in a lane:

    $0..$7     registers j = 4 (s % 2) + 2 h + r, two codes e = 0, 1 each: outputs of 16-bit type
    then, per plane of width p, int32 tensors of two words each:
      p = 8    words 4 half, 4 half + 1; then 4 half + 2, 4 half + 3
      p = 4    words 2 half, 2 half + 1
      p = 2    words 0, 1 (the half reads its own)
      p = 1    the word, twice
    then, with a zero point, 16-bit tensors that hold one value twice: rows r = 0 and r = 1 (a float pair: low parts next)
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from hybrid_humming.dtypes import parse_format
from hybrid_humming.errors import FormatError
from hybrid_humming.fragment import EXPONENT, MANTISSA, Node, Recipe, Register, recipe
from hybrid_humming.fragment.search import REGISTERS
from hybrid_humming.triton_kernels.hopper.decode.bytes import widen

ZERO_POINTS = {None: 0, "int": 2, "float": 2, "float_pair": 4}  # operands that each adds
AND_OR, CHOOSE, NOT_AND_OR = "0xea", "0xe4", "0xae"  # lop3 tables: (a & b) | c,  c ? a : b,  (~a & b) | c
FP8_CONVERTS, BF16_ADDS = 89, 90  # the first SM with cvt from FP8, and with add, sub and mul of bf16 pairs (fma is older)


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """How one encoding becomes one operand type; all that a kernel needs, as a constant of it. Made by `decoder`.

    zero_point   None; "int": an integer of at most 255, subtracted exactly; "float": subtracted with one rounding;
                 "float_pair": high and low part, for a zero point that the operand type can't hold
    raw          the final multiplication by a power of two is left to the caller
    planes       widths of the planes whose words the PTX reads, widest first
    asm          PTX of half 0 (k16 steps 0, 1) and of half 1 (steps 2, 3) of a block
    constraints  register constraints of both, outputs first
    post_scale   power of two by which a decoded register is still to be multiplied; 1.0 but for raw and for e0m3..e0m7
    sm           the oldest GPU whose instructions the PTX keeps to: 75, 89 or 90
    """

    encoding: str
    operand: str
    zero_point: str | None
    raw: bool
    planes: tuple[int, ...]
    asm: tuple[str, str]
    constraints: str
    post_scale: float
    sm: int = BF16_ADDS

    @property
    def recipe(self) -> Recipe:
        """The bits' way from the packed words to the registers."""
        return recipe(self.encoding, self.operand)


@functools.cache
def decoder(encoding: str, operand: str, *, zero_point: str | None = None, raw: bool | None = None, sm: int = BF16_ADDS) -> Decoder:
    """Return the Decoder of `encoding` to `operand` (bf16 | fp16) for `sm`; raises FormatError where there is none.

    `raw` leaves the last multiplication out where there is one. Raw fp16 operands may go into the MMA and the accumulator be
    multiplied by post_scale: their products with x are exact in fp32. Raw bf16 operands may not (they lie near 2**-126,
    where products vanish); they are for a kernel that multiplies the operand by scale * post_scale. None: raw for fp16.
    """
    fmt, found = parse_format(encoding), recipe(encoding, operand)
    if zero_point not in ZERO_POINTS:
        raise FormatError(f"zero point {zero_point!r}: allowed are {', '.join(map(str, ZERO_POINTS))}")
    if zero_point and fmt.kind != "uint":
        raise FormatError(f"zero points belong to uint1..uint8, not to {encoding}")
    raw = (operand == "fp16" if raw is None else raw) and found.kind == "float"
    sm = max(floor for floor in (0, 75, FP8_CONVERTS, BF16_ADDS) if floor <= sm)
    inputs = sum(max(1, p // 4) * 2 for p in found.planes) + ZERO_POINTS[zero_point]
    exponent = exponent_gap(encoding, operand) if found.kind == "float" else 0
    left = exponent if raw else exponent - _multiplier(exponent, operand)
    return Decoder(
        encoding=encoding,
        operand=operand,
        zero_point=zero_point,
        raw=raw,
        planes=found.planes,
        asm=(_asm(found, 0, zero_point, raw, sm), _asm(found, 1, zero_point, raw, sm)),
        constraints=",".join(["=&r"] * REGISTERS + ["r"] * inputs),
        post_scale=2.0**left,
        sm=sm,
    )


def exponent_gap(encoding: str, operand: str) -> int:
    """Return k where a register of a float recipe reads as value * 2**-k."""
    fmt = parse_format(encoding)
    bias = 2 ** (EXPONENT[operand] - 1) - 1
    return bias - fmt.bias if fmt.exponent_bits else bias + fmt.mantissa_bits - 2


def _multiplier(exponent: int, operand: str) -> int:
    """The part of 2**exponent that one multiplication by a finite operand can do."""
    return min(exponent, 2 ** (EXPONENT[operand] - 1) - 1)


def constant(value: float, operand: str) -> str:
    """Return two copies of `value` in the operand type, as a hexadecimal literal; the value must be exact in it."""
    if operand == "fp16":
        bits, back = int(np.float16(value).view(np.uint16)), float(np.float16(value))
    else:
        whole = int(np.float32(value).view(np.uint32))
        bits, back = whole >> 16, float(value) if whole & 0xFFFF == 0 else np.nan
    if back != value:
        raise ValueError(f"{value} is not exact in {operand}")
    return f"0x{bits:04x}{bits:04x}"


# ---- printing ----
class _Writer:
    """Collects PTX lines; one temporary register for each node of a recipe that is printed."""

    def __init__(self, found: Recipe, half: int, zero_point: str | None, raw: bool, sm: int) -> None:
        self.format, self.operand, self.zero_point, self.raw = parse_format(found.encoding), found.operand, zero_point, raw
        self.converts = found.kind == "native" and sm >= FP8_CONVERTS
        self.only_fma = found.operand == "bf16" and sm < BF16_ADDS
        self.needed = {} if found.kind == "native" else _needed(found.halves[half])
        self.lines: list[str] = []
        self.temporaries = 0
        self.known: dict[Node, str] = {}
        self.constants: dict[str, str] = {}
        self.operands: dict[tuple[int, int], str] = {}
        position = REGISTERS
        for plane, p in enumerate(found.planes):
            for i in range(max(1, p // 4) * 2):
                self.operands.setdefault((plane, {8: 4 * half + i, 4: 2 * half + i, 2: i, 1: 0}[p]), f"${position}")
                position += 1
        self.zeros = [f"${position + i}" for i in range(4)]
        self.type = {"bf16": "bf16x2", "fp16": "f16x2"}[found.operand]

    def new(self) -> str:
        """Return a fresh temporary register."""
        self.temporaries += 1
        return f"t{self.temporaries - 1}"

    def constant(self, value: float) -> str:
        """Return the register that holds two copies of `value`: packed arithmetic takes no literal."""
        literal = constant(value, self.operand)
        if literal not in self.constants:
            self.constants[literal] = self.new()
            self.add("mov.b32", self.constants[literal], literal)
        return self.constants[literal]

    def add(self, op: str, *operands: str) -> None:
        """Append one instruction."""
        self.lines.append(f"{' '.join([op, ', '.join(operands)]).strip()};")

    def multiply(self, register: str, factor: float) -> None:
        """`register` times a constant, rounded once; adding -0.0 changes no value and no sign."""
        if self.only_fma:
            self.add(f"fma.rn.{self.type}", register, register, self.constant(factor), self.constant(-0.0))
        else:
            self.add(f"mul.rn.{self.type}", register, register, self.constant(factor))

    def subtract(self, register: str, other: str) -> None:
        """`register` minus `other`, rounded once."""
        if self.only_fma:
            self.add(f"fma.rn.{self.type}", register, other, self.constant(-1.0), register)
        else:
            self.add(f"sub.rn.{self.type}", register, register, other)

    def node(self, node: Node) -> str:
        """Return the register that holds `node`, printing what it takes."""
        if node.kind == "word":
            return self.operands[node.plane, node.word]
        if node not in self.known:
            if node.kind == "choose":
                first = self.node(node.sources[0])
                second = self.node(node.sources[1])
                target = self.new()
                self.add("lop3.b32", target, first, second, twice(node.mask), CHOOSE)
            else:
                source, target = self.node(node.sources[0]), self.new()
                self.add(*_shift(node.amount, self.needed[node], target, source))
            self.known[node] = target
        return self.known[node]

    def text(self) -> str:
        """Return the block."""
        declared = [f".reg .b32 {', '.join(f't{i}' for i in range(self.temporaries))};"] if self.temporaries else []
        if self.converts:
            declared += [".reg .b16 lo, hi;", ".reg .f32 a, b;"]
        return "\n".join(["{", *declared, *self.lines, "}"])


def twice(mask: int) -> str:
    """Return a 16-bit mask repeated in both halves, as a literal."""
    return f"0x{mask:04x}{mask:04x}"


def _shift(amount: int, needed: int, target: str, source: str) -> tuple[str, ...]:
    # A plain shift where no bit that wraps around is read: ptxas may then choose the pipe.
    if amount > 0:
        wraps = needed >> (16 - amount)
        return ("shf.r.wrap.b32", target, source, source, str(amount)) if wraps else ("shr.u32", target, source, str(amount))
    wraps = needed & ((1 << -amount) - 1)
    return ("shf.l.wrap.b32", target, source, source, str(-amount)) if wraps else ("shl.b32", target, source, str(-amount))


def _asm(found: Recipe, half: int, zero_point: str | None, raw: bool, sm: int) -> str:
    writer = _Writer(found, half, zero_point, raw, sm)
    finish = {"integer": _integer, "float": _float, "native": _native}[found.kind]
    for j, register in enumerate(found.halves[half]):
        finish(writer, j, register)
    return writer.text()


def _needed(registers: tuple[Register, ...]) -> dict[Node, int]:
    """Which bits of each 16 are read from each node, over all registers."""
    needed: dict[Node, int] = {}

    def visit(node: Node, mask: int) -> None:
        needed[node] = needed.get(node, 0) | mask
        if node.kind == "choose":
            visit(node.sources[0], node.mask)
            visit(node.sources[1], ~node.mask & 0xFFFF)

    for register in registers:
        for node, mask in register.parts:
            visit(node, mask)
    return needed


def _float(w: _Writer, j: int, register: Register) -> None:
    for i, (node, mask) in enumerate(register.parts):
        source = w.node(node)
        if i == 0:
            w.add("and.b32", f"${j}", source, twice(mask))
        else:
            w.add("lop3.b32", f"${j}", source, twice(mask), f"${j}", AND_OR)
    factor = _multiplier(exponent_gap(w.format.name, w.operand), w.operand)
    if factor and not w.raw:
        w.multiply(f"${j}", 2.0**factor)


def _native(w: _Writer, j: int, register: Register) -> None:
    node, base = register.parts[0]
    if not w.converts:
        w.lines += widen(w.format, w.operand, f"${j}", w.operands[node.plane, node.word], high=bool(base), new=w.new)
        if gap := exponent_gap(w.format.name, w.operand):
            w.multiply(f"${j}", 2.0**gap)
        return
    w.add(f"mov.b32 {{lo, hi}}, {w.operands[node.plane, node.word]}")
    w.add(f"cvt.rn.f16x2.{w.format.name}x2", f"${j}", "hi" if base else "lo")
    if w.operand == "bf16":
        w.add(f"mov.b32 {{lo, hi}}, ${j}")
        w.add("cvt.f32.f16", "a", "lo")
        w.add("cvt.f32.f16", "b", "hi")
        w.add("cvt.rn.bf16x2.f32", f"${j}", "b", "a")


def _integer(w: _Writer, j: int, register: Register) -> None:
    fmt = w.format
    if fmt.bits == 8:
        return _integer8(w, j, register)
    width = MANTISSA[w.operand]
    (node, mask), offset = register.parts[0], register.offset
    magic = constant(2.0**width, w.operand)
    w.add("lop3.b32", f"${j}", w.node(node), twice(mask), magic, AND_OR)
    # The register reads 2**width + code * 2**offset.
    base = 2.0 ** (width - offset) + (2.0 ** (fmt.bits - 1) if fmt.kind == "int" else 0.0)
    if w.zero_point == "int":
        return _subtract(w, j, offset, _zero_constant(w, j % 2, base))
    _subtract(w, j, offset, w.constant(-base))
    return _float_zero(w, j)


def _integer8(w: _Writer, j: int, register: Register) -> None:
    fmt, (node, _) = w.format, register.parts[0]
    signed = fmt.kind == "int"
    if w.operand == "fp16":
        # The bytes of the pair beside the high byte of 1024.0.
        word = node if node.kind == "word" else node.sources[0]
        w.add("prmt.b32", f"${j}", w.operands[word.plane, word.word], "0x64646464", "0x4240" if node is word else "0x4341")
        base = 1024.0 + (128.0 if signed else 0.0)
    else:
        source, top = w.node(node), w.new()
        w.add("lop3.b32", f"${j}", source, twice(0x007F), "0x43004300", AND_OR)
        w.add("lop3.b32", top, source, twice(0x0080), "0x43004300", NOT_AND_OR)
        w.subtract(f"${j}", top)  # 128 + low bits, minus 128 or 256: code - 128, exact
        base = 0.0 if signed else -128.0
    if w.zero_point == "int":
        return _subtract(w, j, 0, _zero_constant(w, j % 2, base))
    if base:
        _subtract(w, j, 0, w.constant(-base))
    return _float_zero(w, j)


def _subtract(w: _Writer, j: int, offset: int, addend: str) -> None:
    """Register j becomes register j * 2**-offset + addend."""
    one = w.constant(2.0**-offset)
    w.add(f"fma.rn.{w.type}", f"${j}", f"${j}", one, addend)


def _zero_constant(w: _Writer, r: int, base: float) -> str:
    """The register that holds -(base + zero point) of row r; exact, and made once a row and offset."""
    key = Node("zero", plane=r, word=int(base))
    if key not in w.known:
        w.known[key] = w.new()
        minus = w.constant(-1.0)
        w.add(f"fma.rn.{w.type}", w.known[key], w.zeros[r], minus, w.constant(-base))
    return w.known[key]


def _float_zero(w: _Writer, j: int) -> None:
    if w.zero_point == "float":
        w.subtract(f"${j}", w.zeros[j % 2])
    elif w.zero_point == "float_pair":
        w.subtract(f"${j}", w.zeros[j % 2])
        w.subtract(f"${j}", w.zeros[2 + j % 2])
