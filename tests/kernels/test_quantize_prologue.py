"""What the quantization kernels do to x before it is quantized, and the layouts of its scales: in the interpreter, beside torch."""

import pytest
import torch

from hybrid_humming.reference import dequantize_input, prepare_input
from hybrid_humming.reference.activation import decode_input
from hybrid_humming.spec import Spec
from hybrid_humming.triton_kernels.quantize.catalog import fuses
from hybrid_humming.triton_kernels.quantize.launch import InputTile
from hybrid_humming.weight import InputTransform

from .quantized import by_kernel, by_reference, differences

pytestmark = pytest.mark.interpret

TOKEN, GROUP, TENSOR = "int8 channel x int8 token", "e4m3 b128x128 x e4m3 g128", "e4m3 tensor x e4m3 tensor"
MX, NV, FP4 = "mxfp8 x mxfp8", "nvfp4 x nvfp4", "mxfp4 x mxfp4"


def hard(m, k, dtype, special=True):
    """A row of ties, of zeros, of minus zeros, tiny and large ones, and where asked NaN and infinities."""
    x = torch.randn(m, k, generator=torch.Generator().manual_seed(m * k)) * 3
    for row, values in enumerate((torch.arange(k) % 61 / 8 - 3.75, torch.zeros(k), -torch.zeros(k))[:m]):
        x[row] = values
    if special and m > 6:
        x[4, 3], x[5, k // 2], x[6, k - 1] = float("nan"), float("inf"), -float("inf")
    return x.to(dtype)


def scaled(k):
    return InputTransform(pre_quant_scale=torch.rand(k, generator=torch.Generator().manual_seed(k)) + 0.5)


def permuted(k, **more):
    return InputTransform(permutation=torch.randperm(k, generator=torch.Generator().manual_seed(k)).int(), **more)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("line", [TOKEN, GROUP, NV])
@pytest.mark.parametrize("pre", [torch.float32, torch.bfloat16, torch.float16], ids=lambda d: f"pre {d}")
def test_a_scale_for_each_channel(line, dtype, pre):
    k = 384
    transform = InputTransform(pre_quant_scale=scaled(k).pre_quant_scale.to(pre))
    x, spec = hard(8, k, dtype), Spec.parse(line)
    assert not differences(by_kernel(x, spec, transform=transform), by_reference(x, spec, transform=transform))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("line", "block"), [
    (TOKEN, 16), (TOKEN, 256), (GROUP, 32), (GROUP, 128), (GROUP, 256), (TENSOR, 64), (MX, 16), (MX, 32), (MX, 256), (NV, 128),
    (FP4, 64), ("int4 g96 x int8 g96", 32),
])  # fmt: skip
def test_hadamard_blocks(line, block, dtype):
    k = 768
    x, spec, transform = hard(8, k, dtype), Spec.parse(line), InputTransform(hadamard=block)
    assert fuses(spec, k, block, False)
    assert not differences(by_kernel(x, spec, transform=transform), by_reference(x, spec, transform=transform))


def test_a_permuted_or_huge_hadamard_is_left_to_torch():
    spec = Spec.parse(GROUP)
    assert not fuses(spec, 4096, 128, True) and not fuses(spec, 4096, 2048, False)
    assert not fuses(Spec.parse("int4 g96 x int8 g96"), 768, 64, False)


@pytest.mark.parametrize("line", [TOKEN, GROUP, TENSOR, MX, NV])
@pytest.mark.parametrize("pre", [False, True])
def test_act_order_gathers_channels(line, pre):
    k = 384
    transform = permuted(k, pre_quant_scale=scaled(k).pre_quant_scale if pre else None)
    x, spec = hard(8, k, torch.bfloat16), Spec.parse(line)
    assert not differences(by_kernel(x, spec, transform=transform), by_reference(x, spec, transform=transform))


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("line", [TOKEN, GROUP, TENSOR, MX, NV])
def test_rows_are_gathered_and_those_outside_are_zeros(line, index):
    x, spec = hard(8, 256, torch.bfloat16), Spec.parse(line)
    rows = torch.tensor([7, 0, -1, 3, 3, 8, 2**31 - 1, 1, 5, 4, 6], dtype=index)
    got = by_kernel(x, spec, rows=rows)
    assert not differences(got, by_reference(x, spec, rows=rows))
    if line != TENSOR:  # NaN anywhere makes a tensor's own scale NaN
        assert not dequantize_input(_quantized(got), spec)[[2, 5, 6, 7]].any()


