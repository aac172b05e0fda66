"""Element formats: name, bits, and the exact value of every code.

    int1..int8      symmetric integers, stored offset-binary: value = code - 2**(b-1)
    uint1..uint8    unsigned integers: value = code (a zero point is subtracted by the spec, not here)
    eXmY            sign, X exponent bits, Y mantissa bits, 3 to 8 bits; bias 2**(X-1) - 1, subnormals kept
    e0mY            sign-magnitude integers: value = -+(code mod 2**Y); code 2**Y is -0
    e8m0, e5m3      unsigned scale formats
    fp16 bf16 fp32  wide formats, for activations, outputs, scales and zero points

The value tables here are the only truth; every decoder is compared with them bit by bit. Which codes
are NaN or infinite: e4m3 has NaN at 0x7f and 0xff (as OCP's E4M3, no infinity); e5m2 is IEEE-like
(infinity at 0x7c, NaN above); e8m0 has NaN at 0xff; e5m3 has NaN at 0xff. Every other narrow float is
finite-only. e3m4 is the finite-only format of Blackwell's tensor cores (bias 3): its code 0x7f would be 31,
but what hardware does with it is not published, so the quantizer stops at 30 (`largest`).
`ml_dtypes.float8_e3m4` is another format (infinity at 0x70).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from hybrid_humming.errors import FormatError, did_you_mean

if TYPE_CHECKING:
    import torch

Kind = Literal["int", "uint", "float", "scale", "wide"]
Specials = Literal["none", "fn", "ieee"]

_WIDE = {"fp16": (5, 10), "bf16": (8, 7), "fp32": (8, 23)}
_TORCH_STORAGE = {
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "e8m0": "float8_e8m0fnu",
    "int8": "int8",
}
_ALIASES = {"fp8": "e4m3", "float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}


@dataclass(frozen=True)
class ElementFormat:
    """One element format. Compare and hash by name: two formats with one name are the same format."""

    name: str
    kind: Kind
    bits: int
    exponent_bits: int = 0
    mantissa_bits: int = 0
    bias: int = 0
    signed: bool = False
    specials: Specials = "none"
    largest: float = 0.0
    """The largest magnitude that the quantizer emits."""

    def __str__(self) -> str:
        return self.name

    @property
    def is_integer(self) -> bool:
        """True for intN and uintN (not for e0mY, which is sign-magnitude)."""
        return self.kind in ("int", "uint")

    @property
    def is_wide(self) -> bool:
        """True for fp16, bf16 and fp32."""
        return self.kind == "wide"

    @property
    def finite_only(self) -> bool:
        """True when no code is NaN or infinite."""
        return self.specials == "none"

    @property
    def smallest(self) -> float:
        """The most negative value that the quantizer emits."""
        if self.kind == "int":
            return -float(2 ** (self.bits - 1))
        return -self.largest if self.signed else 0.0

    @property
    def torch_storage(self) -> torch.dtype:
        """The torch dtype of one stored element: the format's own dtype where torch has it, else uint8 (one code a byte)."""
        import torch

        return getattr(torch, _TORCH_STORAGE.get(self.name, "uint8"))

    @property
    def values(self) -> np.ndarray:
        """Exact value of each code, float64 [2**bits]; NaN and infinities as the format says. Not for fp32."""
        return _value_table(self)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Return the float64 values of unsigned integer `codes` of any shape."""
        codes = np.asarray(codes)
        if codes.size and (int(codes.min()) < 0 or int(codes.max()) >= 2**self.bits):
            raise FormatError(
                f"codes span {int(codes.min())}..{int(codes.max())}, but {self.name} has the codes "
                f"0..{2**self.bits - 1}; pass the stored unsigned codes"
            )
        return self.values[codes]

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Return the codes nearest to `values` (ties to the even code), saturating at `smallest` and `largest`.

        NaN is refused. A zero always becomes +0 (the code of 0.0, never of -0.0).
        """
        values = np.asarray(values, dtype=np.float64)
        if np.isnan(values).any():
            raise FormatError(f"NaN can't be quantized to {self.name}; clean the tensor first")
        grid, codes = code_grid(self)
        middle = (grid[1:] + grid[:-1]) / 2
        low = np.searchsorted(middle, values, side="left")
        high = np.searchsorted(middle, values, side="right")
        tie = low != high
        even = codes[low] % 2 == 0
        return codes[np.where(tie & ~even, high, low)]


def format_names() -> tuple[str, ...]:
    """Return the names of all formats, narrow ones first."""
    return tuple(_registry())


