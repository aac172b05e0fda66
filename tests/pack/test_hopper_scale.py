"""Scales of the hopper layout: where each one lies, and back."""

import pytest
import torch

from hybrid_humming.errors import LayoutError
from hybrid_humming.pack.hopper_scale import groups_in_step, pack_scales, reject_scales, unpack_scales
from hybrid_humming.spec import PackLayout, Spec
from hybrid_humming.weight import scale_shape


def layout_of(n: int, k: int) -> PackLayout:
    return PackLayout(family="hopper", encoding="int4", n=n, k=k, padded_n=-(-n // 64) * 64, padded_k=-(-k // 64) * 64)


def scales_of(spec: Spec, n: int, k: int, offset=(0, 0), experts=()) -> torch.Tensor:
    shape = (*experts, *scale_shape(spec, n, k, offset))
    codes = torch.randint(1, 200, shape, generator=torch.Generator().manual_seed(n + k), dtype=torch.uint8)
    dtype = spec.scale_format.torch_storage
    return codes.view(dtype) if dtype.itemsize == 1 else codes.to(dtype)


@pytest.mark.parametrize("experts", [(), (3,)])
@pytest.mark.parametrize("n, k", [(64, 128), (100, 640), (33, 1280)])
@pytest.mark.parametrize(
    "line", ["int4 g128 x bf16", "int4 g64 x fp16", "mxfp4 x bf16", "nvfp4 x bf16", "int4 g256 x bf16",
             "int8 channel x bf16", "e4m3 tensor x bf16", "e4m3 b128x128 x bf16", "e4m3 b64x256:fp32 x bf16"],
)  # fmt: skip
def test_unpack_gives_back_the_canonical_scales(line, n, k, experts):
    spec = Spec.parse(line)
    if spec.group_size and k % spec.group_size:
        pytest.skip("K is not a multiple of the group")
    canonical, layout = scales_of(spec, n, k, experts=experts), layout_of(n, k)
    packed = pack_scales(canonical, spec, layout)
    assert packed.dtype == canonical.dtype and packed.is_contiguous()
    assert torch.equal(unpack_scales(packed, spec, layout).view(torch.uint8), canonical.view(torch.uint8))


@pytest.mark.parametrize("n, k", [(130, 176), (1, 48), (129, 2064)])
def test_each_expert_has_a_plane_of_scales_of_its_own(n, k):
    """N is no multiple of 128 and K / 16 none of 4: padding belongs to each expert, not to the batch."""
    spec, layout = Spec.parse("nvfp4 x bf16"), layout_of(n, k)
    together = scales_of(spec, n, k, experts=(3,)).view(torch.uint8)
    one_by_one = [pack_scales(scale.view(torch.float8_e4m3fn), spec, layout) for scale in together]
    packed = pack_scales(together.view(torch.float8_e4m3fn), spec, layout)
    assert torch.equal(packed.view(torch.uint8), torch.stack([one.view(torch.uint8) for one in one_by_one]))
    assert torch.equal(unpack_scales(packed, spec, layout).view(torch.uint8), together)


@pytest.mark.parametrize("line", ["int4 g16 x bf16", "int4 g32 x bf16", "int4 g64 x bf16", "int4 g128 x bf16", "int4 g256 x bf16"])
def test_the_scales_of_a_row_and_a_step_lie_together(line):
    spec, (n, k) = Spec.parse(line), (70, 1280)
    canonical, layout = scales_of(spec, n, k), layout_of(n, k)
    packed, groups, per_step = pack_scales(canonical, spec, layout), spec.group_size, groups_in_step(spec)
    assert packed.shape == (k // max(groups, 128), layout.padded_n * per_step)
    for row, k0 in ((0, 0), (69, 1264), (13, 400)):
        step, inside = k0 // max(groups, 128), (k0 // groups) % per_step
        assert packed[step, row * per_step + inside] == canonical[row, k0 // groups]
    assert not packed[:, n * per_step :].any()


def test_blocks_are_cut_where_the_shard_starts():
    spec, (n, k), offset = Spec.parse("e4m3 b128x128:fp32 x bf16"), (200, 256), (96, 128)
    canonical, layout = scales_of(spec, n, k, offset), layout_of(n, k)
    packed = pack_scales(canonical, spec, layout, offset)
    assert packed[0, 31] == canonical[0, 0] and packed[0, 32] == canonical[1, 0] and packed[1, 199] == canonical[2, 1]
    assert torch.equal(unpack_scales(packed, spec, layout, offset), canonical)
    with pytest.raises(LayoutError, match="portable"):
        pack_scales(canonical, spec, layout, (0, 64))


def test_groups_that_no_step_holds_are_refused():
    assert "48" in str(reject_scales(Spec.parse("int4 g48 x bf16")))
    assert reject_scales(Spec.parse("int4 g384 x bf16")) is None
