"""Stored scale -> fp32. Narrow formats arrive as uint8 and are decoded by integer operations."""

import triton
import triton.language as tl

from hybrid_humming.triton_kernels.dequant.floats import decode_float, float_bits

# How a scale is stored: WIDE (fp16, bf16, fp32) is converted, the others are decoded.
WIDE = 0
E4M3 = 1
E5M2 = 2
E8M0 = 3
E5M3 = 4
SCALE_KINDS = {"fp16": WIDE, "bf16": WIDE, "fp32": WIDE, "e4m3": E4M3, "e5m2": E5M2, "e8m0": E8M0, "e5m3": E5M3}


@triton.jit
def decode_scale(stored, KIND: tl.constexpr):
    """Tile of stored scales -> fp32 tile."""
    if KIND == 1:
        return decode_float(stored.to(tl.int32), tl.float32, 4, 3)
    elif KIND == 2:
        return decode_float(stored.to(tl.int32), tl.float32, 5, 2)
    elif KIND == 3:
        # 2**(code - 127): code 0 is the fp32 subnormal 2**-127, code 255 is NaN.
        code = stored.to(tl.int32)
        bits = tl.where(code == 0, 0x00400000, tl.where(code == 255, 0x7FC00000, code << 23))
        return bits.to(tl.float32, bitcast=True)
    elif KIND == 4:
        code = stored.to(tl.int32)
        value = float_bits(code, 5, 3)
        return tl.where(code == 255, float("nan"), value)
    else:
        return stored.to(tl.float32)
