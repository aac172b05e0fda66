"""Programs -> tiles of C and slices of K."""

import triton
import triton.language as tl


@triton.jit
def tile_of(pid, tiles_m, tiles_n, RASTER_M: tl.constexpr):
    """Program id -> (tile along M, tile along N); RASTER_M tiles of M are visited before N advances (L2 reuse of W)."""
    if RASTER_M <= 1:
        return pid % tiles_m, pid // tiles_m
    else:
        width = RASTER_M * tiles_n
        first = (pid // width) * RASTER_M
        height = tl.minimum(tiles_m - first, RASTER_M)
        return first + (pid % width) % height, (pid % width) // height


@triton.jit
def k_range(K, split, SPLIT_K: tl.constexpr, BLOCK_K: tl.constexpr):
    """Split index -> (first k, end of k), whole blocks, in the same place whatever M is."""
    blocks = tl.cdiv(K, BLOCK_K)
    share = tl.cdiv(blocks, SPLIT_K)
    begin = split * share
    end = tl.minimum(begin + share, blocks)
    return begin * BLOCK_K, end * BLOCK_K
