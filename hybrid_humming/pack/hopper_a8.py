"""Hopper layout for 8-bit activations, version 1.

8-bit weights lie in tiles that TMA copies into shared memory as they are; narrower ones in the order of the MMA's register
fragments, each lane's bits where a few instructions make four e4m3 or int8 operands of a word.

    qweight          8 bits: int32 [E?, padded_n / 64 * padded_k / 128 * 64, 32]
                     the bytes of [padded_n / 64, padded_k / 128, 64, 128]: 8 KB of a tile of 64 rows and 128 k in one run
                     b < 8 bits: int32 [E?, padded_n / 64 * padded_k / 64 * b, 128], plane after plane; plane of width p:
                     [padded_n / 64, padded_k / 64, warp 4, lane 32, p] (hybrid_humming/fragment/eight.py, hopper_a8_codes.py)
    scale, zero_point  channel [1, padded_n], tensor [1, 1], group [ceil(K / 128), padded_n * 128 / G]  as hopper_scale.py
                     block of 8-bit weights [ceil(K / 128), ceil(N / rows of a block)]  the canonical one, transposed
                     folded [ceil(K / 128) + 1, padded_n * 4], e8m0: exponents of groups less the row's least, modulo 256, and
                     in the first padded_n places of the last row those least ones
    secondary_scale  as canonical

MXFP4 is folded where the exponents of each row, of groups that hold anything but zeros, lie within 12 binades: the kernel's
operands are then exact with the group's exponent in them (Facts.row_exponent_span). A group of zeros may have any exponent: 0 is 0.

8-bit floats are stored as they are; int8, whose codes are offset binary, as two's complement. N is padded to a multiple of 64, K of
8-bit weights to 128 and of others to 64, with zero bytes or the stored code 0; kernels mask what lies past N, and x is 0 past K.
"""

from __future__ import annotations

from typing import Any

import torch

from hybrid_humming.dtypes import parse_format
from hybrid_humming.errors import LayoutError, ValueRangeError
from hybrid_humming.fragment.eight import FOLDED_SPAN, byte_recipe
from hybrid_humming.pack.hopper_a8_codes import empty_codes, unpack_codes, write_codes
from hybrid_humming.pack.hopper_codes import plane_rows
from hybrid_humming.pack.hopper_scale import pack_scales, packed_scale_shape, unpack_scales
from hybrid_humming.spec import PackLayout, Spec
from hybrid_humming.weight import CanonicalWeight, Facts, QWeight, row_exponent_span, scale_shape, used_exponents

VERSION = 1
TILE = (64, 128)
WHOLE = ("e4m3", "e5m2", "int8")  # formats of 8-bit weights
ACTIVATIONS = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1", "int8", "int4", "e0m3")
SIGN = 0x80
Tensor = torch.Tensor


