"""Many rows: W from fragment order to 16 bits in a workspace, at the speed of the memory, then the vendor's matmul.

    w, scale, zero_point   as in stream.py
    workspace              [padded_n, padded_k] in x's type, K contiguous; y = x @ workspace[:N, :K].T

Numerics. A weight is decoded in the operand type, which is exact but for float zero points; times its scale in fp32, rounded once.
"""

from collections.abc import Callable

from hybrid_humming.jit.args import GemmArgs
from hybrid_humming.jit.launch import launch_triton
from hybrid_humming.plan import Plan, Tile
from hybrid_humming.triton_kernels.hopper.epilogue import NONE, SCALAR, VECTOR, factor
from hybrid_humming.triton_kernels.hopper.fragments import (
    constant_of,
    decode_half,
    halves,
    has_zero_pair,
    k16_operand,
    k32_operand,
    mma_layout,
    planes_of,
    scale_layout,
    words_layout,
    zero_operands,
)
from hybrid_humming.triton_kernels.hopper.gluon import gl, gluon
from hybrid_humming.triton_kernels.hopper.host import as_bytes, decoder_of
from hybrid_humming.triton_kernels.hopper.plan import group_of
from hybrid_humming.triton_kernels.hopper.scale import KINDS, columns, decode_scale
from hybrid_humming.triton_kernels.portable.dequant_matmul import multiply


