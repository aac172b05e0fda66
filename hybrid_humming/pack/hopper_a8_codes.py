"""Codes of 7 bits and fewer in the hopper_a8 layout: uint8 [N, K] <-> planes of int32 words, four codes at a time.

Four codes along K, (e 0..3), are the bytes of one int32, and the bytes of one operand register. A bit keeps its byte on the way
into a word, so a shift and a mask move a bit of four codes at once (hybrid_humming/fragment/eight.py says which bit goes where).
Works on some rows of blocks at a time, so that temporaries stay small.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import torch

from hybrid_humming.dtypes import parse_format
from hybrid_humming.fragment import PLANES
from hybrid_humming.fragment.eight import FOLDED_SIGN, REGISTERS, byte_recipe, places
from hybrid_humming.pack.hopper_codes import CHUNK, GPU_CHUNK, plane_rows
from hybrid_humming.spec import PackLayout

BLOCK = 64
BYTES = 0x01010101

Tensor = torch.Tensor


class Move(NamedTuple):
    """Bits of a register's four codes, and where they go: shifted to the left, then under a mask, into a plane's word."""

    register: int
    plane: int
    word: int
    shift: int
    mask: int


@functools.cache
def moves(encoding: str, operand: str) -> tuple[Move, ...]:
    """Return every move that packs the 32 codes of a lane; bits with a common shift move together."""
    recipe, masks = byte_recipe(encoding, operand), dict[tuple[int, int, int, int], int]()
    for register in range(REGISTERS):
        for bit, (plane, word, position) in enumerate(places(recipe, register)):
            key = (register, plane, word, position - bit)
            masks[key] = masks.get(key, 0) | 1 << position
    return tuple(Move(*key, mask=mask) for key, mask in masks.items())


def empty_codes(layout: PackLayout, device: torch.device) -> Tensor:
    """Return [E?, rows, 128] int32 for `write_codes` to fill."""
    lead = (layout.experts,) if layout.experts else ()
    rows = plane_rows(layout.encoding, layout.padded_n, layout.padded_k)
    return torch.empty(*lead, sum(rows), 128, dtype=torch.int32, device=device)


def write_codes(out: Tensor, codes: Tensor, begin: int, layout: PackLayout, operand: str) -> None:
    """Write uint8 codes [n, K] of the rows from `begin` on, a multiple of BLOCK, or [e, N, K] of the experts from there."""
    stored = torch.tensor(byte_recipe(layout.encoding, operand).stored, dtype=torch.uint8, device=codes.device)
    targets, first = _matrices(out), begin // BLOCK
    targets, first = (targets[begin : begin + codes.shape[0]], 0) if codes.dim() == 3 else (targets, first)
    for one, words in zip(_matrices(codes), targets, strict=True):
        planes = [plane[first:] for plane in _planes(words, layout)]
        for start, end in _chunks(-(-one.shape[0] // BLOCK), layout, codes.device):
            part = stored[one[start * BLOCK : end * BLOCK].int()]
            padding = (0, layout.padded_k - layout.k, 0, (end - start) * BLOCK - part.shape[0])
            part = torch.nn.functional.pad(part, padding).contiguous()
            if layout.folded:
                _fold_rows(part, planes[0][start:end])
            else:
                _pack_rows(part, [plane[start:end] for plane in planes], moves(layout.encoding, operand))


def unpack_codes(qweight: Tensor, layout: PackLayout, operand: str) -> Tensor:
    """[E?, rows, 128] int32 -> [E?, N, K] uint8 codes."""
    out = torch.empty(*qweight.shape[:-2], layout.n, layout.k, dtype=torch.uint8, device=qweight.device)
    recipe = byte_recipe(layout.encoding, operand)
    canonical = torch.tensor(recipe.stored, device=qweight.device).argsort().to(torch.uint8)
    for one, codes in zip(_matrices(qweight.contiguous()), _matrices(out), strict=True):
        planes = _planes(one, layout)
        for begin, end in _chunks(layout.padded_n // BLOCK, layout, qweight.device):
            if layout.folded:
                rows = _unfold_rows(planes[0][begin:end])
            else:
                rows = _unpack_rows([plane[begin:end] for plane in planes], moves(layout.encoding, operand))
            target = codes[begin * BLOCK : end * BLOCK]
            target.copy_(canonical[rows[: target.shape[0], : layout.k].int()])
    return out


def _pack_rows(codes: Tensor, planes: list[Tensor], found: tuple[Move, ...]) -> None:
    """Padded uint8 codes [n, K] -> each plane's int32 [n / 64, K / 64, 4, 8, 4, p], written in place."""
    registers = _registers_of(codes)
    for plane in planes:
        plane.zero_()
    for move in found:
        bits = _shifted(registers[move.register], move.shift) & _signed(move.mask * BYTES)
        planes[move.plane][..., move.word] |= bits


