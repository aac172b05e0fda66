"""Routing: the golden example, ids of no expert, and expert counts that are no multiple of anything."""

import pytest
import torch

from hybrid_humming.errors import DtypeError, ShapeError
from hybrid_humming.routing import Routing


def ids_of(counts):
    return torch.cat([torch.full((c,), e) for e, c in enumerate(counts)])[:, None].int()


def test_golden_alignment():
    """Counts [2, 3, 0, 6, 8] in blocks of 4: experts 0, 1, 3, 3, 4, 4; 19 is the padding."""
    routing = Routing.indexed(ids_of([2, 3, 0, 6, 8]), 5, block_m=4)
    assert routing.expert_ids.tolist() == [0, 1, 3, 3, 4, 4]
    assert routing.counts.tolist() == [2, 3, 0, 6, 8]
    assert routing.sorted_ids.tolist() == [
        0, 1, 19, 19, 2, 3, 4, 19, 5, 6, 7, 8, 9, 10, 19, 19, 11, 12, 13, 14, 15, 16, 17, 18,
    ]  # fmt: skip


@pytest.mark.parametrize("block_m", [1, 4, 16, 64])
@pytest.mark.parametrize("experts", [1, 5, 60, 160, 257])
def test_every_live_slot_is_listed_once_in_a_block_of_its_expert(experts, block_m):
    gen = torch.Generator().manual_seed(experts)
    ids = torch.randint(-2, experts + 3, (50, 3), generator=gen, dtype=torch.int32)
    routing = Routing.indexed(ids, experts, block_m=block_m)
    flat = ids.flatten()
    live = ((flat >= 0) & (flat < experts)).nonzero().flatten()
    listed = routing.sorted_ids[routing.sorted_ids < flat.numel()]
    assert sorted(listed.tolist()) == live.tolist()
    blocks = routing.sorted_ids.view(-1, block_m)
    assert len(blocks) == len(routing.expert_ids)
    for row, expert in zip(blocks.tolist(), routing.expert_ids.tolist(), strict=True):
        slots = [s for s in row if s < flat.numel()]
        assert slots
        assert slots == sorted(slots)
        assert all(int(flat[s]) == expert for s in slots)
    assert routing.sorted_ids.dtype == routing.expert_ids.dtype == torch.int32


@pytest.mark.parametrize("ids", [torch.full((4, 2), -1), torch.full((4, 2), 9), torch.zeros(0, 2)])
def test_no_live_slot_gives_no_block(ids):
    routing = Routing.indexed(ids.int(), 8, block_m=16)
    assert routing.sorted_ids.numel() == routing.expert_ids.numel() == 0
    assert routing.counts.tolist() == [0] * 8


def test_grouped_and_masked_keep_what_they_are_given():
    assert Routing.grouped(torch.tensor([0, 3, 3, 7])).num_experts == 3
    assert Routing.masked(torch.tensor([3, 0, 4])).num_experts == 3


def test_wrong_shapes_are_refused():
    with pytest.raises(ShapeError, match=r"topk_ids is \[6\]; it must be \[tokens, top_k\]"):
        Routing.indexed(torch.zeros(6).int(), 2, block_m=4)
    with pytest.raises(ShapeError, match=r"offsets is \[1\]; it must be \[experts \+ 1\]"):
        Routing.grouped(torch.zeros(1).int())
    with pytest.raises(ShapeError, match=r"counts is \[2, 2\]; it must be \[experts\]"):
        Routing.masked(torch.zeros(2, 2).int())


def test_wrong_types_and_sizes_are_refused():
    with pytest.raises(DtypeError, match=r"topk_ids is torch\.float32; it must be an int32 or int64 tensor"):
        Routing.indexed(torch.zeros(6, 2), 2, block_m=4)
    with pytest.raises(DtypeError, match="offsets is list"):
        Routing.grouped([0, 3])
    with pytest.raises(ShapeError, match="num_experts=2, block_m=0: both must be at least 1"):
        Routing.indexed(torch.zeros(6, 2).int(), 2, block_m=0)
    with pytest.raises(ShapeError, match=r"counts is \[0\]; .* at least one"):
        Routing.masked(torch.zeros(0).int())
