"""The producer warp: a TMA box for each plane of W, for x, scales and zero points, STAGES steps of 128 k ahead of the consumers."""

from hybrid_humming.triton_kernels.hopper.gluon import gdc_wait, gl, gluon, load_tile, mbarrier
from hybrid_humming.triton_kernels.hopper.segments import segment, tile_at


@gluon.jit
def request_weights(
    descriptors, buffers, bar, slot, n, k, J: gl.constexpr, SERVED: gl.constexpr, ZERO: gl.constexpr, PLANES: gl.constexpr
):
    """Ask for the words, scales and zero points of step k of the n-th block of rows."""
    for p in gl.static_range(len(PLANES)):
        words = buffers[p].index(slot)
        load_tile(descriptors[p], [n * words.shape[0], k * words.shape[1], 0], bar, words)
    if J > 0:
        scales = buffers[len(PLANES)].index(slot)
        load_tile(descriptors[len(PLANES)], [k // SERVED, n * scales.shape[1], 0], bar, scales)
    if ZERO:
        zeros = buffers[len(PLANES) + 1].index(slot)
        load_tile(descriptors[len(PLANES) + 1], [k // SERVED, n * zeros.shape[1], 0], bar, zeros)


@gluon.jit
def produce(
    x_desc, descriptors, xb, buffers, full, empty, tiles_m, tiles_n, steps, shared, share, dealt, segments,
    J: gl.constexpr, SERVED: gl.constexpr, ZERO: gl.constexpr, PLANES: gl.constexpr, BLOCK_M: gl.constexpr,
    BLOCK_K: gl.constexpr, STAGES: gl.constexpr, RASTER_M: gl.constexpr, BYTES: gl.constexpr, DEPENDENT: gl.constexpr,
):  # fmt: skip
    """Fill slot after slot, for each step of each segment."""
    early = 0
    if DEPENDENT:
        # Weights do not depend on the kernel before this one: those of the first steps are on their way while it still runs.
        tile, begin, end = segment(0, dealt, steps, shared, share)
        m, n = tile_at(tile, tiles_m, tiles_n, RASTER_M)
        early = gl.where(segments > 0, gl.minimum(end - begin, STAGES), 0)
        for j in range(early):
            mbarrier.expect(full.index(j), BYTES)
            request_weights(descriptors, buffers, full.index(j), j, n, begin + j, J, SERVED, ZERO, PLANES)
        gdc_wait()
    slot = 0
    phase = 1  # nothing to wait for in the first round
    for i in range(segments):
        tile, begin, end = segment(i, dealt, steps, shared, share)
        m, n = tile_at(tile, tiles_m, tiles_n, RASTER_M)
        for k in range(begin, end):
            bar = full.index(slot)
            if (i > 0) | (k - begin >= early):
                mbarrier.wait(empty.index(slot), phase)
                mbarrier.expect(bar, BYTES)
                request_weights(descriptors, buffers, bar, slot, n, k, J, SERVED, ZERO, PLANES)
            load_tile(x_desc, [m * BLOCK_M, k * BLOCK_K], bar, xb.index(slot))
            slot += 1
            if slot == STAGES:
                slot = 0
                phase = phase ^ 1