def make_layout(spec: Spec, n: int, k: int, experts: int, facts: Facts) -> PackLayout:
    """Return the layout of a weight [n, k]; raises LayoutError or FormatError where it can't be held."""
    if spec.activation not in ACTIVATIONS:
        raise LayoutError(f"'{spec}': the hopper_a8 layout is for 8-bit activations; pack it with family='portable'")
    if spec.bits == 8 and spec.weight not in WHOLE:
        raise LayoutError(f"'{spec}': 8-bit weights of the hopper_a8 layout are {', '.join(WHOLE)}; pack it with family='portable'")
    if spec.bits < 8:
        byte_recipe(spec.weight, operand_of(spec))
    folded = spec.weight == "e2m1" and facts.row_exponent_span is not None and facts.row_exponent_span <= FOLDED_SPAN
    folded = folded and (spec.group_size, spec.scale, spec.secondary) == (32, "e8m0", None)
    folded = folded and (spec.activation_group_size or 128) >= 128  # finer scales of x need a sum for each group anyway
    padded_n, padded_k = (-(-size // step) * step for size, step in ((n, TILE[0]), (k, TILE[1] if spec.bits == 8 else 64)))
    return PackLayout(
        family="hopper_a8",
        encoding=spec.weight,
        n=n,
        k=k,
        padded_n=padded_n,
        padded_k=padded_k,
        version=VERSION,
        experts=experts,
        folded=folded,
    )


def operand_of(spec: Spec) -> str:
    """Return the operand type that weights become beside the spec's activations."""
    return "int8" if spec.activation in ("int8", "int4", "e0m3") else "e4m3"


def shapes(spec: Spec, layout: PackLayout, block_offset: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of one matrix's qweight and scale."""
    words = (layout.padded_n * layout.padded_k // TILE[1], TILE[1] // 4)
    if spec.bits < 8:
        words = (sum(plane_rows(layout.encoding, layout.padded_n, layout.padded_k)), 128)
    elif spec.granularity == "block":
        rows, columns = scale_shape(spec, layout.n, layout.k, block_offset)
        return words, (columns, rows)
    steps, width = packed_scale_shape(spec, layout, block_offset)
    return words, (steps + layout.folded, width)


def pack(weight: CanonicalWeight, layout: PackLayout) -> dict[str, Any]:
    """Return the packed tensors of `weight`; see the module's head."""
    out = empty(layout, weight.codes.device)
    write(out, weight.codes, 0, weight.spec, layout)
    return {"qweight": out, **pack_beside(weight, layout)}


def empty(layout: PackLayout, device: torch.device) -> Tensor:
    """Return qweight for `write` to fill."""
    if parse_format(layout.encoding).bits < 8:
        return empty_codes(layout, device)
    lead = (layout.experts,) if layout.experts else ()
    return torch.empty(*lead, layout.padded_n * layout.padded_k // TILE[1], TILE[1] // 4, dtype=torch.int32, device=device)


def write(out: Tensor, codes: Tensor, begin: int, spec: Spec, layout: PackLayout) -> None:
    """Write codes [n, K] of the rows from `begin` on, a multiple of 64, or [e, N, K] of the experts from there, into qweight."""
    if spec.bits < 8:
        write_codes(out, codes, begin, layout, operand_of(spec))
        return
    if codes.dim() == 3:
        out[begin : begin + codes.shape[0]] = pack_bytes(codes, layout)
        return
    tile = layout.padded_k // TILE[1] * TILE[0]  # rows of qweight that 64 rows of codes take
    packed = pack_bytes(codes, layout)
    out[begin // TILE[0] * tile :][: packed.shape[0]] = packed


def pack_beside(weight: CanonicalWeight, layout: PackLayout) -> dict[str, Any]:
    """Return the packed tensors beside qweight; codes on the meta device count as used."""
    spec = weight.spec
    if spec.bits < 8:
        zero = weight.zero_point
        return {
            "scale": fold_scales(weight, layout) if layout.folded else pack_scales(weight.scale, spec, layout, weight.block_offset),
            "zero_point": None if zero is None else pack_scales(zero, spec, layout, weight.block_offset),
            "secondary_scale": weight.secondary_scale,
        }
    if spec.block and any(offset % size for offset, size in zip(weight.block_offset, spec.block, strict=True)):
        raise LayoutError(
            f"the shard starts at {weight.block_offset} of blocks {spec.block}; the hopper_a8 layout needs it to start "
            "at a whole block: pack it with family='portable'"
        )
    return {
        "scale": weight.scale.transpose(-2, -1).contiguous() if spec.block else pack_scales(weight.scale, spec, layout),
        "zero_point": None,
        "secondary_scale": weight.secondary_scale,
    }


def unpack(qweight: QWeight) -> CanonicalWeight:
    """Return the canonical weight that was packed."""
    spec, layout, zero, offset = qweight.spec, qweight.layout, qweight.zero_point, qweight.block_offset
    if spec.bits < 8:
        codes = unpack_codes(qweight.qweight, layout, operand_of(spec))
        scale = unfold_scales(qweight) if layout.folded else unpack_scales(qweight.scale, spec, layout, offset)
        zero = None if zero is None else unpack_scales(zero, spec, layout, offset)
    else:
        codes = unpack_bytes(qweight.qweight, layout)
        scale = qweight.scale.transpose(-2, -1).contiguous() if spec.block else unpack_scales(qweight.scale, spec, layout)
    return CanonicalWeight(
        spec=spec,
        codes=codes,
        scale=scale,
        zero_point=zero,
        secondary_scale=qweight.secondary_scale,
        input_scale=qweight.input_scale,
        transform=qweight.transform,
        block_offset=offset,
    )


def fold_scales(weight: CanonicalWeight, layout: PackLayout) -> Tensor:
    """Return the folded layout's scales; raises ValueRangeError where a row's exponents lie too far apart."""
    codes, used = used_exponents(weight)
    least = torch.where(used, codes, 255).amin(-1, keepdim=True)
    least = torch.where(used.any(-1, keepdim=True), least, 127)
    span = row_exponent_span(weight)
    if span is None or span > FOLDED_SPAN:
        raise ValueRangeError(
            f"the exponents of a row of '{weight.spec}' {'hold NaN' if span is None else f'span {span} binades'}; folded into e4m3 "
            f"they may span {FOLDED_SPAN}: choose the layout by the weight's own facts (scan), or without any"
        )
    packed = pack_scales((codes - least).view(weight.scale.dtype), weight.spec, layout).view(torch.uint8)
    last = torch.zeros_like(packed[..., :1, :])
    last[..., 0, : layout.n] = least[..., 0]
    return torch.cat([packed, last], -2).view(weight.scale.dtype)


def unfold_scales(qweight: QWeight) -> Tensor:
    """The inverse of `fold_scales`: [E?, N, K/G] canonical scales."""
    raw, layout = qweight.scale.view(torch.uint8), qweight.layout
    above = unpack_scales(raw[..., :-1, :].contiguous(), qweight.spec, layout)
    return (above + raw[..., -1, : layout.n, None]).view(qweight.scale.dtype)


def pack_bytes(codes: Tensor, layout: PackLayout) -> Tensor:
    """[E?, N, K] uint8 codes, of all rows or some -> [E?, tiles * 64, 32] int32."""
    if layout.encoding == "int8":
        codes = codes ^ SIGN
    codes = torch.nn.functional.pad(codes, (0, layout.padded_k - layout.k, 0, -codes.shape[-2] % TILE[0]))
    tiled = codes.unflatten(-1, (-1, TILE[1])).unflatten(-3, (-1, TILE[0])).transpose(-3, -2)  # [.., nb, kb, 64, 128]
    return tiled.contiguous().view(torch.int32).flatten(-4, -2)


def unpack_bytes(qweight: Tensor, layout: PackLayout) -> Tensor:
    """The inverse of `pack_bytes`."""
    blocks = (layout.padded_n // TILE[0], layout.padded_k // TILE[1], TILE[0])
    tiled = qweight.contiguous().view(torch.uint8).unflatten(-2, blocks).transpose(-3, -2)  # [.., nb, 64, kb, 128]
    codes = tiled.flatten(-2).flatten(-3, -2)[..., : layout.n, : layout.k].contiguous()
    return codes ^ SIGN if layout.encoding == "int8" else codes
