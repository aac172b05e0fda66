"""hh.stack and shard: every value kept, partial sums equal to the whole, and what can't be exact refused with the numbers."""

import pytest
import torch

import hybrid_humming as hh
from hybrid_humming.errors import DtypeError, LayoutError, ShapeError, SpecError
from hybrid_humming.partition import by_group, shard, sorted_columns, stack
from hybrid_humming.reference import dequantize, gemm, quantize
from hybrid_humming.spec import Spec
from hybrid_humming.weight import InputTransform

SPECS = (
    "int4 g32 x bf16", "uint4 g16 zp x fp16", "uint3 channel zp:bf16 x bf16", "e4m3 tensor x bf16", "e4m3 b32x32 x bf16",
    "nvfp4 x bf16", "mxfp4 x bf16", "int8 channel x bf16", "e2m1 g16:e4m3+channel x bf16",
)  # fmt: skip


def weight(line: str, n: int = 96, k: int = 128, seed: int = 0, experts: int = 0, **fields):
    shape = (experts, n, k) if experts else (n, k)
    made = quantize(torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * (seed + 1), Spec.parse(line))
    return made.replace(**fields)


def x_for(k: int, rows: int = 3) -> torch.Tensor:
    return torch.randn(rows, k, generator=torch.Generator().manual_seed(99)).double()


# ---- stack ----
@pytest.mark.parametrize("experts", [0, 2])
@pytest.mark.parametrize("line", SPECS)
def test_stacked_rows_keep_every_value(line, experts):
    parts = [weight(line, n, seed=i, experts=experts) for i, n in enumerate((64, 32, 96))]
    whole = stack(parts)
    assert torch.equal(dequantize(whole), torch.cat([dequantize(part) for part in parts], -2))


@pytest.mark.parametrize("line", [line for line in SPECS if "nvfp4" not in line and "+channel" not in line])
def test_stacked_columns_keep_every_value(line):
    parts = [weight(line, k=k, seed=i) for i, k in enumerate((128, 64, 192))]
    whole = stack(parts, 1)
    assert torch.equal(dequantize(whole), torch.cat([dequantize(part) for part in parts], -1))


def test_scales_by_tensor_that_differ_become_scales_by_row():
    parts = [weight("e4m3 tensor x e4m3 token", 32, seed=i) for i in range(3)]
    assert str(stack(parts).spec) == "e4m3 channel x e4m3 token"
    assert str(stack([parts[0], parts[0]]).spec) == "e4m3 tensor x e4m3 token"
    nvfp4 = [weight("nvfp4 x bf16", 32, seed=i) for i in range(2)]
    assert str(stack(nvfp4).spec) == "e2m1 g16:e4m3+channel x bf16"
    assert stack([weight("e4m3 tensor x bf16"), weight("e4m3 channel x bf16", seed=1)]).spec.granularity == "channel"


def test_scales_along_k_become_groups():
    parts = [weight("int8 channel x bf16", k=k, seed=k) for k in (96, 64)]
    assert str(stack(parts, 1).spec) == "int8 g32 x bf16"


def test_biases_follow_their_rows():
    parts = [weight("int4 g32 x bf16", 32, bias=torch.ones(32)), weight("int4 g32 x bf16", 64)]
    assert stack(parts).bias.tolist() == [1.0] * 32 + [0.0] * 64
    parts = [weight("int4 g32 x bf16", bias=torch.ones(96)), weight("int4 g32 x bf16", bias=torch.ones(96))]
    with pytest.raises(LayoutError, match="more than one weight has a bias"):
        stack(parts, 1)
    assert stack([parts[0], weight("int4 g32 x bf16")], 1).bias.sum() == 96


def test_transforms_of_stacked_columns():
    order = torch.randperm(128, generator=torch.Generator().manual_seed(0)).to(torch.int32)
    parts = [
        weight("int4 g32 x bf16", transform=InputTransform(permutation=order)),
        weight("int4 g32 x bf16", k=64, seed=1, transform=InputTransform(pre_quant_scale=torch.rand(64).double() + 0.5)),
    ]
    x = x_for(192)
    want = gemm(x[:, :128], parts[0]) + gemm(x[:, 128:], parts[1])
    torch.testing.assert_close(gemm(x, stack(parts, 1)), want)


def test_packed_weights_stack_as_they_are_packed():
    parts = [hh.quantize(torch.randn(n, 64), "int4 g32 x bf16") for n in (32, 64)]
    whole = hh.stack(parts)
    assert whole.layout.family == parts[0].layout.family
    assert torch.equal(hh.dequantize(whole), torch.cat([hh.dequantize(part) for part in parts]))


