"""The PTX of every 8-bit decoder, run on all codes of its format at every place of a lane, gives the format's values exactly."""

import itertools

import ml_dtypes
import numpy as np
import pytest
import torch

from hybrid_humming.dtypes import format_names, parse_format
from hybrid_humming.errors import FormatError
from hybrid_humming.fragment import PLANES
from hybrid_humming.fragment.eight import byte_recipe, places
from hybrid_humming.pack.hopper_a8_codes import empty_codes, write_codes
from hybrid_humming.spec import PackLayout
from hybrid_humming.triton_kernels.hopper.a8.decoder import byte_decoder
from tests.ptx.evaluator import run

OPERANDS = {"e4m3": ml_dtypes.float8_e4m3fn, "int8": np.int8}
REGISTERS = list(itertools.product((0, 1), (0, 1), (0, 1)))  # p, h, r


def known(name: str, operand: str) -> bool:
    try:
        byte_recipe(name, operand)
    except FormatError:
        return False
    return True


CASES = [(name, operand) for name in format_names() for operand in OPERANDS if known(name, operand)]


def lanes_of(bits: int) -> np.ndarray:
    """[lanes, 8, 4] codes: every code at every place of a lane, and its neighbours all different from it."""
    start = np.arange(2**bits)[:, None]
    return ((start + np.arange(32)[None, :] * 37) % 2**bits).reshape(-1, 8, 4)


def pack_lane(encoding: str, operand: str, codes: np.ndarray) -> dict[tuple[int, int], np.ndarray]:
    """(plane, word) -> uint32 of each lane, bit by bit from `places`."""
    recipe = byte_recipe(encoding, operand)
    stored = np.array(recipe.stored)[codes]
    words = {(i, w): np.zeros(len(codes), np.uint32) for i, p in enumerate(recipe.planes) for w in range(p)}
    for register in range(8):
        for bit, (plane, word, position) in enumerate(places(recipe, register)):
            for e in range(4):
                words[plane, word] |= ((stored[:, register, e] >> bit & 1) << (8 * e + position)).astype(np.uint32)
    return words


