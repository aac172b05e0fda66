"""Largest magnitude of a unit (row, group, tensor) -> stored scale, and its value; bit for bit reference.quantize's rule.

    scale = absmax / reach, rounded to the scale's format; the next larger one where more than half a step would be cut off
    e8m0    2 ** (floor(log2 absmax) - EMAX)
    a unit of zeros has scale 1 (e8m0: 2**-127); one that holds NaN or infinity has the scale NaN, and is encoded with scale 1

Scales are handled as the codes of their format: codes of positive values ascend with them.
"""

import math

import numpy as np
import triton
import triton.language as tl

from hybrid_humming.dtypes import ElementFormat, code_grid
from hybrid_humming.triton_kernels.dequant.floats import float_bits
from hybrid_humming.triton_kernels.quantize.encode import as_bits, as_float, magnitude_code, power_of_two


@triton.jit
def absmax_bits(values, AXIS: tl.constexpr):
    """fp32 -> bits of the largest magnitude along AXIS: int32, ascending as the magnitudes, infinity above all, NaN above it."""
    return tl.max(as_bits(values) & 0x7FFFFFFF, AXIS)


@triton.jit
def nearest_scale_code(value, EXPONENT_S: tl.constexpr, MANTISSA_S: tl.constexpr, LARGEST_S: tl.constexpr):
    """value >= 0 -> code of the nearest scale, at most the largest; a positive value never gives code 0."""
    value = tl.minimum(value, LARGEST_S)
    if MANTISSA_S == 23:
        code = as_bits(value)
    elif EXPONENT_S == 8 and MANTISSA_S == 7:
        bits = as_bits(value)
        code = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    else:
        code = magnitude_code(value, EXPONENT_S, MANTISSA_S)
    return tl.where(value > 0, tl.maximum(code, 1), code)


@triton.jit
def scale_value(code, EXPONENT_S: tl.constexpr, MANTISSA_S: tl.constexpr):
    """Code of a finite scale, not negative -> its value, fp32."""
    if MANTISSA_S == 0:
        return as_float(tl.where(code == 0, 0x00400000, code << 23))
    elif EXPONENT_S == 8:
        return as_float(code << (23 - MANTISSA_S))
    else:
        return float_bits(code, EXPONENT_S, MANTISSA_S)


@triton.jit
def scale_of(
    bits, REACH: tl.constexpr, SLACK: tl.constexpr, EMAX: tl.constexpr,
    EXPONENT_S: tl.constexpr, MANTISSA_S: tl.constexpr, LARGEST_S: tl.constexpr, TOP_S: tl.constexpr, NAN_S: tl.constexpr,
):  # fmt: skip
    """Bits of the largest magnitude -> (code of its scale, value that the unit is divided by)."""
    finite = bits < 0x7F800000
    if MANTISSA_S == 0:
        code = tl.maximum((bits >> 23) - EMAX, 0)
        value = scale_value(code, EXPONENT_S, MANTISSA_S)
    else:
        absmax = as_float(bits)
        wanted = tl.div_rn(absmax, tl.full(absmax.shape, REACH, tl.float32))
        # A quotient that underflows is still positive; the least code stands for it.
        wanted = tl.where(absmax > 0, tl.maximum(wanted, power_of_two(-149)), 1.0)
        code = nearest_scale_code(wanted, EXPONENT_S, MANTISSA_S, LARGEST_S)
        value = scale_value(code, EXPONENT_S, MANTISSA_S)
        # Both sides times 2**64: exact for subnormal scales, and no rounding matters for the others.
        up = power_of_two(64)
        short = (absmax * up > (value * up) * (REACH + SLACK)) & (code < TOP_S)
        code += short.to(tl.int32)
        value = scale_value(code, EXPONENT_S, MANTISSA_S)
    return tl.where(finite, code, NAN_S), tl.where(finite, value, 1.0)


@triton.jit
def given_scale(
    value, EXPONENT_S: tl.constexpr, MANTISSA_S: tl.constexpr, LARGEST_S: tl.constexpr, TOP_S: tl.constexpr, NAN_S: tl.constexpr,
    SIGN_S: tl.constexpr, WIDE_S: tl.constexpr,
):  # fmt: skip
    """A static scale, fp32 -> (code in the scale's format, value to divide by: 1 unless the scale is positive)."""
    magnitude = tl.abs(value)
    if MANTISSA_S == 0:
        bits = as_bits(tl.minimum(tl.maximum(magnitude, power_of_two(-127)), LARGEST_S))
        code = tl.where(bits < 0x00800000, (bits > 0x00600000).to(tl.int32), (bits + 0x3FFFFF + ((bits >> 23) & 1)) >> 23)
        code = tl.where(value > 0, code, 0)
    else:
        code = nearest_scale_code(magnitude, EXPONENT_S, MANTISSA_S, LARGEST_S)
    real = tl.where(value > 0, scale_value(code, EXPONENT_S, MANTISSA_S), 1.0)
    if not WIDE_S:
        code = tl.where(value < 0, 0 if SIGN_S == 0 else tl.where(code == 0, 0, code | SIGN_S), code)
        return tl.where(value == value, code, TOP_S), real
    else:
        code = code | ((as_bits(value) >> 31) & SIGN_S)
        return tl.where(value == value, code, NAN_S), real


def scale_constants(fmt: ElementFormat, scale: ElementFormat) -> dict[str, object]:
    """Constants of `scale_of` for codes in `fmt` and scales in `scale`."""
    grid, _ = code_grid(fmt)
    if scale.is_wide:
        top = ((1 << scale.exponent_bits) - 1 << scale.mantissa_bits) - 1
        nan = ((2 << scale.exponent_bits) - 1) << (scale.mantissa_bits - 1)
    else:
        top = int(scale.encode(np.array([scale.largest]))[0])
        nan = 255 if scale.kind == "scale" else 127
    return {
        "REACH": max(fmt.largest, 1.0),
        "SLACK": float(grid[-1] - grid[-2]) / 2,
        "EMAX": math.floor(math.log2(fmt.largest)),
        "EXPONENT_S": scale.exponent_bits,
        "MANTISSA_S": scale.mantissa_bits,
        "LARGEST_S": scale.largest,
        "TOP_S": top,
        "NAN_S": nan,
    }
