"""Load a tile of x, with whatever comes before its quantization done to it in registers.

    x     [T, K], or [T, 2K] gate and up side by side before an activation; bf16 (passed as int16), fp16 or fp32
    rows  [M] int32 or int64, the row of x that each row of the result is made from; one outside x stands for zeros
    pre   [K] fp32 | fp16 | bf16 (as int16), multiplied channel by channel
    perm  [K] int32, the channel that each channel of the result is made from

In this order: gather of rows, activation, pre, Hadamard, perm. Each step but the activation rounds to x's type, as
reference.apply_transform does; behind an activation everything is fp32.
"""

import triton
import triton.language as tl

from hybrid_humming.triton_kernels.quantize.encode import as_bits, as_float

# What is done to gate and up.
ACTIVATIONS = {"": 0, "silu": 1, "gelu": 2, "gelu_tanh": 3, "swiglu_oai": 4}
OAI_LIMIT = 7.0


@triton.jit
def load_float(ptr, offsets, mask):
    """Elements as fp32, 0 where masked out; int16 holds the bits of bf16."""
    loaded = tl.load(ptr + offsets, mask=mask, other=0)
    if loaded.dtype == tl.int16:
        return as_float(loaded.to(tl.int32) << 16)
    else:
        return loaded.to(tl.float32)


@triton.jit
def rounded(values, TYPE: tl.constexpr):
    """fp32 rounded to TYPE (int16 stands for bf16), as fp32."""
    if TYPE == tl.int16:
        bits = as_bits(values)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
        return tl.where(values == values, as_float(bits), values)
    elif TYPE == tl.float16:
        return values.to(tl.float16).to(tl.float32)
    else:
        return values


@triton.jit
def activated(gate, up, ACTIVATION: tl.constexpr, LIMIT: tl.constexpr):
    """fp32 gate and up -> act(gate) * up; LIMIT > 0 clamps both before."""
    if LIMIT > 0:
        gate = tl.minimum(gate, LIMIT, propagate_nan=tl.PropagateNan.ALL)
        up = tl.clamp(up, -LIMIT, LIMIT, propagate_nan=tl.PropagateNan.ALL)
    if ACTIVATION == 1:
        return gate / (1.0 + tl.exp(-gate)) * up
    elif ACTIVATION == 2:
        return 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476)) * up
    elif ACTIVATION == 3:  # 0.5 (1 + tanh t) = 1 / (1 + exp(-2 t))
        t = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        return gate / (1.0 + tl.exp(-2.0 * t)) * up
    else:
        return gate / (1.0 + tl.exp(-1.702 * gate)) * (up + 1.0)


@triton.jit
def hadamard(tile, SIZE: tl.constexpr, NORM: tl.constexpr, TOTAL: tl.constexpr):
    """Walsh-Hadamard transform over blocks of SIZE of the TOTAL elements in order, times NORM; the additions of reference.hadamard.

    Each step adds and subtracts neighbours and puts the differences behind the sums, so that the next bit of the index is
    next to its neighbour in its turn; after log2(SIZE) steps the order is the first one again.
    """
    y = tile.reshape(TOTAL // SIZE, SIZE)
    STEPS: tl.constexpr = SIZE.bit_length() - 1
    for _ in tl.static_range(STEPS):
        even, odd = y.reshape(TOTAL // SIZE, SIZE // 2, 2).split()
        y = tl.join(even + odd, even - odd).permute(0, 2, 1).reshape(TOTAL // SIZE, SIZE)
    return (y * NORM).reshape(tile.shape)


@triton.jit
def load_input(
    x_ptr, rows_ptr, pre_ptr, perm_ptr, row, there, k, inside, T, stride_xm,
    K: tl.constexpr, ACTIVATION: tl.constexpr, LIMIT: tl.constexpr, HADAMARD: tl.constexpr, NORM: tl.constexpr, TOTAL: tl.constexpr,
):  # fmt: skip
    """Values to quantize at rows `row` [UNITS] and channels `k` [UNITS, UNIT], fp32; 0 where not `inside` (and not `there`)."""
    channel = k
    if perm_ptr is not None:
        channel = tl.load(perm_ptr + k, mask=inside, other=0)
    source, here = row, inside
    if rows_ptr is not None:
        source = tl.load(rows_ptr + row, mask=there, other=-1).to(tl.int64)
        here = inside & ((source >= 0) & (source < T))[:, None]
    offsets = (source * stride_xm)[:, None] + channel
    TYPE: tl.constexpr = x_ptr.dtype.element_ty if ACTIVATION == 0 else tl.float32
    x = load_float(x_ptr, offsets, here)
    if ACTIVATION != 0:
        x = activated(x, load_float(x_ptr, offsets + K, here), ACTIVATION, LIMIT)
    if pre_ptr is not None:
        x = rounded(x * rounded(load_float(pre_ptr, channel, inside), TYPE), TYPE)
    if HADAMARD:
        x = rounded(hadamard(x, HADAMARD, NORM, TOTAL), TYPE)
    return x
