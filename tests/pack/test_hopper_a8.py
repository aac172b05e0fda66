"""The layout for 8-bit activations: where each byte and each scale lies, and back."""

import pytest
import torch

from hybrid_humming.errors import LayoutError, ValueRangeError
from hybrid_humming.pack import check, make_layout, pack, unpack
from hybrid_humming.spec import PackLayout, Spec
from hybrid_humming.weight import Facts, scan
from tests.kernels.problems import weight_of

LINES = (
    "e4m3 channel x e4m3 token", "e5m2 tensor x e4m3 tensor", "int8 channel x int8 token", "e4m3 b128x128 x e4m3 g128",
    "mxfp8 x mxfp8", "int8 g64 x int8 token", "e4m3 g128+channel x e5m2 token",
    "int4 g128 x e4m3 token", "int4 g128 x int8 token", "mxfp4 x e4m3 token", "nvfp4 x e4m3 token", "uint4 g64 zp x int8 token",
    "int1 g32 x int8 token", "int2 channel x e4m3 token", "int3 g128 x e4m3 token", "int7 tensor x int8 token",
    "e3m2 g32 x e4m3 token", "uint3 channel zp x e4m3 token", "e0m3 g128 x e4m3 token", "int4 b128x128 x e4m3 token",
)  # fmt: skip


@pytest.mark.parametrize("experts", [0, 2])
@pytest.mark.parametrize("n, k", [(64, 128), (100, 640), (200, 192)])
@pytest.mark.parametrize("line", LINES)
def test_unpack_gives_back_the_weight(line, n, k, experts):
    spec = Spec.parse(line)
    if spec.group_size and k % spec.group_size:
        pytest.skip("K is not a multiple of the group")
    weight = weight_of(spec, n, k, experts=experts)
    layout = make_layout("hopper_a8", spec, n, k, experts=experts, facts=Facts())
    packed = check(pack(weight, layout))
    back = unpack(packed)
    assert torch.equal(back.codes, weight.codes)
    assert torch.equal(back.scale.view(torch.uint8), weight.scale.view(torch.uint8))
    assert weight.zero_point is None or torch.equal(back.zero_point, weight.zero_point)
    assert (back.secondary_scale is None) == (weight.secondary_scale is None)


def spread_weight(n: int, k: int, span: int, *, experts: int = 0):
    """MXFP4 whose rows have groups of zeros under any exponent, and others whose exponents span `span` binades."""
    spec = Spec.parse("mxfp4 x e4m3 token")
    weight = weight_of(spec, n, k, experts=experts)
    generator = torch.Generator().manual_seed(n + span)
    codes = torch.randint(0, span + 1, weight.scale.shape, generator=generator, dtype=torch.uint8)
    codes[..., :2] = torch.tensor([0, span], dtype=torch.uint8)
    codes += torch.randint(1, 250 - span, (*codes.shape[:-1], 1), generator=generator, dtype=torch.uint8)
    empty = torch.rand(codes.shape, generator=generator) < 0.2
    empty[..., :2] = False
    codes[empty] = torch.randint(0, 256, (int(empty.sum()),), generator=generator, dtype=torch.uint8)
    values = torch.where(empty.repeat_interleave(32, -1), weight.codes & 8, weight.codes | 1)
    return weight.replace(scale=codes.view(weight.scale.dtype), codes=values)


@pytest.mark.parametrize("experts", [0, 2])
@pytest.mark.parametrize("n, k, span", [(64, 128, 0), (100, 640, 11), (130, 192, 7)])
def test_folded_mxfp4_comes_back_as_it_was(n, k, span, experts):
    weight = spread_weight(n, k, span, experts=experts)
    facts = scan(weight)
    assert facts.row_exponent_span == span
    layout = make_layout("hopper_a8", weight.spec, n, k, experts=experts, facts=facts)
    assert layout.folded and PackLayout.parse(str(layout)) == layout
    back = unpack(check(pack(weight, layout)))
    assert torch.equal(back.codes, weight.codes)
    assert torch.equal(back.scale.view(torch.uint8), weight.scale.view(torch.uint8))


def test_codes_in_pieces_are_folded_by_their_scales_alone():
    weight = spread_weight(130, 192, 4)
    scale = weight.scale.view(torch.uint8).clamp(100, 111).view(weight.scale.dtype)
    whole = weight.replace(scale=scale)
    alone = whole.replace(codes=whole.codes.to("meta"))
    layout = make_layout("hopper_a8", weight.spec, 130, 192, facts=scan(alone))
    assert layout.folded
    packed = pack(alone, layout, [(0, whole.codes[:64]), (64, whole.codes[64:])])
    assert torch.equal(unpack(packed).codes, whole.codes)
    assert torch.equal(unpack(packed).scale.view(torch.uint8), scale.view(torch.uint8))


def test_exponents_too_far_apart_are_not_folded():
    weight = spread_weight(64, 256, 12)
    assert scan(weight).row_exponent_span == 12
    assert not make_layout("hopper_a8", weight.spec, 64, 256, facts=scan(weight)).folded
    assert not make_layout("hopper_a8", weight.spec, 64, 256, facts=Facts()).folded
    folded = make_layout("hopper_a8", weight.spec, 64, 256, facts=Facts(row_exponent_span=3))
    with pytest.raises(ValueRangeError, match="span 12 binades"):
        pack(weight, folded)


@pytest.mark.parametrize("line, sign", [("e4m3 channel x e4m3 token", 0), ("int8 channel x int8 token", 0x80)])
def test_a_tile_of_64_rows_and_128_k_is_one_run_of_bytes(line, sign):
    spec, n, k = Spec.parse(line), 100, 300
    weight = weight_of(spec, n, k)
    layout = make_layout("hopper_a8", spec, n, k, facts=Facts())
    stored = pack(weight, layout).qweight.view(torch.uint8).flatten()
    for row, column in ((0, 0), (63, 127), (64, 0), (99, 299), (70, 130)):
        at = ((row // 64 * (layout.padded_k // 128) + column // 128) * 64 + row % 64) * 128 + column % 128
        assert stored[at] == weight.codes[row, column] ^ sign
    assert stored[(layout.padded_k // 128 * 64 + 36) * 128] == 0, "padding is zero"


def test_a_block_scale_is_read_by_step_and_block():
    spec = Spec.parse("e4m3 b128x128 x e4m3 g128")
    weight = weight_of(spec, 300, 640)
    packed = pack(weight, make_layout("hopper_a8", spec, 300, 640, facts=Facts()))
    assert packed.scale.shape == (5, 3) and packed.scale.is_contiguous()
    assert packed.scale[4, 2] == weight.scale[2, 4]


def test_a_shard_inside_a_block_is_refused():
    spec = Spec.parse("e4m3 b128x128 x e4m3 g128")
    weight = weight_of(spec, 128, 256, block_offset=(64, 0))
    with pytest.raises(LayoutError, match="whole block"):
        pack(weight, make_layout("hopper_a8", spec, 128, 256, facts=Facts()))


def test_16_bit_activations_are_refused():
    with pytest.raises(LayoutError, match="8-bit activations"):
        make_layout("hopper_a8", Spec.parse("e4m3 channel x bf16"), 64, 128, facts=Facts())