def decode_lane(encoding: str, operand: str, codes: np.ndarray, zeros=()) -> np.ndarray:
    """[lanes, 8, 4] decoded values, times the unit, by running the PTX."""
    made, words = byte_decoder(encoding, operand), pack_lane(encoding, operand, codes)
    inputs = [words[i, w * p // 4] for i, p in enumerate(made.planes) for w in range(4)]
    inputs += [np.asarray(z, np.uint32) for z in zeros for _ in range(4)]
    assert made.constraints.count(",") + 1 == 8 + len(inputs)
    registers = run(made.asm[0], inputs, outputs=8)
    found = np.stack([r.view(np.uint8).reshape(-1, 4) for r in registers], 1).view(OPERANDS[operand])
    return found.astype(np.float64) * made.unit


@pytest.mark.parametrize("name, operand", [case for case in CASES if parse_format(case[0]).kind != "uint"])
def test_every_code_decodes_to_its_value(name, operand):
    fmt = parse_format(name)
    codes = lanes_of(fmt.bits)
    assert np.array_equal(decode_lane(name, operand, codes), fmt.values[codes])


@pytest.mark.parametrize("name, operand", [case for case in CASES if parse_format(case[0]).kind == "uint"])
def test_zero_points_are_subtracted_exactly(name, operand):
    fmt = parse_format(name)
    codes = lanes_of(fmt.bits)
    values = np.arange(2**fmt.bits)
    for first in values:
        zeros = [(first + i) % 2**fmt.bits for i in range(4)]  # (p, r) = (0, 0), (0, 1), (1, 0), (1, 1)
        found = decode_lane(name, operand, codes, [np.full(len(codes), z * 0x01010101) for z in zeros])
        for index, (p, _h, r) in enumerate(REGISTERS):
            assert np.array_equal(found[:, index], codes[:, index] - zeros[2 * p + r])


@pytest.mark.parametrize(
    "name, operand", [("int4", "e4m3"), ("int4", "int8"), ("e2m1", "e4m3"), ("int3", "int8"), ("int1", "e4m3")]
)
def test_a_block_lies_where_the_lanes_of_the_product_read_it(name, operand):
    """Codes of a block, packed as the layout packs them and decoded lane by lane, come out at wgmma's places."""
    fmt, n, k = parse_format(name), 128, 192
    codes = torch.randint(0, 2**fmt.bits, (n, k), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    layout = PackLayout(family="hopper_a8", encoding=name, n=n, k=k, padded_n=n, padded_k=k)
    packed = empty_codes(layout, codes.device)
    write_codes(packed, codes, 0, layout, operand)
    made, at, words = byte_decoder(name, operand), 0, []
    for p in PLANES[fmt.bits]:
        rows = n // 64 * (k // 64) * p
        plane = packed[at : at + rows].reshape(n // 64, k // 64, 128, p).numpy().view(np.uint32)
        words += [plane[..., w * p // 4].reshape(-1) for w in range(4)]
        at += rows
    registers = run(made.asm[1], words, outputs=8)
    found = np.stack([r.view(np.uint8).reshape(n // 64, k // 64, 4, 8, 4, 4) for r in registers], 2)
    values = found.view(OPERANDS[operand]).astype(np.float64) * made.unit  # nb kb j w g t e
    for index, (p, h, r) in enumerate(REGISTERS):
        part = fmt.values[codes.numpy()].reshape(n // 64, 4, 2, 8, k // 64, 2, 2, 4, 4)[:, :, r, :, :, p, h]  # nb w g kb t e
        assert np.array_equal(values[:, :, index], part.transpose(0, 3, 1, 2, 4, 5))


@pytest.mark.parametrize("block", [0, 1])
def test_folded_exponents_are_exact_in_the_operand(block):
    """Every code at every place under every exponent that the layout admits, the same for its zeros under any byte at all."""
    fmt, n, k = parse_format("e2m1"), 64, 64
    made = byte_decoder("e2m1", "e4m3", folded=True)
    layout = PackLayout(family="hopper_a8", encoding="e2m1", n=n, k=k, padded_n=n, padded_k=k, folded=True)
    generator = torch.Generator().manual_seed(2)
    for shift in range(16):
        codes = ((torch.arange(n)[:, None] * 5 + torch.arange(k)[None, :] + shift) % 16).to(torch.uint8)
        packed = empty_codes(layout, codes.device)
        write_codes(packed, codes, 0, layout, "e4m3")
        plane = packed.reshape(128, 4).numpy().view(np.uint32)
        above = torch.randint(0, 12, (2, 128, 2), generator=generator).numpy().astype(np.uint32)  # r, lane, p
        words = [(above[r, :, 0] << (16 * block)) | (above[r, :, 1] << (16 * block + 8)) for r in (0, 1)]
        operands = [plane[:, w] for w in range(4)] + [word for word in words for _ in range(4)]
        registers = run(made.asm[block], operands, outputs=8)
        found = np.stack([r.view(np.uint8).reshape(4, 8, 4, 4) for r in registers]).view(OPERANDS["e4m3"]).astype(np.float64)
        for index, (p, h, r) in enumerate(REGISTERS):
            want = fmt.values[codes.numpy()].reshape(4, 2, 8, 2, 2, 4, 4)[:, r, :, p, h]  # w g t e
            scale = 2.0 ** above[r, :, p].astype(np.float64).reshape(4, 8, 4, 1)
            assert np.array_equal(found[index] * made.unit, want * scale)
    zeros = [np.zeros(256, np.uint32)] * 4 + [np.arange(256, dtype=np.uint32) * 0x01010101] * 8
    assert not any(r.any() for r in run(made.asm[block], zeros, outputs=8))


@pytest.mark.parametrize(
    "name, operand, said",
    [("int5", "e4m3", "4 significant bits"), ("uint5", "e4m3", "less a zero point"), ("e2m1", "int8", "fractions"),
     ("e4m3", "e4m3", "7 bits or fewer"), ("e5m1", "e4m3", "does not fit"), ("int4", "bf16", "e4m3 or int8")],
)  # fmt: skip
def test_what_eight_bits_cannot_hold_is_refused(name, operand, said):
    with pytest.raises(FormatError, match=said):
        byte_recipe(name, operand)
