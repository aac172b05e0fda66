"""On the tensor core itself: packed codes, decoded in registers, times an identity, are the values of the format's table."""

import pytest
import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

import hybrid_humming as hh
from hybrid_humming import pack
from hybrid_humming.dtypes import parse_format
from hybrid_humming.pack.hopper import plane_rows
from hybrid_humming.triton_kernels.hopper.decode.decoder import decoder
from hybrid_humming.triton_kernels.hopper.decode.tile import decode, decode_half, dtype_of, load_words, planes_of, zero_rows
from hybrid_humming.weight import Facts

barrier = getattr(gl, "barrier", None) or gl.thread_barrier
SIZE = 64  # columns of a block, and so of the identity

FORMATS = [f"int{b}" for b in range(1, 9)] + [
    "e0m1", "e0m3", "e0m5", "e0m7", "e1m1", "e3m0", "e2m1", "e2m2", "e3m2", "e2m3", "e4m2", "e4m3", "e5m2", "e3m4", "e2m5", "e6m1",
]  # fmt: skip
CASES = [(f, o) for f in FORMATS for o in ("bf16", "fp16") if not (f == "e6m1" and o == "fp16")]


@gluon.jit
def plane_buffer(ptr, block, blocks, BN: gl.constexpr, P: gl.constexpr, num_warps: gl.constexpr):
    """Shared words [BN/64, 1, 128, P] of block `block` of K of BN/64 rows of blocks."""
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [3, 2, 1, 0])
    T: gl.constexpr = gl.BlockedLayout([1, 1, 1, P], [1, 1, 32, 1], [1, 1, num_warps, 1], [3, 2, 1, 0])
    buffer = gl.allocate_shared_memory(gl.int32, [BN // 64, 1, 128, P], FLAT)
    row = gl.arange(0, BN // 64, layout=gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, T))))
    lane = gl.arange(0, 128, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, T))))
    word = gl.arange(0, P, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, T))))
    at = (row[:, None, None, None] * blocks + block) * (128 * P) + lane[None, None, :, None] * P + word[None, None, None, :]
    buffer.store(gl.load(ptr + at))
    return buffer


