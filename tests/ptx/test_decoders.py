"""The PTX of every decoder, run on all codes of its format, gives the values of the format's table bit for bit."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from hybrid_humming.dtypes import format_names, parse_format
from hybrid_humming.errors import FormatError
from hybrid_humming.fragment import PLANES, recipe
from hybrid_humming.triton_kernels.hopper.decode.decoder import decoder
from tests.ptx.evaluator import run

OPERANDS = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16}
FORMATS = [f for f in map(parse_format, format_names()) if f.kind in ("int", "uint", "float") and f.bits <= 8]
REFUSED = {("fp16", name) for name in ("e5m0", "e5m1", "e6m0", "e6m1", "e7m0")}
CASES = [(f.name, operand) for f in FORMATS for operand in OPERANDS if (operand, f.name) not in REFUSED]
COORDINATES = list(itertools.product(range(4), (0, 1), (0, 1), (0, 1)))  # s, h, r, e


def lanes_of(bits: int) -> np.ndarray:
    """[lanes, 32] codes: every code at every place of a lane, and its neighbours all different from it."""
    start = np.arange(2**bits)[:, None]
    return (start + np.arange(32)[None, :] * 37) % 2**bits


def pack_lane(encoding: str, operand: str, codes: np.ndarray) -> dict[tuple[int, int], np.ndarray]:
    """(plane, word) -> uint32 of each lane: the portable twin's packing, bit by bit from `place`."""
    words = {(i, w): np.zeros(len(codes), np.uint32) for i, p in enumerate(PLANES[parse_format(encoding).bits]) for w in range(p)}
    found = recipe(encoding, operand)
    for index, at in enumerate(COORDINATES):
        for c, (plane, word, bit) in enumerate(found.place(*at)):
            words[plane, word] |= ((codes[:, index] >> c & 1) << bit).astype(np.uint32)
    return words


def operands_of(planes, words, half):
    """The asm's word operands, as decoder.py documents them."""
    found = []
    for i, p in enumerate(planes):
        indices = {8: range(4 * half, 4 * half + 4), 4: range(2 * half, 2 * half + 2), 2: (0, 1), 1: (0, 0)}[p]
        found += [words[i, w] for w in indices]
    return found


def decode_lane(made, codes, zeros=()) -> np.ndarray:
    """[lanes, 32] decoded values, in the operand type, by running the PTX."""
    words = pack_lane(made.encoding, made.operand, codes)
    out = np.zeros(codes.shape, OPERANDS[made.operand])
    for half in (0, 1):
        registers = run(made.asm[half], [*operands_of(made.planes, words, half), *zeros], outputs=8)
        for index, (s, h, r, e) in enumerate(COORDINATES):
            if s // 2 == half:
                register = registers[4 * (s % 2) + 2 * h + r]
                out[:, index] = (register >> (16 * e) & 0xFFFF).astype(np.uint16).view(OPERANDS[made.operand])
    return out


def test_operand_count_is_that_of_the_constraints():
    for name, operand in CASES:
        made = decoder(name, operand)
        words = {(i, w): np.zeros(1, np.uint32) for i, p in enumerate(made.planes) for w in range(p)}
        assert made.constraints.count("=") == 8
        assert made.constraints.count(",") + 1 == 8 + len(operands_of(made.planes, words, 0))


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("sm", [80, 89, 90])
@pytest.mark.parametrize("name, operand", CASES)
def test_every_code_decodes_to_its_value(name, operand, raw, sm):
    made = decoder(name, operand, raw=raw, sm=sm)
    codes = lanes_of(parse_format(name).bits)
    found = decode_lane(made, codes).astype(np.float64) * made.post_scale
    expected = parse_format(name).values[codes]
    np.testing.assert_array_equal(found, expected)
    if parse_format(name).kind == "float":
        assert (np.signbit(found) == np.signbit(expected))[~np.isnan(expected)].all()


