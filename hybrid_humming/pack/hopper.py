"""Hopper layout, version 1: planes of int32 words in the order of the MMA's register fragments, for 16-bit activations.

A block of 64 (N) x 64 (K) codes is split over 128 lanes (warp 0..3, lane 0..31), and a lane's 32 codes of b bits over planes
of power-of-two widths, widest first (hybrid_humming/fragment/ says which bit goes where, and why; hopper_codes.py moves them):

    qweight   int32 [E?, rows, 128]   rows = padded_n / 64 * padded_k / 64 * b
              plane after plane; plane of width p: [padded_n / 64, padded_k / 64, warp 4, lane 32, p]
    scale, zero_point                 hybrid_humming/pack/hopper_scale.py
    secondary_scale                   as canonical

So a lane reads its words of a block with one vector load, a block of a plane is 512 p contiguous bytes, and every width
takes its own bits and no more. N and K are padded to multiples of 64 with the code 0; kernels mask what lies past N, and x
is 0 past K. The order of bits inside a word depends on the encoding and on the activation type (bf16 or fp16).

A symmetric integer whose lowest code does not occur may be stored as the zero-exponent float of its width (`FASTER`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hybrid_humming.errors import LayoutError, ValueRangeError
from hybrid_humming.fragment import recipe
from hybrid_humming.pack.hopper_codes import BLOCK, CHUNK, empty_codes, plane_rows, unpack_codes, write_codes
from hybrid_humming.pack.hopper_scale import pack_scales, packed_scale_shape, unpack_scales
from hybrid_humming.spec import PackLayout, Spec
from hybrid_humming.weight import CanonicalWeight, Facts, QWeight

__all__ = ["empty", "make_layout", "pack", "pack_beside", "plane_rows", "shapes", "unpack", "write"]

VERSION = 1
FASTER = {("int4", "fp16"): "e0m3", ("int2", "fp16"): "e0m1"}
"""(weight format, activation): the encoding that decodes in fewer instructions and lacks only the lowest code."""


def make_layout(spec: Spec, n: int, k: int, experts: int, facts: Facts) -> PackLayout:
    """Return the layout of a weight [n, k]; `facts.lowest_code_unused` allows an encoding of `FASTER`."""
    encoding = spec.weight
    if facts.lowest_code_unused:
        encoding = FASTER.get((spec.weight, spec.activation), encoding)
    recipe(encoding, _operand(spec))  # raises where the activation type can't hold the format
    return PackLayout(
        family="hopper",
        encoding=encoding,
        n=n,
        k=k,
        padded_n=-(-n // BLOCK) * BLOCK,
        padded_k=-(-k // BLOCK) * BLOCK,
        version=VERSION,
        experts=experts,
    )


def shapes(spec: Spec, layout: PackLayout, block_offset: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of one matrix's qweight and scale."""
    rows = sum(plane_rows(layout.encoding, layout.padded_n, layout.padded_k))
    return (rows, 128), packed_scale_shape(spec, layout, block_offset)


def pack(weight: CanonicalWeight, layout: PackLayout) -> dict[str, Any]:
    """Return the packed tensors of `weight`; see the module's head."""
    out = empty(layout, weight.codes.device)
    write(out, weight.codes, 0, weight.spec, layout)
    return {"qweight": out, **pack_beside(weight, layout)}


def empty(layout: PackLayout, device: torch.device) -> torch.Tensor:
    """Return qweight for `write` to fill."""
    return empty_codes(layout, device)


def write(out: torch.Tensor, codes: torch.Tensor, begin: int, spec: Spec, layout: PackLayout) -> None:
    """Pack codes [n, K] of the rows from `begin` on, a multiple of 64, or [e, N, K] of the experts from there, into qweight."""
    codes = codes if layout.encoding == spec.weight else _sign_magnitude(codes, spec)
    write_codes(out, codes, begin, layout, _operand(spec))


def pack_beside(weight: CanonicalWeight, layout: PackLayout) -> dict[str, Any]:
    """Return the packed tensors beside qweight; the codes are not looked at."""
    spec = weight.spec
    return {
        "scale": pack_scales(weight.scale, spec, layout, weight.block_offset),
        "zero_point": None if weight.zero_point is None else pack_scales(weight.zero_point, spec, layout, weight.block_offset),
        "secondary_scale": weight.secondary_scale,
    }


def unpack(qweight: QWeight) -> CanonicalWeight:
    """Return the canonical weight that was packed."""
    spec, layout = qweight.spec, qweight.layout
    codes = unpack_codes(qweight.qweight, layout, _operand(spec))
    zero, offset = qweight.zero_point, qweight.block_offset
    return CanonicalWeight(
        spec=spec,
        codes=codes if layout.encoding == spec.weight else _offset_binary(codes, spec),
        scale=unpack_scales(qweight.scale, spec, layout, offset),
        zero_point=None if zero is None else unpack_scales(zero, spec, layout, offset),
        secondary_scale=qweight.secondary_scale,
        input_scale=qweight.input_scale,
        transform=qweight.transform,
        block_offset=offset,
    )


def _operand(spec: Spec) -> str:
    if spec.activation not in ("bf16", "fp16"):
        raise LayoutError(f"'{spec}': the hopper layout is for bf16 and fp16 activations; pack it with family='portable'")
    return spec.activation


def _sign_magnitude(codes: torch.Tensor, spec: Spec) -> torch.Tensor:
    """Offset-binary codes of `spec.weight` (int2, int4) -> sign-magnitude codes of the same values; no code may be the lowest."""
    if codes.numel() and not int(codes.min()):
        middle = 2 ** (spec.bits - 1)
        raise ValueRangeError(
            f"{spec.weight} codes can't be stored as e0m{spec.bits - 1}: the value {-middle} occurs, which it lacks; "
            f"use a layout with encoding {spec.weight} (facts.lowest_code_unused must be true of these codes)"
        )

    def change(part: torch.Tensor) -> torch.Tensor:
        value = part.view(torch.int8) - 2 ** (spec.bits - 1)
        return (value.abs() | ((value < 0).to(torch.int8) << (spec.bits - 1))).view(torch.uint8)

    return _by_parts(codes, change)


def _offset_binary(codes: torch.Tensor, spec: Spec) -> torch.Tensor:
    """The inverse of `_sign_magnitude`."""
    middle = 2 ** (spec.bits - 1)

    def change(part: torch.Tensor) -> torch.Tensor:
        size = part & (middle - 1)
        return torch.where(part >= middle, middle - size, middle + size)

    return _by_parts(codes, change)


def _by_parts(codes: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """`change` of every code, a chunk at a time."""
    flat = codes.contiguous().flatten()
    found = torch.empty_like(flat)
    for part, target in zip(flat.split(CHUNK), found.split(CHUNK), strict=True):
        target.copy_(change(part))
    return found.view(codes.shape)
