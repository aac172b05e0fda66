"""UMMA layout, version 1: the operands of Blackwell's tensor memory as TMA loads them.

    qweight   int32 [N, padded_k b / 32]   each row one stream of b-bit codes, lowest bits first (b = 4, 6 or 8)
    scale     kinds with block scales: [ceil(N / 128), C, 32, 16] in tiles of 128 rows x 4 scales, C = padded_k / block / 4:
                  scale[n, g] at tile (n // 128, g // 4), row n % 32, byte n % 128 // 32 * 4 + g % 4
              kind f8f6f4: [R, 1] as canonical
    secondary_scale   as canonical

A tile is 512 bytes, in the order in which `tcgen05.cp` spreads it over tensor memory. K is padded to whole steps of the kernel
(128 bytes of shared memory) with code and scale 0; rows past N exist in scale tiles alone. Encodings: hybrid_humming/kinds.py.
"""

from __future__ import annotations

from typing import Any

import torch

from hybrid_humming.dtypes import parse_format
from hybrid_humming.errors import LayoutError, ValueRangeError
from hybrid_humming.kinds import encoding_of, scale_block, umma_kind
from hybrid_humming.spec import PackLayout, Spec
from hybrid_humming.weight import CanonicalWeight, Facts, QWeight, scale_shape

VERSION = 1
ROWS, COLUMNS = 128, 4  # of a tile of scales
Tensor = torch.Tensor


