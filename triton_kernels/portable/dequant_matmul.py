"""Many rows: dequantize W into a 16-bit workspace [K, N], then the vendor's matmul.

w, scale, zero_point, secondary as in gemm.py;  workspace [K, N] in x's type, one rounding from fp32
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import triton
import triton.language as tl

from hybrid_humming.jit.args import GemmArgs
from hybrid_humming.jit.launch import launch_triton
from hybrid_humming.plan import Plan
from hybrid_humming.triton_kernels.epilogue.finish import load_factor
from hybrid_humming.triton_kernels.portable.gemm import (
    as_bytes,
    epilogue_of,
    grid_offsets,
    largest_offset,
    weight_constants,
    weight_tile,
)
from hybrid_humming.triton_kernels.scale.decode import decode_scale
from hybrid_humming.triton_kernels.scale.tile import load_scale_tile


@triton.jit
def dequantize_kernel(
    w_ptr, scale_ptr, zero_ptr, secondary_ptr, out_ptr, N, K, rows, columns, offset_n, offset_k,
    DECODE: tl.constexpr, EXPONENT: tl.constexpr, MANTISSA: tl.constexpr, BITS: tl.constexpr, OFFSET: tl.constexpr,
    ZERO: tl.constexpr, SCALE_MODE: tl.constexpr, ZERO_MODE: tl.constexpr, SCALE_KIND: tl.constexpr,
    GROUP_K: tl.constexpr, GROUP_N: tl.constexpr, SCALE: tl.constexpr, SECONDARY: tl.constexpr,
    WIDE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One [BLOCK_K, BLOCK_N] tile of the float weight a program."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k0 = tl.program_id(1) * BLOCK_K
    k = k0 + tl.arange(0, BLOCK_K)
    if WIDE:
        n = n.to(tl.int64)
        k = k.to(tl.int64)
    w = weight_tile(
        w_ptr, scale_ptr, zero_ptr, scale_ptr, k0, n, N, K, rows, columns, offset_n, offset_k,
        DECODE, EXPONENT, MANTISSA, BITS, OFFSET, ZERO, SCALE_MODE, ZERO_MODE, SCALE_KIND,
        GROUP_K, GROUP_N, 0, tl.float32, BLOCK_K, BLOCK_N,
    )  # fmt: skip
    if SCALE_MODE == 0:
        stored = load_scale_tile(scale_ptr, k0, n, N, K, rows, columns, offset_n, offset_k, 0, GROUP_K, GROUP_N, BLOCK_K, BLOCK_N)
        w *= decode_scale(stored, SCALE_KIND)
    if SCALE != 0:
        w *= load_factor(scale_ptr, n, N, 1, SCALE, SCALE_KIND)[None, :]
    if SECONDARY != 0:
        w *= load_factor(secondary_ptr, n, N, 1, SECONDARY, 0)[None, :]
    mask = (k < K)[:, None] & (n < N)[None, :]
    tl.store(out_ptr + k[:, None] * N + n[None, :], w.to(out_ptr.dtype.element_ty), mask=mask)


def launch(args: GemmArgs, plan: Plan) -> None:
    """Dequantize, then multiply; bias is added in fp32 before the one rounding where its type is not y's."""
    tile, k, n = plan.tile, args.layout.k, args.layout.n
    if args.workspace is None:
        raise AssertionError("the plan's workspace was not allocated")
    weight = args.workspace[: 2 * n * k].view(args.x.dtype).view(k, n)
    memo = args.memo
    if "constants" not in memo:
        epilogue = epilogue_of(args)
        memo["constants"] = {
            **weight_constants(args, tile.block_k), "SCALE": epilogue.SCALE, "SECONDARY": epilogue.SECONDARY,
            "WIDE": max(n * k, largest_offset(args)) >= 2**31, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k,
        }  # fmt: skip
    launch_triton(
        dequantize_kernel,
        (-(-n // tile.block_n), -(-k // tile.block_k), 1),
        args.qweight, as_bytes(args.scale), args.zero_point, args.secondary_scale, weight, n, k, *grid_offsets(args),
        num_warps=tile.num_warps, num_stages=tile.num_stages, constants=memo["constants"], memo=memo,
    )  # fmt: skip
    multiply(args.x, weight, args.bias, args.out)


def multiply(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> None:
    """out = x @ weight (+ bias), summed in fp32 and rounded once."""
    with _fp32_sums():
        if out.dtype == x.dtype and (bias is None or bias.dtype == x.dtype):
            if bias is None:
                torch.mm(x, weight, out=out)
            else:
                torch.addmm(bias, x, weight, out=out)
            return
        y = torch.mm(x, weight, out_dtype=torch.float32)
    if bias is not None:
        y += bias.float()
    out.copy_(y)


@contextmanager
def _fp32_sums() -> Iterator[None]:
    """By default torch lets cuBLAS add slices of K in 16 bits, where a partial sum past 65504 is infinite."""
    settings = torch.backends.cuda.matmul
    before = settings.allow_fp16_reduced_precision_reduction, settings.allow_bf16_reduced_precision_reduction
    settings.allow_fp16_reduced_precision_reduction = settings.allow_bf16_reduced_precision_reduction = False
    try:
        yield
    finally:
        settings.allow_fp16_reduced_precision_reduction, settings.allow_bf16_reduced_precision_reduction = before
