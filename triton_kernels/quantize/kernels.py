"""The kernels: x [M, K] -> codes [M, K] (or two a byte [M, K/2]) and scales, in one pass over x with its values in registers.

A unit is what shares a scale: a group of a row or, by token, the whole row. A program quantizes ROWS x GROUPS units, each padded to
UNIT values. With one scale for the tensor a unit is any run of a row, and the scale is given (GIVEN) or comes from the
largest magnitudes that `absmax_kernel` left (PARTS).
"""

import triton
import triton.language as tl

from hybrid_humming.triton_kernels.quantize.divide import by_power_of_two, quotient
from hybrid_humming.triton_kernels.quantize.encode import as_float, encode, pack_nibbles, widened
from hybrid_humming.triton_kernels.quantize.load import load_input
from hybrid_humming.triton_kernels.quantize.scale import absmax_bits, given_scale, scale_of

# Where a scale comes from: the unit's OWN largest magnitude, one number GIVEN, or the PARTS of the tensor's largest magnitude.
OWN = 0
GIVEN = 1
PARTS = 2
# How group scales lie: STRIDED by (row, group) strides, or PACKED: four of a byte each in a word, words ordered as strided ones.
STRIDED = 0
PACKED = 1


@triton.jit
def largest_part(parts_ptr, COUNT: tl.constexpr):
    """Bits of the largest of COUNT magnitudes, [1] int32."""
    return tl.max(tl.load(parts_ptr + tl.arange(0, COUNT)).reshape(1, COUNT), 1)


@triton.jit
def second_scale(second_ptr, SECOND: tl.constexpr, COUNT: tl.constexpr, REACH_G: tl.constexpr):
    """The tensor's second scale, a scalar in fp32: given, or absmax / REACH_G, at least 2**-126, and 1 for zeros.

    A scalar, for a tensor of one element would bring its own spread over the threads to all that is divided by it.
    """
    if SECOND == 1:
        return tl.load(second_ptr)
    else:
        absmax = as_float(tl.max(tl.load(second_ptr + tl.arange(0, COUNT)), 0))
        wanted = tl.div_rn(absmax, REACH_G)
        return tl.where(absmax > 0, tl.maximum(wanted, 1.1754943508222875e-38), 1.0)