@pytest.mark.parametrize(
    "parts,dim,error,text",
    [
        ([weight("int4 g32 x bf16"), weight("int8 g32 x bf16")], 0, SpecError, "their weight must agree"),
        ([weight("int4 g32 x bf16"), weight("int4 g64 x bf16")], 0, SpecError, "their group_size must agree"),
        ([weight("int4 g32 x bf16"), weight("int4 g32 x bf16", k=64)], 0, ShapeError, r"weight 1 is \[96, 64\]; K and"),
        ([weight("int4 g32 x bf16"), weight("int4 g32 x bf16", n=64)], 1, ShapeError, "N and the experts must agree"),
        ([weight("e4m3 b64x64 x bf16"), weight("e4m3 b64x64 x bf16")], 0, LayoutError, r"weight 0 \(96 long, .* a block of 64"),
        ([weight("nvfp4 x bf16"), weight("nvfp4 x bf16", seed=1)], 1, LayoutError, "secondary scales differ .* one for all of K"),
        ([weight("int4 channel x bf16", k=36), weight("int4 channel x bf16", k=24, seed=1)], 1, LayoutError, "divisor is 12"),
        ([weight("int4 g32 x bf16"), weight("int4 channel x bf16")], 0, SpecError, "their group_size must agree"),
        (
            [weight("e4m3 tensor x e4m3 tensor", input_scale=torch.tensor([s])) for s in (0.5, 0.25)],
            0,
            LayoutError,
            r"static input scales differ \(0.5 of weight 0, 0.25 of weight 1\)",
        ),
        (
            [weight("int4 g32 x bf16", transform=InputTransform(hadamard=32)), weight("int4 g32 x bf16")],
            0,
            LayoutError,
            "weights 0 and 1 transform x differently",
        ),
        ([], 0, ShapeError, "at least one weight"),
        ([weight("int4 g32 x bf16")], 2, ShapeError, "dim=2: 0 is N"),
    ],
)  # fmt: skip
def test_weights_that_cant_be_joined_exactly_are_refused(parts, dim, error, text):
    with pytest.raises(error, match=text):
        stack(parts, dim)


def test_the_last_of_stacked_blocks_may_be_partial():
    parts = [weight("e4m3 b64x64 x bf16", 128), weight("e4m3 b64x64 x bf16", 72, seed=1)]
    assert torch.equal(dequantize(stack(parts)), torch.cat([dequantize(part) for part in parts]))


# ---- shard ----
@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("line", SPECS)
def test_shards_hold_the_whole(line, dim, world):
    whole = weight(line, bias=torch.randn(96))
    parts = [shard(whole, dim, rank, world) for rank in range(world)]
    assert torch.equal(torch.cat([dequantize(part) for part in parts], dim), dequantize(whole))
    x = x_for(128)
    if dim == 0:
        sharded = torch.cat([gemm(x, part, bias=part.bias.double()) for part in parts], -1)
    else:
        slices = x.chunk(world, -1)
        assert [part.bias is None for part in parts] == [False] + [True] * (world - 1)
        sharded = sum(gemm(s, p, bias=None if p.bias is None else p.bias.double()) for s, p in zip(slices, parts, strict=True))
    torch.testing.assert_close(sharded, gemm(x, whole, bias=whole.bias.double()))


