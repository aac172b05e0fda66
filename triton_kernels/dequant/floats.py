"""Decoder of every eXmY with X >= 1, by integer operations alone: no fp8 type is needed, so it runs on every SM."""

import triton
import triton.language as tl

from hybrid_humming.triton_kernels.dequant import decoder


@triton.jit
def float_bits(codes, EXPONENT: tl.constexpr, MANTISSA: tl.constexpr):
    """Exponent and mantissa of `codes` (no sign) -> fp32 value, subnormals included.

    The fields are put at fp32's place and the difference of the two biases is multiplied on: a subnormal of the narrow
    format becomes one of fp32, which multiplies exactly.
    """
    BIAS: tl.constexpr = (1 << (EXPONENT - 1)) - 1
    # 2**(127 - BIAS) as an fp32 bit pattern: its exponent field is 254 - BIAS.
    rebias = tl.full([], (254 - BIAS) << 23, tl.int32).to(tl.float32, bitcast=True)
    return (codes << (23 - MANTISSA)).to(tl.float32, bitcast=True) * rebias


@decoder(lambda fmt: fmt.kind == "float" and fmt.exponent_bits > 0)
@triton.jit
def decode_float(codes, DTYPE: tl.constexpr, EXPONENT: tl.constexpr, MANTISSA: tl.constexpr):
    """Signed eXmY; e4m3 has NaN in its last code of each sign, e5m2 is IEEE-like, the others are finite-only."""
    TOP: tl.constexpr = (1 << (EXPONENT + MANTISSA)) - 1
    magnitude = codes & TOP
    value = float_bits(magnitude, EXPONENT, MANTISSA).to(tl.int32, bitcast=True)
    if EXPONENT == 4 and MANTISSA == 3:
        value = tl.where(magnitude == TOP, 0x7FC00000, value)
    if EXPONENT == 5 and MANTISSA == 2:
        value = tl.where(magnitude >= 0x7C, tl.where(magnitude == 0x7C, 0x7F800000, 0x7FC00000), value)
    sign = (codes >> (EXPONENT + MANTISSA)) << 31
    return (value | sign).to(tl.float32, bitcast=True).to(DTYPE)
