"""Which part of which tile a CTA works on, and the sum of tiles that several CTAs share.

The first `shared` tiles are cut into steps of K and dealt out evenly, `share` steps a CTA (stream-K); the rest are whole tiles,
one after the other. A CTA's work is a list of segments (tile, first step, end), its shared ones first, so that their sums are
made while other CTAs still multiply. Everything about a segment follows from its index: nothing is carried from one to the next.

A shared tile that one CTA does not finish alone is summed in ascending order of the CTAs, by the last of them to arrive: the same
bits every time. Partial tiles are private to (CTA, first | last segment), so nothing is zeroed between calls, and the counters end
at 0.
"""

from hybrid_humming.triton_kernels.hopper.gluon import barrier, gl, gluon


@gluon.jit
def count_segments(tiles, steps, shared, share):
    """(shared segments, all segments) of this CTA."""
    pid = gl.program_id(0)
    begin = gl.minimum(pid * share, shared * steps)
    end = gl.minimum(begin + share, shared * steps)
    dealt = gl.where(end > begin, (end + steps - 1) // steps - begin // steps, 0)
    whole = gl.cdiv(gl.maximum(tiles - shared - pid, 0), gl.num_programs(0))
    return dealt, dealt + whole


@gluon.jit
def segment(index, dealt, steps, shared, share):
    """(tile, first step, end) of this CTA's segment."""
    pid = gl.program_id(0)
    begin = pid * share
    end = gl.minimum(begin + share, shared * steps)
    is_shared = index < dealt
    tile = gl.where(is_shared, begin // steps + index, shared + pid + (index - dealt) * gl.num_programs(0))
    first = gl.where(is_shared, gl.maximum(begin - tile * steps, 0), 0)
    last = gl.where(is_shared, gl.minimum(end - tile * steps, steps), steps)
    return tile, first, last


@gluon.jit
def tile_at(tile, tiles_m, tiles_n, RASTER_M: gl.constexpr):
    """(m, n) of a tile: RASTER_M tiles of M before N advances; all of them for 0."""
    if RASTER_M == 0:
        return tile % tiles_m, tile // tiles_m
    else:
        per = RASTER_M * tiles_n
        first = tile // per * RASTER_M
        rows = gl.minimum(tiles_m - first, RASTER_M)
        return first + tile % per % rows, tile % per // rows


@gluon.constexpr_function
def flat_layout(rows, columns):
    """Registers of a partial tile as one run: four neighbours a lane, 512 bytes a warp and 8 columns."""
    reg = [[1], [2]]
    bit = 8 * rows
    while bit < rows * columns:
        reg.append([bit])
        bit *= 2
    warp = []
    bit = 128
    while bit < 8 * rows:
        warp.append([bit])
        bit *= 2
    return gl.DistributedLinearLayout(reg, [[4], [8], [16], [32], [64]], warp, [], [rows * columns])


@gluon.jit
def flatten(acc, BN: gl.constexpr, BM: gl.constexpr, FLAT: gl.constexpr):
    """[BN, BM] accumulator -> [BN * BM] in an order in which a lane's values lie side by side; nothing moves."""
    #                w        r  g  mb       t  e
    flat = acc.reshape([BN // 16, 2, 8, BM // 8, 4, 2]).permute([3, 0, 2, 4, 1, 5]).reshape([BN * BM])
    return gl.convert_layout(flat, FLAT, assert_trivial=True)


@gluon.jit
def unflatten(flat, BN: gl.constexpr, BM: gl.constexpr, ACC: gl.constexpr):
    """The inverse of `flatten`."""
    acc = flat.reshape([BM // 8, BN // 16, 8, 4, 2, 2]).permute([1, 4, 2, 0, 3, 5]).reshape([BN, BM])
    return gl.convert_layout(acc, ACC, assert_trivial=True)


@gluon.jit
def slot_of(cta, tile, steps, share):
    """Index of the partial tile that `cta` writes for `tile`."""
    return 2 * cta + gl.where(cta * share // steps == tile, 0, 1)


@gluon.jit
def sum_shared(acc, partial_ptr, count_ptr, tile, steps, share, BN: gl.constexpr, BM: gl.constexpr, ACC: gl.constexpr):
    """(whether this CTA has the sum, the sum [BN, BM]): leave `acc` for the last CTA of this tile, or be it."""
    FLAT: gl.constexpr = flat_layout(BN, BM)
    pid = gl.program_id(0)
    offset = gl.arange(0, BN * BM, layout=FLAT)
    first = tile * steps // share
    last = (tile * steps + steps - 1) // share
    own = flatten(acc, BN, BM, FLAT)
    gl.store(partial_ptr + slot_of(pid, tile, steps, share).to(gl.int64) * (BN * BM) + offset, own)
    barrier()  # every thread's stores come before the one atomic that announces them
    arrived = gl.atomic_add(count_ptr + tile, 1, sem="acq_rel")
    is_last = arrived == last - first
    total = own
    if is_last:
        total = gl.zeros_like(own)
        for cta in range(first, last + 1):
            slot = partial_ptr + slot_of(cta, tile, steps, share).to(gl.int64) * (BN * BM)
            total += gl.load(slot + offset, cache_modifier=".cg")
        gl.store(count_ptr + tile, 0)
    return is_last, unflatten(total, BN, BM, ACC)
