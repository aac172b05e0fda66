"""What follows from a problem and a tile for the Hopper kernels: group, slices, shares of K, shared memory. Imports no Triton."""

from __future__ import annotations

from dataclasses import dataclass

from hybrid_humming.dtypes import parse_format
from hybrid_humming.plan import Tile
from hybrid_humming.spec import PackLayout, Problem, Spec

COUNTERS = 1 << 13  # tiles of one launch that may be summed over several CTAs
ROW = 128  # k that share a row of scales, and the least that a slice of K advances at a time


def group_of(spec: Spec) -> int:
    """Return the weights along K that share a scale; 0 where no scale varies along K.

    A zero point is subtracted inside the loop, so a channel with one is a group that spans all of K (a multiple of any K).
    """
    if spec.granularity == "group" and spec.group_size:
        return spec.group_size
    if spec.granularity == "block" and spec.block:
        return spec.block[1]
    return 1 << 30 if spec.has_zero_point else 0


def groups_in_row(spec: Spec) -> int:
    """Return the scales that one weight row has in ROW k; 0 where none varies along K."""
    group = group_of(spec)
    return max(1, ROW // group) if group else 0


@dataclass(frozen=True, kw_only=True)
class StreamShape:
    """How a stream tile cuts the problem.

    slices   parts of each K step, one for each warp of a 16-row block
    step     k that a slice advances at a time
    rows     steps of ROW k in K;  share: of them, those of one CTA
    even     no block, row or step is cut off
    """

    slices: int
    step: int
    rows: int
    share: int
    tiles: int
    even: bool


def stream_shape(tile: Tile, m: int, layout: PackLayout, k: int) -> StreamShape:
    """Return how `tile` cuts a problem of m rows and k columns."""
    slices = tile.num_warps * 16 // tile.block_n
    rows = -(-layout.padded_k // ROW)
    in_step = tile.block_k // ROW
    steps = -(-rows // in_step)
    share = -(-steps // tile.split_k) * in_step
    even = (
        share * tile.split_k == rows and layout.padded_k % ROW == 0 and k == layout.padded_k and layout.padded_n % tile.block_n == 0
    )
    return StreamShape(
        slices=slices,
        step=tile.block_k // slices,
        rows=rows,
        share=share,
        tiles=-(-m // tile.block_m) * -(-layout.padded_n // tile.block_n),
        even=even,
    )


def stream_shared_bytes(tile: Tile, problem: Problem, layout: PackLayout) -> int:
    """Return the bytes of shared memory that the stream kernel takes, as compiled."""
    spec = problem.spec
    bits = parse_format(layout.encoding).bits
    words = tile.block_n * tile.block_k * bits // 8
    x = tile.block_m * tile.block_k * 2
    rows = tile.block_k // ROW
    scales = groups_in_row(spec) * tile.block_n * rows * spec.scale_format.bits // 8
    zeros = 0
    if spec.has_zero_point:
        zero_bits = 8 if spec.zero_point == "int" else parse_format(str(spec.zero_point)).bits
        zeros = groups_in_row(spec) * tile.block_n * rows * zero_bits // 8
    # Zero points pass through shared memory on their way from rows to lanes: 64 of 16 bits a warp.
    exchange = 128 * tile.num_warps if spec.has_zero_point else 0
    return tile.num_stages * (words + x + scales + zeros) + exchange


def registers(tile: Tile) -> int:
    """Return the registers that each thread may have, for `ctas_per_sm` CTAs to be resident."""
    return min(255, 65536 // (32 * tile.num_warps * tile.ctas_per_sm) // 8 * 8)


def workspace_bytes(tile: Tile, problem: Problem, layout: PackLayout) -> int:
    """Return the bytes of fp32 partial tiles that split K passes through memory; 0 where one CTA sums a tile."""
    if tile.split_k == 1:
        return 0
    return stream_shape(tile, problem.m, layout, problem.k).tiles * tile.split_k * tile.block_n * tile.block_m * 4
