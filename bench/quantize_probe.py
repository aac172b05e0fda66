"""What only a compiled quantizer does, one idea each, over many bit patterns: the division by multiply-adds, the hardware's
conversions to FP8, and the product with a power of two. Each returns the number of wrong values and the first of them."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from bench.quantize_cases import Case, arguments, differences, expected
from hybrid_humming.jit.launch import launch_triton
from hybrid_humming.triton_kernels.quantize.divide import quotient
from hybrid_humming.triton_kernels.quantize.launch import OPTIONS, quantize

Tensor = torch.Tensor
BLOCK = 1024
PATTERNS = (0, 1, 255, 128, 37)  # low byte of the fp32 patterns tried: ties have 0, their neighbours 1 and 255
STATIC = ("e4m3 tensor", "e5m2 tensor", "int8 tensor", "e2m1 tensor", "e2m3 tensor", "e3m2 tensor", "int4 tensor")


@triton.jit
def quotient_kernel(values_ptr, scale_ptr, out_ptr, BLOCK: tl.constexpr, BOUND: tl.constexpr):
    """Row by row: out [R, BLOCK] = values / scale [R]."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    scale = tl.load(scale_ptr + tl.program_id(0) + tl.arange(0, 1))
    tl.store(out_ptr + at, quotient(tl.load(values_ptr + at), scale[:, None], BOUND, True))


def launch_quotient(values: Tensor, scale: Tensor, out: Tensor, bound: float | None) -> None:
    constants = {"BLOCK": BLOCK, "BOUND": bound}
    launch_triton(quotient_kernel, (values.shape[0], 1, 1), values, scale, out, num_warps=4, constants=constants, options=OPTIONS)


def division(rows: int = 1 << 15, *, bound: float | None = None) -> dict[str, Any]:
    """Quotients of 2**-100 to 2**30 and beyond, scales of every exponent, mantissas of all ones and all zeros among them."""
    generator = torch.Generator("cuda").manual_seed(1)

    def mantissas(*shape: int) -> Tensor:
        random = torch.randint(0, 1 << 23, shape, generator=generator, device="cuda", dtype=torch.int32)
        kind = torch.randint(0, 8, shape, generator=generator, device="cuda")
        return torch.where(kind == 0, 0x7FFFFF - random % 4, torch.where(kind == 1, random % 4, random))

    exponent = torch.arange(rows, device="cuda", dtype=torch.int32) % 254
    scale = ((exponent << 23) | mantissas(rows)).view(torch.float32)
    scale = torch.where(scale > 0, scale, 1.0)
    reach = torch.randint(-30, 31, (rows, BLOCK), generator=generator, device="cuda", dtype=torch.int32)
    field = (exponent[:, None] + reach).clamp(0, 254)
    sign = torch.randint(0, 2, (rows, BLOCK), generator=generator, device="cuda", dtype=torch.int32) << 31
    values = (sign | (field << 23) | mantissas(rows, BLOCK)).view(torch.float32)
    out = torch.full_like(values, float("nan"))
    launch_quotient(values, scale, out, bound)
    want = values / scale[:, None]
    if bound is not None:
        want = want.clamp(-bound, bound)
        fine = torch.where(want.abs() == bound, out.abs() >= bound, out == want)
    else:
        fine = out == want
    fine |= want.abs() < 2.0**-100  # far below half of any format's least value
    fine |= torch.isinf(want)
    wrong = (~fine).nonzero()
    first = None
    if len(wrong):
        r, c = wrong[0].tolist()
        first = {"value": values[r, c].item(), "scale": scale[r].item(), "got": out[r, c].item(), "want": want[r, c].item()}
    return {"tried": values.numel(), "wrong": len(wrong), "first": first}


def conversions(activation: str, offset: int) -> dict[str, Any]:
    """2**24 fp32 patterns, one in 256, under a static scale of 1."""
    case = Case(activation, 4096, 4096, "fp32", static=True)
    args = arguments(case, "cuda")
    pattern = torch.arange(1 << 24, device="cuda", dtype=torch.int64) * 256 + offset
    x = torch.where(pattern >= 1 << 31, pattern - (1 << 32), pattern).int().view(torch.float32).view(4096, 4096)
    args = args._replace(x=x, input_scale=torch.ones(1, device="cuda"))
    quantize(args)
    wrong = differences(args, expected(args, "cuda"))
    return {"tried": x.numel(), "wrong": wrong.get("values", 0) + wrong.get("scale", 0), "first": wrong.get("first")}


def powers_of_two(activation: str) -> dict[str, Any]:
    """Groups of every fp32 exponent, subnormals and those next to infinity among them."""
    case = Case(activation, 4096, 4096, "fp32")
    args = arguments(case, "cuda")
    generator = torch.Generator("cuda").manual_seed(2)
    group = case.spec.activation_group_size or 32
    top = torch.arange(4096 * 4096 // group, device="cuda", dtype=torch.int32) % 255
    below = torch.randint(0, 12, (len(top), group), generator=generator, device="cuda", dtype=torch.int32)
    field = (top[:, None] - below).clamp(min=0)
    mantissa = torch.randint(0, 1 << 23, field.shape, generator=generator, device="cuda", dtype=torch.int32)
    mantissa = torch.where(mantissa % 3 == 0, mantissa & 0x780000, mantissa)  # ties
    sign = torch.randint(0, 2, field.shape, generator=generator, device="cuda", dtype=torch.int32) << 31
    args = args._replace(x=(sign | (field << 23) | mantissa).view(torch.float32).view(4096, 4096))
    quantize(args)
    wrong = differences(args, expected(args, "cuda"))
    return {"tried": args.x.numel(), "wrong": wrong.get("values", 0) + wrong.get("scale", 0), "first": wrong.get("first")}
