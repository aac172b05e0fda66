"""A minimal wgmma loop around one decoder, to read its SASS: words from shared memory, decode, multiply."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

from hybrid_humming.triton_kernels.hopper.decode.decoder import decoder
from hybrid_humming.triton_kernels.hopper.decode.tile import decode, decode_half, dtype_of, load_words, planes_of, zero_rows
from tests.compile.harness import Source

barrier = getattr(gl, "barrier", None) or gl.thread_barrier


@gluon.jit
def plane_buffer(words_ptr, BN: gl.constexpr, BK: gl.constexpr, P: gl.constexpr, num_warps: gl.constexpr):
    """Two stages of one plane's words in shared memory."""
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [3, 2, 1, 0])
    T: gl.constexpr = gl.BlockedLayout([1, 1, 1, 1], [1, 1, 32, 1], [1, 1, num_warps, 1], [3, 2, 1, 0])
    buffer = gl.allocate_shared_memory(gl.int32, [2, BN // 64, BK // 64, 128, P], FLAT)
    offset = gl.arange(0, 128, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, T))))
    start = gl.load(words_ptr + offset)[None, None, :, None]
    for slot in gl.static_range(2):
        buffer.index(slot).store(gl.zeros([BN // 64, BK // 64, 128, P], gl.int32, T) + start)
    return buffer


@gluon.jit
def decode_kernel(
    out_ptr, words_ptr, zero_ptr, steps, DECODER: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, BM: gl.constexpr,
    HALVES: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    WG: gl.constexpr = num_warps // 4
    D: gl.constexpr = dtype_of(DECODER)
    PLANES: gl.constexpr = planes_of(DECODER)
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, BM, 16])
    A: gl.constexpr = gl.DotOperandLayout(0, ACC, 2)
    XS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BM, BK], D)
    x = gl.allocate_shared_memory(D, [BM, BK], XS)
    views = ()
    for p in gl.static_range(len(PLANES)):
        views = views + (plane_buffer(words_ptr, BN, BK, PLANES[p], num_warps),)  # noqa: RUF005
    XT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [num_warps, 1], [1, 0])
    x.store(gl.zeros([BM, BK], D, XT))
    fence_async_shared()
    barrier()
    acc = gl.zeros([BN, BM], gl.float32, ACC)
    b = x.permute([1, 0])
    for i in range(steps):
        now = ()
        for p in gl.static_range(len(PLANES)):
            now = now + (views[p].index(i % 2),)  # noqa: RUF005 (Gluon has no star in a tuple)
        low, high = load_words(now, BN, BK, WG, DECODER)
        barrier()
        zeros = ()
        if DECODER.zero_point is not None:
            rows = gl.arange(0, BN, layout=gl.SliceLayout(1, A))
            zeros = zero_rows(gl.load(zero_ptr + rows + i * BN), BN, BK, WG, A)
            if DECODER.zero_point == "float_pair":
                zeros = zeros + zero_rows(gl.load(zero_ptr + rows + (i + steps) * BN), BN, BK, WG, A)
        if HALVES:
            a0 = decode_half(low, 0, BN, A, DECODER, zeros)
            a1 = decode_half(high, 1, BN, A, DECODER, zeros)
            acc = warpgroup_mma(a0, x.slice(0, 32, dim=1).permute([1, 0]), acc, is_async=True)
            acc = warpgroup_mma(a1, x.slice(32, 32, dim=1).permute([1, 0]), acc, is_async=True)
            acc, _0, _1 = warpgroup_mma_wait(0, [acc, a0, a1])
        else:
            a = decode(low, high, BN, BK, A, DECODER, zeros)
            acc = warpgroup_mma(a, b, acc, is_async=True)
            acc, _a = warpgroup_mma_wait(0, [acc, a])
    n = gl.arange(0, BN, layout=gl.SliceLayout(1, ACC))
    m = gl.arange(0, BM, layout=gl.SliceLayout(0, ACC))
    gl.store(out_ptr + n[:, None] * BM + m[None, :], acc)


def build(encoding, operand, zero_point=None, raw=False, BN=64, BK=64, BM=8, HALVES=False, num_warps=4):
    """The probe around one decoder."""
    made = decoder(encoding, operand, zero_point=zero_point, raw=raw)
    constants = {"DECODER": made, "BN": BN, "BK": BK, "BM": BM, "HALVES": HALVES, "num_warps": num_warps}
    signature = {"out_ptr": "*fp32", "words_ptr": "*i32", "zero_ptr": f"*{operand}", "steps": "i32"}
    return Source(decode_kernel, signature, constants, 90, divisible=("out_ptr", "words_ptr"), num_warps=num_warps)
