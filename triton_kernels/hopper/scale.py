"""Stored scales and zero points -> one fp32 (or operand) value for each row and group."""

from hybrid_humming.triton_kernels.hopper.gluon import gl, gluon

# How a scale is stored. Triton converts the first; the others arrive as uint8.
WIDE, E4M3, E5M2, E8M0, E5M3, E4M3_BITS = 0, 1, 2, 3, 4, 5
KINDS = {"fp16": WIDE, "bf16": WIDE, "fp32": WIDE, "e4m3": E4M3, "e5m2": E5M2, "e8m0": E8M0, "e5m3": E5M3}
BEFORE_FP8 = KINDS | {"e4m3": E4M3_BITS}  # for GPUs before SM89, where Triton has no e4m3 at all


@gluon.jit
def decode_scale(stored, KIND: gl.constexpr):
    """Stored scales -> fp32, exact."""
    if KIND == 1:
        return stored.to(gl.float8e4nv, bitcast=True).to(gl.float32)
    elif KIND == 2:
        return stored.to(gl.float8e5, bitcast=True).to(gl.float32)
    elif KIND == 3:
        # 2**(code - 127): code 0 is the fp32 subnormal 2**-127, code 255 is NaN.
        code = stored.to(gl.uint32)
        bits = gl.where(code == 0, 0x00400000, gl.where(code == 255, 0x7FC00000, code << 23))
        return bits.to(gl.float32, bitcast=True)
    elif KIND == 4:
        # Exponent and mantissa lie where fp32 has them after a shift; the multiplication moves the bias, exact for subnormals too.
        code = stored.to(gl.uint32)
        value = (code << 20).to(gl.float32, bitcast=True) * 5192296858534827628530496329220096.0  # 2**112
        return gl.where(code == 255, float("nan"), value)
    elif KIND == 5:
        code = stored.to(gl.uint32)
        value = ((code & 0x7F) << 20).to(gl.float32, bitcast=True) * 1329227995784915872903807060280344576.0  # 2**120
        value = gl.where(code & 0x80 != 0, -value, value)
        return gl.where(code & 0x7F == 0x7F, float("nan"), value)
    else:
        return stored.to(gl.float32)


@gluon.jit
def columns(tile, J: gl.constexpr, S: gl.constexpr, ROWS: gl.constexpr, LAYOUT: gl.constexpr):
    """[S, ROWS, J] -> tuple of J tensors [S, ROWS]; a lane holds all J, so nothing moves."""
    if J == 1:
        return (gl.convert_layout(tile.reshape([S, ROWS]), LAYOUT, assert_trivial=True),)
    elif J == 2:
        a, b = tile.split()
        return (
            gl.convert_layout(a, LAYOUT, assert_trivial=True),
            gl.convert_layout(b, LAYOUT, assert_trivial=True),
        )
    else:
        even, odd = tile.reshape([S, ROWS, J // 2, 2]).split()
        a = columns(even, J // 2, S, ROWS, LAYOUT)
        b = columns(odd, J // 2, S, ROWS, LAYOUT)
        out = ()
        for j in gl.static_range(J // 2):
            pair = (a[j], b[j])
            out = out + pair  # type: ignore[assignment]
        return out
