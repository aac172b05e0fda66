"""Weight codes to MMA operand registers on Hopper, in inline PTX.

`decoder(encoding, operand)` gives a `Decoder`: which words it reads, its PTX, and the power of two that is left over.
`tile.py` (Gluon) runs it on a tile of packed words. Where the bits lie is `hybrid_humming.fragment`'s to say.

How each family is decoded, two codes to a register, with the exactness of each:

    int1..7, uint1..7   the code lands in the mantissa of 128.0 (bf16) or 1024.0 (fp16) by one lop3; one sub or fma takes
                        128 + zero point off. Exact. At offset o the fma also multiplies by 2**-o: no shift was needed.
    int8, uint8         fp16 as above, by prmt. bf16 has 7 bits of mantissa: 128 + low 7 bits, minus 128 or 256 by the top bit.
    e0mY, eXmY          sign, exponent and mantissa land in their places; the operand then is value * 2**-k, subnormal where
                        the code is, and one mul by a power of two makes it the value. Exact: PTX keeps subnormals of both
                        types. `raw=True` leaves the mul out, for a caller that multiplies by a scale anyway.
    e4m3, e5m2          the hardware's own conversion to fp16, exact with NaN and infinity; bf16 goes on through fp32.
"""
