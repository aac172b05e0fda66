"""Every code of every format has its exact value; formats that others define mean the same as theirs."""

import ml_dtypes
import numpy as np
import pytest
import torch

from hybrid_humming.dtypes import ElementFormat, format_names, from_torch, parse_format
from hybrid_humming.errors import FormatError

SAME = {
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e8m0": ml_dtypes.float8_e8m0fnu,
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
}
NARROW = [name for name in format_names() if not parse_format(name).is_wide]


def codes_of(fmt):
    return np.arange(2**fmt.bits, dtype=np.uint16 if fmt.bits > 8 else np.uint8)


@pytest.mark.parametrize("name", SAME)
def test_every_code_means_what_ml_dtypes_says(name):
    fmt = parse_format(name)
    with np.errstate(invalid="ignore"):
        theirs = codes_of(fmt).view(SAME[name]).astype(np.float64)
    np.testing.assert_array_equal(fmt.values, theirs)
    np.testing.assert_array_equal(np.signbit(fmt.values[fmt.values == 0]), np.signbit(theirs[theirs == 0]))


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e8m0", "fp16", "bf16"])
def test_every_code_means_what_torch_says(name):
    fmt = parse_format(name)
    theirs = torch.from_numpy(codes_of(fmt)).view(fmt.torch_storage).double().numpy()
    np.testing.assert_array_equal(fmt.values, theirs)


@pytest.mark.parametrize("bits", range(1, 9))
def test_integers_are_offset_binary_and_unsigned(bits):
    codes = np.arange(2**bits)
    np.testing.assert_array_equal(parse_format(f"int{bits}").values, codes - 2 ** (bits - 1))
    np.testing.assert_array_equal(parse_format(f"uint{bits}").values, codes)


@pytest.mark.parametrize("y", range(1, 8))
def test_zero_exponent_floats_are_sign_magnitude_integers(y):
    fmt = parse_format(f"e0m{y}")
    magnitude = np.arange(2**y)
    np.testing.assert_array_equal(fmt.values, np.concatenate([magnitude, -magnitude]))
    assert np.signbit(fmt.values[2**y])
    assert not np.signbit(fmt.values[0])


def test_e0m3_is_blackwells_table():
    assert parse_format("e0m3").values.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0, -1, -2, -3, -4, -5, -6, -7]


def test_e3m4_is_finite_only_and_not_ml_dtypes():
    """Both have bias 3 and agree below exponent 7; there ml_dtypes has infinity and NaN, the tensor core has 16..31."""
    fmt = parse_format("e3m4")
    theirs = codes_of(fmt).view(ml_dtypes.float8_e3m4).astype(np.float64)
    assert fmt.finite_only
    assert np.isfinite(fmt.values).all()
    positive = np.arange(128)
    np.testing.assert_array_equal(fmt.values[positive[:0x70]], theirs[:0x70])
    assert theirs[0x6F] == 15.5
    assert np.isinf(theirs[0x70])
    assert np.isnan(theirs[0x71:0x80]).all()
    assert fmt.values[0x70:0x80].tolist() == list(range(16, 32))
    assert fmt.largest == 30.0


def test_e3m4_encoder_never_emits_0x7f():
    codes = parse_format("e3m4").encode(np.array([30.4, 30.6, 31.0, 1e9, np.inf, -31.0, -np.inf]))
    assert codes.tolist() == [0x7E] * 5 + [0xFE] * 2


def test_e5m3_is_unsigned_with_bias_15():
    values = parse_format("e5m3").values
    assert np.isnan(values[255])
    assert values[0] == 0
    assert values[1] == 2.0**-17
    assert values[8] == 2.0**-14
    assert values[254] == 114688.0 == parse_format("e5m3").largest
    assert (np.diff(values[:255]) > 0).all()


def test_e8m0_ends():
    values = parse_format("e8m0").values
    assert values[[0, 1, 126, 127, 128, 253, 254]].tolist() == [2.0**e for e in (-127, -126, -1, 0, 1, 126, 127)]
    assert np.isnan(values[255])


def test_e4m3_subnormals_and_nan():
    values = parse_format("e4m3").values
    assert values[1] == 2.0**-9 == 0.001953125
    assert values[0x81] == -(2.0**-9)
    assert np.isnan(values[[0x7F, 0xFF]]).all()
    assert np.isfinite(np.delete(values, [0x7F, 0xFF])).all()


@pytest.mark.parametrize("name", NARROW)
def test_finite_only_says_so(name):
    fmt = parse_format(name)
    assert fmt.finite_only == bool(np.isfinite(fmt.values).all())


@pytest.mark.parametrize("name", NARROW)
def test_largest_and_smallest_are_values(name):
    fmt = parse_format(name)
    assert fmt.largest in fmt.values
    assert fmt.smallest in fmt.values or fmt.name == "e8m0"
    if name != "e3m4":
        assert fmt.largest == np.nanmax(np.where(np.isinf(fmt.values), np.nan, fmt.values))


