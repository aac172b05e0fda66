"""The portable kernels in Triton's interpreter (fp16: it multiplies bf16 wrongly), and what they refuse."""

import pytest
import torch

import hybrid_humming as hh
from hybrid_humming.jit.args import GemmArgs
from hybrid_humming.pack.portable import make_layout
from hybrid_humming.plan import Plan, Tile
from hybrid_humming.weight import Facts

from .cases import QUANTIZED, WEIGHT_ONLY, Case, k_of

pytestmark = pytest.mark.interpret
SMALL = Tile(block_m=16, block_n=32, block_k=64)


def run(case, kernel, tile, *, out_dtype=torch.float32, block_offset=(0, 0)):
    """The kernel's result, into an output that was poisoned with NaN and has a margin on every side."""
    from hybrid_humming.triton_kernels.portable import gemm, gemv

    m, n = case.x.shape[0], case.qweight.n
    frame = torch.full((m + 2, n + 9), float("nan"), dtype=out_dtype)
    out = frame[1:-1, 4:-5]
    x, x_scale, x_global = case.quantized or (case.x, None, None)
    q = case.qweight
    problem = hh.Problem(spec=case.spec, m=m, n=n, k=q.k, bias=case.bias is not None)
    args = GemmArgs(
        x, q.qweight, q.scale, q.zero_point, q.secondary_scale, x_scale, x_global, case.bias, out,
        torch.full((4 * tile.split_k * m * n,), 255, dtype=torch.uint8), problem, q.layout, {}, block_offset,
    )  # fmt: skip
    {"gemm": gemm, "gemv": gemv}[kernel].launch(args, Plan(kernel=kernel, tile=tile, multiplies="fp16"))
    outside = frame.clone()
    outside[1:-1, 4:-5] = float("nan")
    assert outside.isnan().all(), "something was written outside the output"
    return out


@pytest.mark.parametrize("half", WEIGHT_ONLY)
def test_decode_is_bit_exact(half):
    """Rows of the identity read the decoded weight out through the real kernel."""
    line = f"{half} x fp16 -> fp32"
    case = Case(line, 1, 40, k_of(half))
    case.x = torch.eye(k_of(half), dtype=torch.float16)[:48]
    got = run(case, "gemm", SMALL.replace(block_n=16))
    want = hh.dequantize(case.qweight)[:, :48].T
    # A scale that is finer than the tile multiplies in fp32 and is rounded once to the operand type.
    finer = case.spec.group_size not in (None, 64, 128, 256) or case.spec.zero_point not in (None, "int")
    if case.spec.block is not None:
        finer = case.spec.block[1] % SMALL.block_k != 0
    if finer and case.spec.secondary is None:
        want = want.half().float()
    elif finer:  # the secondary scale comes after that rounding
        canonical = hh.unpack_weight(case.qweight)
        first = canonical.replace(spec=case.spec.replace(secondary=None), secondary_scale=None)
        want = hh.dequantize(first)[:, :48].T.half().float() * canonical.secondary_scale.float()
    assert torch.equal(got, want)


@pytest.mark.parametrize("half", WEIGHT_ONLY)
@pytest.mark.parametrize("kernel", ["gemm", "gemv"])
def test_error_is_at_most_twice_torchs(half, kernel):
    m = 17 if kernel == "gemm" else 3
    case = Case(f"{half} x fp16", m, 50, k_of(half), bias=True)
    tile = SMALL if kernel == "gemm" else Tile(block_m=4, block_n=32, block_k=128, split_k=2)
    assert case.holds(run(case, kernel, tile))


def test_a_first_scale_beyond_fp16_is_tamed_by_the_second_in_time():
    case = Case("int4 g64:e5m3+channel x fp16", 17, 50, 384)
    assert case.holds(run(case, "gemm", SMALL.replace(block_k=128)))


