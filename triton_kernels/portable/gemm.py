"""Dense GEMM on the portable layout: y = x @ dequantize(W).T, one output tile a program, split-K in two passes.

    x        [M, K]           16-bit float, or quantized storage (see load.py); unit stride along K
    w        [rows, N]        int32 words of the portable layout (hybrid_humming/pack/portable.py)
    scale    [C, R]           stored scales; zero_point [C, R] uint8 or float
    partial  [SPLIT, M, N]    fp32, only when K is split
    out      [M, N]           unit stride along N

Numerics. The operands of the product are exact in its type. A scale that is constant along K multiplies the sum; one that is
constant over BLOCK_K multiplies the partial sum (ROW); a finer one multiplies the weight in fp32, rounded once to the operand
type, as torch would (TILE, GATHER). Sums are fp32, slices of K are added in order, y is rounded once.

W is always the operand that goes through shared memory: under Triton 3.6.0 a register operand that is computed in a
multi-step loop may be overwritten while the product still reads it.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from hybrid_humming.dtypes import parse_format
from hybrid_humming.jit.args import GemmArgs
from hybrid_humming.jit.launch import launch_triton
from hybrid_humming.plan import Plan
from hybrid_humming.triton_kernels.dequant import decoder_of
from hybrid_humming.triton_kernels.epilogue.finish import NONE, SCALAR, VECTOR, finish, load_factor, store_tile
from hybrid_humming.triton_kernels.portable.load import BYTES, FLOAT, NIBBLES, SIGNED, load_codes, load_integers, load_x
from hybrid_humming.triton_kernels.portable.tiles import prescales_x, scale_mode, secondary_on_weights
from hybrid_humming.triton_kernels.scale.decode import SCALE_KINDS, decode_scale
from hybrid_humming.triton_kernels.scale.tile import load_scale_tile
from hybrid_humming.triton_kernels.schedule.grid import k_range, tile_of

TYPES = {"fp16": tl.float16, "bf16": tl.bfloat16, "fp32": tl.float32}


@triton.jit
def weight_tile(
    w_ptr, scale_ptr, zero_ptr, secondary_ptr, k0, n, N, K, rows, columns, offset_n, offset_k,
    DECODE: tl.constexpr, EXPONENT: tl.constexpr, MANTISSA: tl.constexpr, BITS: tl.constexpr, OFFSET: tl.constexpr,
    ZERO: tl.constexpr, SCALE_MODE: tl.constexpr, ZERO_MODE: tl.constexpr, SCALE_KIND: tl.constexpr,
    GROUP_K: tl.constexpr, GROUP_N: tl.constexpr, SECONDARY: tl.constexpr,
    DTYPE: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """[BLOCK_K, BLOCK_N] operand of the product: decoded, zero point subtracted, scaled where the scale is finer than the tile."""
    PRESCALE: tl.constexpr = SCALE_MODE == 1 or SCALE_MODE == 2
    WORK: tl.constexpr = tl.float32 if PRESCALE else DTYPE
    if OFFSET is not None:
        w = load_integers(w_ptr, k0, n, N, K, BITS, OFFSET, BLOCK_K, BLOCK_N).to(WORK)
    else:
        w = DECODE(load_codes(w_ptr, k0, n, N, K, BITS, BLOCK_K, BLOCK_N), WORK, EXPONENT, MANTISSA)
    if ZERO:
        zero = load_scale_tile(
            zero_ptr, k0, n, N, K, rows, columns, offset_n, offset_k, ZERO_MODE, GROUP_K, GROUP_N, BLOCK_K, BLOCK_N
        )
        w -= zero.to(WORK)
    if PRESCALE:
        stored = load_scale_tile(
            scale_ptr, k0, n, N, K, rows, columns, offset_n, offset_k, SCALE_MODE, GROUP_K, GROUP_N, BLOCK_K, BLOCK_N
        )
        w *= decode_scale(stored, SCALE_KIND)
        if SECONDARY != 0:  # before the rounding: the first scale alone may leave the operand's range
            w *= load_factor(secondary_ptr, n, N, 1, SECONDARY, 0)[None, :]
        w = w.to(DTYPE)
    return w


@triton.jit
def scale_x(
    x, x_scale_ptr, m, k0, M, K, stride_sm, stride_sk,
    GROUP_X: tl.constexpr, KIND: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """x times the scales of its groups, which is exact in x's type (tiles.prescales_x)."""
    group = (k0 + tl.arange(0, BLOCK_K)) // GROUP_X
    mask = (m < M)[:, None] & (group * GROUP_X < K)[None, :]
    stored = tl.load(x_scale_ptr + m[:, None] * stride_sm + group[None, :] * stride_sk, mask=mask, other=0)
    return (x.to(tl.float32) * decode_scale(stored, KIND)).to(x.dtype)


