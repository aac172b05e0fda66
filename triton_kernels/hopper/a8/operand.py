"""W as wgmma's 8-bit register operand: packed words of a 64-k block -> [BN, 64], or [BN, 32] parts of it.

Unpacking is not pure, for the compiler then keeps it where it stands: after the wait that retires the last product that reads the
same registers. (Triton 3.6.0 takes no 8-bit operand in `warpgroup_mma_wait`, which names them for 16-bit ones; a test follows
the registers through the machine code.)
"""

from hybrid_humming.triton_kernels.hopper.decode.tile import plane_layout
from hybrid_humming.triton_kernels.hopper.gluon import extents, gl, gluon, view

WORDS = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [3, 2, 1, 0]))


@gluon.constexpr_function
def planes_of(decoder):
    """Widths of the planes, widest first."""
    return decoder.planes


@gluon.constexpr_function
def asm_of(decoder, q):
    """PTX that turns the words of the q-th block of a step into eight registers."""
    return decoder.asm[q]


@gluon.constexpr_function
def folds(decoder):
    """Whether the exponents of groups go into the operands."""
    return decoder.folded


@gluon.constexpr_function
def constraints_of(decoder):
    """Register constraints of that PTX."""
    return decoder.constraints


@gluon.constexpr_function
def dtype_of(decoder):
    """The operand's element type."""
    return gl.int8 if decoder.operand == "int8" else gl.float8e4nv


@gluon.constexpr_function
def outputs_of(decoder):
    """Types of the eight registers' elements."""
    return (gl.int8 if decoder.operand == "int8" else gl.float8e4nv,) * 8


@gluon.constexpr_function
def fours_layout(BN, WG):
    """Registers of four words a lane, int32 [BN/64, 512]."""
    reg = [[0, 1], [0, 2]]
    warp = [[0, 128], [0, 256]]
    row = 1
    while row < BN // 64:
        if row < WG:
            warp = [*warp, [row, 0]]
        else:
            reg = [*reg, [row, 0]]
        row *= 2
    return gl.DistributedLinearLayout(reg, [[0, 4], [0, 8], [0, 16], [0, 32], [0, 64]], warp, [], [BN // 64, 512])


@gluon.jit
def fours(words, P: gl.constexpr, BN: gl.constexpr, WG: gl.constexpr):
    """[BN/64, 1, 128, P] words -> [BN/64, 512], four a lane, repeated where a lane has fewer."""
    L: gl.constexpr = fours_layout(BN, WG)
    if P == 1:
        one = words.reshape([BN // 64, 128])
        two = gl.join(one, one)
        words = gl.join(two, two)
    elif P == 2:
        words = gl.join(words, words)
    return gl.convert_layout(words.reshape([BN // 64, 512]), L, assert_trivial=True)


@gluon.jit
def block_words(buffers, slot, Q: gl.constexpr, BN: gl.constexpr, WG: gl.constexpr, DECODER: gl.constexpr):
    """Words of the Q-th 64 k of a step, a tensor for each plane."""
    PLANES: gl.constexpr = planes_of(DECODER)
    out = ()
    for p in gl.static_range(len(PLANES)):
        whole = view(buffers[p].index(slot), gl.int32, extents(BN // 64, 2, 128, PLANES[p]), WORDS)
        words = whole.slice(Q, 1, dim=1).load(plane_layout(BN, 64, WG, PLANES[p]))
        one = (fours(words, PLANES[p], BN, WG),)
        out = out + one  # type: ignore[assignment]
    return out


@gluon.jit
def registers(words, beside, Q: gl.constexpr, DECODER: gl.constexpr):
    """Words of the Q-th block of a step, and what else the decoder takes -> its eight registers, tensors [BN/64, 512] of 8 bits."""
    return gl.inline_asm_elementwise(
        asm_of(DECODER, Q), constraints_of(DECODER), words + beside, dtype=outputs_of(DECODER), is_pure=False, pack=4
    )


@gluon.jit
def operand(words, beside, Q: gl.constexpr, BN: gl.constexpr, A: gl.constexpr, DECODER: gl.constexpr):
    """Words of a block -> [BN, 64]."""
    o = registers(words, beside, Q, DECODER)
    low = gl.join(gl.join(o[0], o[1]), gl.join(o[2], o[3]))
    high = gl.join(gl.join(o[4], o[5]), gl.join(o[6], o[7]))
    #                                  C        w  g  t  e  r  h  p
    a = gl.join(low, high).reshape([BN // 64, 4, 8, 4, 4, 2, 2, 2]).permute([0, 1, 5, 2, 7, 6, 3, 4])
    return gl.convert_layout(a.reshape([BN, 64]), A, assert_trivial=True)


@gluon.jit
def step_operand(o0, o1, o2, o3, BN: gl.constexpr, A: gl.constexpr):
    """The four registers (h, r) of one k32 step -> [BN, 32]."""
    a = gl.join(gl.join(o0, o1), gl.join(o2, o3))
    #              C        w  g  t  e  r  h
    a = a.reshape([BN // 64, 4, 8, 4, 4, 2, 2]).permute([0, 1, 5, 2, 6, 3, 4])
    return gl.convert_layout(a.reshape([BN, 32]), A, assert_trivial=True)


@gluon.jit
def operands(words, beside, Q: gl.constexpr, PARTS: gl.constexpr, BN: gl.constexpr, A: gl.constexpr, DECODER: gl.constexpr):
    """Words of a block -> PARTS operands, whose products are the partial sums of 64 / PARTS k each: one [BN, 64], two [BN, 32],
    or four [BN, 32] with zeros in place of the other half."""
    if PARTS == 1:
        return (operand(words, beside, Q, BN, A, DECODER),)
    else:
        o = registers(words, beside, Q, DECODER)
        if PARTS == 2:
            return step_operand(o[0], o[1], o[2], o[3], BN, A), step_operand(o[4], o[5], o[6], o[7], BN, A)
        else:
            z = gl.full(o[0].shape, 0, o[0].dtype, o[0].type.layout)
            return (
                step_operand(o[0], o[1], z, z, BN, A), step_operand(z, z, o[2], o[3], BN, A),
                step_operand(o[4], o[5], z, z, BN, A), step_operand(z, z, o[6], o[7], BN, A),
            )  # fmt: skip


@gluon.jit
def beside_words(value, BN: gl.constexpr, WG: gl.constexpr, A: gl.constexpr):
    """int32 values of rows [BN] in SliceLayout(1, A) -> the two tensors (rows r = 0, 1) that a decoder takes."""
    L: gl.constexpr = fours_layout(BN, WG)
    z = gl.convert_layout(value[:, None].broadcast_to([BN, 64]), A, assert_trivial=True)
    #              C        w  r  g  p  h  t  e
    z = z.reshape([BN // 64, 4, 2, 8, 2, 2, 4, 4]).permute([0, 1, 3, 6, 7, 2, 5, 4])
    z, _ = z.split()
    z, _ = z.split()
    first, second = z.split()
    first = gl.convert_layout(first.reshape([BN // 64, 512]), L, assert_trivial=True)
    return first, gl.convert_layout(second.reshape([BN // 64, 512]), L, assert_trivial=True)
