"""quantize and dequantize: error bounds for every format, two-level goldens, and what happens at the edges."""

import math

import ml_dtypes
import numpy as np
import pytest
import torch

from hybrid_humming.dtypes import code_grid, format_names, parse_format
from hybrid_humming.errors import DtypeError, ShapeError, SpecError, ValueRangeError
from hybrid_humming.reference import dequantize, quantize
from hybrid_humming.reference.dequantize import decode_scale, expand
from hybrid_humming.spec import Spec
from hybrid_humming.weight import CanonicalWeight

WEIGHTS = [n for n in format_names() if parse_format(n).kind in ("int", "uint", "float")]
SYMMETRIC = [n for n in WEIGHTS if not n.startswith("uint")]


def normal(*shape, seed=0, size=0.1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * size


def gap_at(fmt, units):
    """[..] the distance between the format's neighbours of each value."""
    grid = np.unique(fmt.values[np.isfinite(fmt.values) & (fmt.values <= fmt.largest) & (fmt.values >= fmt.smallest)])
    upper = np.clip(np.searchsorted(grid, units), 1, len(grid) - 1)
    return torch.from_numpy(grid[upper] - grid[upper - 1])


@pytest.mark.parametrize("scale", ["bf16", "fp32", "e4m3", "e5m3"])
@pytest.mark.parametrize("name", [n for n in SYMMETRIC if n != "int1"])
def test_error_is_at_most_half_a_step(name, scale):
    spec = Spec.parse(f"{name} g32:{scale} x bf16")
    w = normal(16, 128, size=8.0)
    if parse_format(name).largest > 1e4 and scale in ("e4m3", "e5m3"):
        w = w * parse_format(name).largest
    q = quantize(w, spec)
    step = (
        q.scale.double()
        if scale != "e5m3"
        else torch.tensor(parse_format("e5m3").values.tolist(), dtype=torch.float64)[q.scale.int()]
    )
    step = step.repeat_interleave(32, -1)
    error = (dequantize(q, torch.float64) - w.double()).abs()
    bound = gap_at(parse_format(name), (w.double() / step).numpy()) * step / 2
    assert (error <= bound * (1 + 1e-6)).all()


@pytest.mark.parametrize("zero", ["zp", "zp:bf16", "zp:fp32"])
@pytest.mark.parametrize("scale", ["bf16", "e4m3", "e8m0"])
@pytest.mark.parametrize("bits", range(2, 9))
def test_asymmetric_error_is_within_a_step(bits, scale, zero):
    """Half a step for rounding, and no more than half a step for the ends of a rounded scale and zero point."""
    spec = Spec.parse(f"uint{bits} g32:{scale} {zero} x bf16")
    w = normal(16, 128, size=8.0) + 3.0
    q = quantize(w, spec)
    error = (dequantize(q, torch.float64) - w.double()).abs()
    assert (error <= q.scale.double().repeat_interleave(32, -1) * 1.01).all()


def test_uint4_against_plain_numpy():
    w = normal(8, 64)
    q = quantize(w, Spec.parse("uint4 g32:fp32 zp x bf16"))
    groups = w.double().numpy().reshape(8, 2, 32)
    low, high = np.minimum(groups.min(-1), 0), np.maximum(groups.max(-1), 0)
    scale = ((high - low) / 15).astype(np.float32)
    zero = np.rint(-low / scale)
    codes = np.clip(np.rint((groups.astype(np.float32) / scale[..., None]) + zero[..., None].astype(np.float32)), 0, 15)
    np.testing.assert_array_equal(q.scale.numpy(), scale)
    np.testing.assert_array_equal(q.zero_point.numpy(), zero)
    np.testing.assert_array_equal(q.codes.numpy().reshape(8, 2, 32), codes)


@pytest.mark.parametrize("values", [(1.0, 2.0), (-3.0, -1.0), (0.0, 5.0), (-1.0, 1.0), (7.0, 7.0), (-7.0, -7.0)])
def test_integer_zero_point_is_a_code_and_zero_stays_zero(values):
    w = torch.linspace(*values, 32).repeat(2, 1)
    w[:, 5] = 0.0
    q = quantize(w, Spec.parse("uint4 g32:fp32 zp x bf16"))
    assert q.zero_point.dtype == torch.uint8
    assert int(q.zero_point.max()) <= 15
    assert (dequantize(q)[:, 5] == 0).all()
    assert (dequantize(q) - w).abs().max() <= q.scale.max() * 0.51


@pytest.mark.parametrize("value", [7.0, -7.0, 1e-20, 0.0])
def test_float_zero_point_holds_a_constant_group_exactly(value):
    w = torch.full((2, 32), value)
    q = quantize(w, Spec.parse("uint4 g32:fp32 zp:bf16 x bf16"))
    assert torch.equal(dequantize(q), w)


def test_float_zero_point_far_from_zero_does_not_lose_the_range():
    """A 16-bit zero point of about -1500 is 8 steps coarse: the range then holds 0."""
    w = torch.linspace(100.0, 101.0, 32).repeat(2, 1)
    q = quantize(w, Spec.parse("uint4 g32:fp32 zp:bf16 x bf16"))
    assert (dequantize(q) - w).abs().max() <= 101 / 15 / 2 * 1.01


def test_every_zero_point_value_is_exact():
    """Codes over the whole range with zero points 0, 1, the middle and the last: (code - zero) * scale, exactly."""
    for bits in range(1, 9):
        spec = Spec.parse(f"uint{bits} channel:fp32 zp x bf16")
        zeros = sorted({0, 1, 2 ** (bits - 1), 2**bits - 1})
        codes = torch.arange(2**bits).to(torch.uint8).repeat(len(zeros), 1)
        scale = torch.full((len(zeros), 1), 0.375)
        weight = CanonicalWeight(spec=spec, codes=codes, scale=scale, zero_point=torch.tensor(zeros, dtype=torch.uint8)[:, None])
        want = (torch.arange(2**bits)[None] - torch.tensor(zeros)[:, None]) * 0.375
        assert torch.equal(dequantize(weight, torch.float64), want.double())


def test_mxfp4_against_plain_numpy():
    w = normal(16, 128, size=3.0)
    q = quantize(w, Spec.parse("mxfp4 x bf16"), exponent="ocp")
    groups = w.numpy().astype(np.float64).reshape(16, 4, 32)
    exponent = np.floor(np.log2(np.abs(groups).max(-1))) - 2
    units = np.clip(groups / 2.0 ** exponent[..., None], -6, 6).astype(np.float32)
    want = units.astype(ml_dtypes.float4_e2m1fn).astype(np.float64) * 2.0 ** exponent[..., None]
    np.testing.assert_array_equal(q.scale.view(torch.uint8).numpy(), exponent + 127)
    np.testing.assert_array_equal(dequantize(q, torch.float64).numpy(), want.reshape(16, 128))


@pytest.mark.parametrize("line", ["mxfp4 x bf16", "mxfp6 x bf16", "mxfp8 x bf16", "e2m1 b3x16:e8m0 x bf16"])
def test_the_exponent_of_least_error_is_taken(line):
    """Each group's power of two is OCP's or the next, and neither would leave the group less squared error."""
    spec, w = Spec.parse(line), normal(32, 128, size=3.0)
    q, ocp = quantize(w, spec), quantize(w, spec, exponent="ocp")
    step = q.scale.view(torch.uint8).int() - ocp.scale.view(torch.uint8).int()
    assert set(step.unique().tolist()) <= {0, 1} and (step == 1).any() and (step == 0).any()
    assert float((dequantize(q) - w).square().sum()) < float((dequantize(ocp) - w).square().sum())
    grid, _ = code_grid(spec.weight_format)
    scale = expand(decode_scale(ocp.scale, "e8m0", torch.float64), ocp).expand(32, 128).numpy()
    best = [w.double().numpy() - times * scale * nearest(w.double().numpy() / (times * scale), grid) for times in (1, 2)]
    cell = expand(torch.arange(ocp.scale.numel()).reshape(ocp.scale.shape), ocp).expand(32, 128).flatten().numpy()
    errors = [np.bincount(cell, (error**2).flatten()) for error in best]
    np.testing.assert_array_equal(step.flatten().numpy(), errors[1] < errors[0])


def nearest(units, grid):
    return grid[np.abs(units[..., None] - grid).argmin(-1)]


def test_an_exponent_rule_that_does_not_exist_is_refused():
    with pytest.raises(SpecError, match="exponent='up': allowed are least_error and ocp"):
        quantize(normal(4, 32), Spec.parse("mxfp4 x bf16"), exponent="up")


def test_nvfp4_against_plain_numpy():
    w = normal(16, 128)
    q = quantize(w, Spec.parse("nvfp4 x bf16"))
    w32 = w.numpy()
    top = np.abs(w32).max() / np.float32(448 * 6)
    groups = (w32 / top).reshape(16, 8, 16)
    scale = (np.abs(groups).max(-1).astype(np.float64) / 6).astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    codes = (groups / scale[..., None]).astype(ml_dtypes.float4_e2m1fn).astype(np.float64)
    want = codes * scale[..., None].astype(np.float64) * np.float64(top)
    assert float(q.secondary_scale) == top
    np.testing.assert_array_equal(q.scale.float().numpy(), scale)
    np.testing.assert_array_equal(dequantize(q, torch.float64).numpy(), want.reshape(16, 128))
    assert float(q.scale.float().max()) == 448.0


@pytest.mark.parametrize("exponent", [-140, -127, -100, 0, 100, 127])
def test_mx_scale_is_clamped_to_what_e8m0_holds(exponent):
    w = torch.full((1, 32), 2.0**exponent)
    q = quantize(w, Spec.parse("mxfp4 x bf16"))
    code = int(q.scale.view(torch.uint8))
    assert code == max(0, exponent - 2 + 127)
    assert torch.isfinite(dequantize(q)).all()


ZERO_LINES = [
    "int4 g32 x bf16", "int4 g32 x fp16", "int1 g32 x bf16", "uint4 g32 zp x bf16", "uint4 g32 zp:bf16 x bf16", "e2m1 g32 x bf16",
    "e0m1 g32 x bf16", "e4m3 channel x bf16", "e4m3 tensor x bf16", "e4m3 b16x32 x bf16", "mxfp4 x bf16", "nvfp4 x bf16",
    "int4 g32:e4m3+channel x bf16", "int4 g32:e5m3+tensor x bf16", "e4m3 g32:e5m2 x bf16", "uint4 g32:e8m0 zp x bf16",
]  # fmt: skip


@pytest.mark.parametrize("line", ZERO_LINES)
def test_all_zero_tensor_is_exactly_zero(line):
    q = quantize(torch.zeros(32, 64), Spec.parse(line)).validate()
    assert (dequantize(q) == 0).all()


@pytest.mark.parametrize("line", [n for n in ZERO_LINES if "tensor x" not in n])
def test_all_zero_group_beside_others_is_exactly_zero(line):
    w = normal(32, 64)
    w[16:] = 0.0
    w[:, :32] = 0.0
    q = quantize(w, Spec.parse(line)).validate()
    back = dequantize(q)
    assert torch.isfinite(back).all()
    assert (back[16:] == 0).all()
    if "uint" not in line:
        assert (back[:, :32] == 0).all()
    assert (back[:16, 32:] != 0).any()


@pytest.mark.parametrize("line", ["int4 g32 x bf16", "nvfp4 x bf16", "uint4 g32 zp x bf16"])
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_one_bad_value_is_refused_with_its_index(line, bad):
    w = normal(2, 4, 64)
    w[1, 2, 33] = bad
    with pytest.raises(ValueRangeError, match=r"weight\[1, 2, 33\] is .*\(1 of 512 values are not finite in fp32\); repair"):
        quantize(w, Spec.parse(line))


def test_other_inputs_are_refused():
    spec = Spec.parse("int4 g32 x bf16")
    with pytest.raises(DtypeError, match=r"weight is torch\.int8; quantize takes a float tensor"):
        quantize(torch.zeros(4, 32, dtype=torch.int8), spec)
    with pytest.raises(ShapeError, match=r"weight is \[32\]; quantize takes \[N, K\] or \[E, N, K\]"):
        quantize(torch.zeros(32), spec)
    with pytest.raises(ShapeError, match=r"K=33 is not a multiple of group_size=32 \(1\.031 groups\); pad K to 64"):
        quantize(torch.zeros(4, 33), spec)


@pytest.mark.parametrize("size", [1e-30, 1e-7, 1e6, 1e30])
@pytest.mark.parametrize(
    "line", ["int4 g32 x fp16", "int4 g32:e4m3 x bf16", "e2m1 g32:e5m3 x bf16", "nvfp4 x bf16", "mxfp4 x bf16"]
)
def test_scales_beyond_their_format_saturate(line, size):
    q = quantize(normal(4, 64) * size, Spec.parse(line)).validate()
    assert (q.scale.view(torch.uint8) if q.scale.element_size() == 1 else q.scale).count_nonzero() > 0
    assert torch.isfinite(dequantize(q, torch.float64)).all()


def test_fp8_scale_takes_the_next_value_where_the_nearest_cuts_off():
    """int8 on an e4m3 scale: 1 + 1/16 - a bit rounds down to 1, where 127 codes reach 4 steps short."""
    w = torch.full((1, 32), 127.0 * 1.06)
    q = quantize(w, Spec.parse("int8 g32:e4m3 x bf16"))
    assert float(q.scale.float()) == 1.125
    assert (dequantize(q) - w).abs().max() <= 1.125 / 2


def test_int1_holds_minus_one_and_zero():
    q = quantize(torch.tensor([[-2.0, 2.0, -0.4, 0.0] * 8]), Spec.parse("int1 g32:fp32 x bf16"))
    assert dequantize(q)[0, :4].tolist() == [-2.0, 0.0, 0.0, 0.0]


def test_uint1_with_a_float_zero_point_holds_minus_one_and_one():
    w = torch.tensor([[-1.0, 1.0] * 16])
    q = quantize(w, Spec.parse("uint1 g32:fp32 zp:fp16 x fp16"))
    assert q.zero_point.tolist() == [[0.5]]
    assert torch.equal(dequantize(q), w)


def test_uint1_with_an_integer_zero_point_holds_zero_and_one():
    w = torch.tensor([[0.0, 1.0] * 16])
    q = quantize(w, Spec.parse("uint1 g32:fp32 zp x fp16"))
    assert q.zero_point.tolist() == [[0]]
    assert torch.equal(dequantize(q), w)


def test_e0m1_is_ternary():
    w = torch.tensor([[-3.0, 0.0, 3.0, 1.0] * 8])
    q = quantize(w, Spec.parse("e0m1 g32:fp32 x bf16"))
    assert dequantize(q)[0, :4].tolist() == [-3.0, 0.0, 3.0, 0.0]
    assert 2 not in q.codes  # -0


@pytest.mark.parametrize("line", ["int4 g32 x bf16", "uint4 g32 zp x bf16", "nvfp4 x bf16", "mxfp4 x bf16", "e4m3 b48x48 x bf16"])
def test_experts_are_quantized_one_by_one(line):
    spec = Spec.parse(line)
    w = normal(3, 40, 96)
    whole = quantize(w, spec)
    for e in range(3):
        assert torch.equal(dequantize(whole)[e], dequantize(quantize(w[e], spec)))


@pytest.mark.parametrize(("n", "k"), [(192, 576), (576, 192), (224, 320), (1, 1), (129, 127)])
def test_blocks_may_be_partial(n, k):
    w = normal(n, k)
    q = quantize(w, Spec.parse("e4m3 b128x128:fp32 x bf16"))
    assert tuple(q.scale.shape) == (-(-n // 128), -(-k // 128))
    for i in range(0, n, 128):
        for j in range(0, k, 128):
            absmax = w[i : i + 128, j : j + 128].abs().max()
            assert q.scale[i // 128, j // 128] == (absmax.double() / 448).float()


def test_shard_with_a_block_offset_keeps_the_scales_of_the_whole():
    spec = Spec.parse("e4m3 b128x128:fp32 x bf16")
    w = normal(512, 384)
    whole = quantize(w, spec)
    part = whole.replace(codes=whole.codes[192:384, 64:320], scale=whole.scale[1:3, 0:3], block_offset=(192, 64))
    assert torch.equal(dequantize(part), dequantize(whole)[192:384, 64:320])


def test_quantize_with_a_block_offset_puts_the_grid_where_it_was():
    w = normal(192, 256)
    q = quantize(w, Spec.parse("e4m3 b128x128:fp32 x bf16"), block_offset=(192, 64))
    assert tuple(q.scale.shape) == (2, 3)
    absmax = torch.stack([torch.stack([b.abs().max() for b in r.split([64, 128, 64], 1)]) for r in w.split([64, 128], 0)])
    assert torch.equal(q.scale, (absmax.double() / 448).float())


@pytest.mark.parametrize("code", [0, 1, 2, 126, 127, 128, 253, 254, 255])
def test_e8m0_scale_bytes_decode_bit_exactly(code):
    spec = Spec.parse("mxfp8 x bf16")
    codes = torch.full((2, 32), 0x78, dtype=torch.uint8)  # 256
    scale = torch.tensor([[code], [127]], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    back = dequantize(CanonicalWeight(spec=spec, codes=codes, scale=scale), torch.float64)
    if code == 255:
        assert back[0].isnan().all()
    else:
        assert (back[0] == 2.0 ** (code - 127 + 8)).all()
    assert (back[1] == 256).all()


def test_e8m0_code_zero_times_a_large_x_is_not_zero():
    """128 products of 2**112 and 256 * 2**-127 sum to 1."""
    from hybrid_humming.reference import gemm

    codes = torch.full((1, 128), 0x78, dtype=torch.uint8)
    scale = torch.zeros(1, 4, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    weight = CanonicalWeight(spec=Spec.parse("mxfp8 x bf16"), codes=codes, scale=scale)
    x = torch.full((1, 128), 2.0**112, dtype=torch.bfloat16)
    assert float(gemm(x, weight)) == 128 * 2.0 ** (112 + 8 - 127)


def test_all_e4m3_codes_as_block_scale_and_as_weight():
    bytes_ = torch.arange(256).to(torch.uint8)
    theirs = torch.from_numpy(bytes_.numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float64))
    spec = Spec.parse("nvfp4 x bf16")
    codes = torch.full((256, 16), 2, dtype=torch.uint8)  # 1.0
    scale = bytes_.view(torch.float8_e4m3fn)[:, None]
    weight = CanonicalWeight(spec=spec, codes=codes, scale=scale, secondary_scale=torch.ones(1))
    assert torch.equal(dequantize(weight, torch.float64)[:, 0].nan_to_num(nan=-1e9), theirs.nan_to_num(nan=-1e9))
    weight = CanonicalWeight(spec=Spec.parse("e4m3 channel:fp32 x bf16"), codes=bytes_[:, None], scale=torch.ones(256, 1))
    assert torch.equal(dequantize(weight, torch.float64)[:, 0].nan_to_num(nan=-1e9), theirs.nan_to_num(nan=-1e9))


def test_nan_scale_poisons_only_its_own_group():
    q = quantize(normal(4, 64), Spec.parse("nvfp4 x bf16"))
    raw = q.scale.view(torch.uint8).clone()
    raw[2, 1] = 0x7F
    poisoned = q.replace(scale=raw.view(torch.float8_e4m3fn))
    back = dequantize(poisoned)
    assert back[2, 16:32].isnan().all()
    assert int(back.isnan().sum()) == 16
    with pytest.raises(ValueRangeError, match=r"scale\[2, 1\] is nan \(1 of 16 are not finite\)"):
        poisoned.validate()


def test_dequantize_is_exact_in_fp64_and_rounded_once_in_bf16():
    q = quantize(normal(8, 64), Spec.parse("int4 g32 x bf16"))
    exact = (q.codes.double() - 8) * q.scale.double().repeat_interleave(32, -1)
    assert torch.equal(dequantize(q, torch.float64), exact)
    assert torch.equal(dequantize(q, torch.bfloat16), exact.float().bfloat16())


@pytest.mark.parametrize("line", ["int4 channel x bf16", "e2m1 channel x bf16", "e4m3 tensor x bf16"])
def test_dequantized_weight_quantizes_to_itself(line):
    spec = Spec.parse(line)
    first = dequantize(quantize(normal(8, 64), spec))
    assert torch.equal(dequantize(quantize(first, spec)), first)


@pytest.mark.gpu
@pytest.mark.parametrize("line", ZERO_LINES)
def test_gpu_and_cpu_quantize_to_the_same_bits(line):
    w = normal(32, 64)
    here, there = quantize(w, Spec.parse(line)), quantize(w.cuda(), Spec.parse(line))
    assert torch.equal(here.codes, there.codes.cpu())
    assert torch.equal(dequantize(here, torch.float64), dequantize(there, torch.float64).cpu())
