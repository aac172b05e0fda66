"""values / scale, rounded once as IEEE division does, for many values that share a scale.

A division takes ten instructions and a branch; with the reciprocal r of the scale known, five multiply-adds give the same bits:

    q0 = w r,   q1 = q0 + (w - q0 s) r,   q2 = q1 + (w - q1 s) r

q1 is within one unit of w / s in the last place, and then q2 is the rounded quotient provided that r is the rounded reciprocal
(P. Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", 1990) and nothing under- or
overflows. Both operands are therefore first scaled by the power of two that puts s into [1, 2): quotients of 2**-126 and below
may come out otherwise, and every format rounds those to zero.

An infinite value gives NaN in place of infinity.
"""

import triton
import triton.language as tl

from hybrid_humming.triton_kernels.quantize.encode import as_bits, as_float


@triton.jit
def by_power_of_two(values, code):
    """values / 2**(code - 127) for e8m0 codes up to 252, exact; an infinite value gives NaN, and -0 gives +0."""
    return tl.fma(values, tl.broadcast_to(as_float((254 - code) << 23), values.shape), values - values)


@triton.jit
def quotient(values, scale, BOUND: tl.constexpr, FUSED: tl.constexpr):
    """RN(values / scale) for scale > 0 that broadcasts to values; |quotients| beyond BOUND, where given, become BOUND.

    FUSED: by multiply-adds, as the module's head says. Without it (the interpreter's multiply-add rounds twice) by division.
    """
    if FUSED:
        field = tl.maximum(as_bits(scale) >> 23, 1)
        down = as_float(tl.where(field == 254, 0x00400000, (254 - field) << 23))
        s = scale * down
        w = values * down
        if BOUND is not None:  # below 2 * BOUND in units of s, so that nothing overflows
            w = tl.clamp(w, -2.0 * BOUND, 2.0 * BOUND, propagate_nan=tl.PropagateNan.ALL) + (values - values)
        r = tl.broadcast_to(tl.div_rn(tl.full(s.shape, 1.0, tl.float32), s), w.shape)
        s = tl.broadcast_to(-s, w.shape)
        q = w * r
        q = tl.fma(tl.fma(q, s, w), r, q)
        return tl.fma(tl.fma(q, s, w), r, q)
    else:
        return tl.div_rn(values, tl.broadcast_to(scale, values.shape))
