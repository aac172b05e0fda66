"""The portable kernels on a GPU: what the interpreter can't show (bf16, tensor cores, races, 64-bit offsets)."""

import pytest
import torch

import hybrid_humming as hh
from hybrid_humming.device import DeviceInfo
from hybrid_humming.dtypes import format_names, parse_format
from hybrid_humming.pack import pack
from hybrid_humming.plan import Tile
from hybrid_humming.spec import Spec
from hybrid_humming.triton_kernels.portable.catalog import DEQUANT_MATMUL, GEMM, GEMV
from tests.kernels.cases import QUANTIZED, WEIGHT_ONLY, k_of
from tests.kernels.problems import case, run

GEMM_TILE = Tile(block_m=32, block_n=64, block_k=64, num_warps=4, num_stages=3)
GEMV_TILE = Tile(block_m=4, block_n=64, block_k=128, num_warps=4, num_stages=2, mma="fma")
DEQUANT_TILE = Tile(block_m=16, block_n=64, block_k=128, num_warps=4, num_stages=2, mma="library")
WGMMA_TILES = [
    Tile(block_m=64, block_n=128, block_k=64, num_warps=4, num_stages=3),
    Tile(block_m=64, block_n=64, block_k=128, num_warps=4, num_stages=3),
    Tile(block_m=128, block_n=128, block_k=64, num_warps=8, num_stages=3),
]
MS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 257, 1024]


@pytest.fixture(scope="module")
def device():
    return DeviceInfo.of("cuda")


