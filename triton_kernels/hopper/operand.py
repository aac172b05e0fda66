"""W as wgmma's register operand: packed words of a 64-k block -> [BLOCK_N, 64 | 32] decoded, and scaled where the caller asks.

    a    = operand(words, zeros, scales, ...)         [BN, 64], both halves of a block
    a    = half_operand(words, zeros, scales, HALF, ...)   [BN, 32], k16 steps 2 HALF and 2 HALF + 1

`zeros` and `scales` are tuples of row values beside a lane's words (`decode.tile.zero_rows`), a pair for rows g and g + 8. The
zeros of a half are () or one pair (two for a float pair); its scales are () or one factor a k16 step, a factor being a pair of
rows or, for a scale that the operand type can't hold, a pair of high and a pair of low parts. One product, rounded once: the
weight is what torch rounds it to.
"""

from hybrid_humming.triton_kernels.hopper.decode.tile import asm_of, constraints_of, dtype_of, outputs_of, zero_rows
from hybrid_humming.triton_kernels.hopper.gluon import extents, gl, gluon, view

FLAT2 = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
FLAT1 = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.constexpr_function
def product_asm(operand, split):
    """PTX of one register times a factor; w * (high + low) rounds as if the factor were exact."""
    kind = "bf16x2" if operand == "bf16" else "f16x2"
    if split:
        return f"{{\n.reg .b32 t;\nmul.rn.{kind} t, $1, $3;\nfma.rn.{kind} $0, $1, $2, t;\n}}"
    return f"mul.rn.{kind} $0, $1, $2;"


@gluon.jit
def times(register, factor, R: gl.constexpr, DECODER: gl.constexpr):
    """One operand register (two codes of row R of a lane) times its row's factor."""
    SPLIT: gl.constexpr = len(factor) == 4
    ASM: gl.constexpr = product_asm(DECODER.operand, SPLIT)
    if SPLIT:
        return gl.inline_asm_elementwise(
            ASM, "=&r,r,r,r", [register, factor[R], factor[R + 2]], dtype=register.dtype, is_pure=True, pack=2
        )
    else:
        return gl.inline_asm_elementwise(ASM, "=r,r,r", [register, factor[R]], dtype=register.dtype, is_pure=True, pack=2)


