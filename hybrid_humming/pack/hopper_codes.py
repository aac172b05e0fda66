"""The codes of the Hopper layout: uint8 [N, K] <-> planes of int32 words, eight codes at a time.

Eight codes along K, (t 0..3, e 0..1), are the bytes of one int64. A lane's word holds the same (t, e) of several such eights, e
in its low or high 16 bits, so the bits of a word are gathered in the same bytes that they come from: a shift and a mask move a
bit group of eight codes at once (`Move`), and each half word of four lanes is complete as the bytes of one int64. Only where a
recipe turns a word by 16 bits do the bytes of a pair trade places (`crossed`).

Works on some rows of blocks at a time, so that temporaries stay in a core's cache, and on a GPU within CHUNK times a few bytes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from hybrid_humming.dtypes import parse_format
from hybrid_humming.fragment import PLANES, recipe
from hybrid_humming.spec import PackLayout

BLOCK = 64  # rows and columns of a block
CHUNK, GPU_CHUNK = 1 << 22, 1 << 26  # codes at a time
LANES = (4, 8, 4)  # warp, g, t of a block's 128 lanes
ODD_BYTES = 0x00FF00FF00FF00FF

Tensor = torch.Tensor


class Move(NamedTuple):
    """Bits of the eights number `source` of a lane (s, h, r), and where they go.

    crossed  the codes e = 0, 1 trade places first
    half     which byte of each 16 bits of the word `word` of plane `plane`
    shift    to the left, inside each byte;  mask: the bits that move, after the shift
    """

    source: int
    crossed: bool
    plane: int
    word: int
    half: int
    shift: int
    mask: int


@functools.cache
def moves(encoding: str, operand: str) -> tuple[Move, ...]:
    """Return every move that packs the 32 codes of a lane; bits with a common shift move together."""
    recipe_, masks = recipe(encoding, operand), dict[tuple[int, bool, int, int, int, int], int]()
    for source, (s, h, r) in enumerate(itertools.product(range(4), (0, 1), (0, 1))):
        for e in (0, 1):
            for c, (plane, word, bit) in enumerate(recipe_.place(s, h, r, e)):
                side = bit // 16
                key = (source, side != e, plane, word, bit // 8 % 2, bit % 8 - c)
                masks[key] = masks.get(key, 0) | 1 << (8 * side + bit % 8)
    return tuple(Move(*key, mask=_signed(mask * 0x0001000100010001)) for key, mask in masks.items())


def empty_codes(layout: PackLayout, device: torch.device) -> Tensor:
    """Return [E?, rows, 128] int32 for `write_codes` to fill."""
    lead = (layout.experts,) if layout.experts else ()
    rows = plane_rows(layout.encoding, layout.padded_n, layout.padded_k)
    return torch.empty(*lead, sum(rows), 128, dtype=torch.int32, device=device)


def write_codes(out: Tensor, codes: Tensor, begin: int, layout: PackLayout, operand: str) -> None:
    """Write uint8 codes [n, K] of the rows from `begin` on, a multiple of BLOCK, or [e, N, K] of the experts from there."""
    targets, first = _matrices(out), begin // BLOCK
    targets, first = (targets[begin : begin + codes.shape[0]], 0) if codes.dim() == 3 else (targets, first)
    for one, target in zip(_matrices(codes), targets, strict=True):
        planes = [plane[first:] for plane in _planes(target, layout)]
        for start, end in _chunks(-(-one.shape[0] // BLOCK), layout, codes.device):
            part = one[start * BLOCK : end * BLOCK]
            padding = (0, layout.padded_k - layout.k, 0, (end - start) * BLOCK - part.shape[0])
            part = torch.nn.functional.pad(part, padding) if any(padding) else part.contiguous()
            part = part.clone() if part.storage_offset() % 8 else part
            _pack_rows(part, [plane[start:end] for plane in planes], moves(layout.encoding, operand))


def unpack_codes(qweight: Tensor, layout: PackLayout, operand: str) -> Tensor:
    """[E?, rows, 128] int32 -> [E?, N, K] uint8 codes."""
    out = torch.empty(*qweight.shape[:-2], layout.n, layout.k, dtype=torch.uint8, device=qweight.device)
    for one, codes in zip(_matrices(qweight.contiguous()), _matrices(out), strict=True):
        planes = _planes(one, layout)
        for begin, end in _chunks(layout.padded_n // BLOCK, layout, qweight.device):
            rows = _unpack_rows([plane[begin:end] for plane in planes], moves(layout.encoding, operand))
            target = codes[begin * BLOCK : end * BLOCK]
            target.copy_(rows[: target.shape[0], : layout.k])
    return out


def plane_rows(encoding: str, padded_n: int, padded_k: int) -> tuple[int, ...]:
    """Return the rows of 128 words that each plane of a weight takes."""
    blocks = padded_n // BLOCK * (padded_k // BLOCK)
    return tuple(blocks * p for p in PLANES[parse_format(encoding).bits])


def _pack_rows(codes: Tensor, planes: Sequence[Tensor], found: Sequence[Move]) -> None:
    """Padded uint8 codes [n, K] -> each plane's int32 [n / 64, K / 64, 4, 8, 4, p], written in place."""
    n, k = codes.shape
    #                    nb          w  r  g  kb          s  h
    eights = codes.view(torch.int64).view(n // BLOCK, 4, 2, 8, k // BLOCK, 4, 2).permute(5, 6, 2, 0, 1, 3, 4).contiguous()
    sources = eights.flatten(0, 2)  # [16, nb, w, g, kb]
    halves: dict[tuple[int, int, int], Tensor] = {}
    for move in found:
        source = _swapped(sources[move.source]) if move.crossed else sources[move.source]
        bits = _shifted(source, move.shift) & move.mask
        place = (move.plane, move.word, move.half)
        halves[place] = halves[place].bitwise_or_(bits) if place in halves else bits
    for plane, target in enumerate(planes):
        for word in range(target.shape[-1]):
            low, high = (halves[plane, word, half].view(torch.uint8).to(torch.int16) for half in (0, 1))
            words = low.bitwise_or_(high.bitwise_left_shift_(8)).view(torch.int32)  # [nb, w, g, kb t]
            target[..., word].copy_(words.unflatten(-1, (-1, 4)).permute(0, 3, 1, 2, 4))


def _unpack_rows(planes: Sequence[Tensor], found: Sequence[Move]) -> Tensor:
    """Each plane's int32 [nb, kb, 4, 8, 4, p] -> uint8 codes [64 nb, 64 kb]; the inverse of `_pack_rows`."""
    nb, kb = planes[0].shape[:2]
    halves: dict[tuple[int, int, int], Tensor] = {}
    for plane, stored in enumerate(planes):
        for word in range(stored.shape[-1]):
            words = stored[..., word].permute(0, 2, 3, 1, 4).contiguous().view(torch.int16)  # [nb, w, g, kb, (t, e)]
            for half in (0, 1):
                halves[plane, word, half] = (words >> (8 * half)).to(torch.uint8).view(torch.int64).squeeze(-1)
    eights = torch.zeros(16, nb, 4, 8, kb, dtype=torch.int64, device=planes[0].device)
    for move in found:
        bits = _shifted(halves[move.plane, move.word, move.half] & move.mask, -move.shift)
        # A right shift of a word with its top bit set copies that bit down; what came from the mask's own bits counts.
        bits &= _signed(_shift_mask(move.mask, -move.shift))
        eights[move.source] |= _swapped(bits) if move.crossed else bits
    rows = eights.unflatten(0, (4, 2, 2)).permute(3, 4, 2, 5, 6, 0, 1)  # nb w r g kb s h
    return rows.contiguous().view(torch.uint8).view(nb * BLOCK, kb * BLOCK)


def _planes(words: Tensor, layout: PackLayout) -> list[Tensor]:
    """[rows, 128] words of one matrix -> each plane's [nb, kb, 4, 8, 4, p]."""
    nb, kb = layout.padded_n // BLOCK, layout.padded_k // BLOCK
    widths = PLANES[parse_format(layout.encoding).bits]
    rows = plane_rows(layout.encoding, layout.padded_n, layout.padded_k)
    return [part.view(nb, kb, *LANES, p) for part, p in zip(words.split(rows), widths, strict=True)]


def _chunks(blocks: int, layout: PackLayout, device: torch.device) -> Iterator[tuple[int, int]]:
    step = max(1, (CHUNK if device.type == "cpu" else GPU_CHUNK) // (BLOCK * layout.padded_k))
    yield from ((begin, min(begin + step, blocks)) for begin in range(0, blocks, step))


def _matrices(tensor: Tensor) -> tuple[Tensor, ...]:
    """[R, C] -> itself; [E, R, C] -> each expert's [R, C]."""
    return tensor.unbind() if tensor.dim() == 3 else (tensor,)


def _swapped(eights: Tensor) -> Tensor:
    """The bytes of each pair in the other order."""
    return ((eights >> 8) & ODD_BYTES) | ((eights & ODD_BYTES) << 8)


def _shifted(words: Tensor, shift: int) -> Tensor:
    return words << shift if shift > 0 else words >> -shift if shift < 0 else words


def _shift_mask(mask: int, shift: int) -> int:
    mask &= 2**64 - 1
    return mask << shift if shift >= 0 else mask >> -shift


def _signed(mask: int) -> int:
    """The int64 with these 64 bits."""
    return mask - 2**64 if mask >= 2**63 else mask
