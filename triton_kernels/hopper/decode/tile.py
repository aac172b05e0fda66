"""Packed words of a [BN, BK] tile -> wgmma's A operand in registers (Gluon): no shared-memory round trip, no shuffle.

    low, high = load_words(views, BN, BK, WG, DECODER)          one view a plane: shared int32 [BN/64, BK/64, 128, p]
    a = decode(low, high, BN, BK, A_L, DECODER, zeros)          [BN, BK] bf16 | fp16
    a = decode_half(low | high, HALF, BN, A_L, DECODER, zeros)  [BN, 32] of a tile with BK = 64: k16 steps 2 HALF, 2 HALF + 1

DECODER is a `Decoder`, a constant: with the PTX itself among the kernel's constants, a changed decoder is a new key.
A_L is DotOperandLayout(0, NVMMA v3 [.., .., 16], k_width=2). WG counts the warpgroups that share the tile's rows; BN and BK
are powers of two and multiples of 64. `zeros` is () or what `zero_rows` gives.

Every words tensor is [BN/64, BK * 4] in `words_layout`, two words of a lane side by side, so `pack=2` hands the PTX the words
of exactly one lane and block, and its eight outputs are the code pairs (e = 0, 1) of that block's half. Elements of the
outputs are not those of the inputs; that is sound because the layout is fixed, and trivial conversions hold the compiler to it.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.constexpr_function
def planes_of(decoder):
    """Widths of the planes, widest first."""
    return decoder.planes


@gluon.constexpr_function
def asm_of(decoder, half):
    """PTX that turns the words of half a block into eight registers."""
    return decoder.asm[half]


@gluon.constexpr_function
def constraints_of(decoder):
    """Register constraints of that PTX."""
    return decoder.constraints


@gluon.constexpr_function
def dtype_of(decoder):
    """The operand's element type."""
    return gl.bfloat16 if decoder.operand == "bf16" else gl.float16


@gluon.constexpr_function
def outputs_of(decoder):
    """Types of the eight registers' elements."""
    return (gl.bfloat16 if decoder.operand == "bf16" else gl.float16,) * 8


