"""Decoders of integers: offset-binary intN, unsigned uintN, sign-magnitude e0mN."""

import triton
import triton.language as tl

from hybrid_humming.triton_kernels.dequant import decoder


@triton.jit
def small_int(codes, DTYPE: tl.constexpr, OFFSET: tl.constexpr = 0):
    """int32 tile of codes in 0 .. 2**23 - 1 -> codes - OFFSET in DTYPE.

    2**23 + code has the code in the low bits of its fp32 mantissa, so one OR and one subtraction convert it: the integer
    conversion instruction runs at a quarter of their rate.
    """
    biased = (codes | 0x4B000000).to(tl.float32, bitcast=True)
    return (biased - (8388608 + OFFSET)).to(DTYPE)


@decoder(lambda fmt: fmt.kind == "int", offset=lambda fmt: 1 << (fmt.bits - 1))
@triton.jit
def decode_int(codes, DTYPE: tl.constexpr, EXPONENT: tl.constexpr, MANTISSA: tl.constexpr):
    """value = code - 2**(bits - 1)."""
    return small_int(codes, DTYPE, 1 << (MANTISSA - 1))


@decoder(lambda fmt: fmt.kind == "uint", offset=lambda fmt: 0)
@triton.jit
def decode_uint(codes, DTYPE: tl.constexpr, EXPONENT: tl.constexpr, MANTISSA: tl.constexpr):
    """value = code; the zero point is subtracted afterwards."""
    return small_int(codes, DTYPE)


@decoder(lambda fmt: fmt.kind == "float" and fmt.exponent_bits == 0)
@triton.jit
def decode_sign_magnitude(codes, DTYPE: tl.constexpr, EXPONENT: tl.constexpr, MANTISSA: tl.constexpr):
    """value = the low bits, negated when the sign bit is set (code 2**MANTISSA is -0)."""
    magnitude = small_int(codes & ((1 << MANTISSA) - 1), tl.float32)
    sign = (codes >> MANTISSA) << 31
    return (magnitude.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True).to(DTYPE)
