"""Codes out of packed words, in the orders that checkpoints use. Vectorised torch, any device.

stream   code i takes bits [i*b, i*b + b) of one little-endian bit stream; a code may straddle two words
lanes    32 // b codes a word, low bits first; the top bits of a word are unused where b does not divide 32
"""

from __future__ import annotations

from hybrid_humming.errors import ShapeError
from hybrid_humming.lazy import Tensor, torch


def stream_words(count: int, bits: int) -> int:
    """Number of int32 words that `count` codes take as one bit stream."""
    return -(-count * bits // 32)


def lane_words(count: int, bits: int) -> int:
    """Number of int32 words that `count` codes take in whole lanes."""
    return -(-count // (32 // bits))


def unpack_stream(words: Tensor, bits: int, count: int, dim: int = -1) -> Tensor:
    """Return uint8 codes [..., count] from int32 `words` [..., stream_words(count, bits)], both along `dim`."""
    words = _checked(words, stream_words(count, bits), f"{count} codes of {bits} bits as a stream", dim)
    codes = _from_bytes(words, bits) if 8 % bits == 0 else _from_straddling(words, bits)
    return codes[..., :count].movedim(-1, dim).contiguous()


def unpack_lanes(words: Tensor, bits: int, count: int, dim: int = -1, order: tuple[int, ...] | None = None) -> Tensor:
    """Return uint8 codes [..., count] from int32 `words` [..., lane_words(count, bits)], both along `dim`.

    order[i] is the lane that holds the i-th code of a word (AWQ: 0, 4, 1, 5, 2, 6, 3, 7); None: lane i.
    """
    words = _checked(words, lane_words(count, bits), f"{count} codes of {bits} bits in lanes", dim)
    lanes = 32 // bits
    codes = torch.empty(*words.shape, lanes, dtype=torch.uint8, device=words.device)
    for i, lane in enumerate(order or range(lanes)):
        codes[..., i] = (_right(words, lane * bits) & (2**bits - 1)).to(torch.uint8)
    return codes.flatten(-2)[..., :count].movedim(-1, dim).contiguous()


def unpack_nibbles(packed: Tensor, count: int) -> Tensor:
    """Return uint8 codes [..., count] from uint8 bytes [..., ceil(count / 2)], low nibble first."""
    if packed.dtype != torch.uint8 or packed.shape[-1] != -(-count // 2):
        raise ShapeError(
            f"packed nibbles are {packed.dtype} {list(packed.shape)}; {count} codes need uint8 [..., {-(-count // 2)}]"
        )
    return torch.stack([packed & 0xF, packed >> 4], dim=-1).flatten(-2)[..., :count].contiguous()


def _from_bytes(words: Tensor, bits: int) -> Tensor:
    """Return the codes of words whose codes never straddle a byte; words lie little endian, as safetensors stores them."""
    raw = _bytes(words)
    if bits == 8:
        return raw
    codes = torch.empty(*raw.shape, 8 // bits, dtype=torch.uint8, device=raw.device)
    for i in range(8 // bits):
        torch.bitwise_and(raw >> (i * bits), 2**bits - 1, out=codes[..., i])
    return codes.flatten(-2)


def _from_straddling(words: Tensor, bits: int) -> Tensor:
    """Return the codes of words whose codes straddle bytes: eight of them fill `bits` bytes exactly."""
    raw = _bytes(words)
    raw = torch.nn.functional.pad(raw, (0, -raw.shape[-1] % bits)).unflatten(-1, (-1, bits))
    wide = torch.int32 if bits == 3 else torch.int64
    eight = sum(raw[..., j].to(wide) << (8 * j) for j in range(1, bits)) + raw[..., 0]
    codes = torch.empty(*eight.shape, 8, dtype=torch.uint8, device=raw.device)
    for i in range(8):
        codes[..., i] = (eight >> (i * bits)) & (2**bits - 1)
    return codes.flatten(-2)


def _bytes(words: Tensor) -> Tensor:
    # A last dimension of one word counts as contiguous with any stride, but only stride 1 can be viewed as bytes.
    words = words.contiguous()
    words = words if words.stride(-1) == 1 else words.clone(memory_format=torch.contiguous_format)
    return words.view(torch.uint8)


def _right(words: Tensor, shift: int) -> Tensor:
    # int32 shifts keep the sign, so the copied sign bits are masked away.
    return words >> shift if shift == 0 else (words >> shift) & (2 ** (32 - shift) - 1)


def _checked(words: Tensor, want: int, what: str, dim: int) -> Tensor:
    if words.dtype != torch.int32:
        raise ShapeError(f"packed words are {words.dtype}; they must be int32")
    if words.shape[dim] != want:
        raise ShapeError(
            f"packed words are {list(words.shape)}: {what} take {want} words along dimension {dim}, not {words.shape[dim]}"
        )
    return words.movedim(dim, -1)