def _unpack_rows(planes: list[Tensor], found: tuple[Move, ...]) -> Tensor:
    """The inverse of `_pack_rows`: uint8 [64 nb, 64 kb]."""
    nb, kb = planes[0].shape[:2]
    registers = torch.zeros(REGISTERS, nb, kb, 4, 8, 4, dtype=torch.int32, device=planes[0].device)
    for move in found:
        bits = planes[move.plane][..., move.word] & _signed(move.mask * BYTES)
        back = move.mask >> move.shift if move.shift >= 0 else move.mask << -move.shift
        registers[move.register] |= _shifted(bits, -move.shift) & _signed(back * BYTES)
    return _codes_of(registers)


def _registers_of(codes: Tensor) -> Tensor:
    """Padded uint8 codes [n, K] -> int32 [8, n / 64, K / 64, w, g, t], register 4 p + 2 h + r."""
    n, k = codes.shape
    #                   nb          w  r  g  kb          p  h  t
    fours = codes.view(torch.int32).view(n // BLOCK, 4, 2, 8, k // BLOCK, 2, 2, 4).permute(5, 6, 2, 0, 4, 1, 3, 7)
    return fours.flatten(0, 2).contiguous()


def _codes_of(registers: Tensor) -> Tensor:
    """The inverse of `_registers_of`."""
    nb, kb = registers.shape[1:3]
    rows = registers.unflatten(0, (2, 2, 2)).permute(3, 5, 2, 6, 4, 0, 1, 7)  # nb w r g kb p h t
    return rows.contiguous().view(nb * BLOCK, kb * BLOCK // 4).view(torch.uint8)


# ---- MXFP4 with folded exponents ----
def _fold_rows(codes: Tensor, plane: Tensor) -> None:
    """Padded e2m1 codes [n, K] -> int32 [n / 64, K / 64, 4, 8, 4, 4], word 2 p + r, written in place."""
    registers = _registers_of(codes)
    for p, r in ((0, 0), (0, 1), (1, 0), (1, 1)):
        word = torch.zeros_like(registers[0])
        for h in (0, 1):
            four = registers[4 * p + 2 * h + r]
            size = four & 0x07070707
            size = (size | size >> 4) & 0x00FF00FF
            size = (size | size >> 8) & 0xFFFF
            word |= (size << (16 * h)) | ((four & 0x08080808) << FOLDED_SIGN[h])
        plane[..., 2 * p + r] = word


def _unfold_rows(plane: Tensor) -> Tensor:
    """The inverse of `_fold_rows`: uint8 codes [64 nb, 64 kb]."""
    registers = torch.empty(REGISTERS, *plane.shape[:-1], dtype=torch.int32, device=plane.device)
    for p, r in ((0, 0), (0, 1), (1, 0), (1, 1)):
        word = plane[..., 2 * p + r]
        for h in (0, 1):
            size = (word >> (16 * h)) & 0x7777
            size = (size | size << 8) & 0x00FF00FF
            size = (size | size << 4) & 0x07070707
            registers[4 * p + 2 * h + r] = size | ((word >> FOLDED_SIGN[h]) & 0x08080808)
    return _codes_of(registers)


def _planes(words: Tensor, layout: PackLayout) -> list[Tensor]:
    """[rows, 128] words of one matrix -> each plane's [nb, kb, 4, 8, 4, p]."""
    nb, kb = layout.padded_n // BLOCK, layout.padded_k // BLOCK
    rows = plane_rows(layout.encoding, layout.padded_n, layout.padded_k)
    widths = PLANES[parse_format(layout.encoding).bits]
    return [part.view(nb, kb, 4, 8, 4, p) for part, p in zip(words.split(rows), widths, strict=True)]


def _chunks(blocks: int, layout: PackLayout, device: torch.device) -> Iterator[tuple[int, int]]:
    step = max(1, (CHUNK if device.type == "cpu" else GPU_CHUNK) // (BLOCK * layout.padded_k))
    yield from ((begin, min(begin + step, blocks)) for begin in range(0, blocks, step))


def _matrices(tensor: Tensor) -> tuple[Tensor, ...]:
    """[R, C] -> itself; [E, R, C] -> each expert's [R, C]."""
    return tensor.unbind() if tensor.dim() == 3 else (tensor,)


def _shifted(words: Tensor, shift: int) -> Tensor:
    return words << shift if shift > 0 else words >> -shift if shift < 0 else words


def _signed(mask: int) -> int:
    """The int32 with these 32 bits."""
    return mask - 2**32 if mask >= 2**31 else mask