def limited(tile: Tile, line: str, k: int) -> Tile:
    """`tile` with the block_k that the activations' groups allow, and no more slices of K than blocks."""
    from hybrid_humming.triton_kernels.portable.tiles import block_k_limit

    block_k = min(tile.block_k, block_k_limit(Spec.parse(line)))
    return tile.replace(block_k=block_k, split_k=min(tile.split_k, -(-k // block_k)))


@pytest.mark.parametrize("half", WEIGHT_ONLY)
def test_every_weight_format_runs_in_each_kernel(half, device):
    k = k_of(half)
    run(GEMM, case(f"{half} x bf16", 37, 200, k, bias=True, device="cuda"), GEMM_TILE, device).check()
    run(GEMV, case(f"{half} x bf16", 3, 200, k, bias=True, device="cuda"), GEMV_TILE.replace(split_k=2), device).check()
    run(DEQUANT_MATMUL, case(f"{half} x bf16", 70, 200, k, device="cuda", strided=False), DEQUANT_TILE, device).check()


@pytest.mark.parametrize(
    "line", ["int4 g128 x fp16", "uint4 g64 zp x fp16 -> fp32", "int3 g32 x bf16 -> fp32", "nvfp4 x fp16 -> bf16"]
)
def test_other_types_of_x_and_y(line, device):
    run(GEMM, case(line, 37, 200, 384, bias=True, device="cuda"), GEMM_TILE.replace(split_k=3), device).check()
    run(GEMV, case(line, 3, 200, 384, bias=True, device="cuda"), GEMV_TILE, device).check()
    run(DEQUANT_MATMUL, case(line, 70, 200, 384, bias=True, device="cuda"), DEQUANT_TILE, device).check()


@pytest.mark.parametrize("line", QUANTIZED)
def test_quantized_activations(line, device):
    tile = limited(GEMM_TILE.replace(split_k=2), line, 384)
    run(GEMM, case(line, 37, 200, 384, bias=True, device="cuda"), tile, device).check()


@pytest.mark.parametrize("name", [name for name in format_names() if parse_format(name).kind in ("int", "uint", "float")])
def test_every_code_decodes_exactly(name, device):
    """Row n of W is code n and then zeros, and x picks the first column: y is the value table, NaN and infinities too."""
    fmt = parse_format(name)
    zp = " zp" if fmt.kind == "uint" else ""
    made = case(f"{name} tensor{zp} x bf16 -> fp32", 1, 2**fmt.bits, 64, device="cuda", strided=False)
    zero = int((torch.from_numpy(fmt.values.copy()) == 0).nonzero()[0])
    codes = torch.full((2**fmt.bits, 64), zero, dtype=torch.uint8)
    codes[:, 0] = torch.arange(2**fmt.bits)
    weight = made.weight.replace(codes=codes, scale=torch.ones_like(made.weight.scale))
    if zp:
        weight = weight.replace(zero_point=torch.zeros_like(made.weight.zero_point))
    packed = pack(weight, made.args.layout).to("cuda")
    x = torch.zeros(1, 64, dtype=torch.bfloat16, device="cuda")
    x[0, 0] = 1
    made.args = made.args._replace(x=x, qweight=packed.qweight, scale=packed.scale, zero_point=packed.zero_point)
    want = torch.from_numpy(fmt.values.copy()).float()
    for entry, tile in ((GEMM, GEMM_TILE), (GEMV, GEMV_TILE.replace(block_m=1)), (DEQUANT_MATMUL, DEQUANT_TILE)):
        made.args.out.fill_(float("nan"))
        got = run(entry, made, tile, device).args.out[0].cpu()
        assert torch.equal(got.isnan(), want.isnan())
        assert torch.equal(got.nan_to_num(nan=0.0), want.nan_to_num(nan=0.0)), entry.name


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2", "e8m0", "e5m3"])
def test_every_scale_code_decodes_exactly(fmt, device):
    """256 channels, one scale code each."""
    made = case(f"int4 channel:{fmt} x bf16 -> fp32", 1, 256, 64, device="cuda", strided=False)
    scale = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(256, 1)
    codes = torch.full((256, 64), 8, dtype=torch.uint8)
    codes[:, 0] = 9
    weight = made.weight.replace(codes=codes, scale=scale.view(parse_format(fmt).torch_storage))
    packed = pack(weight, made.args.layout).to("cuda")
    made.args = made.args._replace(qweight=packed.qweight, scale=packed.scale, x=torch.ones(1, 64, device="cuda").bfloat16())
    want = torch.from_numpy(parse_format(fmt).values.copy()).float()
    for entry, tile in ((GEMM, GEMM_TILE), (GEMV, GEMV_TILE.replace(block_m=1, split_k=1))):
        got = run(entry, made, tile, device).args.out[0].cpu()
        assert torch.equal(got.isnan(), want.isnan()), entry.name
        same = (got == want) | want.isnan()
        assert same.all(), (entry.name, (~same).nonzero()[:, 0].tolist())


@pytest.mark.parametrize("tile", WGMMA_TILES, ids=str)
@pytest.mark.parametrize("line", ["int4 g128 x bf16", "int4 g32 x bf16", "uint4 g64 zp:bf16 x bf16"])
def test_fifty_runs_have_the_same_bits(line, tile, device):
    """A race in the product's operands shows at some shapes, some of the time."""
    made = case(line, 300, 2304, 1024, device="cuda", strided=False)
    run(GEMM, made, tile, device).check()
    first = made.args.out.clone()
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(50):
        made.args.out.fill_(float("nan"))
        run(GEMM, made, tile, device)
        differing += (made.args.out != first).sum()
    assert int(differing) == 0


@pytest.mark.parametrize("line", ["mxfp4 x e4m3 token", "e4m3 b128x128 x e4m3 g128", "int8 channel x int8 token"])
def test_fifty_runs_on_quantized_activations_have_the_same_bits(line, device):
    made = case(line, 300, 2304, 1024, device="cuda", strided=False)
    tile = GEMM_TILE.replace(block_n=128)
    first = run(GEMM, made, tile, device).args.out.clone()
    made.check()
    for _ in range(50):
        made.args.out.fill_(float("nan"))
        assert torch.equal(run(GEMM, made, tile, device).args.out, first)


@pytest.mark.parametrize(("entry", "tile"), [(GEMM, GEMM_TILE.replace(split_k=4)), (GEMV, GEMV_TILE.replace(split_k=4))])
def test_split_k_adds_in_a_fixed_order(entry, tile, device):
    made = case("int4 g64 x bf16", 4, 1000, 2048, device="cuda")
    first = run(entry, made, tile, device).args.out.clone()
    made.check()
    for _ in range(50):
        made.args.out.fill_(float("nan"))
        assert torch.equal(run(entry, made, tile, device).args.out, first)


@pytest.mark.parametrize("m", MS)
def test_any_m_with_the_plan_that_the_planner_chooses(m, device):
    """One weight, every M: through the public plan, all candidates of the M's bucket."""
    made = case("int4 g128 x bf16", m, 520, 1152, bias=True, device="cuda")
    problem, layout = made.args.problem, made.args.layout
    plan = hh.choose_plan(problem, layout, device)
    entry = next(e for e in (GEMM, GEMV, DEQUANT_MATMUL) if e.name == plan.kernel)
    run(entry, made, plan.tile, device).check()


@pytest.mark.parametrize("entry", [GEMM, GEMV, DEQUANT_MATMUL], ids=lambda e: e.name)
@pytest.mark.parametrize("m", [1, 64])
def test_every_tile_that_the_catalog_offers_runs(entry, m, device):
    made = case("int4 g128 x bf16", m, 520, 2176, device="cuda")
    problem, layout = made.args.problem, made.args.layout
    if entry.reject(problem, layout, device):
        pytest.skip("rejected for this M")
    for tile in entry.tiles(problem, layout, device):
        made.args.out.fill_(float("nan"))
        run(entry, made, tile, device).check()


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 64), (3, 33, 72), (17, 7, 1096), (130, 127, 200), (64, 4544, 64)])
@pytest.mark.parametrize("half", ["int4 channel", "int3 g8", "int5 tensor", "mxfp8", "e4m3 b128x128"])
def test_ragged_sizes(half, m, n, k, device):
    if half == "mxfp8":
        k = -(-k // 32) * 32
    tile = GEMM_TILE.replace(block_k=128, split_k=min(2, -(-k // 128)))
    run(GEMM, case(f"{half} x bf16", m, n, k, bias=True, device="cuda"), tile, device).check()
    run(DEQUANT_MATMUL, case(f"{half} x bf16", m, n, k, bias=True, device="cuda"), DEQUANT_TILE, device).check()
    if m <= 4:
        run(GEMV, case(f"{half} x bf16", m, n, k, bias=True, device="cuda"), GEMV_TILE, device).check()


@pytest.mark.parametrize("offset", [(96, 32), (1, 0), (0, 127), (200, 300)])
def test_a_shard_that_starts_inside_a_block(offset, device):
    line = "e4m3 b128x128 x bf16"
    run(GEMM, case(line, 20, 192, 576, block_offset=offset, device="cuda"), GEMM_TILE, device).check()
    run(GEMV, case(line, 2, 192, 576, block_offset=offset, device="cuda"), GEMV_TILE, device).check()
    run(DEQUANT_MATMUL, case(line, 20, 192, 576, block_offset=offset, device="cuda"), DEQUANT_TILE, device).check()


def test_a_row_has_the_same_bits_whatever_m_is(device):
    rows = case("int4 g128 x bf16", 257, 520, 1152, device="cuda", batch_invariant=True)
    tiles = {m: hh.choose_plan(rows.args.problem.replace(m=m), rows.args.layout, device).tile for m in (1, 4, 16, 64, 257)}
    whole = run(GEMM, rows, tiles[257], device).args.out
    for m, tile in tiles.items():
        few = case("int4 g128 x bf16", m, 520, 1152, device="cuda", batch_invariant=True)
        few.args = few.args._replace(x=rows.args.x[:m])
        assert torch.equal(run(GEMM, few, tile, device).args.out, whole[:m]), m


def test_fp16_sums_pass_the_fp16_range(device):
    made = case("int4 channel x fp16", 1, 64, 8192, device="cuda")
    codes = torch.full((64, 8192), 15, dtype=torch.uint8)
    codes[:, 4096:] = 1
    packed = pack(made.weight.replace(codes=codes, scale=torch.ones_like(made.weight.scale)), made.args.layout).to("cuda")
    x = torch.full((1, 8192), 8.0, dtype=torch.float16, device="cuda")
    made.args = made.args._replace(x=x, qweight=packed.qweight, scale=packed.scale)
    for entry, tile in ((GEMM, GEMM_TILE), (GEMV, GEMV_TILE.replace(block_m=1)), (DEQUANT_MATMUL, DEQUANT_TILE)):
        assert torch.equal(run(entry, made, tile, device).args.out, torch.zeros(1, 64, dtype=torch.float16, device="cuda"))


@pytest.mark.parametrize(("entry", "tile"), [(GEMM, GEMM_TILE), (DEQUANT_MATMUL, DEQUANT_TILE)], ids=["gemm", "dequant"])
def test_rows_past_two_billion_elements(entry, tile, device):
    """Rows 40960 elements apart: the last ones lie past 2**31."""
    m, pitch = 52430, 40960
    made = case("int4 g64 x bf16", 70, 200, 128, device="cuda", strided=False)
    x = torch.empty(m * pitch, dtype=torch.bfloat16, device="cuda").as_strided((m, 128), (pitch, 1))
    out = torch.empty(m * pitch, dtype=torch.bfloat16, device="cuda").as_strided((m, 200), (pitch, 1))
    x.zero_()
    x[-70:] = made.args.x
    problem = made.args.problem.replace(m=m)
    made.args = made.args._replace(x=x, out=out, problem=problem)
    run(entry, made, tile, device)
    made.args = made.args._replace(out=out[-70:])
    assert (out[-70:].double() - made.truth).norm() <= 2 * made.torch_error
    assert not out[:-70].any()


@pytest.mark.parametrize(
    ("entry", "tile"), [(GEMM, GEMM_TILE), (GEMV, GEMV_TILE), (DEQUANT_MATMUL, DEQUANT_TILE)], ids=["gemm", "gemv", "dequant"]
)
def test_weights_past_two_billion_words(entry, tile, device):
    """int8 [2**20 + 256, 8192]: 2**31 words and more; only the last 256 columns hold anything."""
    m, n, k = 3, 2**20 + 256, 8192
    last = case("int8 channel x bf16", m, 256, k, device="cuda", strided=False)
    words = torch.zeros(k // 4, n, dtype=torch.int32, device="cuda")
    words[:, -256:] = last.args.qweight
    scale = torch.zeros(1, n, dtype=torch.bfloat16, device="cuda")
    scale[:, -256:] = last.args.scale
    out = torch.full((m, n), float("nan"), dtype=torch.bfloat16, device="cuda")
    layout = hh.choose_layout(last.weight.spec, n, k, device, family="portable")
    problem = last.args.problem.replace(n=n)
    whole = last.args._replace(qweight=words, scale=scale, out=out, problem=problem, layout=layout)
    big = type(last)(args=whole, weight=last.weight, x=last.x, guard=last.guard)
    run(entry, big, tile, device)
    assert (out[:, -256:].double() - last.truth).norm() <= 2 * last.torch_error
    assert not out[:, :-256].any()


def test_m_major_activation_scales_are_read_by_their_strides(device):
    made = case("e4m3 b128x128 x e4m3 g128", 37, 200, 384, device="cuda")
    want = run(GEMM, made, GEMM_TILE, device).args.out.clone()
    made.args = made.args._replace(x_scale=made.args.x_scale.T.contiguous().T)
    assert torch.equal(run(GEMM, made, GEMM_TILE, device).args.out, want)
