"""Portable layout, version 1: dense bit planes of int32 words along K, columns of N contiguous.

A b-bit code is split into planes whose widths p divide 32; the first, widest plane holds the low bits:

    1: (1)   2: (2)   3: (2, 1)   4: (4)   5: (4, 1)   6: (4, 2)   7: (4, 2, 1)   8: (8)

With s = k // 16, r = k % 16 and f = 32 / p codes a word, plane p is

    word[(s // f) * 16 + r, n]  bits [p * (s % f), p)  =  the plane's bits of code[n, k]

so 16 consecutive k of a column share one shift, and the words of 16 rows load coalesced along N. The planes are stacked:

    qweight          [E?, rows, N]  int32, rows = sum over planes of 16 * ceil(K / (16 f))
    scale            [E?, C, R]     the canonical scale transposed
    zero_point       [E?, C, R]     likewise
    secondary_scale                 as canonical

Codes past K are 0 and are masked by every reader. No width is rounded up, so 3-bit weights take 3 bits.
"""

from __future__ import annotations

from typing import Any

import torch

from hybrid_humming.spec import PackLayout, Spec
from hybrid_humming.weight import CanonicalWeight, Facts, QWeight

VERSION = 1
ROWS = 16  # k that share a shift: the smallest K of a tensor-core product
PLANES = {1: (1,), 2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 7: (4, 2, 1), 8: (8,)}


def make_layout(spec: Spec, n: int, k: int, experts: int, facts: Facts) -> PackLayout:
    """Return the layout of a weight [n, k]; K is padded to whole words of the narrowest plane. The facts change nothing here."""
    block = ROWS * 32 // min(PLANES[spec.bits])
    return PackLayout(
        family="portable",
        encoding=spec.weight,
        n=n,
        k=k,
        padded_n=n,
        padded_k=-(-k // block) * block,
        version=VERSION,
        experts=experts,
    )


def plane_rows(bits: int, k: int) -> tuple[int, ...]:
    """Return the number of word rows of each plane of a `bits`-wide weight with reduction size k."""
    return tuple(ROWS * -(-k // (ROWS * 32 // p)) for p in PLANES[bits])


def pack(weight: CanonicalWeight, layout: PackLayout) -> dict[str, Any]:
    """Return the packed tensors of `weight`; see the module's head."""
    codes, shift, planes = weight.codes, 0, []
    for p in PLANES[weight.spec.bits]:
        planes.append(_pack_plane((codes >> shift) & (2**p - 1), p))
        shift += p
    return {
        "qweight": torch.cat(planes, dim=-2),
        "scale": _flip(weight.scale),
        "zero_point": None if weight.zero_point is None else _flip(weight.zero_point),
        "secondary_scale": weight.secondary_scale,
    }


def unpack(qweight: QWeight) -> CanonicalWeight:
    """Return the canonical weight that was packed."""
    bits, k = qweight.spec.bits, qweight.k
    codes, shift = None, 0
    rows = plane_rows(bits, k)
    for p, words in zip(PLANES[bits], qweight.qweight.split(rows, dim=-2), strict=True):
        plane = _unpack_plane(words, p, k) << shift
        codes = plane if codes is None else codes | plane
        shift += p
    assert codes is not None
    return CanonicalWeight(
        spec=qweight.spec,
        codes=codes,
        scale=_flip(qweight.scale),
        zero_point=None if qweight.zero_point is None else _flip(qweight.zero_point),
        secondary_scale=qweight.secondary_scale,
        input_scale=qweight.input_scale,
        transform=qweight.transform,
        block_offset=qweight.block_offset,
    )


def _flip(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.transpose(-1, -2).contiguous()


def _pack_plane(codes: torch.Tensor, p: int) -> torch.Tensor:
    """[..., N, K] uint8 codes below 2**p -> [..., rows, N] int32 words."""
    *lead, n, k = codes.shape
    f = 32 // p
    blocks = -(-k // (ROWS * f))
    codes = torch.nn.functional.pad(codes, (0, blocks * ROWS * f - k))
    fields = codes.view(*lead, n, blocks, f, ROWS)
    words = torch.zeros(*lead, n, blocks, ROWS, dtype=torch.int32, device=codes.device)
    for j in range(f):
        words |= fields[..., j, :].int() << (p * j)
    return words.view(*lead, n, blocks * ROWS).transpose(-1, -2).contiguous()


def _unpack_plane(words: torch.Tensor, p: int, k: int) -> torch.Tensor:
    """[..., rows, N] int32 words -> [..., N, K] uint8 codes."""
    *lead, rows, n = words.shape
    f = 32 // p
    words = words.transpose(-1, -2).reshape(*lead, n, rows // ROWS, 1, ROWS)
    shifts = torch.arange(0, 32, p, dtype=torch.int32, device=words.device).view(f, 1)
    codes = ((words >> shifts) & (2**p - 1)).to(torch.uint8)
    return codes.reshape(*lead, n, rows * f)[..., :k].contiguous()
