"""Packed words decode as documented: against bits written one by one, and golden words by the exporters (docs/checkpoints.md)."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hybrid_humming.checkpoint import load_canonical
from hybrid_humming.checkpoint.bits import (
    lane_words,
    pack_bytes,
    stream_bytes,
    stream_words,
    unpack_bytes,
    unpack_columns,
    unpack_lanes,
    unpack_nibbles,
    unpack_stream,
)
from hybrid_humming.errors import ShapeError
from tests.checkpoint.build import GOLDEN, LAYER, golden

ROOT = Path(__file__).resolve().parents[2]
AWQ = (0, 4, 1, 5, 2, 6, 3, 7)


def as_stream(codes: np.ndarray, bits: int) -> torch.Tensor:
    """[R, n] codes -> int32 words of one little-endian bit stream a row, a bit at a time."""
    flat = (codes[..., None] >> np.arange(bits)) & 1
    flat = flat.reshape(codes.shape[0], -1)
    flat = np.pad(flat, ((0, 0), (0, -flat.shape[1] % 32)))
    return torch.from_numpy(np.packbits(flat.astype(np.uint8), axis=1, bitorder="little").view("<i4").copy())


def as_lanes(codes: np.ndarray, bits: int) -> torch.Tensor:
    """[R, n] codes -> int32 words of 32 // bits whole codes."""
    lanes = 32 // bits
    padded = np.pad(codes.astype(np.uint64), ((0, 0), (0, -codes.shape[1] % lanes))).reshape(codes.shape[0], -1, lanes)
    words = (padded << (np.arange(lanes, dtype=np.uint64) * np.uint64(bits))).sum(-1)
    return torch.from_numpy(words.astype(np.uint32).view(np.int32))


@settings(max_examples=60, deadline=None)
@given(bits=st.integers(1, 8), rows=st.integers(1, 5), count=st.integers(1, 131), seed=st.integers(0, 2**16))
@example(bits=1, rows=3, count=20, seed=0)
@example(bits=3, rows=2, count=7, seed=0)
def test_every_width_and_length_decodes(bits, rows, count, seed):
    codes = np.random.default_rng(seed).integers(0, 2**bits, (rows, count))
    want = torch.from_numpy(codes.astype(np.uint8))
    stream, lanes = as_stream(codes, bits), as_lanes(codes, bits)
    assert stream.shape[1] == stream_words(count, bits) and lanes.shape[1] == lane_words(count, bits)
    assert torch.equal(unpack_stream(stream, bits, count), want)
    assert torch.equal(unpack_stream(stream.T.contiguous(), bits, count, dim=0), want.T)
    assert torch.equal(unpack_stream(stream.T, bits, count, dim=0), want.T)
    assert torch.equal(unpack_lanes(lanes, bits, count), want)
    assert torch.equal(unpack_lanes(lanes.T.contiguous(), bits, count, dim=0), want.T)
    assert torch.equal(unpack_columns(lanes, bits, count), want.T)
    raw = stream.view(torch.uint8)[:, : stream_bytes(count, bits)]
    assert torch.equal(unpack_bytes(raw, bits, count), want)
    for codes_ in (want, want.T.contiguous().T, torch.cat([want[:1], want])[1:]):
        assert torch.equal(pack_bytes(codes_, bits), raw)


# The first word (or byte) of the values 0, 1, 2, ..., as written by the exporters; compressed-tensors adds 2^(b-1) to each
# signed value first, so its words hold the codes of -2^(b-1), -2^(b-1) + 1, ...
@pytest.mark.parametrize(
    "bits,word",
    [(2, 0xE4E4E4E4), (3, 0x88FAC688), (4, 0x76543210), (5, 0x8A418820), (6, 0x440C2040), (7, 0x40608080), (8, 0x03020100)],
)
def test_golden_words_of_a_bit_stream(bits, word):  # case 36
    following = np.arange(64) % 2**bits
    assert int(as_stream(following[None], bits)[0, 0]) & 0xFFFFFFFF == word
    first = torch.tensor([[word]], dtype=torch.int64).to(torch.int32)
    count = 32 // bits
    assert unpack_stream(first, bits, count)[0].tolist() == [i % 2**bits for i in range(count)]