@triton.jit
def store_scale(
    scale_ptr, code, row, group, inside, stride_sm, stride_sg, M, IN_ROW: tl.constexpr, LAYOUT: tl.constexpr,
    PAD: tl.constexpr, PAD_G: tl.constexpr,
):  # fmt: skip
    """Store codes [UNITS] of scales, and zeros behind the last row (PAD rows a vector) and the last group (PAD_G a word)."""
    TYPE: tl.constexpr = scale_ptr.dtype.element_ty
    zero = tl.zeros_like(code).to(TYPE)
    if LAYOUT == 1:
        offset = row * 4 + (group // 4) * stride_sg + group % 4
        step = 4
    else:
        offset = row * stride_sm + group * stride_sg
        step = stride_sm
    tl.store(scale_ptr + offset, code.to(TYPE), mask=inside)
    for more_rows in tl.static_range(PAD):
        for more_groups in tl.static_range(PAD_G):
            if more_rows + more_groups > 0:
                last_row = (row == M - 1) & ((row + more_rows) // PAD == row // PAD)
                last_group = (group == IN_ROW - 1) & ((group + more_groups) // PAD_G == group // PAD_G)
                beyond = inside & (last_row | (more_rows == 0)) & (last_group | (more_groups == 0))
                tl.store(scale_ptr + offset + more_rows * step + more_groups, zero, mask=beyond)


@triton.jit
def units_of(
    values, scale_ptr, first, row, group, inside, stride_sm, stride_sg, M, SOURCE: tl.constexpr, COUNT: tl.constexpr,
    IN_ROW: tl.constexpr, LAYOUT: tl.constexpr, PAD: tl.constexpr, PAD_G: tl.constexpr, BOUND: tl.constexpr, FUSED: tl.constexpr,
    REACH: tl.constexpr, SLACK: tl.constexpr, EMAX: tl.constexpr, EXPONENT_S: tl.constexpr, MANTISSA_S: tl.constexpr,
    LARGEST_S: tl.constexpr, TOP_S: tl.constexpr, NAN_S: tl.constexpr, SIGN_S: tl.constexpr, WIDE_S: tl.constexpr,
):  # fmt: skip
    """values [UNITS, UNIT] -> values / scale; the scale is worked out and stored. `first`: the source of the tensor's scale."""
    TYPE: tl.constexpr = scale_ptr.dtype.element_ty
    if SOURCE == 0:
        code, real = scale_of(absmax_bits(values, 1), REACH, SLACK, EMAX, EXPONENT_S, MANTISSA_S, LARGEST_S, TOP_S, NAN_S)
        store_scale(scale_ptr, code, row, group, inside, stride_sm, stride_sg, M, IN_ROW, LAYOUT, PAD, PAD_G)
    else:
        if SOURCE == 1:
            value = tl.load(first + tl.arange(0, 1))
            code, real = given_scale(value, EXPONENT_S, MANTISSA_S, LARGEST_S, TOP_S, NAN_S, SIGN_S, WIDE_S)
        else:
            code, real = scale_of(largest_part(first, COUNT), REACH, SLACK, EMAX, EXPONENT_S, MANTISSA_S, LARGEST_S, TOP_S, NAN_S)
        tl.store(scale_ptr + tl.arange(0, 1), code.to(TYPE), mask=tl.program_id(0) == 0)
    if MANTISSA_S == 0 and SOURCE == 0 and FUSED:
        return by_power_of_two(values, tl.where(code == 255, 127, code)[:, None])
    else:
        return quotient(values, real[:, None], BOUND, FUSED)


@triton.jit
def store_codes(codes_ptr, codes, row, k0, inside, K: tl.constexpr, STORAGE: tl.constexpr, UNITS: tl.constexpr, UNIT: tl.constexpr):
    """Store codes [UNITS, UNIT] of the channels k0 [UNITS] and on; `inside` as of the codes."""
    base = codes_ptr + row[:, None] * (K // 2 if STORAGE == 1 else K)
    if STORAGE == 1:
        j = tl.arange(0, UNIT // 2)[None, :]
        # K and the groups are even: both codes of a byte are inside, or neither.
        both, _ = inside.to(tl.int8).reshape(UNITS, UNIT // 2, 2).split()
        tl.store(base + (k0 // 2)[:, None] + j, pack_nibbles(codes, UNITS, UNIT).to(tl.uint8), mask=both != 0)
    else:
        tl.store(base + k0[:, None] + tl.arange(0, UNIT)[None, :], codes.to(tl.uint8), mask=inside)


@triton.jit
def quantize_kernel(
    x_ptr, rows_ptr, pre_ptr, perm_ptr, first_ptr, second_ptr, codes_ptr, scale_ptr, global_ptr,
    M, T, stride_xm, stride_sm, stride_sg,
    K: tl.constexpr, GROUP: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr,
    SOURCE: tl.constexpr, SECOND: tl.constexpr, COUNT: tl.constexpr, REACH_G: tl.constexpr,
    LAYOUT: tl.constexpr, PAD: tl.constexpr, PAD_G: tl.constexpr, BOUND: tl.constexpr, FUSED: tl.constexpr,
    ACTIVATION: tl.constexpr, LIMIT: tl.constexpr, HADAMARD: tl.constexpr, NORM: tl.constexpr,
    REACH: tl.constexpr, SLACK: tl.constexpr, EMAX: tl.constexpr, EXPONENT_S: tl.constexpr, MANTISSA_S: tl.constexpr,
    LARGEST_S: tl.constexpr, TOP_S: tl.constexpr, NAN_S: tl.constexpr, SIGN_S: tl.constexpr, WIDE_S: tl.constexpr,
    EXPONENT: tl.constexpr, MANTISSA: tl.constexpr, SMALLEST: tl.constexpr, LARGEST: tl.constexpr, INTEGER: tl.constexpr,
    SPECIALS: tl.constexpr, HARDWARE: tl.constexpr, STORAGE: tl.constexpr,
):  # fmt: skip
    """ROWS x GROUPS units a program; the grid is cdiv(M, ROWS) * cdiv(groups of a row, GROUPS)."""
    UNITS: tl.constexpr = ROWS * GROUPS
    IN_ROW: tl.constexpr = (K + GROUP - 1) // GROUP
    ACROSS: tl.constexpr = (IN_ROW + GROUPS - 1) // GROUPS
    unit = tl.arange(0, UNITS)
    row = (tl.program_id(0) // ACROSS).to(tl.int64) * ROWS + unit // GROUPS
    group = (tl.program_id(0) % ACROSS) * GROUPS + unit % GROUPS
    there = (row < M) & (group < IN_ROW)
    j = tl.arange(0, UNIT)[None, :]
    k = group[:, None] * GROUP + j
    inside = there[:, None] & (j < GROUP) & (k < K)
    values = load_input(
        x_ptr, rows_ptr, pre_ptr, perm_ptr, row, there, k, inside, T, stride_xm,
        K, ACTIVATION, LIMIT, HADAMARD, NORM, UNITS * UNIT,
    )  # fmt: skip
    if SECOND != 0:
        second = second_scale(second_ptr, SECOND, COUNT, REACH_G)
        tl.store(global_ptr, second, mask=tl.program_id(0) == 0)
        values = tl.div_rn(values, tl.broadcast_to(second, values.shape))
    units = units_of(
        values, scale_ptr, first_ptr, row, group, there, stride_sm, stride_sg, M, SOURCE, COUNT,
        IN_ROW, LAYOUT, PAD, PAD_G, BOUND, FUSED,
        REACH, SLACK, EMAX, EXPONENT_S, MANTISSA_S, LARGEST_S, TOP_S, NAN_S, SIGN_S, WIDE_S,
    )  # fmt: skip
    codes = encode(units, values, EXPONENT, MANTISSA, SMALLEST, LARGEST, INTEGER, SPECIALS, HARDWARE)
    if STORAGE >= 2:
        codes = widened(codes, EXPONENT, MANTISSA, INTEGER, STORAGE)
    store_codes(codes_ptr, codes, row, group * GROUP, inside, K, STORAGE, UNITS, UNIT)


@triton.jit
def long_row_kernel(
    x_ptr, rows_ptr, pre_ptr, perm_ptr, codes_ptr, scale_ptr, T, stride_xm,
    K: tl.constexpr, UNIT: tl.constexpr, FUSED: tl.constexpr,
    ACTIVATION: tl.constexpr, LIMIT: tl.constexpr, HADAMARD: tl.constexpr, NORM: tl.constexpr,
    REACH: tl.constexpr, SLACK: tl.constexpr, EMAX: tl.constexpr, EXPONENT_S: tl.constexpr, MANTISSA_S: tl.constexpr,
    LARGEST_S: tl.constexpr, TOP_S: tl.constexpr, NAN_S: tl.constexpr,
    EXPONENT: tl.constexpr, MANTISSA: tl.constexpr, SMALLEST: tl.constexpr, LARGEST: tl.constexpr, INTEGER: tl.constexpr,
    SPECIALS: tl.constexpr, HARDWARE: tl.constexpr, STORAGE: tl.constexpr,
):  # fmt: skip
    """One row, too long for registers, a program: its largest magnitude, then its codes, from the L2 the second time."""
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    j = tl.arange(0, UNIT)[None, :]
    bits = tl.zeros([1, UNIT], tl.int32)
    for k0 in range(0, K, UNIT):
        values = load_input(
            x_ptr, rows_ptr, pre_ptr, perm_ptr, row, row >= 0, k0 + j, k0 + j < K, T, stride_xm,
            K, ACTIVATION, LIMIT, HADAMARD, NORM, UNIT,
        )  # fmt: skip
        bits = tl.maximum(bits, values.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    code, real = scale_of(tl.max(bits, 1), REACH, SLACK, EMAX, EXPONENT_S, MANTISSA_S, LARGEST_S, TOP_S, NAN_S)
    tl.store(scale_ptr + row, code.to(scale_ptr.dtype.element_ty))
    for k0 in range(0, K, UNIT):
        inside = k0 + j < K
        values = load_input(
            x_ptr, rows_ptr, pre_ptr, perm_ptr, row, row >= 0, k0 + j, inside, T, stride_xm,
            K, ACTIVATION, LIMIT, HADAMARD, NORM, UNIT,
        )  # fmt: skip
        units = quotient(values, real[:, None], None, FUSED)
        codes = encode(units, values, EXPONENT, MANTISSA, SMALLEST, LARGEST, INTEGER, SPECIALS, HARDWARE)
        if STORAGE >= 2:
            codes = widened(codes, EXPONENT, MANTISSA, INTEGER, STORAGE)
        store_codes(codes_ptr, codes, row, tl.full([1], k0, tl.int32), inside, K, STORAGE, 1, UNIT)


@triton.jit
def absmax_kernel(
    x_ptr, rows_ptr, pre_ptr, perm_ptr, parts_ptr, M, T, stride_xm,
    K: tl.constexpr, UNIT: tl.constexpr, COUNT: tl.constexpr, FINITE: tl.constexpr,
    ACTIVATION: tl.constexpr, LIMIT: tl.constexpr, HADAMARD: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Largest magnitude of every COUNT-th run of UNIT values -> parts [COUNT] int32, one a program. FINITE: only finite values."""
    ACROSS: tl.constexpr = (K + UNIT - 1) // UNIT
    j = tl.arange(0, UNIT)[None, :]
    most = tl.zeros([1, UNIT], tl.int32)
    for first in range(0, M * ACROSS, COUNT):
        run = tl.program_id(0) + first
        row = (run // ACROSS).to(tl.int64) + tl.arange(0, 1)
        k = (run % ACROSS) * UNIT + j
        values = load_input(
            x_ptr, rows_ptr, pre_ptr, perm_ptr, row, row < M, k, (k < K) & (row < M)[:, None], T, stride_xm,
            K, ACTIVATION, LIMIT, HADAMARD, NORM, UNIT,
        )  # fmt: skip
        bits = values.to(tl.int32, bitcast=True) & 0x7FFFFFFF
        if FINITE:
            bits = tl.where(bits < 0x7F800000, bits, 0)
        most = tl.maximum(most, bits)
    tl.store(parts_ptr + tl.program_id(0), tl.max(tl.max(most, 1), 0))
