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

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from hybrid_humming.dtypes import parse_format
from hybrid_humming.spec import PackLayout, Spec
from hybrid_humming.weight import CanonicalWeight, Facts, QWeight, scale_shape

VERSION = 1
ROWS = 16  # k that share a shift: the smallest K of a tensor-core product
CHUNK, GPU_CHUNK = 1 << 18, 1 << 26  # codes packed at a time: 2 MB of temporaries stay in cache; few launches on a GPU
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


def shapes(spec: Spec, layout: PackLayout, block_offset: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of one matrix's qweight and scale."""
    rows, columns = scale_shape(spec, layout.n, layout.k, block_offset)
    return (sum(plane_rows(spec.bits, layout.k)), layout.n), (columns, rows)


def pack(weight: CanonicalWeight, layout: PackLayout) -> dict[str, Any]:
    """Return the packed tensors of `weight`; see the module's head."""
    out = empty(layout, weight.codes.device)
    write(out, weight.codes, 0, weight.spec, layout)
    return {"qweight": out, **pack_beside(weight, layout)}


def empty(layout: PackLayout, device: torch.device) -> torch.Tensor:
    """Return qweight for `write` to fill."""
    lead = (layout.experts,) if layout.experts else ()
    rows = sum(plane_rows(parse_format(layout.encoding).bits, layout.k))
    return torch.empty(*lead, rows, layout.n, dtype=torch.int32, device=device)


def write(out: torch.Tensor, codes: torch.Tensor, begin: int, spec: Spec, layout: PackLayout) -> None:
    """Pack codes [n, K] of the rows from `begin` on, or [e, N, K] of the experts from there, into qweight."""
    rows, targets = plane_rows(spec.bits, layout.k), _matrices(out)
    targets, first = (targets[begin : begin + codes.shape[0]], 0) if codes.dim() == 3 else (targets, begin)
    for one, words in zip(_matrices(codes), targets, strict=True):
        planes = words.split(rows)
        for start, end in _chunks(one.shape[0], layout.k, codes.device):
            _pack_rows(one[start:end], [plane[:, first + start : first + end] for plane in planes], spec.bits)


def pack_beside(weight: CanonicalWeight, layout: PackLayout) -> dict[str, Any]:
    """Return the packed tensors beside qweight; the codes are not looked at."""
    return {
        "scale": _flip(weight.scale),
        "zero_point": None if weight.zero_point is None else _flip(weight.zero_point),
        "secondary_scale": weight.secondary_scale,
    }


def unpack(qweight: QWeight) -> CanonicalWeight:
    """Return the canonical weight that was packed."""
    bits, n, k, words = qweight.spec.bits, qweight.n, qweight.k, qweight.qweight
    rows = plane_rows(bits, k)
    codes = torch.empty(*words.shape[:-2], n, k, dtype=torch.uint8, device=words.device)
    for one, out in zip(_matrices(words), _matrices(codes), strict=True):
        planes = one.split(rows)
        for begin, end in _chunks(n, k, words.device):
            out[begin:end] = _unpack_rows([plane[:, begin:end] for plane in planes], bits)[:, :k]
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


def _matrices(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """[R, C] -> itself; [E, R, C] -> each expert's [R, C]."""
    return tensor.unbind() if tensor.dim() == 3 else (tensor,)


def _chunks(n: int, k: int, device: torch.device) -> Iterator[tuple[int, int]]:
    """Ranges of rows whose codes stay in a core's cache; on a GPU, few enough launches."""
    step = max(1, (CHUNK if device.type == "cpu" else GPU_CHUNK) // k)
    yield from ((begin, min(begin + step, n)) for begin in range(0, n, step))


def _pack_rows(codes: torch.Tensor, planes: Sequence[torch.Tensor], bits: int) -> None:
    """[n, K] uint8 codes -> each plane's [rows, n] int32 words, written in place.

    Eight codes are masked and shifted at a time, as the bytes of an int64: 8 / p fields of width p fill a byte, and none
    crosses into the next.
    """
    n, k = codes.shape
    shift = 0
    for p, out in zip(PLANES[bits], planes, strict=True):
        blocks, fields, per_byte = out.shape[0] // ROWS, 32 // p, 8 // p
        padding = blocks * ROWS * fields - k
        whole = torch.nn.functional.pad(codes, (0, padding)) if padding else codes.contiguous()
        if whole.storage_offset() % 8:
            whole = whole.clone()
        eights = whole.view(torch.int64).view(n, blocks, fields, 2).permute(1, 2, 0, 3).contiguous()
        eights = (eights >> shift) & _in_each_byte(p) if bits != p else eights
        eights = eights.view(blocks, 4, per_byte, n, 2)
        filled = eights[:, :, 0].clone()
        for i in range(1, per_byte):
            filled |= eights[:, :, i] << (p * i)
        parts = filled.view(torch.uint8).view(blocks, 4, n, ROWS)
        words = parts[:, 0].int()
        for i in range(1, 4):
            words |= parts[:, i].int() << (8 * i)
        out.unflatten(0, (blocks, ROWS)).copy_(words.transpose(1, 2))
        shift += p


def _unpack_rows(planes: Sequence[torch.Tensor], bits: int) -> torch.Tensor:
    """Each plane's [rows, n] int32 words -> [n, padded K] uint8 codes; the inverse of `_pack_rows`."""
    n = planes[0].shape[1]
    length = max(plane.shape[0] * (32 // p) for p, plane in zip(PLANES[bits], planes, strict=True))
    codes = torch.zeros(n, length // 8, dtype=torch.int64, device=planes[0].device)
    shift = 0
    for p, plane in zip(PLANES[bits], planes, strict=True):
        blocks, fields, per_byte = plane.shape[0] // ROWS, 32 // p, 8 // p
        words = plane.unflatten(0, (blocks, ROWS)).transpose(1, 2).contiguous()  # [blocks, n, ROWS]
        parts = torch.stack([(words >> (8 * i)).to(torch.uint8) for i in range(4)], 1)
        eights = parts.view(torch.int64)  # [blocks, 4, n, 2]
        target = codes[:, : blocks * fields * 2].unflatten(1, (blocks, 4, per_byte, 2)).permute(1, 2, 3, 0, 4)
        for i in range(per_byte):
            target[:, :, i] |= ((eights >> (p * i)) & _in_each_byte(p)) << shift
        shift += p
    return codes.view(torch.uint8)


def _in_each_byte(p: int) -> int:
    """The int64 whose every byte has its low p bits set."""
    mask = (2**p - 1) * 0x0101010101010101
    return mask - 2**64 if mask >= 2**63 else mask
