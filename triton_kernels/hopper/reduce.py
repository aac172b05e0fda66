"""Sum of the slices of K that several CTAs made of one tile, in ascending order of the slice: the same bits every time.

Each CTA writes its partial tile to a slot of its own, then counts itself in. The last one to arrive reads the other slots, adds
all in order, and sets the counter back to 0 for the next launch: nothing is zeroed between calls.
"""

from hybrid_humming.triton_kernels.hopper.gluon import barrier, gl, gluon


@gluon.jit
def publish(acc, offset, mask, partial_ptr, count_ptr, tile, part, PARTS: gl.constexpr, TILE: gl.constexpr):
    """Store this CTA's partial tile [BLOCK_N, BLOCK_M]; return whether all the others of this tile are there."""
    slot = partial_ptr + (tile.to(gl.int64) * PARTS + part) * TILE
    gl.store(slot + offset, acc, mask=mask)
    barrier()  # every thread's stores come before the one atomic that announces them
    arrived = gl.atomic_add(count_ptr + tile, 1, sem="acq_rel")
    return arrived == PARTS - 1


@gluon.jit
def collect(acc, offset, mask, partial_ptr, count_ptr, tile, part, PARTS: gl.constexpr, TILE: gl.constexpr):
    """Sum of all partial tiles in order; `acc` is this CTA's own, which need not be read back."""
    base = partial_ptr + tile.to(gl.int64) * (PARTS * TILE)
    total = gl.zeros_like(acc)
    for p in gl.static_range(PARTS):
        other = gl.load(base + p * TILE + offset, mask=mask & (part != p), other=0.0, cache_modifier=".cg")
        total += gl.where(part == p, acc, other)
    gl.store(count_ptr + tile, 0)
    return total
