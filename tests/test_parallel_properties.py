"""stack and shard on random formats, sizes and cuts: exact, or refused; never a shifted scale."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import hybrid_humming as hh
from hybrid_humming import pack as packing
from hybrid_humming.checkpoint import load_canonical
from hybrid_humming.errors import LayoutError, ShapeError
from hybrid_humming.reference import dequantize, gemm, quantize
from hybrid_humming.spec import Spec
from hybrid_humming.weight import InputTransform, scan
from tests.checkpoint.build import GOLDEN

LINES = [
    *("int4 g8 x bf16", "int4 g32 x fp16", "uint3 g16 zp x bf16", "uint4 g24 zp:fp16 x bf16", "int8 channel x bf16"),
    *("uint2 channel zp x fp16",),
    *("e4m3 tensor x bf16", "e4m3 b16x16 x bf16", "e4m3 b24x8 x bf16", "int4 b32x16 x bf16", "mxfp4 x bf16", "nvfp4 x bf16"),
    *("e4m3 channel+tensor x bf16", "e2m1 g16:e4m3+channel x bf16", "int1 g16 x bf16"),
]  # fmt: skip


def made(line, n, k, experts=0, seed=0, offset=(0, 0), **fields):
    gen = torch.Generator().manual_seed(seed)
    spec = Spec.parse(line)
    values = torch.randn((experts, n, k) if experts else (n, k), generator=gen) * 2.0 ** (seed % 7 - 3)
    return quantize(values, spec, block_offset=offset if spec.granularity == "block" else (0, 0)).replace(**fields)


@st.composite
def cases(draw):
    """A weight, the axis to cut and the number of ranks; N and K need not be equal, nor larger than a group or block."""
    line = draw(st.sampled_from(LINES))
    group = Spec.parse(line).group_size or 8
    world, dim = draw(st.integers(1, 4)), draw(st.integers(0, 1))
    n = draw(st.integers(1, 20)) * (world if dim == 0 else 1)
    k = draw(st.integers(1, 5)) * group * (world if draw(st.booleans()) else 1)
    assume((n, k)[dim] % world == 0)
    offset = draw(st.tuples(st.integers(0, 40), st.integers(0, 4).map(lambda i: 8 * i)))
    return made(line, n, k, draw(st.sampled_from([0, 0, 2])), draw(st.integers(0, 99)), offset), dim, world


@settings(max_examples=150, deadline=None)
@given(case=cases())
def test_shards_are_the_whole_or_refused(case):
    whole, dim, world = case
    try:
        parts = [hh.shard(whole, dim, rank, world) for rank in range(world)]
    except LayoutError as error:
        assert "groups are multiples of 8" in str(error) and whole.spec.granularity == "group" and (whole.k // world) % 8
        return
    assert torch.equal(torch.cat([dequantize(part) for part in parts], dim - 2), dequantize(whole))


@settings(max_examples=100, deadline=None)
@given(data=st.data(), line=st.sampled_from(LINES), dim=st.integers(0, 1), experts=st.sampled_from([0, 2]))
def test_stacked_parts_are_joined_or_refused(data, line, dim, experts):
    group = Spec.parse(line).group_size or 8
    fixed = data.draw(st.integers(1, 6)) * (group if dim == 0 else 1)
    sizes = data.draw(st.lists(st.integers(1, 6).map(lambda i: i * (group if dim == 1 else 1)), min_size=2, max_size=3))
    offsets = [data.draw(st.sampled_from([(0, 0), (8, 8), (16, 16)])) for _ in sizes]
    shapes = [(size, fixed) if dim == 0 else (fixed, size) for size in sizes]
    parts = [made(line, *shape, experts, i, offset) for i, (shape, offset) in enumerate(zip(shapes, offsets, strict=True))]
    try:
        whole = hh.stack(parts, dim)
    except LayoutError as error:
        assert "block" in str(error) or "secondary scales" in str(error)
        return
    assert torch.equal(dequantize(whole), torch.cat([dequantize(part) for part in parts], dim - 2))


@settings(max_examples=60, deadline=None)
@given(case=cases())
def test_joining_the_shards_gives_the_weight_back(case):
    whole, dim, world = case
    try:
        parts = [hh.shard(whole, dim, rank, world) for rank in range(world)]
        back = hh.stack(parts, dim)
    except LayoutError as error:
        assert "multiples of 8" in str(error) or "block" in str(error)
        return
    assert torch.equal(dequantize(back), dequantize(whole))
    if dim == 0:
        assert (
            back.spec == whole.spec
            and torch.equal(back.codes, whole.codes)
            and torch.equal(back.scale.float(), whole.scale.float())
        )


@pytest.mark.parametrize("n", [192, 224, 576])
@pytest.mark.parametrize("k", [192, 576])
@pytest.mark.parametrize("dim", [0, 1])
def test_ranks_of_block_scaled_weights_may_start_anywhere(n, k, dim):
    """DeepSeek's 128x128 blocks with sizes per rank that are no multiple of 128."""
    world = 3 if (n, k)[dim] % 3 == 0 else 7
    whole = made("e4m3 b128x128 x e4m3 g64", n, k)
    parts = [hh.shard(whole, dim, rank, world) for rank in range(world)]
    assert torch.equal(torch.cat([dequantize(part) for part in parts], dim), dequantize(whole))
    packed = [hh.pack_weight(part) for part in parts]
    assert torch.equal(torch.cat([hh.dequantize(part) for part in packed], dim), dequantize(whole))