@pytest.mark.parametrize("order,word", [(None, 0x76543210), (AWQ, 0x75316420)])
def test_golden_words_of_eight_nibbles(order, word):  # case 36
    assert unpack_lanes(torch.tensor([[word]], dtype=torch.int32), 4, 8, order=order)[0].tolist() == list(range(8))


def test_golden_byte_of_two_floats():  # case 36: [1.0, -6.0] in e2m1
    assert unpack_nibbles(torch.tensor([[0xF2]], dtype=torch.uint8), 2)[0].tolist() == [0x2, 0xF]


def test_a_wrong_number_of_words_is_named():
    with pytest.raises(
        ShapeError, match=r"words are \[2, 5\]: 64 codes of 3 bits as a stream take 6 words along dimension -1, not 5"
    ):
        unpack_stream(torch.zeros(2, 5, dtype=torch.int32), 3, 64)
    with pytest.raises(ShapeError, match="packed words are torch.int64; they must be int32"):
        unpack_stream(torch.zeros(2, 6, dtype=torch.int64), 3, 64)
    with pytest.raises(ShapeError, match=r"packed nibbles are torch.uint8 \[1, 3\]; 8 codes need uint8 \[..., 4\]"):
        unpack_nibbles(torch.zeros(1, 3, dtype=torch.uint8), 8)


def documented() -> list[tuple[str, int, int]]:
    """(order, bits, first word) of each row of the table in docs/checkpoints.md."""
    rows = re.findall(r"^\| ([a-z][^|]*) \| (\d) \| `0x([0-9a-f]+)` \|", (ROOT / "docs" / "checkpoints.md").read_text(), re.M)
    return [(order, int(bits), int(word, 16)) for order, bits, word in rows]


def test_the_documented_words_decode_as_documented():  # case 36
    rows = documented()
    assert len(rows) >= 11
    for order, bits, word in rows:
        count = min(32 // bits, 8 if bits == 4 else 32)
        if order.startswith("nibbles"):
            got, count = unpack_nibbles(torch.tensor([[word]], dtype=torch.uint8), 2), 2
        else:
            words = torch.tensor([[word]], dtype=torch.int64).to(torch.int32)
            lanes = tuple(int(lane) for lane in order.split()[1:]) if order.startswith("lanes") else None
            got = unpack_stream(words, bits, count) if order == "stream" else unpack_lanes(words, bits, count, order=lanes)
        assert got[0].tolist() == [i % 2**bits for i in range(count)], (order, bits, hex(word))


def test_every_documented_layout_of_a_golden_word_is_written_by_its_exporter():  # case 36
    """The documented order read back from the exporters' own files: packing the decoded codes gives the stored words."""
    for folder, part, dim, bits in (
        ("gptqmodel-w4-g16-sym-v2", "qweight", 0, 4),
        ("gptqmodel-w3-g16-asym-v2", "qweight", 0, 3),
        ("ct-pack-w5-group-sym", "weight_packed", 1, 5),
    ):
        stored = golden(folder)[1][f"{LAYER}.{part}"]
        codes = load_canonical(GOLDEN / folder)[LAYER].codes
        words = as_stream(codes.numpy().astype(np.int64), bits)
        assert torch.equal(words, stored if dim else stored.T)


@pytest.mark.parametrize("bits", [1, 3, 4])
def test_many_rows_are_unpacked_some_at_a_time(bits, monkeypatch):
    codes = np.random.default_rng(bits).integers(0, 2**bits, (50, 64))
    want = torch.from_numpy(codes.astype(np.uint8))
    monkeypatch.setattr("hybrid_humming.checkpoint.bits.CHUNK", 300)
    stream = as_stream(codes, bits)
    assert torch.equal(unpack_stream(stream, bits, 64), want)
    assert torch.equal(unpack_stream(stream.view(5, 10, -1), bits, 64), want.view(5, 10, 64))
    assert torch.equal(unpack_columns(as_lanes(codes, bits), bits, 64), want.T)
