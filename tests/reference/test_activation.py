"""quantize_input and back: storage, scales, rows of zeros, rows that aren't finite, no rows at all."""

import math

import ml_dtypes
import numpy as np
import pytest
import torch

from hybrid_humming.dtypes import parse_format
from hybrid_humming.errors import ShapeError, SpecError
from hybrid_humming.reference import dequantize_input, quantize_input
from hybrid_humming.spec import Spec

HALVES = [
    "e4m3 token", "e5m2 token", "int8 token", "int4 token", "e2m1 token", "e0m3 token", "e3m4 token", "e2m3 token", "e3m2 token",
    "e4m3 g64", "int8 g32:bf16", "mxfp8", "mxfp4", "mxfp6", "nvfp4", "e4m3 tensor", "int8 tensor", "e4m3 g64:e5m3", "e3m4 g32:e8m0",
]  # fmt: skip
STORAGE = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "int8": torch.int8}


def spec_of(half):
    return Spec.parse(f"int4 channel x {half}")


def rows(m=6, k=128, seed=0):
    return torch.randn(m, k, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("half", HALVES)
def test_storage_and_shapes(half):
    spec = spec_of(half)
    fmt = spec.activation_format
    q = quantize_input(rows(), spec)
    assert q.values.dtype == STORAGE.get(fmt.name, torch.uint8)
    assert tuple(q.values.shape) == (6, 64 if fmt.bits == 4 else 128)
    columns = {"tensor": None, "token": 1}.get(spec.activation_granularity, 128 // (spec.activation_group_size or 128))
    assert tuple(q.scale.shape) == ((1,) if columns is None else (6, columns))
    assert q.scale.dtype == parse_format(spec.activation_scale).torch_storage
    assert (q.global_scale is not None) == (spec.activation_secondary is not None)


@pytest.mark.parametrize("half", HALVES)
def test_error_is_at_most_half_the_largest_step(half):
    spec = spec_of(half)
    fmt = spec.activation_format
    x = rows()
    back = dequantize_input(quantize_input(x, spec), spec, torch.float64)
    grid = np.unique(fmt.values[np.isfinite(fmt.values) & (fmt.values <= fmt.largest)])
    step = (grid[-1] - grid[-2]) / fmt.largest
    group = spec.activation_group_size or 128
    absmax = x.view(6, -1, group).abs().amax(-1, keepdim=True)
    absmax = absmax.amax() if spec.activation_granularity == "tensor" else absmax
    step *= 0.55  # half a step, and what an fp8 scale may be off
    if spec.activation_scale == "e8m0":  # values of up to twice the power of two below `largest` saturate
        power = 2.0 ** math.floor(math.log2(fmt.largest))
        step = max(step, (2 * power - fmt.largest) / power)
    bound = absmax.double() * step
    assert ((back - x.double()).abs().view(6, -1, group) <= bound).all()


@pytest.mark.parametrize("half", HALVES)
def test_row_of_zeros_decodes_to_zeros(half):
    x = rows()
    x[2] = 0.0
    q = quantize_input(x, spec_of(half))
    back = dequantize_input(q, spec_of(half))
    assert torch.isfinite(back).all()
    assert (back[2] == 0).all()
    assert (back[1] != 0).any()
    back = dequantize_input(quantize_input(torch.zeros(3, 128), spec_of(half)), spec_of(half))
    assert (back == 0).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("half", [h for h in HALVES if "tensor" not in h])
def test_bad_value_makes_its_own_group_nan_and_no_other(half, bad):
    spec = spec_of(half)
    x = rows()
    x[3, 70] = bad
    back = dequantize_input(quantize_input(x, spec), spec)
    group = spec.activation_group_size or 128
    begin = 70 // group * group
    assert back[3, begin : begin + group].isnan().all()
    assert int(back.isnan().sum()) == group
    if not spec.activation_secondary:
        clean = dequantize_input(quantize_input(rows(), spec), spec)
        others = torch.arange(6) != 3
        assert torch.equal(back[others], clean[others])


@pytest.mark.parametrize("half", HALVES)
def test_no_rows(half):
    spec = spec_of(half)
    q = quantize_input(torch.zeros(0, 128), spec)
    assert q.values.shape[0] == 0
    assert tuple(dequantize_input(q, spec).shape) == (0, 128)
    assert tuple(dequantize_input(quantize_input(torch.zeros(2, 0, 128), spec), spec).shape) == (2, 0, 128)


@pytest.mark.parametrize("half", HALVES)
def test_leading_dimensions_and_strides_do_not_matter(half):
    spec = spec_of(half)
    x = rows(6, 256)[:, :128]
    flat = dequantize_input(quantize_input(x.contiguous(), spec), spec)
    assert torch.equal(dequantize_input(quantize_input(x, spec), spec), flat)
    assert torch.equal(dequantize_input(quantize_input(x.reshape(2, 3, 128), spec), spec), flat.view(2, 3, 128))


def test_scale_may_lie_in_any_order():
    spec = spec_of("e4m3 g32")
    q = quantize_input(rows(), spec)
    m_major = q._replace(scale=q.scale.t().contiguous().t())
    assert torch.equal(dequantize_input(m_major, spec), dequantize_input(q, spec))


def test_four_bit_codes_lie_low_nibble_first():
    x = torch.tensor([[-8.0, 7.0, 1.0, -1.0]])
    q = quantize_input(x, spec_of("int4 tensor"), input_scale=torch.ones(1))
    assert q.values.tolist() == [[0x8 | 0x7 << 4, 0x1 | 0xF << 4]]
    x = torch.tensor([[0.5, -6.0, 1.0, 0.0]])
    q = quantize_input(x, spec_of("e2m1 tensor"), input_scale=torch.ones(1))
    assert q.values.tolist() == [[0x1 | 0xF << 4, 0x2]]


def test_fp8_codes_are_ml_dtypes_cast():
    x = rows()
    q = quantize_input(x, spec_of("e4m3 token"))
    scale = (x.abs().amax(-1, keepdim=True).double() / 448).float()
    assert torch.equal(q.scale, scale)
    theirs = (x / scale).numpy().astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(q.values.view(torch.uint8).numpy(), theirs.view(np.uint8))


def test_nvfp4_input_against_plain_numpy():
    x = rows().numpy()
    q = quantize_input(torch.from_numpy(x), spec_of("nvfp4"))
    top = np.abs(x).max() / np.float32(448 * 6)
    groups = (x / top).reshape(6, 8, 16)
    scale = (np.abs(groups).max(-1).astype(np.float64) / 6).astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    codes = (groups / scale[..., None]).astype(ml_dtypes.float4_e2m1fn).view(np.uint8).reshape(6, 128)
    codes = np.where(codes == 8, 0, codes)  # we store no -0
    assert float(q.global_scale) == top
    np.testing.assert_array_equal(q.scale.float().numpy(), scale)
    np.testing.assert_array_equal(q.values.numpy(), codes[:, 0::2] | codes[:, 1::2] << 4)


def test_static_scale_saturates():
    spec = spec_of("int8 tensor")
    x = torch.tensor([[1.0, 100.0, -100.0, 0.2]])
    q = quantize_input(x, spec, input_scale=torch.tensor([0.5]))
    assert q.values.tolist() == [[2, 127, -128, 0]]
    assert q.scale.tolist() == [0.5]


def test_static_scale_keeps_nan_where_the_format_has_one():
    x = torch.tensor([[1.0, math.nan, math.inf, -math.inf]])
    one = torch.ones(1)
    assert dequantize_input(quantize_input(x, spec_of("e4m3 tensor"), input_scale=one), spec_of("e4m3 tensor"))[0, 1:].isnan().all()
    assert quantize_input(x, spec_of("int8 tensor"), input_scale=one).values.tolist() == [[1, 0, 127, -128]]


def test_static_global_scale_of_nvfp4_is_used():
    spec = spec_of("nvfp4")
    q = quantize_input(rows(), spec, input_scale=torch.tensor([0.25]))
    assert q.global_scale.tolist() == [0.25]
    assert (dequantize_input(q, spec) - rows()).abs().max() < 0.6


def test_refusals_say_what_to_do():
    with pytest.raises(SpecError, match="'int4 channel x bf16' has bf16 activations; there is nothing to quantize"):
        quantize_input(rows(), Spec.parse("int4 channel x bf16"))
    with pytest.raises(ShapeError, match=r"x is \[6, 130\]; K must be a multiple of the group size 64"):
        quantize_input(rows(6, 130), spec_of("e4m3 g64"))
    with pytest.raises(ShapeError, match=r"x is \[6, 33\]; e2m1 activations are stored two a byte, so K must be even"):
        quantize_input(rows(6, 33), spec_of("e2m1 token"))