def test_blocks_that_do_not_line_up_are_not_joined():
    """Two weights with scales of the same shape, whose blocks begin elsewhere."""
    one, other = made("e4m3 b16x16 x bf16", 32, 24), made("e4m3 b16x16 x bf16", 32, 24, offset=(0, 8))
    assert one.scale.shape == other.scale.shape
    with pytest.raises(LayoutError, match="weight 0 starts 0 and weight 1 starts 8 inside a block of 16 along K"):
        hh.stack([one, other])


ACT_ORDER = [
    *("gptqmodel-w4-g16-asym-desc-act", "gptqmodel-w4-g16-sym-desc-act", "gptqmodel-w8-g16-asym-v2-desc-act"),
    *("gptqmodel-w4-g16-asym-g-idx-equal", "ct09-pack-w4-asym-g-idx", "ct09-pack-w4-sym-g-idx", "gptqmodel-w4-g16-sym-v1"),
]


@pytest.mark.parametrize("folder", ACT_ORDER)
def test_act_order_checkpoints_split_along_k_sum_to_the_whole(folder):
    """g_idx shuffled, all equal and in order; for each layer of the checkpoint."""
    for name, whole in load_canonical(GOLDEN / folder).items():
        x = torch.randn(3, whole.k, generator=torch.Generator().manual_seed(1)).double()
        parts = [hh.shard(whole, 1, rank, 2, columns="sorted") for rank in range(2)]
        fed = [x[:, hh.sorted_columns(whole, rank, 2)] for rank in range(2)]
        torch.testing.assert_close(sum(gemm(s, p) for s, p in zip(fed, parts, strict=True)), gemm(x, whole), msg=name)
        assert sorted(torch.cat([hh.sorted_columns(whole, rank, 2) for rank in range(2)]).tolist()) == list(range(whole.k))


def test_sorted_columns_of_a_producer_cut_alike_need_no_gather():
    """down(up(x)) over two ranks: the rows of `up` are cut in the order in which `down` wants its columns."""
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0)).to(torch.int32)
    up, down = made("int8 channel x bf16", 64, 32), made("int4 g16 x bf16", 24, 64, transform=InputTransform(permutation=order))
    x = torch.randn(2, 32).double()
    total = torch.zeros(2, 24).double()
    for rank in range(2):
        rows = hh.sorted_columns(down, rank, 2)
        part = up.replace(codes=up.codes[rows], scale=up.scale[rows])
        total += gemm(gemm(x, part), hh.shard(down, 1, rank, 2, columns="sorted"))
    torch.testing.assert_close(total, gemm(gemm(x, up), down))


@pytest.mark.parametrize("line", ["int4 g32 x fp16", "uint4 g32 zp x bf16", "mxfp4 x bf16"])
def test_a_weight_packed_for_another_device_keeps_its_layout(line):
    whole = made(line, 128, 128)
    packed = packing.pack(whole, packing.make_layout("hopper", whole.spec, 128, 128, facts=scan(whole)))
    parts = [packed.shard(dim, rank, 2) for dim in range(2) for rank in range(2)]
    assert {part.layout.family for part in parts} == {"hopper"}
    assert torch.equal(torch.cat([hh.dequantize(part) for part in parts[:2]], 0), dequantize(whole))
    assert torch.equal(torch.cat([hh.dequantize(part) for part in parts[2:]], 1), dequantize(whole))
    assert torch.equal(hh.dequantize(hh.stack(parts[:2])), dequantize(whole))


def test_scales_that_were_not_cut_are_refused_with_both_numbers():
    """A shard [., 256] with the 16 scale columns of the whole K: 2 are needed."""
    whole = made("int4 g128 x bf16", 8, 2048)
    with pytest.raises(ShapeError, match=r"scale is \[8, 16\]; 'int4 g128 x bf16' on weight \[8, 256\] needs \[8, 2\]"):
        whole.replace(codes=whole.codes[:, :256])


def test_a_channel_scale_is_whole_on_every_rank_of_k():
    parts = [hh.shard(made("int4 channel x bf16", 8, 64), 1, rank, 2) for rank in range(2)]
    assert [tuple(part.scale.shape) for part in parts] == [(8, 1), (8, 1)]