def test_only_wide_sign_magnitude_leaves_a_factor_when_nothing_is_raw():
    left = {(n, o): decoder(n, o, raw=False).post_scale for n, o in CASES}
    assert {key for key, factor in left.items() if factor != 1} == {(f"e0m{y}", o) for y in range(3, 8) for o in OPERANDS}
    assert all(factor <= 32 for factor in left.values())


@pytest.mark.parametrize("operand, name", sorted(REFUSED))
def test_formats_beyond_fp16_are_refused_with_the_way_out(operand, name):
    with pytest.raises(FormatError, match="use bf16 activations"):
        decoder(name, operand)


@pytest.mark.parametrize("name, operand", CASES)
def test_older_gpus_get_only_instructions_that_they_have(name, operand):
    for zero_point in (None, "int", "float", "float_pair") if name.startswith("uint") else (None,):
        for sm in (75, 80, 86, 89):
            text = "".join(decoder(name, operand, zero_point=zero_point, sm=sm).asm)
            assert "sub.rn.bf16" not in text and "mul.rn.bf16" not in text and "add.rn.bf16" not in text
            assert sm >= 89 or ("e4m3x2" not in text and "e5m2x2" not in text)
    assert decoder(name, operand, sm=100) == decoder(name, operand)


@pytest.mark.parametrize("sm", [80, 90])
@pytest.mark.parametrize("operand", OPERANDS)
@pytest.mark.parametrize("bits", range(1, 9))
def test_integer_zero_points_are_subtracted_exactly(bits, operand, sm):
    codes = lanes_of(bits)
    made = decoder(f"uint{bits}", operand, zero_point="int", sm=sm)
    for low, high in [(0, 2**bits - 1), (2 ** (bits - 1), 1), (2**bits // 3, 2**bits - 1)]:
        found = decode_lane(made, codes, zeros_of(operand, len(codes), low, high)).astype(np.float64)
        z = np.array([high if r else low for _, _, r, _ in COORDINATES])
        np.testing.assert_array_equal(found, codes - z)


@pytest.mark.parametrize("operand", OPERANDS)
@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("sm", [80, 90])
def test_float_zero_points_are_subtracted_with_one_rounding(bits, operand, sm):
    codes, dtype = lanes_of(bits), OPERANDS[operand]
    made = decoder(f"uint{bits}", operand, zero_point="float", sm=sm)
    low, high = (float(dtype(z)) for z in (0.5 * 2**bits - 0.3, 0.123))
    found = decode_lane(made, codes, zeros_of(operand, len(codes), low, high))
    z = np.array([high if r else low for _, _, r, _ in COORDINATES])
    np.testing.assert_array_equal(found, (codes - z).astype(dtype))


@pytest.mark.parametrize("operand", OPERANDS)
@pytest.mark.parametrize("bits", [1, 4, 8])
@pytest.mark.parametrize("sm", [80, 90])
def test_a_pair_carries_a_zero_point_that_the_operand_type_cannot_hold(bits, operand, sm):
    codes, dtype = lanes_of(bits), OPERANDS[operand]
    made = decoder(f"uint{bits}", operand, zero_point="float_pair", sm=sm)
    exact = 0.4 * 2**bits + 1 / 7
    high = float(dtype(exact))
    low = float(dtype(exact - high))
    zeros = zeros_of(operand, len(codes), high, high) + zeros_of(operand, len(codes), low, low)
    found = decode_lane(made, codes, zeros).astype(np.float64)
    # Two roundings of the result, and what is left of the zero point itself.
    unit = float(ml_dtypes.finfo(dtype).eps) / 2
    assert (np.abs(found - (codes - exact)) <= 2 * unit * np.abs(codes - exact) + abs(exact) * unit**2 * 2).all()


def zeros_of(operand: str, lanes: int, row0: float, row1: float) -> list[np.ndarray]:
    """The two zero-point operands: rows r = 0 and 1, the value twice."""
    found = []
    for value in (row0, row1):
        bits = int(np.asarray(value, OPERANDS[operand]).view(np.uint16))
        assert float(OPERANDS[operand](value)) == value
        found.append(np.full(lanes, bits << 16 | bits, np.uint32))
    return found
