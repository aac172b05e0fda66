"""Hopper layout, version 1: planes of int32 words in the order of the MMA's register fragments, for 16-bit activations.

A block of 64 (N) x 64 (K) codes is split over 128 lanes (warp 0..3, lane 0..31), and a lane's 32 codes of b bits over planes
of power-of-two widths, widest first (hybrid_humming/fragment.py says which bit goes where, and why):

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

import functools
import itertools
from typing import Any

import torch

from hybrid_humming.dtypes import parse_format
from hybrid_humming.errors import LayoutError, ValueRangeError
from hybrid_humming.fragment import PLANES, recipe
from hybrid_humming.pack.hopper_scale import pack_scales, unpack_scales
from hybrid_humming.spec import PackLayout, Spec
from hybrid_humming.weight import CanonicalWeight, Facts, QWeight

VERSION = 1
BLOCK = 64  # rows and columns of a block
FASTER = {("int4", "fp16"): "e0m3", ("int2", "fp16"): "e0m1"}
"""(weight format, activation): the encoding that decodes in fewer instructions and lacks only the lowest code."""

Move = tuple[int, int, int, int, int]
"""(code index, plane, word, left shift, mask): the code's bits under the mask, shifted left, are bits of the word."""


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


def pack(weight: CanonicalWeight, layout: PackLayout) -> dict[str, Any]:
    """Return the packed tensors of `weight`; see the module's head."""
    spec = weight.spec
    codes = _translate(weight.codes, spec.weight, layout.encoding)
    return {
        "qweight": _pack_codes(codes, layout, _operand(spec)),
        "scale": pack_scales(weight.scale, spec, layout, weight.block_offset),
        "zero_point": None if weight.zero_point is None else pack_scales(weight.zero_point, spec, layout, weight.block_offset),
        "secondary_scale": weight.secondary_scale,
    }


def unpack(qweight: QWeight) -> CanonicalWeight:
    """Return the canonical weight that was packed."""
    spec, layout = qweight.spec, qweight.layout
    codes = _unpack_codes(qweight.qweight, layout, _operand(spec))
    zero, offset = qweight.zero_point, qweight.block_offset
    return CanonicalWeight(
        spec=spec,
        codes=_translate(codes, layout.encoding, spec.weight),
        scale=unpack_scales(qweight.scale, spec, layout, offset),
        zero_point=None if zero is None else unpack_scales(zero, spec, layout, offset),
        secondary_scale=qweight.secondary_scale,
        input_scale=qweight.input_scale,
        transform=qweight.transform,
        block_offset=offset,
    )


def plane_rows(encoding: str, padded_n: int, padded_k: int) -> tuple[int, ...]:
    """Return the rows of 128 words that each plane of a weight takes."""
    blocks = padded_n // BLOCK * (padded_k // BLOCK)
    return tuple(blocks * p for p in PLANES[parse_format(encoding).bits])


def _operand(spec: Spec) -> str:
    if spec.activation not in ("bf16", "fp16"):
        raise LayoutError(f"'{spec}': the hopper layout is for bf16 and fp16 activations; pack it with family='portable'")
    return spec.activation


def _translate(codes: torch.Tensor, source: str, target: str) -> torch.Tensor:
    """Codes of format `source` -> codes of the same values in `target`; raises ValueRangeError where a value is missing."""
    if source == target:
        return codes
    table = _table(source, target)
    found = torch.tensor(table, dtype=torch.int16, device=codes.device)[codes.long()]
    if bool((found < 0).any()):
        missing = parse_format(source).values[table.index(-1)]
        raise ValueRangeError(
            f"{source} codes can't be stored as {target}: the value {missing:g} occurs, which {target} lacks; "
            f"use a layout with encoding {source} (facts.lowest_code_unused must be true of these codes)"
        )
    return found.to(torch.uint8)


@functools.cache
def _table(source: str, target: str) -> list[int]:
    """Code of `target` for each code of `source`, -1 where `target` lacks the value; the lower code where it has it twice."""
    code = {float(v): c for c, v in reversed(list(enumerate(parse_format(target).values)))}
    return [code.get(float(v), -1) for v in parse_format(source).values]


@functools.cache
def _moves(encoding: str, operand: str) -> tuple[Move, ...]:
    """Every move that packs the 32 codes of a lane, index 8 s + 4 h + 2 r + e; bits with a common shift move together."""
    found, moves = recipe(encoding, operand), []
    for i, (s, h, r, e) in enumerate(itertools.product(range(4), (0, 1), (0, 1), (0, 1))):
        masks: dict[tuple[int, int, int], int] = {}
        for c, (plane, word, bit) in enumerate(found.place(s, h, r, e)):
            key = (plane, word, bit - c)
            masks[key] = masks.get(key, 0) | 1 << c
        moves += [(i, *key, mask) for key, mask in masks.items()]
    return tuple(moves)


def _pack_codes(codes: torch.Tensor, layout: PackLayout, operand: str) -> torch.Tensor:
    """[E?, N, K] uint8 codes -> [E?, rows, 128] int32."""
    lead = codes.shape[:-2]
    codes = torch.nn.functional.pad(codes, (0, layout.padded_k - layout.k, 0, layout.padded_n - layout.n))
    #                     nb                            w  r  g  kb                            s  h  t  e
    blocks = codes.reshape(-1, layout.padded_n // BLOCK, 4, 2, 8, layout.padded_k // BLOCK, 4, 2, 4, 2)
    lanes = blocks.permute(6, 7, 3, 9, 0, 1, 5, 2, 4, 8).int().flatten(0, 3)  # [32, E, nb, kb, w, g, t]
    planes = PLANES[parse_format(layout.encoding).bits]
    words = [torch.zeros(p, *lanes.shape[1:], dtype=torch.int32, device=codes.device) for p in planes]
    for i, plane, word, shift, mask in _moves(layout.encoding, operand):
        words[plane][word] |= _shifted(lanes[i] & mask, shift)
    flat = torch.cat([w.movedim(0, -1).reshape(lanes.shape[1], -1, 128) for w in words], dim=1)
    return flat.reshape(*lead, *flat.shape[1:])


def _unpack_codes(qweight: torch.Tensor, layout: PackLayout, operand: str) -> torch.Tensor:
    """[E?, rows, 128] int32 -> [E?, N, K] uint8 codes."""
    lead, (nb, kb) = qweight.shape[:-2], (layout.padded_n // BLOCK, layout.padded_k // BLOCK)
    rows = plane_rows(layout.encoding, layout.padded_n, layout.padded_k)
    planes = PLANES[parse_format(layout.encoding).bits]
    flat = qweight.reshape(-1, *qweight.shape[-2:]).split(rows, dim=1)
    words = [w.reshape(-1, nb, kb, 4, 8, 4, p).movedim(-1, 0).contiguous() for w, p in zip(flat, planes, strict=True)]
    lanes = torch.zeros(32, *words[0].shape[1:], dtype=torch.uint8, device=qweight.device)
    for i, plane, word, shift, mask in _moves(layout.encoding, operand):
        lanes[i] |= (_shifted(words[plane][word], -shift) & mask).to(torch.uint8)
    #                                    E  nb w  r  g  kb s  h  t  e
    codes = lanes.unflatten(0, (4, 2, 2, 2)).permute(4, 5, 7, 2, 8, 6, 0, 1, 9, 3)
    codes = codes.reshape(*lead, layout.padded_n, layout.padded_k)
    return codes[..., : layout.n, : layout.k].contiguous()


def _shifted(words: torch.Tensor, shift: int) -> torch.Tensor:
    return words << shift if shift >= 0 else words >> -shift
