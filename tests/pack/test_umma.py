"""The UMMA layout: streams of codes, tiles of scales where the formula says, and every code and scale back."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid_humming import pack as packing
from hybrid_humming.errors import LayoutError, ValueRangeError
from hybrid_humming.pack.umma import pack_codes, tile_scales, unpack_codes, untile_scales
from hybrid_humming.reference.quantize import quantize
from hybrid_humming.spec import PackLayout, Spec
from hybrid_humming.weight import Facts, scan

HELD = {  # spec -> encoding
    "nvfp4 x nvfp4": "e2m1",
    "int4 g16:e4m3 x e0m3 g16:e4m3": "e0m3",
    "e0m3 g16:e4m3+tensor x nvfp4": "e0m3",
    "mxfp4 x mxfp4": "e2m1",
    "mxfp4 x mxfp8": "e2m1",
    "mxfp6 x mxfp8": "e2m3",
    "mxfp8 x e3m4 g32:e8m0": "e4m3",
    "e4m3 channel x e4m3 token": "e4m3",
    "e3m2 channel x e3m4 token": "e3m2",
    "e2m1 tensor x e5m2 tensor": "e2m1",
    "e3m4 channel+tensor x e3m4 token": "e3m4",
}
REFUSED = {
    "int4 g128 x bf16": "quantized activations",
    "uint4 g16:e4m3 zp x nvfp4": "zero points",
    "int8 channel x int8 token": "has int8",
    "nvfp4 x e4m3 token": "has e2m1 and e4m3|others",
    "mxfp8 x e2m3 g32:e8m0": "has e4m3 and e2m3",
    "e4m3 b128x128 x e4m3 g128": "has others",
}


@pytest.mark.parametrize("line", HELD)
@pytest.mark.parametrize(("n", "k"), [(128, 256), (200, 352), (8, 32)])
def test_every_code_and_scale_comes_back(line, n, k):
    weight = quantize(torch.randn(n, k), Spec.parse(line))
    layout = packing.make_layout("umma", weight.spec, n, k, facts=scan(weight))
    assert layout.encoding == HELD[line] and PackLayout.parse(str(layout)) == layout
    qweight = packing.check(packing.pack(weight, layout))
    back = packing.unpack(qweight)
    assert torch.equal(back.codes, weight.codes) and torch.equal(back.scale.view(torch.uint8), weight.scale.view(torch.uint8))
    assert qweight.qweight.shape == (n, layout.padded_k * weight.spec.bits // 32)
    if layout.encoding == weight.spec.weight:
        stream = unpack_codes(qweight.qweight, weight.spec.bits)
        assert torch.equal(stream[:, :k], weight.codes) and not stream[:, k:].any()


@pytest.mark.parametrize("line", REFUSED)
def test_what_no_kind_multiplies_is_refused_with_the_reason(line):
    with pytest.raises(LayoutError, match=f"umma layout .*{REFUSED[line]}"):
        packing.make_layout("umma", Spec.parse(line), 128, 256, facts=Facts())


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 300), st.integers(1, 20), st.integers(0, 3))
def test_a_scale_lies_where_the_formula_says(n, c, pad):
    columns = 4 * (-(-c // 4) + pad)
    scale = torch.randint(0, 256, (n, c), dtype=torch.uint8)
    tiles = tile_scales(scale, columns)
    assert tiles.shape == (-(-n // 128), columns // 4, 32, 16)
    row, group = torch.meshgrid(torch.arange(n), torch.arange(c), indexing="ij")
    assert torch.equal(tiles[row // 128, group // 4, row % 32, row % 128 // 32 * 4 + group % 4], scale)
    assert tiles.int().sum() == scale.int().sum()
    assert torch.equal(untile_scales(tiles, n, c), scale)


@pytest.mark.parametrize("bits", [4, 6, 8])
def test_a_code_lies_where_the_formula_says(bits):
    codes = torch.randint(0, 1 << bits, (3, 96), dtype=torch.uint8)
    data = pack_codes(codes, bits).view(torch.uint8).int()
    for k in (0, 1, 5, 50, 95):
        word = data[:, k * bits // 8] | (data[:, min(k * bits // 8 + 1, data.shape[1] - 1)] << 8)
        assert torch.equal(word >> k * bits % 8 & (1 << bits) - 1, codes[:, k].int())
    assert torch.equal(unpack_codes(pack_codes(codes, bits), bits), codes)


def test_an_integer_with_its_lowest_code_is_stored_as_no_float():
    weight = quantize(torch.randn(16, 64), Spec.parse("int4 g16:e4m3 x nvfp4"))
    weight.codes[0, 0] = 0
    with pytest.raises(LayoutError, match="int4 counts as e0m3 where its lowest code is unused"):
        packing.make_layout("umma", weight.spec, 16, 64, facts=scan(weight))
    layout = packing.make_layout("umma", weight.spec, 16, 64, facts=Facts(lowest_code_unused=True))
    with pytest.raises(ValueRangeError, match="its lowest, -8"):
        packing.pack(weight, layout)
