"""Two CTAs that share their tokens: a cluster whose halves each bring half of x, for both (TMA multicast).

A large tile is bound by what L2 delivers; a pair of CTAs on neighbouring tiles of N reads x once instead of twice. Triton 3.6.0 can
neither launch a cluster of programs that work apart, nor multicast, nor arrive at another CTA's barrier. What is missing is written
into the compiled PTX, at lines that the kernel marks (edit.py):

    CLUSTER  the kernel's barriers are ready: the pair waits for each other here, once
    BOTH     the next TMA box goes into both CTAs' shared memory, and counts at both CTAs' barriers
    RELEASE  the next arrival reaches both CTAs: a slot is free when both have read it

With PAIR = 1 nothing is marked, and everything here is what the other kernels do.
"""

from hybrid_humming.triton_kernels.hopper.a8.edit import BOTH, CLUSTER, RELEASE
from hybrid_humming.triton_kernels.hopper.gluon import extents, gl, gluon, load_tile, mbarrier, view
from hybrid_humming.triton_kernels.hopper.producer import produce, request_weights
from hybrid_humming.triton_kernels.hopper.segments import count_segments, segment, tile_at

BYTES = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=8, rank=2))
MARKS = gl.constexpr({"cluster": CLUSTER, "both": BOTH, "release": RELEASE})


@gluon.constexpr_function
def marking(name):
    """PTX that leaves a mark in the compiled text and does nothing."""
    return f"// {MARKS.value[name]}\nmov.b32 $0, $1;"


@gluon.jit
def mark(NAME: gl.constexpr):
    """Leave a mark for the editor, at this place among the instructions that have effects."""
    gl.inline_asm_elementwise(marking(NAME), "=r,r", [gl.program_id(0)], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def meet(PAIR: gl.constexpr):
    """Wait until the barriers of both CTAs are ready."""
    if PAIR == 2:
        mark("cluster")


@gluon.jit
def release(bar, pred, PAIR: gl.constexpr):
    """Give a slot back."""
    if PAIR == 2:
        mark("release")
    mbarrier.arrive(bar, count=1, pred=pred)


@gluon.jit
def tokens(xb, slot, BM: gl.constexpr, PAIR: gl.constexpr):
    """[BM, 128] x of the step in `slot`; a pair's halves lie one after the other."""
    if PAIR == 2:
        return view(xb.index(2 * slot), xb.dtype, extents(BM, 128), BYTES)
    else:
        return xb.index(slot)


@gluon.jit
def count_places(tiles_m, tiles_n, steps, shared, share, PAIR: gl.constexpr):
    """(shared segments, all segments) of this CTA; with a pair, tiles_n counts pairs of tiles, and none is shared along K."""
    if PAIR == 2:
        mine = tiles_m * tiles_n - gl.program_id(0) // 2
        return 0, gl.cdiv(gl.maximum(mine, 0), gl.num_programs(0) // 2)
    else:
        return count_segments(tiles_m * tiles_n, steps, shared, share)


@gluon.jit
def place(i, dealt, steps, shared, share, tiles_m, tiles_n, RASTER_M: gl.constexpr, PAIR: gl.constexpr):
    """(tile, first step, end, its m, its n) of this CTA's i-th segment."""
    if PAIR == 2:
        tile = gl.program_id(0) // 2 + i * (gl.num_programs(0) // 2)
        m, n = tile_at(tile, tiles_m, tiles_n, RASTER_M)
        return tile, 0, steps, m, 2 * n + gl.program_id(0) % 2
    else:
        tile, begin, end = segment(i, dealt, steps, shared, share)
        m, n = tile_at(tile, tiles_m, tiles_n, RASTER_M)
        return tile, begin, end, m, n


@gluon.jit
def produce_pair(
    x_desc, descriptors, xb, buffers, full, empty, tiles_m, tiles_n, steps, segments,
    J: gl.constexpr, SERVED: gl.constexpr, ZERO: gl.constexpr, PLANES: gl.constexpr, BLOCK_M: gl.constexpr,
    BLOCK_K: gl.constexpr, STAGES: gl.constexpr, RASTER_M: gl.constexpr, BYTES: gl.constexpr,
):  # fmt: skip
    """The producer warp of a CTA of a pair: its own W, and its half of the tokens for both."""
    rank = gl.program_id(0) % 2
    slot = 0
    phase = 1  # nothing to wait for in the first round
    for i in range(segments):
        _tile, begin, end, m, n = place(i, 0, steps, 0, 1, tiles_m, tiles_n, RASTER_M, 2)
        for k in range(begin, end):
            bar = full.index(slot)
            mbarrier.wait(empty.index(slot), phase)
            mbarrier.expect(bar, BYTES)
            request_weights(descriptors, buffers, bar, slot, n, k, J, SERVED, ZERO, PLANES)
            mark("both")
            load_tile(x_desc, [m * BLOCK_M + rank * (BLOCK_M // 2), k * BLOCK_K], bar, xb.index(2 * slot + rank))
            slot += 1
            if slot == STAGES:
                slot = 0
                phase = phase ^ 1
    for _i in range(STAGES):  # shared memory may go when the other CTA has given back all that it will
        mbarrier.wait(empty.index(slot), phase)
        slot += 1
        if slot == STAGES:
            slot = 0
            phase = phase ^ 1


@gluon.jit
def produce_either(
    x_desc, descriptors, xb, buffers, full, empty, tiles_m, tiles_n, steps, shared, share, dealt, segments,
    J: gl.constexpr, SERVED: gl.constexpr, ZERO: gl.constexpr, PLANES: gl.constexpr, BLOCK_M: gl.constexpr,
    BLOCK_K: gl.constexpr, STAGES: gl.constexpr, RASTER_M: gl.constexpr, BYTES: gl.constexpr, DEPENDENT: gl.constexpr,
    PAIR: gl.constexpr,
):  # fmt: skip
    """The producer warp, alone or of a pair."""
    if PAIR == 2:
        produce_pair(x_desc, descriptors, xb, buffers, full, empty, tiles_m, tiles_n, steps, segments,
                     J, SERVED, ZERO, PLANES, BLOCK_M, BLOCK_K, STAGES, RASTER_M, BYTES)  # fmt: skip
    else:
        produce(x_desc, descriptors, xb, buffers, full, empty, tiles_m, tiles_n, steps, shared, share, dealt, segments,
                J, SERVED, ZERO, PLANES, BLOCK_M, BLOCK_K, STAGES, RASTER_M, BYTES, DEPENDENT)  # fmt: skip