@pytest.mark.parametrize("line", QUANTIZED)
def test_quantized_activations_are_multiplied_exactly(line):
    case = Case(line, 5, 40, 384)
    limit = {"mx": 32, "e2m": 32}
    block_k = next((v for k, v in limit.items() if line.startswith(k)), 64)
    got = run(case, "gemm", SMALL.replace(block_k=block_k, split_k=2))
    assert case.error(got) <= 1e-6 * case.exact.norm()


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 128), (1, 33, 128), (17, 7, 256), (40, 96, 640), (16, 32, 64)])
@pytest.mark.parametrize("tile", [SMALL, SMALL.replace(block_k=128, split_k=3), SMALL.replace(block_m=32, raster_m=2)], ids=str)
def test_edges(m, n, k, tile):
    case = Case(f"int4 g{min(k, 64)} x fp16", m, n, k)
    tile = tile.replace(split_k=min(tile.split_k, -(-k // tile.block_k)))
    assert case.holds(run(case, "gemm", tile))


@pytest.mark.parametrize("half", ["int3 g32", "int5 channel", "mxfp4", "e4m3 b64x64"])
def test_k_may_end_inside_a_word(half):
    case = Case(f"{half} x fp16", 3, 20, 352 if "g32" in half or half == "mxfp4" else 344)
    for kernel, tile in (("gemm", SMALL.replace(block_k=128)), ("gemv", Tile(block_m=4, block_n=32, block_k=128))):
        assert case.holds(run(case, kernel, tile))


def test_two_runs_are_equal_and_split_k_adds_in_order():
    case = Case("int4 g64 x fp16", 9, 48, 512)
    tile = SMALL.replace(split_k=4)
    assert torch.equal(run(case, "gemm", tile), run(case, "gemm", tile))


def test_a_row_has_the_same_bits_whatever_m_is():
    case = Case("int4 g64 x fp16", 33, 48, 256)
    whole = run(case, "gemm", SMALL)
    case.x = case.x[:5]
    assert torch.equal(run(case, "gemm", SMALL), whole[:5])


def test_strided_x_is_read_in_place():
    case = Case("int4 g64 x fp16", 8, 40, 128)
    want = run(case, "gemm", SMALL)
    big = torch.full((8, 300), float("nan"), dtype=torch.float16)
    big[:, :128] = case.x
    case.x = big[:, :128]
    assert torch.equal(run(case, "gemm", SMALL), want)


def test_m_major_activation_scales_are_read_by_their_strides():
    case = Case("e4m3 b128x128 x e4m3 g128", 5, 40, 384)
    want = run(case, "gemm", SMALL)
    values, scale, _ = case.quantized
    case.quantized = (values, scale.T.contiguous().T, None)
    assert torch.equal(run(case, "gemm", SMALL), want)


def test_a_shard_that_starts_inside_a_block_keeps_its_scales():
    whole = Case("e4m3 b64x64 x fp16", 4, 160, 256)
    canonical = hh.unpack_weight(whole.qweight)
    codes, scale = canonical.codes[96:, 32:].contiguous(), canonical.scale[1:, :].contiguous()
    shard = canonical.replace(codes=codes, scale=scale, block_offset=(96, 32))
    want = hh.dequantize(canonical, torch.float64)[96:, 32:]
    assert torch.equal(hh.dequantize(shard, torch.float64), want)
    whole.x = torch.randn(4, 224).half()
    whole.exact = whole.x.double() @ want.T
    whole.qweight = hh.pack_weight(shard)
    assert whole.holds(run(whole, "gemm", SMALL, block_offset=(96, 32)))


def test_nan_and_e8m0_edge_scales_stay_in_their_group():
    """e8m0 codes 0, 1, 254 and 255 are 2**-127, 2**-126, 2**127 and NaN."""
    case = Case("mxfp4 x fp16 -> fp32", 1, 16, 128)
    canonical = hh.unpack_weight(case.qweight)
    raw = canonical.scale.view(torch.uint8).clone()
    raw[:4, 1] = torch.tensor([0, 1, 254, 255], dtype=torch.uint8)
    canonical = canonical.replace(scale=raw.view(torch.float8_e8m0fnu))
    case.qweight = hh.pack_weight(canonical)
    case.x = torch.eye(128, dtype=torch.float16)
    got = run(case, "gemm", SMALL.replace(block_k=32))
    want = hh.dequantize(canonical).T
    assert got[:, 3].isnan().all() and not got[:, :3].isnan().any() and not got[:, 4:].isnan().any()
    keep = torch.arange(16) != 3
    assert torch.equal(got[:, keep], want[:, keep])


def test_fp16_sums_pass_the_fp16_range():
    weight = torch.full((16, 8192), 7.0)
    weight[:, 4096:] = -7.0
    qweight = hh.quantize(weight, "int4 channel x fp16")
    case = Case("int4 channel x fp16", 1, 16, 128)
    case.qweight, case.x = qweight, torch.full((1, 8192), 8.0, dtype=torch.float16)
    assert torch.equal(run(case, "gemm", SMALL.replace(block_k=256)), torch.zeros(1, 16))


def test_a_decoder_added_in_one_file_needs_no_edit_elsewhere():
    """A user's own function for e1m2 takes over from the general one, and the kernels call it."""
    from hybrid_humming.triton_kernels import dequant

    from .decoder_e1m2 import decode_e1m2

    dequant.decoder_of(hh.Spec.parse("e1m2 g128 x fp16").weight_format)  # our own register first
    dequant.decoder(lambda fmt: fmt.name == "e1m2")(decode_e1m2)
    try:
        case = Case("e1m2 g128 x fp16", 5, 40, 256)
        assert dequant.decoder_of(case.spec.weight_format).function is decode_e1m2
        assert case.holds(run(case, "gemm", SMALL))
    finally:
        dequant._decoders.pop(0)


def test_layout_of_the_planner_is_the_packers():
    spec = hh.Spec.parse("int3 g32 x fp16")
    assert hh.choose_layout(spec, 40, 96, "cpu") == make_layout(spec, 40, 96, 0, Facts())