def _quantized(made):
    from hybrid_humming.reference import QuantizedInput

    return QuantizedInput(*made)


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "swiglu_oai"])
@pytest.mark.parametrize("limit", [0.0, 2.0])
@pytest.mark.parametrize(
    ("line", "dtype"), [(TOKEN, torch.bfloat16), (GROUP, torch.float16), (TENSOR, torch.float32), (MX, torch.bfloat16)]
)
def test_activations_of_gate_and_up(line, dtype, activation, limit):
    """Exponentials differ in the last place, so now and then a value at the middle between two codes takes the other one."""
    m, k = 8, 384
    x, spec = hard(m, 2 * k, dtype, special=line != TENSOR), Spec.parse(line)
    x[7, :8], x[7, k : k + 8] = 90.0, -90.0  # beyond every limit
    got, want = by_kernel(x, spec, activation=activation, limit=limit), by_reference(x, spec, activation=activation, limit=limit)
    scales = [t.float().nan_to_num(-1.0) for t in (got[1], want.scale)]
    assert torch.allclose(*scales, rtol=1e-6)
    real, wanted = dequantize_input(_quantized(got), spec), dequantize_input(want, spec)
    exact = prepare_input(x, activation=activation, limit=limit or None)
    assert torch.equal(real.isnan(), wanted.isnan())
    same = (got[0].view(torch.uint8) == want.values.view(torch.uint8)) | wanted.isnan()
    assert same.float().mean() > 0.999
    live = ~real.isnan() & torch.isfinite(exact)
    step = (wanted - exact).abs()[live] + 1e-5 * exact.abs()[live] + 1e-5  # 1 + erf cancels
    assert ((real - exact).abs()[live] <= step).all()


@pytest.mark.parametrize("line", [TOKEN, GROUP])
def test_everything_at_once(line):
    k = 256
    x, spec = hard(9, 2 * k, torch.float16, special=False), Spec.parse(line)
    options = {"rows": torch.tensor([3, -1, 8, 0]), "activation": "silu", "limit": 4.0}
    transform = InputTransform(pre_quant_scale=scaled(k).pre_quant_scale, hadamard=64)
    got, want = by_kernel(x, spec, transform=transform, **options), by_reference(x, spec, transform=transform, **options)
    assert torch.allclose(got[1], want.scale, rtol=1e-5)
    assert (got[0].view(torch.uint8) == want.values.view(torch.uint8)).float().mean() > 0.99


@pytest.mark.parametrize(
    ("line", "layout"), [(GROUP, "m_major"), (MX, "m_major"), (MX, "packed"), (FP4, "packed"), (NV, "m_major")]
)
@pytest.mark.parametrize("m", [1, 16, 35])
@pytest.mark.parametrize("k", [384, 640])
def test_scale_layouts_and_their_padding(line, layout, m, k):
    x, spec = hard(m, k, torch.bfloat16), Spec.parse(line)
    assert not differences(by_kernel(x, spec, scale_layout=layout), by_reference(x, spec, scale_layout=layout))


@pytest.mark.parametrize(
    ("line", "k"),
    [(TOKEN, 1), (TOKEN, 77), (TOKEN, 1030), (TENSOR, 333), (GROUP, 2176), (MX, 96), (NV, 48), ("int4 g128 x int4 token", 130)],
)
@pytest.mark.parametrize("m", [1, 5])
def test_ragged_sizes(line, k, m):
    x, spec = hard(m, k, torch.float32), Spec.parse(line)
    assert not differences(by_kernel(x, spec), by_reference(x, spec))


@pytest.mark.parametrize(
    "options", [{"activation": ""}, {"rows": torch.tensor([2, -1, 0])}, {"transform": InputTransform(hadamard=32)}]
)
def test_long_rows_take_the_same_prologues(options):
    x, spec = hard(8, 640, torch.bfloat16), Spec.parse(TOKEN)
    assert not differences(by_kernel(x, spec, tile=InputTile(unit=128), **options), by_reference(x, spec, **options))


@pytest.mark.parametrize("line", [TENSOR, "int8 channel x int8 tensor", NV])
@pytest.mark.parametrize("scale", [1.0, 2.0**-140, 1e30, 0.0, -1.0, float("nan")])
def test_static_scales_at_the_edges(line, scale):
    x, spec = hard(8, 256, torch.float32), Spec.parse(line)
    given = torch.tensor([scale])
    assert not differences(by_kernel(x, spec, input_scale=given), by_reference(x, spec, input_scale=given))


@pytest.mark.parametrize(("line", "stored"), [
    ("int4 channel x int4 token", "int8"), ("int4 g32 x int4 g32", "int8"), ("e0m3 g32 x e0m3 g32", "int8"),
    ("e2m1 g32 x e2m1 token", "e4m3"), (FP4, "e4m3"), (NV, "e4m3"), ("mxfp6 x mxfp6", "e4m3"), ("e3m2 g32 x e3m2 token", "e4m3"),
])  # fmt: skip
@pytest.mark.parametrize("unit", [None, 128])
def test_narrow_grids_are_stored_in_8_bits_with_the_same_values(line, stored, unit):
    x, spec = hard(8, 256, torch.float32), Spec.parse(line)
    if unit and spec.activation_granularity != "token":
        unit = None
    got = by_kernel(x, spec, stored=stored, tile=InputTile(unit=unit) if unit else None)
    assert not differences(got, by_reference(x, spec, stored=stored))
    narrow = by_reference(x, spec)
    assert torch.equal(got[0].float(), decode_input(narrow.values, spec.activation_format, torch.float32))
    assert got[0].dtype == {"int8": torch.int8, "e4m3": torch.float8_e4m3fn}[stored]
