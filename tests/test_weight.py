"""CanonicalWeight refuses what does not fit, with the numbers; Facts say what a scan found."""

import dataclasses
import math

import pytest
import torch

from hybrid_humming.errors import DtypeError, LayoutError, ShapeError, ValueRangeError
from hybrid_humming.reference import quantize
from hybrid_humming.spec import Spec
from hybrid_humming.weight import CanonicalWeight, Facts, InputTransform, scan


def weight(line="int4 g32 x bf16", n=16, k=64):
    return quantize(torch.randn(n, k, generator=torch.Generator().manual_seed(0)), Spec.parse(line))


REFUSED = [
    ("int4 g32 x bf16", {"codes": torch.zeros(16, 64)}, DtypeError, r"codes are torch\.float32; they must be uint8"),
    ("int4 g32 x bf16", {"codes": torch.zeros(64, dtype=torch.uint8)}, ShapeError, r"codes are \[64\]; they must be \[N, K\]"),
    ("int4 g32 x bf16", {"scale": torch.ones(2, 16).bfloat16()}, ShapeError, r"scale is \[2, 16\]; .* needs \[16, 2\]"),
    ("int4 g32 x bf16", {"scale": torch.ones(0, 2).bfloat16()}, ShapeError, r"scale is \[0, 2\]; .* needs \[16, 2\]"),
    ("int4 g32 x bf16", {"scale": torch.ones(16, 2)}, DtypeError, r"scale is torch\.float32; .* stores it as torch\.bfloat16"),
    ("int4 g32 x bf16", {"zero_point": torch.ones(16, 2)}, ShapeError, "a zero point was given, but the spec is 'int4 g32 x bf16'"),
    ("uint4 g32 zp x bf16", {"zero_point": None}, ShapeError, "no zero point was given"),
    ("uint4 g32 zp x bf16", {"zero_point": torch.ones(16, 2)}, ShapeError, r"zero_point is torch\.float32 .* needs torch\.uint8"),
    ("uint4 g32 zp x bf16", {"zero_point": torch.ones(16, 1).byte()}, ShapeError, r"\[16, 1\]; .* needs torch\.uint8 \[16, 2\]"),
    ("nvfp4 x bf16", {"secondary_scale": None}, ShapeError, "no secondary scale was given"),
    ("nvfp4 x bf16", {"secondary_scale": torch.ones(16)}, ShapeError, r"secondary_scale is .* \[16\]; .* needs float32 \[1\]"),
    ("int4 g32 x bf16", {"secondary_scale": torch.ones(1)}, ShapeError, "a secondary scale was given"),
    ("int4 g32 x bf16", {"bias": torch.ones(15)}, ShapeError, r"bias is \[15\]; this weight needs \[16\]"),
    ("int4 g32 x bf16", {"block_offset": (8, 0)}, LayoutError, r"block_offset \(8, 0\) has no meaning for 'int4 g32 x bf16'"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "changes", "error", "text"), REFUSED)
def test_parts_that_do_not_fit_are_refused(line, changes, error, text):
    with pytest.raises(error, match=text):
        weight(line).replace(**changes)


def test_validate_names_the_first_bad_entry():
    w = weight()
    assert w.validate() is w
    codes = w.codes.clone()
    codes[3, 4] = 16
    with pytest.raises(ValueRangeError, match=r"codes reach 16, but int4 has codes 0\.\.15"):
        w.replace(codes=codes).validate()
    scale = w.scale.clone()
    scale[5, 1] = math.inf
    with pytest.raises(ValueRangeError, match=r"scale\[5, 1\] is inf \(1 of 32 are not finite\); .* validate=False"):
        w.replace(scale=scale).validate()
    nv = weight("nvfp4 x bf16").replace(secondary_scale=torch.tensor([math.nan]))
    with pytest.raises(ValueRangeError, match=r"secondary_scale\[0\] is nan"):
        nv.validate()


@pytest.mark.parametrize("line", ["e4m3 g32:e8m0 x bf16", "e2m1 g32:e5m3 x bf16", "e2m1 g32:e4m3 x bf16", "e2m1 g32:e5m2 x bf16"])
def test_validate_sees_nan_in_every_scale_format(line):
    w = weight(line)
    raw = w.scale.view(torch.uint8).clone()
    raw[2, 1] = 127 if w.scale.dtype in (torch.float8_e4m3fn, torch.float8_e5m2) else 255
    with pytest.raises(ValueRangeError, match=r"scale\[2, 1\] is nan"):
        w.replace(scale=raw.view(w.scale.dtype)).validate()


def test_sizes_and_experts():
    assert (weight().n, weight().k, weight().experts) == (16, 64, 0)
    moe = quantize(torch.randn(3, 16, 64), Spec.parse("int4 g32 x bf16"))
    assert (moe.experts, tuple(moe.scale.shape)) == (3, (3, 16, 2))
    assert moe.to("cpu").codes.shape == moe.codes.shape


def test_weights_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        weight().codes = None


def test_scan_finds_unused_lowest_code_and_scale_exponents():
    assert scan(weight()).lowest_code_unused
    codes = weight().codes.clone()
    codes[0, 0] = 0
    assert not scan(weight().replace(codes=codes)).lowest_code_unused
    assert not scan(weight("uint4 g32 zp x bf16")).lowest_code_unused
    spec = Spec.parse("int4 channel:fp32 x bf16")
    w = CanonicalWeight(spec=spec, codes=torch.zeros(3, 8).byte(), scale=torch.tensor([[0.0], [0.75], [5.0]]))
    assert scan(w) == Facts(lowest_code_unused=False, scale_exponent_min=-1, scale_exponent_max=2)
    assert scan(w.replace(scale=torch.zeros(3, 1))) == Facts()


@pytest.mark.parametrize("line", ["e2m1 g32:e5m3 x bf16", "mxfp4 x bf16"])
def test_scan_reads_the_value_of_a_scale_not_its_code(line):
    w = weight(line)
    from hybrid_humming.reference.dequantize import decode_scale

    real = decode_scale(w.scale, w.spec.scale_format.name, torch.float64)
    facts = scan(w)
    assert facts.scale_exponent_min == math.floor(math.log2(float(real.min())))
    assert facts.scale_exponent_max == math.floor(math.log2(float(real.max())))


def test_transform_moves_with_its_tensors():
    transform = InputTransform(permutation=torch.arange(8).int(), hadamard=8)
    assert transform.to("cpu").hadamard == 8
    assert torch.equal(transform.to("cpu").permutation, transform.permutation)
