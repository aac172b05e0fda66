"""The scales (or zero points) of a [BLOCK_K, BLOCK_N] weight tile.

ptr [C, R], R contiguous;  row of k: (k + offset_k) // GROUP_K,  column of n: (n + offset_n) // GROUP_N

ROW     one row serves the whole tile: [1, BLOCK_N]
TILE    GROUP_K is a power of two that divides BLOCK_K: [BLOCK_K, BLOCK_N], each row loaded once
GATHER  anything else: [BLOCK_K, BLOCK_N], a row looked up for every k
"""

import triton
import triton.language as tl

ROW = 0
TILE = 1
GATHER = 2


@triton.jit
def load_scale_tile(
    ptr, k0, n, N, K, rows, columns, offset_n, offset_k,
    MODE: tl.constexpr, GROUP_K: tl.constexpr, GROUP_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Stored scales of weights (k0.., n..), masked with 0 outside the weight; GROUP_K = 0 means one row for all k."""
    column = n
    if GROUP_N == 0:
        column = n * 0
    elif GROUP_N > 1:
        column = (n + offset_n) // GROUP_N
    in_n = n < N
    if MODE == 0:
        row = n * 0  # n's type: 64 bits where offsets need them
        if GROUP_K > 0:
            row += (k0 + offset_k) // GROUP_K
        return tl.load(ptr + row * columns + column, mask=in_n & (k0 < K), other=0)[None, :]
    elif MODE == 1:
        GROUPS: tl.constexpr = BLOCK_K // GROUP_K
        row = k0 // GROUP_K + tl.arange(0, GROUPS).to(n.dtype)
        mask = (row < rows)[:, None] & in_n[None, :]
        tile = tl.load(ptr + row[:, None] * columns + column[None, :], mask=mask, other=0)
        return tl.broadcast_to(tile[:, None, :], (GROUPS, GROUP_K, BLOCK_N)).reshape(BLOCK_K, BLOCK_N)
    else:
        k = k0 + tl.arange(0, BLOCK_K).to(n.dtype)
        row = k * 0
        if GROUP_K > 0:
            row = (k + offset_k) // GROUP_K
        mask = (k < K)[:, None] & in_n[None, :]
        return tl.load(ptr + row[:, None] * columns + column[None, :], mask=mask, other=0)
