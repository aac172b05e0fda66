"""Packed words -> operand registers of mma.sync, without a shuffle: the words already lie in fragment order.

The packed weight is a list of planes (hybrid_humming/pack/hopper.py): plane p holds p int32 words for each lane of a 16 x 64
block of W, so that one vector load gives a lane all its words. A decoder's PTX turns the words of half a block (k32) into 8
registers of two elements: a0..a3 of two k16 steps. The tensor ops below name those registers; they move nothing, which
`assert_trivial` holds the compiler to.

Dimensions: S slices of K (one for each warp of a row), R = BLOCK_N / 16 warps along N.
"""

from hybrid_humming.triton_kernels.hopper.gluon import gl, gluon


@gluon.constexpr_function
def words_layout(slices, rows, words):
    """Registers of [S, R, 32 * words] int32: each lane holds `words` neighbours."""
    reg, lane, warp = [], [], []
    bit = 1
    while bit < words:
        reg.append([0, 0, bit])
        bit *= 2
    while bit < 32 * words:
        lane.append([0, 0, bit])
        bit *= 2
    bit = 1
    while bit < rows:
        warp.append([0, bit, 0])
        bit *= 2
    bit = 1
    while bit < slices:
        warp.append([bit, 0, 0])
        bit *= 2
    return gl.DistributedLinearLayout(reg, lane, warp, [], [slices, rows, 32 * words])


@gluon.constexpr_function
def scale_layout(slices, rows, groups):
    """Registers of [S, 16 R, J]: each lane holds every scale of its two rows (g and g + 8) of the fragment."""
    reg, warp = [], []
    bit = 1
    while bit < groups:
        reg.append([0, 0, bit])
        bit *= 2
    reg.append([0, 8, 0])
    bit = 1
    while bit < rows:
        warp.append([0, 16 * bit, 0])
        bit *= 2
    bit = 1
    while bit < slices:
        warp.append([bit, 0, 0])
        bit *= 2
    lane = [[0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 2, 0], [0, 4, 0]]
    return gl.DistributedLinearLayout(reg, lane, warp, [], [slices, 16 * rows, groups])


@gluon.constexpr_function
def mma_layout(slices, rows):
    """Accumulator of a batch of S products [16 R, M], one warp for each (slice, 16 rows)."""
    return gl.NVMMADistributedLayout([2, 0], [slices, rows, 1], [1, 16, 8])


@gluon.jit
def k16_operand(o0, o1, o2, o3, S: gl.constexpr, R: gl.constexpr, A: gl.constexpr):
    """Registers a0..a3, each [S, R, 64] of two elements -> [S, 16 R, 16] operand."""
    a = gl.join(gl.join(o0, o1), gl.join(o2, o3))
    #             S  R  g  t  e  r  h
    a = a.reshape([S, R, 8, 4, 2, 2, 2]).permute([0, 1, 5, 2, 6, 3, 4]).reshape([S, 16 * R, 16])
    return gl.convert_layout(a, A, assert_trivial=True)


@gluon.jit
def k32_operand(o, S: gl.constexpr, R: gl.constexpr, A: gl.constexpr):
    """Registers of half a block, a tuple of 8 -> [S, 16 R, 32] operand."""
    a = gl.join(
        gl.join(gl.join(o[0], o[1]), gl.join(o[2], o[3])),
        gl.join(gl.join(o[4], o[5]), gl.join(o[6], o[7])),
    )
    #             S  R  g  t  e  r  h  s
    a = a.reshape([S, R, 8, 4, 2, 2, 2, 2]).permute([0, 1, 5, 2, 7, 6, 3, 4]).reshape([S, 16 * R, 32])
    return gl.convert_layout(a, A, assert_trivial=True)


@gluon.jit
def pairs(words, S: gl.constexpr, R: gl.constexpr, LAYOUT: gl.constexpr):
    """[S, R, 32, 4] words of each lane -> words 0, 1 and words 2, 3, [S, R, 64] each."""
    a, b = words.reshape([S, R, 32, 2, 2]).permute([0, 1, 2, 4, 3]).split()
    a = gl.convert_layout(a.reshape([S, R, 64]), LAYOUT, assert_trivial=True)
    return a, gl.convert_layout(b.reshape([S, R, 64]), LAYOUT, assert_trivial=True)


@gluon.jit
def halves(words, P: gl.constexpr, S: gl.constexpr, R: gl.constexpr):
    """Words of a block, [S, R, 32 P] -> what each half reads: two tuples of pairs of words, [S, R, 64] each."""
    L: gl.constexpr = words_layout(S, R, 2)
    if P == 8:
        first, second = words.reshape([S, R, 32, 2, 4]).permute([0, 1, 2, 4, 3]).split()
        return pairs(first, S, R, L), pairs(second, S, R, L)
    elif P == 4:
        a, b = pairs(words.reshape([S, R, 32, 4]), S, R, L)
        return (a,), (b,)
    elif P == 2:
        a = gl.convert_layout(words, L, assert_trivial=True)
        return (a,), (a,)
    else:
        a = gl.convert_layout(gl.join(words, words).reshape([S, R, 64]), L, assert_trivial=True)
        return (a,), (a,)


@gluon.constexpr_function
def planes_of(decoder):
    """Widths of the planes, widest first."""
    return decoder.planes


@gluon.constexpr_function
def constant_of(decoder):
    """Power of two by which the decoded values are still to be multiplied."""
    return decoder.post_scale


@gluon.constexpr_function
def has_zero_pair(decoder):
    """True where the PTX takes each float zero point in two parts."""
    return decoder.zero_point == "float_pair"


@gluon.constexpr_function
def asm_of(decoder, half):
    """PTX that turns the words of half a block into 8 registers."""
    return decoder.asm[half]


@gluon.constexpr_function
def constraints_of(decoder):
    """Register constraints of that PTX."""
    return decoder.constraints


@gluon.jit
def decode_half(inputs, DECODER: gl.constexpr, HALF: gl.constexpr, DTYPE: gl.constexpr):
    """Pairs of words of each plane, then zero points, all [S, R, 64] -> tuple of 8 tensors [S, R, 64] of DTYPE."""
    # Each asm instance sees two neighbours of every input (a pair of words) and gives 8 registers of two elements: the
    # elements are not those of the inputs. That is sound because the layout is fixed, and trivial conversions check it.
    ASM: gl.constexpr = asm_of(DECODER, HALF)
    CONSTRAINTS: gl.constexpr = constraints_of(DECODER)
    if DTYPE == gl.bfloat16:
        return gl.inline_asm_elementwise(ASM, CONSTRAINTS, inputs, dtype=(gl.bfloat16,) * 8, is_pure=True, pack=2)
    else:
        return gl.inline_asm_elementwise(ASM, CONSTRAINTS, inputs, dtype=(gl.float16,) * 8, is_pure=True, pack=2)


@gluon.jit
def zero_operands(zero, S: gl.constexpr, R: gl.constexpr):
    """[S, 16 R] zero point of each row -> those of rows g and g + 8 beside a lane's words: two tensors [S, R, 64]."""
    L: gl.constexpr = words_layout(S, R, 2)
    low, high = zero.reshape([S, R, 2, 8]).permute([0, 1, 3, 2]).split()
    low = low.reshape([S, R, 8, 1]).broadcast_to([S, R, 8, 8]).reshape([S, R, 64])
    high = high.reshape([S, R, 8, 1]).broadcast_to([S, R, 8, 8]).reshape([S, R, 64])
    return gl.convert_layout(low, L), gl.convert_layout(high, L)
