"""Load and unpack: words of the portable layout -> codes; stored activations -> exact values."""

import triton
import triton.language as tl


@triton.jit
def plane_words(
    w_ptr, first_row, rows, slice0, n, N, WIDTH: tl.constexpr, SLICES: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """One plane's words of SLICES * 16 consecutive k from slice0 on: int32 [GROUPS, 1, 16, BLOCK_N].

    A word holds 32 / WIDTH slices of 16 k, or the SLICES that are asked for where they are fewer; the first is in its low bits.
    """
    FIELDS: tl.constexpr = 32 // WIDTH
    GROUPS: tl.constexpr = (SLICES + FIELDS - 1) // FIELDS
    row = (slice0 // FIELDS) * 16 + tl.arange(0, GROUPS * 16).to(n.dtype)
    mask = (row < rows)[:, None] & (n < N)[None, :]
    words = tl.load(w_ptr + (first_row + row)[:, None] * N + n[None, :], mask=mask, other=0)
    if SLICES < FIELDS:
        words = words >> (slice0 % FIELDS) * WIDTH
    return words.reshape(GROUPS, 1, 16, BLOCK_N)


@triton.jit
def field_shifts(WIDTH: tl.constexpr, SLICES: tl.constexpr):
    """Lowest bit of each slice in its word: int32 [1, slices a word, 1, 1]."""
    FIELDS: tl.constexpr = SLICES if SLICES < 32 // WIDTH else 32 // WIDTH
    return (tl.arange(0, FIELDS) * WIDTH)[None, :, None, None]


@triton.jit
def plane_codes(
    w_ptr, first_row, rows, slice0, n, N, WIDTH: tl.constexpr, SLICES: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """One plane's bits of the codes of SLICES * 16 consecutive k from slice0 on: int32 [SLICES * 16, BLOCK_N]."""
    words = plane_words(w_ptr, first_row, rows, slice0, n, N, WIDTH, SLICES, BLOCK_N)
    codes = (words >> field_shifts(WIDTH, SLICES)) & ((1 << WIDTH) - 1)
    return codes.reshape(SLICES * 16, BLOCK_N)


@triton.jit
def load_integers(
    w_ptr, k0, n, N, K, WIDTH: tl.constexpr, OFFSET: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """Values (code - OFFSET) of integers that lie in one plane: fp32 [BLOCK_K, BLOCK_N], taken out of their words in place.

    With p the place of a code in a half of its word, the masked word ORed into the mantissa of 2**23 is 2**23 + code * 2**p, and
    one multiply-add by 2**-p, exact in each step, leaves the value: two instructions a weight, where shifting the code down
    first takes four (a shift, a mask, an OR, a subtraction).
    """
    SLICES: tl.constexpr = BLOCK_K // 16
    words = plane_words(w_ptr, 0, plane_rows(K, WIDTH), k0 // 16, n, N, WIDTH, SLICES, BLOCK_N)
    shift = field_shifts(WIDTH, SLICES)
    place = shift % 16
    field = (words >> (shift - place)) & (((1 << WIDTH) - 1) << place)
    # K > 0 always, but ptxas can't tell: with a second constant it would not merge the AND and the OR into one instruction.
    exponent = tl.where(K > 0, 0x4B000000, 0)
    biased = (field | exponent).to(tl.float32, bitcast=True)
    down = ((127 - place) << 23).to(tl.float32, bitcast=True)
    bias = ((150 - place) << 23).to(tl.float32, bitcast=True) + OFFSET
    return tl.fma(biased, tl.broadcast_to(down, biased.shape), tl.broadcast_to(-bias, biased.shape)).reshape(BLOCK_K, BLOCK_N)


@triton.jit
def plane_rows(K, WIDTH: tl.constexpr):
    """Rows of words of a plane."""
    return 16 * tl.cdiv(K, 16 * (32 // WIDTH))


@triton.jit
def load_codes(w_ptr, k0, n, N, K, BITS: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr):
    """Codes of the weights k0.., n..: int32 [BLOCK_K, BLOCK_N]; 0 outside the weight."""
    SLICES: tl.constexpr = BLOCK_K // 16
    FIRST: tl.constexpr = 1 << (2 if BITS >= 4 and BITS < 8 else 3 if BITS == 8 else 1 if BITS >= 2 else 0)
    SECOND: tl.constexpr = BITS - FIRST if BITS - FIRST != 3 else 2
    THIRD: tl.constexpr = BITS - FIRST - SECOND
    slice0 = k0 // 16
    rows = plane_rows(K, FIRST)
    codes = plane_codes(w_ptr, 0, rows, slice0, n, N, FIRST, SLICES, BLOCK_N)
    if SECOND > 0:
        more = plane_rows(K, SECOND)
        codes |= plane_codes(w_ptr, rows, more, slice0, n, N, SECOND, SLICES, BLOCK_N) << FIRST
        if THIRD > 0:
            last = plane_codes(w_ptr, rows + more, plane_rows(K, THIRD), slice0, n, N, THIRD, SLICES, BLOCK_N)
            codes |= last << (FIRST + SECOND)
    return codes


# How x is stored: FLOAT as it is, BYTES one code a byte, NIBBLES two codes a byte (low first), SIGNED int8 values.
FLOAT = 0
BYTES = 1
NIBBLES = 2
SIGNED = 3


@triton.jit
def load_x(
    x_ptr, m, k0, M, K, stride_xm, DECODE: tl.constexpr, EXPONENT: tl.constexpr, MANTISSA: tl.constexpr,
    STORAGE: tl.constexpr, DTYPE: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Exact values of x (m.., k0..) in DTYPE, [BLOCK_M, BLOCK_K]; 0 outside x."""
    in_m = (m < M)[:, None]
    if STORAGE == 2:
        byte = k0 // 2 + tl.arange(0, BLOCK_K // 2)
        pair = tl.load(x_ptr + m[:, None] * stride_xm + byte[None, :], mask=in_m & (byte * 2 < K)[None, :], other=0)
        pair = pair.to(tl.int32)
        codes = tl.join(pair & 15, pair >> 4).reshape(m.shape[0], BLOCK_K)
        if EXPONENT == 0 and MANTISSA == 4:  # int4 is in two's complement; the decoder reads offset binary
            codes ^= 8
        k = k0 + tl.arange(0, BLOCK_K)
        return tl.where((k < K)[None, :], DECODE(codes, DTYPE, EXPONENT, MANTISSA), 0.0)
    else:
        k = k0 + tl.arange(0, BLOCK_K)
        x = tl.load(x_ptr + m[:, None] * stride_xm + k[None, :], mask=in_m & (k < K)[None, :], other=0)
        if STORAGE == 1:
            x = DECODE(x.to(tl.int32), DTYPE, EXPONENT, MANTISSA)
        else:
            x = x.to(DTYPE)
        return x