@gluon.jit
def identity_kernel(
    out_ptr, words_ptr, x_ptr, zero_ptr, block, blocks, DECODER: gl.constexpr, ROWS: gl.constexpr, BN: gl.constexpr,
    HALVES: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """out[BN, 64] fp32 = block `block` of the decoded weight, by wgmma with x = identity [64, 64]."""
    D: gl.constexpr = dtype_of(DECODER)
    PLANES: gl.constexpr = planes_of(DECODER)
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, 64, 16])
    A: gl.constexpr = gl.DotOperandLayout(0, ACC, 2)
    XT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [num_warps, 1], [1, 0])
    x = gl.allocate_shared_memory(D, [64, 64], gl.NVMMASharedLayout.get_default_for([64, 64], D))
    m = gl.arange(0, 64, layout=gl.SliceLayout(1, XT))
    k = gl.arange(0, 64, layout=gl.SliceLayout(0, XT))
    x.store(gl.load(x_ptr + m[:, None] * 64 + k[None, :]))
    views = ()
    base = words_ptr
    for p in gl.static_range(len(PLANES)):
        views = views + (plane_buffer(base, block, blocks, BN, PLANES[p], num_warps),)  # noqa: RUF005
        base += ROWS[p] * 128
    fence_async_shared()
    barrier()
    low, high = load_words(views, BN, 64, num_warps // 4, DECODER)
    zeros = ()
    if DECODER.zero_point is not None:
        row = gl.arange(0, BN, layout=gl.SliceLayout(1, A))
        zeros = zero_rows(gl.load(zero_ptr + row), BN, 64, num_warps // 4, A)
    acc = gl.zeros([BN, 64], gl.float32, ACC)
    if HALVES:
        a0 = decode_half(low, 0, BN, A, DECODER, zeros)
        a1 = decode_half(high, 1, BN, A, DECODER, zeros)
        acc = warpgroup_mma(a0, x.slice(0, 32, dim=1).permute([1, 0]), acc, is_async=True)
        acc = warpgroup_mma(a1, x.slice(32, 32, dim=1).permute([1, 0]), acc, is_async=True)
        acc, _0, _1 = warpgroup_mma_wait(0, [acc, a0, a1])
    else:
        a = decode(low, high, BN, 64, A, DECODER, zeros)
        acc = warpgroup_mma(a, x.permute([1, 0]), acc, is_async=True)
        acc, _a = warpgroup_mma_wait(0, [acc, a])
    n = gl.arange(0, BN, layout=gl.SliceLayout(1, ACC))
    c = gl.arange(0, 64, layout=gl.SliceLayout(0, ACC))
    gl.store(out_ptr + n[:, None] * 64 + c[None, :], acc)


def decoded(line: str, codes, *, zero=None, raw=None, halves=False, num_warps=4) -> torch.Tensor:
    """[N, 128] float64: the second block of K of 256 columns, decoded on the GPU; N = 16 num_warps."""
    spec = hh.Spec.parse(line)
    n, k = codes.shape
    scale = torch.ones(*spec.scale_shape(n, k), dtype=spec.scale_format.torch_storage)
    zero_point = None if zero is None else zero.to(torch.uint8)[:, None]
    weight = hh.CanonicalWeight(spec=spec, codes=codes, scale=scale, zero_point=zero_point)
    layout = pack.make_layout("hopper", spec, n, k, experts=0, facts=Facts())
    words = pack.pack(weight, layout).qweight.cuda()
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[spec.activation]
    made = decoder(layout.encoding, spec.activation, zero_point=None if zero is None else "int", raw=raw)
    eye = torch.eye(SIZE, dtype=dtype, device="cuda")
    zeros = torch.zeros(n, dtype=dtype, device="cuda") if zero is None else zero.to("cuda", dtype)
    parts = []
    for block in range(k // SIZE):
        out = torch.full((n, SIZE), float("nan"), device="cuda")
        identity_kernel[(1,)](
            out, words, eye, zeros, block, k // SIZE, DECODER=made, ROWS=plane_rows(layout.encoding, n, k), BN=n, HALVES=halves,
            num_warps=num_warps,
        )  # fmt: skip
        parts.append(out.double().cpu() * made.post_scale)
    return torch.cat(parts, dim=1)


def some_codes(fmt: str, n: int, k: int) -> torch.Tensor:
    """Random finite codes: a NaN times the identity's zeros would fill its row."""
    element = parse_format(fmt)
    finite = torch.tensor([c for c, v in enumerate(element.values) if abs(v) < float("inf")], dtype=torch.uint8)
    return finite[torch.randint(len(finite), (n, k), generator=torch.Generator().manual_seed(element.bits))]


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("fmt, operand", CASES)
def test_packed_codes_decode_bit_exactly(fmt, operand, halves):
    codes = some_codes(fmt, 64, 2 * SIZE)
    found = decoded(f"{fmt} channel x {operand}", codes, halves=halves)
    assert torch.equal(found, torch.from_numpy(parse_format(fmt).values.copy())[codes.long()])


@pytest.mark.parametrize("operand", ["bf16", "fp16"])
@pytest.mark.parametrize("bits", range(1, 9))
def test_integer_zero_points_are_subtracted_exactly(bits, operand):
    codes = some_codes(f"uint{bits}", 128, 2 * SIZE)
    zero = torch.arange(128) * 37 % 2**bits
    found = decoded(f"uint{bits} channel zp x {operand}", codes, zero=zero, num_warps=8)
    assert torch.equal(found, (codes.long() - zero[:, None]).double())


@pytest.mark.parametrize("operand", ["bf16", "fp16"])
@pytest.mark.parametrize("fmt, code", [("e4m3", 0x7F), ("e4m3", 0xFF), ("e5m2", 0x7E)])
def test_a_nan_code_reaches_the_result(fmt, code, operand):
    codes = some_codes(fmt, 64, SIZE)
    codes[5, 9] = code
    found = decoded(f"{fmt} channel x {operand}", codes)
    assert torch.isnan(found[5]).all() and torch.isfinite(found[torch.arange(64) != 5]).all()


@pytest.mark.parametrize("fmt", ["e2m1", "e4m2", "e0m7", "e3m4"])
def test_raw_fp16_operands_survive_the_product(fmt):
    """Raw operands are subnormal fp16 numbers where the codes are small: the tensor core must not flush them."""
    codes = some_codes(fmt, 64, 2 * SIZE)
    found = decoded(f"{fmt} channel x fp16", codes, raw=True)
    assert torch.equal(found, torch.from_numpy(parse_format(fmt).values.copy())[codes.long()])