@gluon.jit
def registers(words, zeros, scales, HALF: gl.constexpr, DECODER: gl.constexpr):
    """Words of one half -> its eight registers, joined over (r, h, s): [BN/64, 256, 2, 2, 2]."""
    ASM: gl.constexpr = asm_of(DECODER, HALF)
    TYPES: gl.constexpr = outputs_of(DECODER)
    o = gl.inline_asm_elementwise(ASM, constraints_of(DECODER), words + zeros, dtype=TYPES, is_pure=True, pack=2)
    if len(scales) > 0:
        done = ()
        for j in gl.static_range(8):
            one = (times(o[j], scales[j // 4], j % 2, DECODER),)
            done = done + one  # type: ignore[assignment]
        o = done
    first = gl.join(gl.join(o[0], o[1]), gl.join(o[2], o[3]))
    return gl.join(first, gl.join(gl.join(o[4], o[5]), gl.join(o[6], o[7])))


@gluon.jit
def operand(low, high, zeros, scales, BN: gl.constexpr, A: gl.constexpr, DECODER: gl.constexpr):
    """Words of both halves of a block -> [BN, 64]. zeros: of each half; scales: () or of each half."""
    low_scales = ()
    high_scales = ()
    if len(scales) > 0:
        low_scales = scales[0]
        high_scales = scales[1]
    a = gl.join(
        registers(low, zeros[0], low_scales, 0, DECODER),
        registers(high, zeros[1], high_scales, 1, DECODER),
    )
    #              C        w  g  t  e  r  h  s0 s1
    a = a.reshape([BN // 64, 4, 8, 4, 2, 2, 2, 2, 2]).permute([0, 1, 5, 2, 8, 7, 6, 3, 4])
    return gl.convert_layout(a.reshape([BN, 64]), A, assert_trivial=True)


@gluon.jit
def half_operand(words, zeros, scales, HALF: gl.constexpr, BN: gl.constexpr, A: gl.constexpr, DECODER: gl.constexpr):
    """Words of one half of a block -> [BN, 32]."""
    a = registers(words, zeros, scales, HALF, DECODER)
    #              C        w  g  t  e  r  h  s0
    a = a.reshape([BN // 64, 4, 8, 4, 2, 2, 2, 2]).permute([0, 1, 5, 2, 7, 6, 3, 4])
    return gl.convert_layout(a.reshape([BN, 32]), A, assert_trivial=True)


# ---- scales and zero points of 128 k ----
@gluon.constexpr_function
def rows_layout(rows, groups, warps):
    """Registers of [rows, J]: each lane holds every group of the rows (g and g + 8 of 16) that it has in the operand."""
    reg: list[list[int]] = []
    warp: list[list[int]] = []
    bit = 1
    while bit < groups:
        reg.append([0, bit])
        bit *= 2
    reg.append([8, 0])
    bit = 16
    while bit < rows:
        (warp if bit < 16 * warps else reg).append([bit, 0])
        bit *= 2
    lane = [[0, 0], [0, 0], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout(reg, lane, warp, [], [rows, groups])


@gluon.jit
def split_columns(tile, J: gl.constexpr, LAYOUT: gl.constexpr):
    """[rows, J] -> tuple of J tensors [rows]; a lane holds all J, so nothing moves."""
    if J == 2:
        a, b = tile.split()
        return gl.convert_layout(a, LAYOUT, assert_trivial=True), gl.convert_layout(b, LAYOUT, assert_trivial=True)
    else:
        even, odd = tile.reshape([tile.shape[0], J // 2, 2]).split()
        a = split_columns(even, J // 2, LAYOUT)
        b = split_columns(odd, J // 2, LAYOUT)
        out = ()
        for j in gl.static_range(J // 2):
            pair = (a[j], b[j])
            out = out + pair  # type: ignore[assignment]
        return out


@gluon.jit
def row_values(buffer, BN: gl.constexpr, J: gl.constexpr, LAYOUT: gl.constexpr, WARPS: gl.constexpr):
    """Shared values of 128 k, element n * J + j -> tuple of J tensors [BN], as stored."""
    if J == 1:
        return (view_rows(buffer, BN).load(LAYOUT),)
    else:
        L: gl.constexpr = rows_layout(BN, J, WARPS)
        return split_columns(view_groups(buffer, BN, J).load(L), J, LAYOUT)


@gluon.jit
def view_rows(buffer, BN: gl.constexpr):
    """Shared [BN] as one run."""
    SHAPE: gl.constexpr = extents(BN)
    return view(buffer, buffer.dtype, SHAPE, FLAT1)


@gluon.jit
def view_groups(buffer, BN: gl.constexpr, J: gl.constexpr):
    """Shared [BN, J] as one run."""
    SHAPE: gl.constexpr = extents(BN, J)
    return view(buffer, buffer.dtype, SHAPE, FLAT2)


@gluon.jit
def beside_words(value, SPLIT: gl.constexpr, BN: gl.constexpr, WG: gl.constexpr, A: gl.constexpr, DECODER: gl.constexpr):
    """[BN] row values -> what `operand` takes: a pair of rows in the operand type, and a pair of what it cut off for SPLIT."""
    DTYPE: gl.constexpr = dtype_of(DECODER)
    high = value.to(DTYPE)
    first, second = zero_rows(high, BN, 64, WG, A)
    if SPLIT:
        low = (value.to(gl.float32) - high.to(gl.float32)).to(DTYPE)
        third, fourth = zero_rows(low, BN, 64, WG, A)
        return first, second, third, fourth
    else:
        return first, second