@pytest.mark.parametrize("name", NARROW)
def test_encode_is_the_inverse_of_decode(name):
    fmt = parse_format(name)
    emitted = fmt.values[np.isfinite(fmt.values) & (fmt.values <= fmt.largest) & (fmt.values >= fmt.smallest)]
    codes = fmt.encode(emitted)
    np.testing.assert_array_equal(fmt.decode(codes), emitted)
    assert not np.signbit(fmt.decode(codes)[emitted == 0]).any()


@pytest.mark.parametrize("name", NARROW)
def test_encode_takes_the_nearest_value_and_saturates(name):
    fmt = parse_format(name)
    rng = np.random.default_rng(0)
    wide = fmt.largest or 1.0
    x = np.concatenate([rng.normal(size=200) * wide / 2, rng.normal(size=200), [2 * wide, -2 * wide, np.inf, -np.inf]])
    grid = fmt.values[np.isfinite(fmt.values) & (fmt.values <= fmt.largest) & (fmt.values >= fmt.smallest)]
    clipped = np.clip(x, grid.min(), grid.max())
    nearest = np.abs(clipped[:, None] - grid[None]).min(1)
    np.testing.assert_array_equal(np.abs(fmt.decode(fmt.encode(x)) - clipped), nearest)


@pytest.mark.parametrize("name", ["e2m1", "e2m3", "e3m2", "e4m3", "e5m2"])
def test_ties_go_to_the_even_code_as_in_ml_dtypes(name):
    fmt = parse_format(name)
    grid = np.unique(fmt.values[np.isfinite(fmt.values)])
    middle = ((grid[1:] + grid[:-1]) / 2).astype(np.float32)  # ml_dtypes casts through fp32
    x = np.concatenate([middle, np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, np.float32(-np.inf))])
    theirs = x.astype(SAME[name]).astype(np.float64)
    np.testing.assert_array_equal(fmt.decode(fmt.encode(x)), theirs)


@pytest.mark.parametrize("name", NARROW)
def test_torch_encoder_agrees_with_numpys(name):
    from hybrid_humming.reference.codes import decode, encode

    fmt = parse_format(name)
    grid = np.unique(fmt.values[np.isfinite(fmt.values)])
    middle = ((grid[1:] + grid[:-1]) / 2).astype(np.float32)
    ends = np.array([0.0, -0.0, np.inf, -np.inf, 1e30, -1e30], dtype=np.float32)
    x = np.concatenate([middle, np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, np.float32(-np.inf)), ends])
    x = x[np.isfinite(x) | np.isinf(x)]
    for dtype in (torch.float32, torch.float64):
        ours = encode(torch.from_numpy(x).to(dtype), fmt)
        np.testing.assert_array_equal(ours.numpy(), fmt.encode(x))
        np.testing.assert_array_equal(decode(ours, fmt, dtype).double().numpy(), fmt.values[ours.numpy()])


def test_formats_are_the_ones_promised():
    names = set(format_names())
    assert {f"int{b}" for b in range(1, 9)} | {f"uint{b}" for b in range(1, 9)} | {f"e0m{y}" for y in range(1, 8)} <= names
    assert {f"e{x}m{b - 1 - x}" for b in range(3, 9) for x in range(1, b)} <= names
    assert {"bf16", "fp16", "fp32", "e4m3", "e5m2", "e8m0", "e5m3"} <= names


def test_aliases_and_torch_dtypes():
    assert parse_format("fp8").name == "e4m3"
    assert parse_format("bfloat16").name == "bf16"
    assert from_torch(torch.float8_e5m2).name == "e5m2"
    assert from_torch(torch.float16).name == "fp16"
    for name in ("fp16", "bf16", "fp32", "e4m3", "e5m2", "e8m0", "int8"):
        assert from_torch(parse_format(name).torch_storage).name == name


def test_format_itself_is_taken_as_a_name():
    fmt = parse_format("int4")
    assert isinstance(fmt, ElementFormat)
    assert parse_format(fmt) is fmt


def test_refusals_say_what_to_do():
    with pytest.raises(FormatError, match=r"unknown element format 'e4m4'.*Did you mean 'e4m"):
        parse_format("e4m4")
    with pytest.raises(FormatError, match=r"codes span 0\.\.16, but int4 has the codes 0\.\.15"):
        parse_format("int4").decode(np.array([0, 16]))
    with pytest.raises(FormatError, match="NaN can't be quantized to e2m1"):
        parse_format("e2m1").encode(np.array([np.nan]))
    with pytest.raises(FormatError, match=r"torch\.int64 stores no element format; allowed are"):
        from_torch(torch.int64)
    with pytest.raises(FormatError, match="too many for a table"):
        _ = parse_format("fp32").values
