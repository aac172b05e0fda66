"""A few rows times W on the portable layout: fp32 FMA on exact values, K split over programs, two passes.

    x        [M <= 4, K]      fp16 | bf16, unit stride along K
    w, scale, zero_point, out as in gemm.py
    partial  [SPLIT, M, N]    fp32, only when K is split

A tensor core would idle: at one row a weight is used once, so what counts is bytes in flight and instructions a weight.
Each thread keeps the sums of its own columns and of its own rows of words; the rows are added at the very end.
"""

import torch
import triton
import triton.language as tl

from hybrid_humming.jit.args import GemmArgs
from hybrid_humming.jit.launch import launch_triton
from hybrid_humming.plan import Plan
from hybrid_humming.triton_kernels.epilogue.finish import finish, store_tile
from hybrid_humming.triton_kernels.portable.gemm import (
    as_bytes,
    epilogue_of,
    grid_offsets,
    largest_offset,
    reduce,
    weight_constants,
    weight_tile,
)
from hybrid_humming.triton_kernels.scale.decode import decode_scale
from hybrid_humming.triton_kernels.scale.tile import load_scale_tile
from hybrid_humming.triton_kernels.schedule.grid import k_range


@triton.jit
def gemv_portable_kernel(
    x_ptr, w_ptr, scale_ptr, zero_ptr, secondary_ptr, bias_ptr, out_ptr, partial_ptr,
    M, N, K, rows, columns, offset_n, offset_k, stride_xm, stride_om,
    DECODE: tl.constexpr, EXPONENT: tl.constexpr, MANTISSA: tl.constexpr, BITS: tl.constexpr, OFFSET: tl.constexpr,
    ZERO: tl.constexpr, SCALE_MODE: tl.constexpr, ZERO_MODE: tl.constexpr, SCALE_KIND: tl.constexpr,
    GROUP_K: tl.constexpr, GROUP_N: tl.constexpr,
    SCALE: tl.constexpr, SECONDARY: tl.constexpr, BIAS: tl.constexpr,
    WIDE: tl.constexpr, SPLIT_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """[BLOCK_M, BLOCK_N] of one slice of K a program."""
    split = tl.program_id(1)
    m = tl.arange(0, BLOCK_M)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.arange(0, BLOCK_M)[:, None, None]
    if WIDE:
        m = m.to(tl.int64)
        n = n.to(tl.int64)
        row = row.to(tl.int64)
    begin, end = k_range(K, split, SPLIT_K, BLOCK_K)
    SLICES: tl.constexpr = BLOCK_K // 16
    in_slice = tl.arange(0, SLICES)[None, :, None] * 16 + tl.arange(0, 16)[None, None, :]
    # A thread holds all slices of its 16th part of the rows: sums over slices stay in registers, the 16 wait for the end.
    sums = tl.zeros((BLOCK_M, 16, BLOCK_N), tl.float32)
    for k0 in range(begin, end, BLOCK_K):
        w = weight_tile(
            w_ptr, scale_ptr, zero_ptr, scale_ptr, k0, n, N, K, rows, columns, offset_n, offset_k,
            DECODE, EXPONENT, MANTISSA, BITS, OFFSET, ZERO, SCALE_MODE, ZERO_MODE, SCALE_KIND,
            GROUP_K, GROUP_N, 0, tl.float32, BLOCK_K, BLOCK_N,
        )  # fmt: skip
        k = k0 + in_slice
        x = tl.load(x_ptr + row * stride_xm + k, mask=(k < K) & (row < M), other=0).to(tl.float32)
        part = tl.sum(x[:, :, :, None] * w.reshape(1, SLICES, 16, BLOCK_N), 1)
        if SCALE_MODE == 0:
            stored = load_scale_tile(
                scale_ptr, k0, n, N, K, rows, columns, offset_n, offset_k, 0, GROUP_K, GROUP_N, BLOCK_K, BLOCK_N
            )
            part *= decode_scale(stored, SCALE_KIND)[None, :, :]
        sums += part
    acc = tl.sum(sums, 1)
    if SPLIT_K > 1:
        mask = (m < M)[:, None] & (n < N)[None, :]
        tl.store(partial_ptr + split.to(tl.int64) * M * N + m[:, None] * N + n[None, :], acc, mask=mask)
    else:
        acc = finish(
            acc, m, n, M, N, scale_ptr, secondary_ptr, scale_ptr, scale_ptr, bias_ptr, 1,
            SCALE, SCALE_KIND, SECONDARY, 0, 0, False, BIAS,
        )  # fmt: skip
        store_tile(out_ptr, acc, m, n, M, N, stride_om)


def launch(args: GemmArgs, plan: Plan) -> None:
    """Run the plan's tile: one launch, or two when K is split."""
    tile, memo = plan.tile, args.memo
    (m, n), k, split = args.out.shape, args.layout.k, plan.tile.split_k
    if "constants" not in memo:
        epilogue = epilogue_of(args)
        memo["constants"] = {
            **weight_constants(args, tile.block_k),
            "SCALE": epilogue.SCALE, "SECONDARY": epilogue.SECONDARY, "BIAS": epilogue.BIAS,
            "WIDE": largest_offset(args) >= 2**31, "SPLIT_K": split,
            "BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k,
        }  # fmt: skip
    partial = args.workspace[: split * m * n * 4].view(torch.float32) if split > 1 and args.workspace is not None else args.out
    launch_triton(
        gemv_portable_kernel,
        (-(-n // tile.block_n), split, 1),
        args.x, args.qweight, as_bytes(args.scale), args.zero_point, args.secondary_scale, args.bias, args.out, partial,
        m, n, k, *grid_offsets(args), args.x.stride(0), args.out.stride(0),
        num_warps=tile.num_warps, num_stages=tile.num_stages, constants=memo["constants"], memo=memo,
    )  # fmt: skip
    if split > 1:
        reduce(args, partial, split, 1)
