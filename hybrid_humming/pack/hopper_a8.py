"""Hopper layout for 8-bit activations, version 1. 8-bit weights lie in tiles that TMA copies into shared memory as they are.

    qweight          int32 [E?, padded_n / 64 * padded_k / 128 * 64, 32]
                     the bytes of [padded_n / 64, padded_k / 128, 64, 128]: 8 KB of a tile of 64 rows and 128 k in one run
    scale            channel [1, padded_n], tensor [1, 1], group [ceil(K / 128), padded_n * 128 / G]  as hopper_scale.py
                     block   [ceil(K / 128), ceil(N / rows of a block)]  the canonical one, transposed
    secondary_scale  as canonical

e4m3 and e5m2 are stored as they are; int8, whose codes are offset binary, as two's complement. N and K are padded to multiples
of 64 and 128 with zero bytes, which are zeros.
"""

from __future__ import annotations

from typing import Any

import torch

from hybrid_humming.errors import LayoutError
from hybrid_humming.pack.hopper_scale import pack_scales, packed_scale_shape, unpack_scales
from hybrid_humming.spec import PackLayout, Spec
from hybrid_humming.weight import CanonicalWeight, Facts, QWeight, scale_shape

VERSION = 1
TILE = (64, 128)
SIGN = 0x80
Tensor = torch.Tensor


def make_layout(spec: Spec, n: int, k: int, experts: int, facts: Facts) -> PackLayout:
    """Return the layout of a weight [n, k]."""
    if spec.weight not in ("e4m3", "e5m2", "int8") or spec.activation not in ("e4m3", "e5m2", "int8"):
        raise LayoutError(
            f"'{spec}': the hopper_a8 layout holds e4m3, e5m2 and int8 weights beside 8-bit activations; "
            "pack it with family='portable'"
        )
    padded = (-(-size // step) * step for size, step in zip((n, k), TILE, strict=True))
    padded_n, padded_k = padded
    return PackLayout(
        family="hopper_a8", encoding=spec.weight, n=n, k=k, padded_n=padded_n, padded_k=padded_k, version=VERSION, experts=experts
    )


def shapes(spec: Spec, layout: PackLayout, block_offset: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of one matrix's qweight and scale."""
    words = (layout.padded_n * layout.padded_k // TILE[1], TILE[1] // 4)
    if spec.granularity == "block":
        rows, columns = scale_shape(spec, layout.n, layout.k, block_offset)
        return words, (columns, rows)
    return words, packed_scale_shape(spec, layout, block_offset)


def pack(weight: CanonicalWeight, layout: PackLayout) -> dict[str, Any]:
    """Return the packed tensors of `weight`; see the module's head."""
    spec = weight.spec
    if spec.block and any(offset % size for offset, size in zip(weight.block_offset, spec.block, strict=True)):
        raise LayoutError(
            f"the shard starts at {weight.block_offset} of blocks {spec.block}; the hopper_a8 layout needs it to start "
            "at a whole block: pack it with family='portable'"
        )
    return {
        "qweight": pack_bytes(weight.codes, layout),
        "scale": weight.scale.transpose(-2, -1).contiguous() if spec.block else pack_scales(weight.scale, spec, layout),
        "zero_point": None,
        "secondary_scale": weight.secondary_scale,
    }


def unpack(qweight: QWeight) -> CanonicalWeight:
    """Return the canonical weight that was packed."""
    spec, layout = qweight.spec, qweight.layout
    scale = qweight.scale.transpose(-2, -1).contiguous() if spec.block else unpack_scales(qweight.scale, spec, layout)
    return CanonicalWeight(
        spec=spec,
        codes=unpack_bytes(qweight.qweight, layout),
        scale=scale,
        zero_point=None,
        secondary_scale=qweight.secondary_scale,
        input_scale=qweight.input_scale,
        transform=qweight.transform,
        block_offset=qweight.block_offset,
    )


def pack_bytes(codes: Tensor, layout: PackLayout) -> Tensor:
    """[E?, N, K] uint8 codes -> [E?, tiles * 64, 32] int32."""
    if layout.encoding == "int8":
        codes = codes ^ SIGN
    codes = torch.nn.functional.pad(codes, (0, layout.padded_k - layout.k, 0, layout.padded_n - layout.n))
    tiled = codes.unflatten(-1, (-1, TILE[1])).unflatten(-3, (-1, TILE[0])).transpose(-3, -2)  # [.., nb, kb, 64, 128]
    return tiled.contiguous().view(torch.int32).flatten(-4, -2)


def unpack_bytes(qweight: Tensor, layout: PackLayout) -> Tensor:
    """The inverse of `pack_bytes`."""
    blocks = (layout.padded_n // TILE[0], layout.padded_k // TILE[1], TILE[0])
    tiled = qweight.contiguous().view(torch.uint8).unflatten(-2, blocks).transpose(-3, -2)  # [.., nb, 64, kb, 128]
    codes = tiled.flatten(-2).flatten(-3, -2)[..., : layout.n, : layout.k].contiguous()
    return codes ^ SIGN if layout.encoding == "int8" else codes