@gluon.constexpr_function
def plane_layout(BN, BK, WG, P):
    """Registers of one plane, int32 [BN/64, BK/64, 128, P]: a lane's P words are its own."""
    reg: list = []
    width = 1
    while width < P:
        reg = [*reg, [0, 0, 0, width]]
        width *= 2
    lane = [[0, 0, 1, 0], [0, 0, 2, 0], [0, 0, 4, 0], [0, 0, 8, 0], [0, 0, 16, 0]]
    warp = [[0, 0, 32, 0], [0, 0, 64, 0]]
    block = 1
    while block < BK // 64:
        reg = [*reg, [0, block, 0, 0]]
        block *= 2
    row = 1
    while row < BN // 64:
        if row < WG:
            warp = [*warp, [row, 0, 0, 0]]
        else:
            reg = [*reg, [row, 0, 0, 0]]
        row *= 2
    return gl.DistributedLinearLayout(reg, lane, warp, [], [BN // 64, BK // 64, 128, P])


@gluon.constexpr_function
def words_layout(BN, BK, WG):
    """Registers of two words a lane and block, int32 [BN/64, BK * 4]."""
    reg = [[0, 1]]
    lane = [[0, 2], [0, 4], [0, 8], [0, 16], [0, 32]]
    warp = [[0, 64], [0, 128]]
    block = 256
    while block < BK * 4:
        reg = [*reg, [0, block]]
        block *= 2
    row = 1
    while row < BN // 64:
        if row < WG:
            warp = [*warp, [row, 0]]
        else:
            reg = [*reg, [row, 0]]
        row *= 2
    return gl.DistributedLinearLayout(reg, lane, warp, [], [BN // 64, BK * 4])


@gluon.jit
def _flat(words, BN: gl.constexpr, BK: gl.constexpr, L: gl.constexpr):
    return gl.convert_layout(words.reshape([BN // 64, BK * 4]), L, assert_trivial=True)


@gluon.jit
def _split(words, BN: gl.constexpr, BK: gl.constexpr, W: gl.constexpr):
    """[.., 2 W] words a lane -> the first and the last W of each lane."""
    return words.reshape([BN // 64, BK // 64, 128, 2, W]).permute([0, 1, 2, 4, 3]).split()


@gluon.jit
def load_plane(view, BN: gl.constexpr, BK: gl.constexpr, WG: gl.constexpr, P: gl.constexpr):
    """Shared int32 [BN/64, BK/64, 128, P] -> what half 0 and half 1 read: two tuples of tensors [BN/64, BK * 4]."""
    L: gl.constexpr = words_layout(BN, BK, WG)
    words = view.load(plane_layout(BN, BK, WG, P))
    if P == 1:
        alone = words.reshape([BN // 64, BK // 64, 128])
        both = _flat(gl.join(alone, alone), BN, BK, L)
        return (both,), (both,)
    elif P == 2:
        both = _flat(words, BN, BK, L)
        return (both,), (both,)
    elif P == 4:
        low, high = _split(words, BN, BK, 2)
        return (_flat(low, BN, BK, L),), (_flat(high, BN, BK, L),)
    else:
        first, second = _split(words, BN, BK, 4)
        a, b = _split(first, BN, BK, 2)
        c, d = _split(second, BN, BK, 2)
        return (_flat(a, BN, BK, L), _flat(b, BN, BK, L)), (_flat(c, BN, BK, L), _flat(d, BN, BK, L))


@gluon.jit
def load_words(views, BN: gl.constexpr, BK: gl.constexpr, WG: gl.constexpr, DECODER: gl.constexpr):
    """Words that half 0 and half 1 read, all planes: two tuples of tensors [BN/64, BK * 4]."""
    PLANES: gl.constexpr = planes_of(DECODER)
    low = ()
    high = ()
    for i in gl.static_range(len(PLANES)):
        a, b = load_plane(views[i], BN, BK, WG, PLANES[i])
        low = low + a
        high = high + b
    return low, high


@gluon.jit
def _registers(words, zeros, HALF: gl.constexpr, DECODER: gl.constexpr):
    """Words of one half -> its eight registers, joined over (r, h, s): [BN/64, BK * 4, 2, 2, 2]."""
    o = gl.inline_asm_elementwise(
        asm_of(DECODER, HALF), constraints_of(DECODER), words + zeros, dtype=outputs_of(DECODER), is_pure=True, pack=2
    )
    first = gl.join(gl.join(o[0], o[1]), gl.join(o[2], o[3]))
    return gl.join(first, gl.join(gl.join(o[4], o[5]), gl.join(o[6], o[7])))


@gluon.jit
def decode(
    low, high, BN: gl.constexpr, BK: gl.constexpr, A_L: gl.constexpr, DECODER: gl.constexpr, zeros=()
):  # fmt: skip
    """Words of both halves -> [BN, BK] operand in A_L."""
    a = gl.join(_registers(low, zeros, 0, DECODER), _registers(high, zeros, 1, DECODER))
    #              C        KB        w  g  t  e  r  h  s0 s1
    a = a.reshape([BN // 64, BK // 64, 4, 8, 4, 2, 2, 2, 2, 2]).permute([0, 2, 6, 3, 1, 9, 8, 7, 4, 5])
    return gl.convert_layout(a.reshape([BN, BK]), A_L, assert_trivial=True)


@gluon.jit
def decode_half(
    words, HALF: gl.constexpr, BN: gl.constexpr, A_L: gl.constexpr, DECODER: gl.constexpr, zeros=()
):  # fmt: skip
    """Words of one half of a tile with BK = 64 -> [BN, 32] operand in A_L."""
    a = _registers(words, zeros, HALF, DECODER)
    #              C        w  g  t  e  r  h  s0
    a = a.reshape([BN // 64, 4, 8, 4, 2, 2, 2, 2]).permute([0, 1, 5, 2, 7, 6, 3, 4])
    return gl.convert_layout(a.reshape([BN, 32]), A_L, assert_trivial=True)


@gluon.jit
def zero_rows(zero, BN: gl.constexpr, BK: gl.constexpr, WG: gl.constexpr, A_L: gl.constexpr):
    """Zero points [BN] of the operand type, in SliceLayout(1, A_L) -> the two tensors (rows r = 0, 1) that `decode` takes."""
    L: gl.constexpr = words_layout(BN, BK, WG)
    z = gl.convert_layout(zero[:, None].broadcast_to([BN, BK]), A_L, assert_trivial=True)
    #              C        w  r  g  KB        s1 s0 h  t  e
    z = z.reshape([BN // 64, 4, 2, 8, BK // 64, 2, 2, 2, 4, 2]).permute([0, 4, 1, 3, 8, 9, 2, 7, 6, 5])
    z, _ = z.split()
    z, _ = z.split()
    z, _ = z.split()
    first, second = z.split()
    return _flat(first, BN, BK, L), _flat(second, BN, BK, L)
