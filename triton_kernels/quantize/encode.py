"""fp32 values in units of their scale -> codes: to nearest, ties to the even code, saturating, and zero only as +0.

Integer and fp32 operations alone, so that they run on every SM and in the interpreter; where the SM converts to e4m3 and e5m2
itself, `encode` uses that (HARDWARE). What is not finite becomes NaN (0x7f) in a format that has one; in the others NaN
becomes 0 and an infinity saturates.
"""

import triton
import triton.language as tl

from hybrid_humming.dtypes import ElementFormat
from hybrid_humming.triton_kernels.dequant.floats import float_bits

# How codes are stored: BYTES one a byte, NIBBLES two a byte, the first in the low half, or their values as INT8 or as E4M3.
BYTES = 0
NIBBLES = 1
AS_INT8 = 2
AS_E4M3 = 3


@triton.jit
def as_bits(values):
    """fp32 -> its bits as int32."""
    return values.to(tl.int32, bitcast=True)


@triton.jit
def as_float(bits):
    """int32 bits -> fp32."""
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def power_of_two(exponent: tl.constexpr):
    """2**exponent as an fp32 scalar, for normal and subnormal results."""
    BITS: tl.constexpr = (exponent + 127) << 23 if exponent > -127 else 1 << (149 + exponent)
    return tl.full([], BITS, tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def rounded_magnitude(a, EXPONENT: tl.constexpr, MANTISSA: tl.constexpr):
    """0 <= a below 2**(127 - 24) -> the nearest value of eXmY without an upper bound, ties to the even code.

    Adding 2**(23 - Y) times a's power of two (the least normal one for subnormals) leaves just Y bits of mantissa.
    """
    BIAS: tl.constexpr = (1 << (EXPONENT - 1)) - 1
    power = tl.maximum(as_bits(a) & 0x7F800000, (128 - BIAS) << 23)
    magic = as_float(power + ((23 - MANTISSA) << 23))
    return (a + magic) - magic


@triton.jit
def magnitude_code(a, EXPONENT: tl.constexpr, MANTISSA: tl.constexpr):
    """0 <= a -> code without its sign bit, int32: exponent and mantissa of the nearest value."""
    BIAS: tl.constexpr = (1 << (EXPONENT - 1)) - 1
    value = rounded_magnitude(a, EXPONENT, MANTISSA)
    return as_bits(value * power_of_two(BIAS - 127)) >> (23 - MANTISSA)


@triton.jit
def integer_bits(values):
    """|values| < 2**22 -> int32 whose low bits are the nearest integer in two's complement, ties to even."""
    return as_bits(values + 12582912.0)


@triton.jit
def encode(
    units, values, EXPONENT: tl.constexpr, MANTISSA: tl.constexpr, SMALLEST: tl.constexpr, LARGEST: tl.constexpr,
    INTEGER: tl.constexpr, SPECIALS: tl.constexpr, HARDWARE: tl.constexpr,
):  # fmt: skip
    """Codes of `units`, uint8 or int32 with the code in its low bits; `values` are the same before the division.

    Units may be NaN where a value is infinite.

    INTEGER: two's complement of MANTISSA bits. Else sign, EXPONENT and MANTISSA bits. SPECIALS: the format has a NaN.
    """
    if SPECIALS and HARDWARE:
        TYPE: tl.constexpr = tl.float8e4nv if MANTISSA == 3 else tl.float8e5
        # What rounds to zero becomes +0 first. NaN stays NaN: it is not below anything.
        LEAST: tl.constexpr = 2 ** (1 - ((1 << (EXPONENT - 1)) - 1) - MANTISSA - 1)
        units = tl.where(tl.abs(units) <= LEAST, 0.0, units)
        units = tl.clamp(units, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
        return units.to(TYPE).to(tl.uint8, bitcast=True)
    elif INTEGER:
        units = tl.where(units == units, units, values)
        code = integer_bits(tl.minimum(tl.maximum(units, SMALLEST), LARGEST)) & ((1 << MANTISSA) - 1)
        return tl.where(values == values, code, 0)
    else:
        units = tl.where(units == units, units, values)
        a = tl.minimum(tl.abs(units), LARGEST)
        if EXPONENT == 0:
            code = integer_bits(a) & ((1 << MANTISSA) - 1)
        else:
            code = magnitude_code(a, EXPONENT, MANTISSA)
        sign = (as_bits(units) >> (31 - EXPONENT - MANTISSA)) & (1 << (EXPONENT + MANTISSA))
        code = tl.where(code != 0, code | sign, 0)
        if SPECIALS:
            return tl.where(tl.abs(values) < float("inf"), code, 0x7F)
        else:
            return tl.where(values == values, code, 0)


@triton.jit
def pack_nibbles(codes, UNITS: tl.constexpr, UNIT: tl.constexpr):
    """[UNITS, UNIT] codes of four bits -> [UNITS, UNIT / 2] bytes."""
    low, high = codes.reshape(UNITS, UNIT // 2, 2).split()
    return low | (high << 4)


@triton.jit
def widened(codes, EXPONENT: tl.constexpr, MANTISSA: tl.constexpr, INTEGER: tl.constexpr, STORAGE: tl.constexpr):
    """int32 codes of fewer than 8 bits -> bytes of int8 or e4m3 with the same values, in the low bits."""
    if INTEGER:
        HALF: tl.constexpr = 1 << (MANTISSA - 1)
        return (codes ^ HALF) - HALF
    magnitude = codes & ((1 << (EXPONENT + MANTISSA)) - 1)
    negative = (codes >> (EXPONENT + MANTISSA)) != 0
    if STORAGE == 2:
        return tl.where(negative, -magnitude, magnitude)
    else:
        wide = magnitude_code(float_bits(magnitude, EXPONENT, MANTISSA), 4, 3)
        return tl.where(negative, wide | 128, wide)


def encoder_constants(fmt: ElementFormat, sm: int, stored: str) -> dict[str, object]:
    """Constants of `encode` for a format on an SM (0: the interpreter, which has no conversions), and how codes are stored."""
    own = NIBBLES if fmt.bits == 4 else BYTES
    return {
        "EXPONENT": fmt.exponent_bits,
        "MANTISSA": fmt.bits if fmt.is_integer else fmt.mantissa_bits,
        "SMALLEST": fmt.smallest,
        "LARGEST": fmt.largest,
        "INTEGER": fmt.is_integer,
        "SPECIALS": not fmt.finite_only,
        "HARDWARE": not fmt.finite_only and sm >= 89,
        "STORAGE": own if stored == fmt.name else {"int8": AS_INT8, "e4m3": AS_E4M3}[stored],
    }