@gluon.constexpr_function
def groups_in_row(group):
    """Scales of one weight row in 128 k; 0 where none varies along K."""
    return max(1, 128 // group) if group else 0


@gluon.constexpr_function
def rows_in_group(group):
    """Rows of 128 k that one scale serves."""
    return max(1, group // 128)


@gluon.constexpr_function
def run_layout(slices, rows, width):
    """Registers of [S, 16 R, width] codes for 16-byte stores; each warp keeps the rows and columns that it decoded."""
    return gl.BlockedLayout([1, 1, 8], [1, 256 // width, width // 8], [slices, rows, 1], [2, 1, 0])


@gluon.jit
def load_words(base, row16, rows16, block, kblocks, P: gl.constexpr, S: gl.constexpr, R: gl.constexpr):
    """Words [S, R, 32 P] of one plane: of slice s, block `block` + 2 s; past the end 0."""
    L: gl.constexpr = words_layout(S, R, P)
    s = gl.arange(0, S, layout=gl.SliceLayout(1, gl.SliceLayout(2, L)))[:, None, None]
    r = row16 + gl.arange(0, R, layout=gl.SliceLayout(0, gl.SliceLayout(2, L)))
    i = gl.arange(0, 32 * P, layout=gl.SliceLayout(0, gl.SliceLayout(1, L)))[None, None, :]
    row = (r // 4).to(gl.int64) * kblocks * (128 * P) + r % 4 * (32 * P)
    mask = ((r < rows16)[None, :, None]) & (block + 2 * s < kblocks)
    return gl.load(base + row[None, :, None] + (block + 2 * s) * (128 * P) + i, mask=mask, other=0)


@gluon.jit
def load_scales(ptr, n0, padded_n, row, rows, J: gl.constexpr, SERVED: gl.constexpr, S: gl.constexpr, R: gl.constexpr):
    """Stored scales or zero points [S, 16 R, J] of slice s, which is row `row` + s of 128 k; past the end 0."""
    L: gl.constexpr = scale_layout(S, R, J)
    at = (row + gl.arange(0, S, layout=gl.SliceLayout(1, gl.SliceLayout(2, L))))[:, None, None]
    n = (n0 + gl.arange(0, 16 * R, layout=gl.SliceLayout(0, gl.SliceLayout(2, L))))[None, :, None]
    j = gl.arange(0, J, layout=gl.SliceLayout(0, gl.SliceLayout(1, L)))[None, None, :]
    pointers = ptr + (at // SERVED).to(gl.int64) * (padded_n * J) + n * J + j
    return gl.load(pointers, mask=(at < rows) & (n < padded_n), other=0)


@gluon.jit
def store_columns(w, multiplier, pointers, inside, WIDTH: gl.constexpr, S: gl.constexpr, R: gl.constexpr):
    """Store w [S, 16 R, WIDTH] times multiplier [S, 16 R], rounded once to w's type."""
    scaled = (w.to(gl.float32) * multiplier[:, :, None]).to(w.dtype)
    gl.store(pointers, gl.convert_layout(scaled, run_layout(S, R, WIDTH)), mask=inside)


@gluon.jit
def run_pointers(out_ptr, row16, block, kblocks, pitch, AT: gl.constexpr, WIDTH: gl.constexpr, S: gl.constexpr, R: gl.constexpr):
    """Where columns AT .. AT + WIDTH of block `block` + 2 s go, [S, 16 R, WIDTH], and which of them lie inside."""
    L: gl.constexpr = run_layout(S, R, WIDTH)
    s = gl.arange(0, S, layout=gl.SliceLayout(1, gl.SliceLayout(2, L)))[:, None, None]
    n = row16 * 16 + gl.arange(0, 16 * R, layout=gl.SliceLayout(0, gl.SliceLayout(2, L)))
    i = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, gl.SliceLayout(1, L)))[None, None, :]
    pointers = out_ptr + (n.to(gl.int64) * pitch)[None, :, None] + (block + 2 * s) * 64 + AT + i
    return pointers, block + 2 * s < kblocks


@gluon.jit
def dequantize_kernel(
    w_ptr, scale_ptr, zero_ptr, secondary_ptr, out_ptr, N, rows16, kblocks,
    DECODER: gl.constexpr, GROUP: gl.constexpr, KIND: gl.constexpr, ZERO: gl.constexpr, SCALE: gl.constexpr,
    SECONDARY: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
):  # fmt: skip
    """One tile [BLOCK_N, BLOCK_K] of the float weight a program: 16 rows and 128 k a warp."""
    S: gl.constexpr = BLOCK_K // 128
    R: gl.constexpr = BLOCK_N // 16
    J: gl.constexpr = groups_in_row(GROUP)
    SERVED: gl.constexpr = rows_in_group(GROUP)
    PLANES: gl.constexpr = planes_of(DECODER)
    CONSTANT: gl.constexpr = constant_of(DECODER)
    PAIR: gl.constexpr = has_zero_pair(DECODER)
    DTYPE: gl.constexpr = out_ptr.dtype.element_ty
    A: gl.constexpr = gl.DotOperandLayout(0, mma_layout(S, R), 2)
    ROWS: gl.constexpr = gl.SliceLayout(2, A)
    row16 = gl.program_id(0) * R
    row = gl.program_id(1) * S
    rows = gl.cdiv(kblocks, 2)

    n = row16 * 16 + gl.arange(0, 16 * R, layout=gl.SliceLayout(0, ROWS))
    common = gl.full([16 * R], CONSTANT, gl.float32, gl.SliceLayout(0, ROWS))
    if SCALE != 0:
        common = common * factor(scale_ptr, n, N, SCALE, KIND)
    if SECONDARY != 0:
        common = common * factor(secondary_ptr, n, N, SECONDARY, 0)
    multipliers = ()
    zeros = ()
    rests = ()
    if J > 0:
        stored = load_scales(scale_ptr, row16 * 16, rows16 * 16, row, rows, J, SERVED, S, R)
        scales = columns(decode_scale(stored, KIND), J, S, 16 * R, ROWS)
        for j in gl.static_range(J):
            multiplier = (scales[j] * common[None, :],)
            multipliers = multipliers + multiplier  # type: ignore[assignment]
    else:
        multipliers = (gl.full([S, 16 * R], 1.0, gl.float32, ROWS) * common[None, :],)  # type: ignore[assignment]
    if ZERO:
        zero = load_scales(zero_ptr, row16 * 16, rows16 * 16, row, rows, J, SERVED, S, R)
        rounded = zero.to(DTYPE)
        zeros = columns(rounded, J, S, 16 * R, ROWS)
        if PAIR:
            rests = columns((zero.to(gl.float32) - rounded.to(gl.float32)).to(DTYPE), J, S, 16 * R, ROWS)
    G: gl.constexpr = len(multipliers)
    for q in gl.static_range(2):
        block = 2 * row + q
        base = w_ptr
        low = ()
        high = ()
        for p in gl.static_range(len(PLANES)):
            words = load_words(base, row16, rows16, block, kblocks, PLANES[p], S, R)
            a, b = halves(words, PLANES[p], S, R)
            low = low + a
            high = high + b
            base += rows16.to(gl.int64) * kblocks * (32 * PLANES[p])
        if ZERO:
            low = low + zero_operands(zeros[64 * q * G // 128], S, R)
            high = high + zero_operands(zeros[(64 * q + 32) * G // 128], S, R)
        if PAIR:
            low = low + zero_operands(rests[64 * q * G // 128], S, R)
            high = high + zero_operands(rests[(64 * q + 32) * G // 128], S, R)
        for h in gl.static_range(2):
            if h == 0:
                regs = decode_half(low, DECODER, 0, DTYPE)
            else:
                regs = decode_half(high, DECODER, 1, DTYPE)
            if GROUP == 16:
                for i in gl.static_range(2):
                    w = k16_operand(regs[4 * i], regs[4 * i + 1], regs[4 * i + 2], regs[4 * i + 3], S, R, A)
                    pointers, inside = run_pointers(out_ptr, row16, block, kblocks, kblocks * 64, 32 * h + 16 * i, 16, S, R)
                    store_columns(w, multipliers[4 * q + 2 * h + i], pointers, inside, 16, S, R)
            else:
                w = k32_operand(regs, S, R, A)
                pointers, inside = run_pointers(out_ptr, row16, block, kblocks, kblocks * 64, 32 * h, 32, S, R)
                store_columns(w, multipliers[(64 * q + 32 * h) * G // 128], pointers, inside, 32, S, R)


# ---- host ----
def launch(args: GemmArgs, plan: Plan) -> None:
    """Dequantize, then multiply; bias is added in fp32 before the one rounding where its type is not y's."""
    launch_with(constants_of, args, plan)


def launch_with(make: Callable[[GemmArgs, Tile], dict[str, object]], args: GemmArgs, plan: Plan) -> None:
    """The same with the constants that `make` (constants_of, or another GPU's) gives; once a memo."""
    tile, layout = plan.tile, args.layout
    if args.workspace is None:
        raise AssertionError("the plan's workspace was not allocated")
    weight = args.workspace[: 2 * layout.padded_n * layout.padded_k].view(args.x.dtype).view(layout.padded_n, layout.padded_k)
    constants = args.memo.get("dequantize_constants")
    if constants is None:
        constants = args.memo["dequantize_constants"] = make(args, tile)
    launch_triton(
        dequantize_kernel,
        (-(-layout.padded_n // tile.block_n), -(-layout.padded_k // tile.block_k), 1),
        args.qweight,
        as_bytes(args.scale),
        weight if args.zero_point is None else args.zero_point,
        weight if args.secondary_scale is None else args.secondary_scale,
        weight, layout.n, layout.padded_n // 16, layout.padded_k // 64,
        num_warps=tile.num_warps, constants=constants, memo=args.memo,
    )  # fmt: skip
    multiply(args.x, weight[: layout.n, : layout.k].t(), args.bias, args.out)


def constants_of(args: GemmArgs, tile: Tile) -> dict[str, object]:
    """The kernel's constants, in the order of its parameters."""
    spec = args.problem.spec
    group = group_of(spec)
    return {
        "DECODER": decoder_of(spec, args.layout),
        "GROUP": group,
        "KIND": KINDS[str(spec.scale)],
        "ZERO": spec.has_zero_point,
        "SCALE": NONE if group else SCALAR if spec.granularity == "tensor" else VECTOR,
        "SECONDARY": {None: NONE, "tensor": SCALAR, "channel": VECTOR}[spec.secondary],
        "BLOCK_N": tile.block_n,
        "BLOCK_K": tile.block_k,
    }