def make_layout(spec: Spec, n: int, k: int, experts: int, facts: Facts) -> PackLayout:
    """Return the layout of a weight [n, k]; raises LayoutError for a spec that no kind multiplies."""
    encoding = encoding_of(spec, facts.lowest_code_unused)
    kind, reason = umma_kind(spec, encoding)
    if reason:
        raise LayoutError(f"the umma layout {reason}")
    step = 256 if kind in ("mxf4", "nvf4") else 128
    return PackLayout(
        family="umma", encoding=encoding, n=n, k=k, padded_n=n, padded_k=-(-k // step) * step, version=VERSION, experts=experts
    )


def shapes(spec: Spec, layout: PackLayout, block_offset: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of one matrix's qweight and scale."""
    words = (layout.n, layout.padded_k * spec.bits // 32)
    block = scale_block(umma_kind(spec, layout.encoding)[0])
    if not block:
        return words, scale_shape(spec, layout.n, layout.k, block_offset)
    return words, (-(-layout.n // ROWS), layout.padded_k // block // COLUMNS, 32, 16)


def pack(weight: CanonicalWeight, layout: PackLayout) -> dict[str, Any]:
    """Return the packed tensors of `weight`; see the module's head."""
    out = empty(layout, weight.codes.device)
    write(out, weight.codes, 0, weight.spec, layout)
    return {"qweight": out, **pack_beside(weight, layout)}


def empty(layout: PackLayout, device: torch.device) -> Tensor:
    """Return qweight for `write` to fill."""
    lead = (layout.experts,) if layout.experts else ()
    words = layout.padded_k * parse_format(layout.encoding).bits // 32
    return torch.empty(*lead, layout.n, words, dtype=torch.int32, device=device)


def write(out: Tensor, codes: Tensor, begin: int, spec: Spec, layout: PackLayout) -> None:
    """Pack codes [n, K] of the rows from `begin` on, or [e, N, K] of the experts from there, into qweight."""
    stored = codes if layout.encoding == spec.weight else _sign_magnitude(codes, spec)
    padded = torch.nn.functional.pad(stored, (0, layout.padded_k - layout.k))
    out[begin : begin + codes.shape[0]] = pack_codes(padded, spec.bits)


def pack_beside(weight: CanonicalWeight, layout: PackLayout) -> dict[str, Any]:
    """Return the packed tensors beside qweight; the codes are not looked at."""
    block = scale_block(umma_kind(weight.spec, layout.encoding)[0])
    return {
        "scale": tile_scales(weight.scale, layout.padded_k // block) if block else weight.scale,
        "zero_point": None,
        "secondary_scale": weight.secondary_scale,
    }


def unpack(qweight: QWeight) -> CanonicalWeight:
    """Return the canonical weight that was packed."""
    spec, layout = qweight.spec, qweight.layout
    codes = unpack_codes(qweight.qweight, spec.bits)[..., : layout.k].contiguous()
    if layout.encoding != spec.weight:
        codes = _offset_binary(codes, spec)
    block = scale_block(umma_kind(spec, layout.encoding)[0])
    scale = qweight.scale
    return CanonicalWeight(
        spec=spec,
        codes=codes,
        scale=untile_scales(scale, layout.n, -(-layout.k // block)) if block else scale,
        secondary_scale=qweight.secondary_scale,
        input_scale=qweight.input_scale,
        transform=qweight.transform,
        block_offset=qweight.block_offset,
    )


def pack_codes(codes: Tensor, bits: int) -> Tensor:
    """[..., K] uint8 codes -> [..., K bits / 32] int32, one stream a row, lowest bits first. K is a multiple of 16."""
    if bits == 8:
        data = codes.contiguous()
    elif bits == 4:
        data = codes[..., 0::2] | codes[..., 1::2] << 4
    else:  # six: four codes to three bytes
        a, b, c, d = codes.unflatten(-1, (-1, 4)).unbind(-1)
        data = torch.stack([a | b << 6, b >> 2 | c << 4, c >> 4 | d << 2], -1).flatten(-2)
    return data.contiguous().view(torch.int32)


def unpack_codes(words: Tensor, bits: int) -> Tensor:
    """The inverse of `pack_codes`."""
    data = words.contiguous().view(torch.uint8)
    if bits == 8:
        return data
    if bits == 4:
        return torch.stack([data & 15, data >> 4], -1).flatten(-2)
    a, b, c = data.unflatten(-1, (-1, 3)).unbind(-1)
    return torch.stack([a & 63, (a >> 6 | b << 2) & 63, (b >> 4 | c << 4) & 63, c >> 2], -1).flatten(-2)


def tile_scales(scale: Tensor, columns: int) -> Tensor:
    """[..., N, C] one-byte scales -> [..., ceil(N / 128), columns / 4, 32, 16] tiles, zeros where there is no scale."""
    n, have = scale.shape[-2:]
    rows = -(-n // ROWS) * ROWS
    data = torch.nn.functional.pad(scale.view(torch.uint8), (0, columns - have, 0, rows - n))
    tiles = data.unflatten(-1, (-1, COLUMNS)).unflatten(-3, (-1, 4, 32))  # [..., N / 128, 4, 32, C / 4, 4]
    return tiles.movedim(-2, -4).transpose(-3, -2).flatten(-2).contiguous().view(scale.dtype)


def untile_scales(tiles: Tensor, n: int, columns: int) -> Tensor:
    """The inverse of `tile_scales`: [..., n, columns]."""
    data = tiles.view(torch.uint8).unflatten(-1, (4, COLUMNS)).transpose(-3, -2)  # [..., N / 128, C / 4, 4, 32, 4]
    rows = data.movedim(-4, -2).flatten(-2).flatten(-4, -2)
    return rows[..., :n, :columns].contiguous().view(tiles.dtype)


def _sign_magnitude(codes: Tensor, spec: Spec) -> Tensor:
    """Offset-binary codes -> sign and magnitude; raises ValueRangeError for the lowest code, which has none."""
    zero = 2 ** (spec.bits - 1)
    if codes.numel() and int(codes.min()) == 0:
        raise ValueRangeError(f"a code of {spec.weight} is its lowest, {-zero}, which the zero-exponent float of its width lacks")
    value = codes.to(torch.int16) - zero
    return torch.where(value < 0, zero - value, value).to(torch.uint8)


def _offset_binary(codes: Tensor, spec: Spec) -> Tensor:
    zero = 2 ** (spec.bits - 1)
    wide = codes.to(torch.int16)
    return torch.where(wide >= zero, 2 * zero - wide, zero + wide).to(torch.uint8)