@triton.jit
def gemm_portable_kernel(
    x_ptr, w_ptr, scale_ptr, zero_ptr, x_scale_ptr, secondary_ptr, x_global_ptr, bias_ptr, out_ptr, partial_ptr,
    M, N, K, rows, columns, offset_n, offset_k, stride_xm, stride_sm, stride_sk, stride_om,
    DECODE: tl.constexpr, EXPONENT: tl.constexpr, MANTISSA: tl.constexpr, BITS: tl.constexpr, OFFSET: tl.constexpr,
    DECODE_X: tl.constexpr, EXPONENT_X: tl.constexpr, MANTISSA_X: tl.constexpr, STORAGE_X: tl.constexpr,
    ZERO: tl.constexpr, SCALE_MODE: tl.constexpr, ZERO_MODE: tl.constexpr, SCALE_KIND: tl.constexpr,
    GROUP_K: tl.constexpr, GROUP_N: tl.constexpr, GROUP_X: tl.constexpr, X_SCALE_KIND: tl.constexpr,
    PRESCALE_X: tl.constexpr, SECONDARY_W: tl.constexpr,
    SCALE: tl.constexpr, SECONDARY: tl.constexpr, X_SCALE: tl.constexpr, X_GLOBAL: tl.constexpr, BIAS: tl.constexpr,
    DTYPE: tl.constexpr, WIDE: tl.constexpr, SPLIT_K: tl.constexpr, RASTER_M: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One [BLOCK_M, BLOCK_N] tile of one slice of K a program; see the module's head."""
    tile_m, tile_n = tile_of(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), RASTER_M)
    split = tl.program_id(1)
    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    if WIDE:
        m = m.to(tl.int64)
        n = n.to(tl.int64)
    begin, end = k_range(K, split, SPLIT_K, BLOCK_K)

    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k0 in range(begin, end, BLOCK_K):
        x = load_x(x_ptr, m, k0, M, K, stride_xm, DECODE_X, EXPONENT_X, MANTISSA_X, STORAGE_X, DTYPE, BLOCK_K)
        if PRESCALE_X:
            x = scale_x(x, x_scale_ptr, m, k0, M, K, stride_sm, stride_sk, GROUP_X, X_SCALE_KIND, BLOCK_M, BLOCK_K)
        w = weight_tile(
            w_ptr, scale_ptr, zero_ptr, secondary_ptr, k0, n, N, K, rows, columns, offset_n, offset_k,
            DECODE, EXPONENT, MANTISSA, BITS, OFFSET, ZERO, SCALE_MODE, ZERO_MODE, SCALE_KIND,
            GROUP_K, GROUP_N, SECONDARY_W, DTYPE, BLOCK_K, BLOCK_N,
        )  # fmt: skip
        if SCALE_MODE == 0 or (GROUP_X > 0 and not PRESCALE_X):
            part = tl.dot(x, w, input_precision="ieee")
            if SCALE_MODE == 0:
                stored = load_scale_tile(
                    scale_ptr, k0, n, N, K, rows, columns, offset_n, offset_k, 0, GROUP_K, GROUP_N, BLOCK_K, BLOCK_N
                )
                part *= decode_scale(stored, SCALE_KIND)
            if GROUP_X > 0 and not PRESCALE_X:
                x_scale = tl.load(x_scale_ptr + m * stride_sm + (k0 // GROUP_X) * stride_sk, mask=m < M, other=0)
                part *= decode_scale(x_scale, X_SCALE_KIND)[:, None]
            acc += part
        else:
            acc = tl.dot(x, w, acc, input_precision="ieee")

    if SPLIT_K > 1:
        base = partial_ptr + split.to(tl.int64) * M * N
        mask = (m < M)[:, None] & (n < N)[None, :]
        tl.store(base + m.to(tl.int64)[:, None] * N + n[None, :], acc, mask=mask)
    else:
        acc = finish(
            acc, m, n, M, N, scale_ptr, secondary_ptr, x_scale_ptr, x_global_ptr, bias_ptr, stride_sm,
            SCALE, SCALE_KIND, SECONDARY, X_SCALE, X_SCALE_KIND, X_GLOBAL, BIAS,
        )  # fmt: skip
        store_tile(out_ptr, acc, m, n, M, N, stride_om)


@triton.jit
def reduce_kernel(
    partial_ptr, scale_ptr, secondary_ptr, x_scale_ptr, x_global_ptr, bias_ptr, out_ptr, M, N, stride_sm, stride_om,
    SPLITS: tl.constexpr, SCALE: tl.constexpr, SCALE_KIND: tl.constexpr, SECONDARY: tl.constexpr,
    X_SCALE: tl.constexpr, X_SCALE_KIND: tl.constexpr, X_GLOBAL: tl.constexpr, BIAS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Add the slices of K of one row in ascending order, finish, store."""
    m = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((1, BLOCK_N), tl.float32)
    for split in range(SPLITS):
        base = partial_ptr + (tl.full([], split, tl.int64) * M + m)[:, None] * N
        acc += tl.load(base + n[None, :], mask=(n < N)[None, :], other=0.0)
    acc = finish(
        acc, m, n, M, N, scale_ptr, secondary_ptr, x_scale_ptr, x_global_ptr, bias_ptr, stride_sm,
        SCALE, SCALE_KIND, SECONDARY, X_SCALE, X_SCALE_KIND, X_GLOBAL, BIAS,
    )  # fmt: skip
    store_tile(out_ptr, acc, m, n, M, N, stride_om)


# ---- host ----
class Epilogue(NamedTuple):
    """Constants of `finish`, in its order."""

    SCALE: int
    SCALE_KIND: int
    SECONDARY: int
    X_SCALE: int
    X_SCALE_KIND: int
    X_GLOBAL: bool
    BIAS: bool


def as_bytes(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Narrow floats as uint8: kernels decode them with integer operations, on SMs that lack the type too."""
    return tensor.view(torch.uint8) if tensor is not None and tensor.element_size() == 1 and tensor.is_floating_point() else tensor


def epilogue_of(args: GemmArgs) -> Epilogue:
    """Which factors the epilogue applies: those that are constant along K."""
    spec = args.problem.spec
    along_n = {"tensor": SCALAR, "channel": VECTOR}
    token = {"tensor": SCALAR, "token": VECTOR}
    return Epilogue(
        SCALE=along_n.get(str(spec.granularity), NONE) if spec.zero_point in (None, "int") else NONE,
        SCALE_KIND=SCALE_KINDS[str(spec.scale)],
        SECONDARY=along_n.get(str(spec.secondary), NONE),
        X_SCALE=token.get(str(spec.activation_granularity), NONE),
        X_SCALE_KIND=SCALE_KINDS.get(str(spec.activation_scale), 0),
        X_GLOBAL=args.x_global_scale is not None,
        BIAS=args.bias is not None,
    )


def x_constants(args: GemmArgs) -> dict[str, object]:
    """Constants that say how the activations are stored and decoded."""
    fmt = args.problem.spec.activation_format
    if fmt.is_wide:
        return {"DECODE_X": None, "EXPONENT_X": 0, "MANTISSA_X": 0, "STORAGE_X": FLOAT}
    decoder = decoder_of(fmt)
    storage = SIGNED if fmt.name == "int8" else NIBBLES if fmt.bits == 4 else BYTES
    return {
        "DECODE_X": decoder.function,
        "EXPONENT_X": decoder.exponent,
        "MANTISSA_X": decoder.mantissa,
        "STORAGE_X": storage,
    }


def weight_constants(args: GemmArgs, block_k: int) -> dict[str, object]:
    """Constants that say how a weight tile is decoded and scaled."""
    spec = args.problem.spec
    decoder = decoder_of(parse_format(args.layout.encoding))
    mode, zero_mode = scale_mode(spec, block_k, args.block_offset)
    return {
        "DECODE": decoder.function,
        "EXPONENT": decoder.exponent,
        "MANTISSA": decoder.mantissa,
        "BITS": spec.bits,
        "OFFSET": decoder.offset if spec.bits in (1, 2, 4, 8) else None,  # widths of a single plane
        "ZERO": spec.has_zero_point,
        "SCALE_MODE": mode,
        "ZERO_MODE": zero_mode,
        "SCALE_KIND": SCALE_KINDS[str(spec.scale)],
        "GROUP_K": spec.block[1] if spec.block else spec.group_size or 0,
        "GROUP_N": spec.block[0] if spec.block else 0 if spec.granularity == "tensor" else 1,
    }


def grid_offsets(args: GemmArgs) -> tuple[int, int, int, int]:
    """Rows and columns of the stored scale, and the weight's offset inside its first block."""
    spec, (off_n, off_k) = args.problem.spec, args.block_offset
    rows, columns = args.scale.shape
    return rows, columns, off_n % spec.block[0] if spec.block else 0, off_k % spec.block[1] if spec.block else 0


def largest_offset(args: GemmArgs) -> int:
    """Largest element offset that a kernel forms; 64-bit offsets cost registers, so they are used from 2**31 on."""
    m, n = args.out.shape
    # The bucket's M, not this call's: another M of the same bucket runs the same compiled kernel.
    m = max(m, args.problem.m)
    return max(m * args.x.stride(0), m * args.out.stride(0), m * n, args.qweight.numel(), args.scale.numel())


def launch(args: GemmArgs, plan: Plan) -> None:
    """Run the plan's tile; it never chooses. One launch, or two when K is split."""
    tile, memo = plan.tile, args.memo
    (m, n), k, split = args.out.shape, args.layout.k, plan.tile.split_k
    if "constants" not in memo:
        memo["constants"] = _constants(args, plan)
    x, scale, x_scale = as_bytes(args.x), as_bytes(args.scale), as_bytes(args.x_scale)
    stride_sm, stride_sk = x_scale.stride() if x_scale is not None and x_scale.dim() == 2 else (1, 1)
    partial = args.workspace[: split * m * n * 4].view(torch.float32) if split > 1 and args.workspace is not None else args.out
    launch_triton(
        gemm_portable_kernel,
        (-(-m // tile.block_m) * -(-n // tile.block_n), split, 1),
        x, args.qweight, scale, args.zero_point, x_scale, args.secondary_scale, args.x_global_scale, args.bias, args.out, partial,
        m, n, k, *grid_offsets(args), args.x.stride(0), stride_sm, stride_sk, args.out.stride(0),
        num_warps=tile.num_warps, num_stages=tile.num_stages, constants=memo["constants"], memo=memo,
    )  # fmt: skip
    if split > 1:
        reduce(args, partial, split, stride_sm, secondary=not memo["constants"]["SECONDARY_W"])


def _constants(args: GemmArgs, plan: Plan) -> dict[str, object]:
    """Compile-time constants of the kernel, in its order."""
    tile, spec = plan.tile, args.problem.spec
    epilogue, secondary_w = epilogue_of(args), NONE
    if secondary_on_weights(spec, tile.block_k, plan.multiplies):
        epilogue, secondary_w = epilogue._replace(SECONDARY=NONE), epilogue.SECONDARY
    return {
        **weight_constants(args, tile.block_k), **x_constants(args),
        "GROUP_X": spec.activation_group_size or 0, "X_SCALE_KIND": epilogue.X_SCALE_KIND,
        "PRESCALE_X": prescales_x(spec), "SECONDARY_W": secondary_w,
        "SCALE": epilogue.SCALE, "SECONDARY": epilogue.SECONDARY, "X_SCALE": epilogue.X_SCALE,
        "X_GLOBAL": epilogue.X_GLOBAL, "BIAS": epilogue.BIAS, "DTYPE": TYPES[plan.multiplies],
        "WIDE": largest_offset(args) >= 2**31, "SPLIT_K": tile.split_k, "RASTER_M": tile.raster_m,
        "BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k,
    }  # fmt: skip


def reduce(
    args: GemmArgs, partial: torch.Tensor, splits: int, stride_sm: int, *, secondary: bool = True, block_n: int = 512
) -> None:
    """Second pass of split-K: `partial` [splits, M, N] -> out. `secondary`: that scale is still to be applied."""
    (m, n), memo = args.out.shape, args.memo
    if "reduce" not in memo:
        epilogue = epilogue_of(args)
        epilogue = epilogue if secondary else epilogue._replace(SECONDARY=NONE)
        memo["reduce"] = {"SPLITS": splits, **epilogue._asdict(), "BLOCK_N": block_n}
    launch_triton(
        reduce_kernel,
        (m, -(-n // block_n), 1),
        partial, as_bytes(args.scale), args.secondary_scale, as_bytes(args.x_scale), args.x_global_scale, args.bias, args.out,
        m, n, stride_sm, args.out.stride(0),
        num_warps=4, constants=memo["reduce"], memo=memo,
    )  # fmt: skip