def parse_format(name: str | ElementFormat) -> ElementFormat:
    """Return the format called `name` (`fp8` means e4m3); raises FormatError with the nearest name."""
    if isinstance(name, ElementFormat):
        return name
    table = _registry()
    found = table.get(_ALIASES.get(name, name))
    if found is None:
        raise FormatError(
            f"unknown element format {name!r}; known are int1..int8, uint1..uint8, eXmY of 3 to 8 bits "
            f"(e2m1, e3m2, e4m3 ...), e0m1..e0m7, the scale formats e8m0 and e5m3, and fp16, bf16, fp32."
            f"{did_you_mean(name, table)}"
        )
    return found


def from_torch(dtype: torch.dtype | str) -> ElementFormat:
    """Return the format that a torch dtype, or one of that name, stores; raises FormatError for a dtype that stores none."""
    table = {t: n for n, t in _TORCH_STORAGE.items()} | {"uint8": "uint8"}
    short = str(dtype).removeprefix("torch.")
    if short not in table:
        raise FormatError(f"{dtype} stores no element format; allowed are {', '.join(sorted(table))}")
    return parse_format(table[short])


@functools.cache
def _registry() -> dict[str, ElementFormat]:
    formats = [ElementFormat(f"int{b}", "int", b, signed=True, largest=float(2 ** (b - 1) - 1)) for b in range(1, 9)]
    formats += [ElementFormat(f"uint{b}", "uint", b, largest=float(2**b - 1)) for b in range(1, 9)]
    formats += [ElementFormat(f"e0m{y}", "float", 1 + y, 0, y, signed=True, largest=float(2**y - 1)) for y in range(1, 8)]
    for bits in range(3, 9):
        for x in range(1, bits):
            formats.append(_signed_float(x, bits - 1 - x))
    formats.append(ElementFormat("e8m0", "scale", 8, 8, 0, bias=127, specials="fn", largest=2.0**127))
    formats.append(ElementFormat("e5m3", "scale", 8, 5, 3, bias=15, specials="fn", largest=114688.0))
    for name, (x, y) in _WIDE.items():
        bias = 2 ** (x - 1) - 1
        largest = 2.0**bias * (2 - 2.0**-y)
        formats.append(ElementFormat(name, "wide", 1 + x + y, x, y, bias, True, "ieee", largest))
    return {f.name: f for f in formats}


def _signed_float(x: int, y: int) -> ElementFormat:
    name, bias = f"e{x}m{y}", 2 ** (x - 1) - 1
    top = 2.0 ** (2**x - 1 - bias)
    specials: Specials = {"e4m3": "fn", "e5m2": "ieee"}.get(name, "none")  # type: ignore[assignment]
    largest = {"e4m3": 448.0, "e5m2": 57344.0, "e3m4": 30.0}.get(name, top * (2 - 2.0**-y))
    return ElementFormat(name, "float", 1 + x + y, x, y, bias, True, specials, largest)


@functools.cache
def _value_table(fmt: ElementFormat) -> np.ndarray:
    if fmt.bits > 16:
        raise FormatError(f"{fmt.name} has 2**{fmt.bits} codes: too many for a table; use numpy's own dtype")
    codes = np.arange(2**fmt.bits)
    if fmt.kind == "int":
        table = codes - 2.0 ** (fmt.bits - 1)
    elif fmt.kind == "uint":
        table = codes.astype(np.float64)
    elif fmt.name == "e8m0":
        table = 2.0 ** (codes - 127.0)
        table[255] = np.nan
    else:
        table = _float_table(fmt, codes)
    table.setflags(write=False)
    return table


def _float_table(fmt: ElementFormat, codes: np.ndarray) -> np.ndarray:
    x, y = fmt.exponent_bits, fmt.mantissa_bits
    mantissa = codes & (2**y - 1)
    exponent = (codes >> y) & (2**x - 1)
    sign = np.where(fmt.signed & (codes >> (x + y) & 1 == 1), -1.0, 1.0)
    if x == 0:
        return sign * mantissa
    subnormal = mantissa * 2.0 ** (1 - fmt.bias - y)
    normal = (1 + mantissa * 2.0**-y) * 2.0 ** (exponent - fmt.bias)
    table = sign * np.where(exponent == 0, subnormal, normal)
    if fmt.specials == "ieee":
        top = exponent == 2**x - 1
        table = np.where(top, np.where(mantissa == 0, sign * np.inf, np.nan), table)
    elif fmt.specials == "fn":
        table = np.where(codes & (2 ** (x + y) - 1) == 2 ** (x + y) - 1, np.nan, table)
    return table


@functools.cache
def code_grid(fmt: ElementFormat) -> tuple[np.ndarray, np.ndarray]:
    """Return the values that the quantizer may emit, ascending, and their codes (one code for zero: +0)."""
    table = fmt.values
    keep = np.isfinite(table) & (table >= fmt.smallest) & (table <= fmt.largest)
    keep &= ~((table == 0) & np.signbit(table))
    codes = np.flatnonzero(keep)
    order = np.argsort(table[codes], kind="stable")
    return table[codes][order], codes[order]
