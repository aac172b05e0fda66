"""Codes out of packed words, in the orders that checkpoints use. Vectorised torch, any device.

stream   code i takes bits [i*b, i*b + b) of one little-endian bit stream; a code may straddle two words
lanes    32 // b codes a word, low bits first; the top bits of a word are unused where b does not divide 32
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hybrid_humming.errors import ShapeError
from hybrid_humming.lazy import Tensor, torch

CHUNK, GPU_CHUNK = 1 << 22, 1 << 28  # codes unpacked at a time


def stream_words(count: int, bits: int) -> int:
    """Number of int32 words that `count` codes take as one bit stream."""
    return -(-count * bits // 32)


def stream_bytes(count: int, bits: int) -> int:
    """Number of bytes that `count` codes take as one bit stream."""
    return -(-count * bits // 8)


def lane_words(count: int, bits: int) -> int:
    """Number of int32 words that `count` codes take in whole lanes."""
    return -(-count // (32 // bits))


def unpack_stream(words: Tensor, bits: int, count: int, dim: int = -1) -> Tensor:
    """Return uint8 codes [..., count] from int32 `words` [..., stream_words(count, bits)], both along `dim`."""
    words = _checked(words, stream_words(count, bits), f"{count} codes of {bits} bits as a stream", dim)
    decode = _from_bytes if 8 % bits == 0 else _from_straddling
    codes = _by_rows(words, count, lambda part: decode(_bytes(part), bits))
    return codes.movedim(-1, dim).contiguous()


def unpack_lanes(words: Tensor, bits: int, count: int, dim: int = -1, order: tuple[int, ...] | None = None) -> Tensor:
    """Return uint8 codes [..., count] from int32 `words` [..., lane_words(count, bits)], both along `dim`.

    order[i] is the lane that holds the i-th code of a word (AWQ: 0, 4, 1, 5, 2, 6, 3, 7); None: lane i.
    """
    words = _checked(words, lane_words(count, bits), f"{count} codes of {bits} bits in lanes", dim)
    codes = torch.empty(*words.shape, 32 // bits, dtype=torch.uint8, device=words.device)
    for i, lane in enumerate(order or range(32 // bits)):
        codes[..., i] = _lane(words, lane, bits)
    return codes.flatten(-2)[..., :count].movedim(-1, dim).contiguous()


def unpack_columns(words: Tensor, bits: int, count: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Return uint8 codes [count, rows] from int32 `words` [rows, lane_words(count, bits)] with `order` as in `unpack_lanes`.

    The transposed weight, lane by lane: each lane of a column of words is a row of codes.
    """
    words = _checked(words, lane_words(count, bits), f"{count} codes of {bits} bits in lanes", -1)
    rows, lanes = words.shape[0], 32 // bits
    codes = torch.empty(words.shape[1], lanes, rows, dtype=torch.uint8, device=words.device)
    step = max(1, _chunk(words) // max(1, rows * lanes))
    for part, target in zip(words.split(step, 1), codes.split(step), strict=True):
        columns = part.T.contiguous()
        for i, lane in enumerate(order or range(lanes)):
            target[:, i] = _lane(columns, lane, bits)
    return codes.flatten(0, 1)[:count]


def unpack_nibbles(packed: Tensor, count: int) -> Tensor:
    """Return uint8 codes [..., count] from uint8 bytes [..., ceil(count / 2)], low nibble first."""
    if packed.dtype != torch.uint8 or packed.shape[-1] != -(-count // 2):
        raise ShapeError(
            f"packed nibbles are {packed.dtype} {list(packed.shape)}; {count} codes need uint8 [..., {-(-count // 2)}]"
        )
    return _by_rows(packed, count, lambda part: _from_bytes(part.contiguous(), 4))


def unpack_bytes(packed: Tensor, bits: int, count: int) -> Tensor:
    """Return uint8 codes [..., count] from bytes [..., stream_bytes(count, bits)] that are one bit stream a row."""
    if packed.dtype != torch.uint8 or packed.shape[-1] != stream_bytes(count, bits):
        raise ShapeError(
            f"packed codes are {packed.dtype} {list(packed.shape)}; {count} codes of {bits} bits need uint8 "
            f"[..., {stream_bytes(count, bits)}]"
        )
    decode = _from_bytes if 8 % bits == 0 else _from_straddling
    return _by_rows(packed, count, lambda part: decode(part.contiguous(), bits))


def pack_bytes(codes: Tensor, bits: int) -> Tensor:
    """Return the bytes [..., stream_bytes(K, bits)] of uint8 codes [..., K] as one bit stream a row; codes are below 2^bits."""
    if bits == 8:
        return codes
    return _by_rows(codes, stream_bytes(codes.shape[-1], bits), lambda part: _to_bytes(part, bits))


def _to_bytes(codes: Tensor, bits: int) -> Tensor:
    """Eight codes are the bytes of an int64, and their bits the low `bits` bytes of another."""
    padded = torch.nn.functional.pad(codes.contiguous(), (0, -codes.shape[-1] % 8))
    padded = padded.clone() if padded.storage_offset() % 8 else padded
    eights = padded.view(torch.int64)
    joined = eights & 0xFF
    for i in range(1, 8):
        joined |= ((eights >> (8 * i)) & 0xFF) << (bits * i)
    return joined.view(torch.uint8).unflatten(-1, (-1, 8))[..., :bits].flatten(-2)


def _by_rows(packed: Tensor, count: int, decode: Callable[[Tensor], Tensor]) -> Tensor:
    """`decode` of some rows at a time, cut to `count` codes: temporaries stay in a core's cache."""
    if packed.dim() < 2 or not packed.numel():
        return decode(packed)[..., :count].contiguous()
    codes = torch.empty(*packed.shape[:-1], count, dtype=torch.uint8, device=packed.device)
    for one, out in _matrices(packed, codes):
        step = max(1, _chunk(packed) // max(1, count))
        for part, target in zip(one.split(step), out.split(step), strict=True):
            target.copy_(decode(part)[..., :count])
    return codes


def _matrices(packed: Tensor, codes: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Matching [R, C] parts of two tensors of two or more dimensions."""
    if packed.dim() == 2:
        yield packed, codes
    else:
        for one, out in zip(packed, codes, strict=True):
            yield from _matrices(one, out)


def _chunk(tensor: Tensor) -> int:
    return CHUNK if tensor.device.type == "cpu" else GPU_CHUNK


def _from_bytes(raw: Tensor, bits: int) -> Tensor:
    """Return the codes of bytes that each hold 8 / bits whole codes, low bits first: the fields of a byte move apart by halves."""
    if bits == 8:
        return raw
    wide = raw.to({4: torch.int16, 2: torch.int32, 1: torch.int64}[bits])
    half = 4
    while half >= bits:
        # Fields of 2 * half bits lie 8 * (2 * half / bits) bits apart; the upper half of each moves to its own place.
        wide |= wide << (8 * half // bits - half)
        wide &= _mask(half, 8 * half // bits, wide.element_size() * 8)
        half //= 2
    return wide.view(torch.uint8)


def _from_straddling(raw: Tensor, bits: int) -> Tensor:
    """Return the codes of bytes that codes straddle: eight codes fill `bits` bytes exactly."""
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


def _lane(words: Tensor, lane: int, bits: int) -> Tensor:
    # int32 shifts keep the sign, so the copied sign bits are masked away.
    return ((words >> (lane * bits)) & (2**bits - 1)).to(torch.uint8)


def _mask(width: int, distance: int, length: int) -> int:
    """The signed integer of `length` bits with the low `width` of every `distance` bits set."""
    mask = sum((2**width - 1) << start for start in range(0, length, distance))
    return mask - 2**length if mask >> (length - 1) else mask


def _checked(words: Tensor, want: int, what: str, dim: int) -> Tensor:
    if words.dtype != torch.int32:
        raise ShapeError(f"packed words are {words.dtype}; they must be int32")
    if words.shape[dim] != want:
        raise ShapeError(
            f"packed words are {list(words.shape)}: {what} take {want} words along dimension {dim}, not {words.shape[dim]}"
        )
    return words.movedim(dim, -1)