@pytest.mark.parametrize("dim,world", [(0, 3), (1, 4), (0, 8), (1, 16)])
def test_blocks_that_straddle_ranks_keep_their_place(dim, world):
    whole = weight("e4m3 b128x128 x bf16", 192, 256)
    parts = [shard(whole, dim, rank, world) for rank in range(world)]
    assert any(part.block_offset != (0, 0) for part in parts)
    assert torch.equal(torch.cat([dequantize(part) for part in parts], dim), dequantize(whole))
    # A shard of a shard is the shard.
    again = shard(shard(whole, dim, 0, world // 2 if world % 2 == 0 else 1), dim, 1, 2 if world % 2 == 0 else world)
    assert torch.equal(dequantize(again), dequantize(parts[1]))


def test_groups_that_a_cut_runs_through_become_finer():
    whole = weight("uint4 g64 zp x bf16", k=192)
    parts = [shard(whole, 1, rank, 2) for rank in range(2)]
    assert str(parts[0].spec) == "uint4 g32 zp x bf16"
    assert torch.equal(torch.cat([dequantize(part) for part in parts], 1), dequantize(whole))


def act_order(local: bool, line: str = "int4 g32 x bf16", k: int = 256):
    """A weight whose columns are sorted out of all of x, or only within each half of it."""
    generator = torch.Generator().manual_seed(5)
    if local:
        order = torch.cat([torch.randperm(k // 2, generator=generator), k // 2 + torch.randperm(k // 2, generator=generator)])
    else:
        order = torch.randperm(k, generator=generator)
    transform = InputTransform(permutation=order.to(torch.int32), pre_quant_scale=torch.rand(k, generator=generator).double() + 0.5)
    return weight(line, k=k, transform=transform, bias=torch.ones(96))


@pytest.mark.parametrize("line", ["int4 g32 x bf16", "uint4 g64 zp x bf16", "int8 channel x bf16", "e4m3 tensor x bf16"])
def test_act_order_parts_of_sorted_columns_sum_to_the_whole(line):
    whole, x = act_order(False, line), x_for(256)
    total = sum(gemm(x[:, sorted_columns(whole, r, 4)], shard(whole, 1, r, 4, columns="sorted")) for r in range(4))
    torch.testing.assert_close(total, gemm(x, whole))


@pytest.mark.parametrize("line", ["int4 g32 x bf16", "int8 channel x bf16"])
def test_act_order_parts_of_slices_sum_to_the_whole_where_groups_allow(line):
    whole, x = act_order(line.startswith("int4"), line), x_for(256)
    total = sum(gemm(s, shard(whole, 1, r, 2)) for r, s in enumerate(x.chunk(2, -1)))
    torch.testing.assert_close(total, gemm(x, whole))


def test_act_order_rows_keep_the_order():
    whole, x = act_order(False), x_for(256)
    torch.testing.assert_close(torch.cat([gemm(x, shard(whole, 0, r, 2)) for r in range(2)], -1), gemm(x, whole))


def test_act_order_slices_that_cut_groups_unevenly_name_the_way_out():
    with pytest.raises(LayoutError, match=r"x\[0:128\] meets \d+ of the 32 columns of act-order group \d+; .* columns='sorted'"):
        shard(act_order(False), 1, 0, 2)


@pytest.mark.parametrize(
    "line,dim,world,error,text",
    [
        ("int4 g32 x bf16", 0, 5, ShapeError, r"N=96 is not a multiple of world=5 \(19.2 each\)"),
        ("int4 g32 x bf16", 1, 3, ShapeError, "K=128 is not a multiple of world=3"),
        ("int4 g32 x bf16", 1, 32, LayoutError, "columns 0..4 cut groups of 32 so that only groups of 4 would fit"),
        ("int4 g32 x e4m3 g64", 1, 4, LayoutError, "columns 0..32 cut the groups of 64 in which x is quantized"),
        ("int4 g32 x bf16", 2, 2, ShapeError, "dim=2"),
        ("int4 g32 x bf16", 0, 0, ShapeError, "rank 0 of 0"),
    ],
)
def test_cuts_that_cant_be_exact_are_refused(line, dim, world, error, text):
    with pytest.raises(error, match=text):
        shard(weight(line), dim, 0, world)


def test_hadamard_blocks_are_not_cut():
    whole = weight("int4 g32 x bf16", transform=InputTransform(hadamard=64))
    x = x_for(128)
    torch.testing.assert_close(sum(gemm(s, shard(whole, 1, r, 2)) for r, s in enumerate(x.chunk(2, -1))), gemm(x, whole))
    with pytest.raises(LayoutError, match="columns 0..32 cut Hadamard blocks of 64"):
        shard(whole, 1, 0, 4)


def test_packed_shards_multiply_to_the_whole():
    packed = hh.quantize(torch.randn(64, 128), "int4 g32 x bf16")
    x = torch.randn(3, 128).bfloat16()
    parts = [packed.shard(1, rank, 2) for rank in range(2)]
    assert all(part.layout.family == packed.layout.family for part in parts)
    total = sum(hh.gemm(s.contiguous(), p, out_dtype=torch.float32) for s, p in zip(x.chunk(2, -1), parts, strict=True))
    torch.testing.assert_close(total, hh.gemm(x, packed, out_dtype=torch.float32), rtol=1e-5, atol=1e-4)


def test_by_group_repeats_what_is_there():
    whole = weight("int4 g64 x bf16")
    assert torch.equal(dequantize(by_group(whole, 16)), dequantize(whole))
    assert torch.equal(dequantize(by_group(weight("e4m3 tensor x bf16"), 64)), dequantize(weight("e4m3 tensor x bf16")))


def test_shards_of_experts_keep_their_axis():
    whole = weight("mxfp4 x bf16", experts=3)
    parts = [shard(whole, 1, r, 2) for r in range(2)]
    assert parts[0].experts == 3
    assert torch.equal(torch.cat([dequantize(part) for part in parts], -1), dequantize(whole))


def test_canonical_and_packed_weights_dont_mix():
    with pytest.raises(SpecError, match="not both"):
        hh.stack([weight("int4 g32 x bf16"), hh.quantize(torch.randn(8, 128), "int4 g32 x bf16")])


def test_what_is_no_weight_is_refused():
    for call in (lambda: hh.stack([5]), lambda: hh.stack("ab"), lambda: hh.shard(torch.ones(2, 2), 0, 0, 2)):
        with pytest.raises(DtypeError, match="takes QWeight and CanonicalWeight"):
            call()
    with pytest.raises(DtypeError, match="reload_ writes into a QWeight"):
        hh.reload_(5, hh.quantize(torch.ones(8, 8), "int8 channel x bf16"))
    with pytest.raises(ShapeError, match=r"rank 0 of 2.0; both are integers"):
        hh.quantize(torch.ones(8, 8), "int8 channel x bf16").shard(0, 0, 2.0)
