"""The input quantization kernels in Triton's interpreter: the same bits as the reference, over values that round in every way."""

import pytest
import torch

from hybrid_humming.jit.args import InputArgs
from hybrid_humming.reference import quantize_input
from hybrid_humming.spec import Spec
from hybrid_humming.triton_kernels.quantize.launch import InputTile, quantize

pytestmark = pytest.mark.interpret

LINES = (
    "int8 channel x int8 token", "e4m3 channel x e4m3 token", "e4m3 channel x e5m2 token", "int4 g128 x int4 token",
    "e4m3 tensor x e4m3 tensor", "int8 channel x int8 tensor", "e4m3 b128x128 x e4m3 g128", "int4 g32 x int8 g32", "mxfp4 x mxfp8",
    "mxfp4 x mxfp4", "nvfp4 x nvfp4", "mxfp6 x mxfp6",
)  # fmt: skip
SPECS = tuple(Spec.parse(line) for line in LINES)


def hard_input(m, k, dtype, special=True):
    """Values of every magnitude, ties between neighbouring codes, signed zeros, a row of zeros, NaN and infinity."""
    torch.manual_seed(m * k)
    x = torch.randn(m, k) * torch.exp2(torch.randint(-30, 12, (m, 1)).float())
    x[0] = torch.arange(k) % 61 / 8 - 3.75  # ties
    x[1] = 0.0
    x[2, ::2] = -0.0
    x[3] *= 2.0**-90
    if special:
        x[4, 3], x[5, k // 2], x[6, k - 1] = float("nan"), float("inf"), -float("inf")
    return x.to(dtype)


def run(x, spec, tile=None, input_scale=None):
    """(codes, scale, global scale) as the kernel writes them, poisoned before."""
    want = quantize_input(x, spec, input_scale=input_scale)

    def poisoned(tensor):
        return None if tensor is None else torch.full(tensor.shape, 0x5A, dtype=torch.uint8).view(tensor.dtype) if (
            tensor.element_size() == 1) else torch.full(tensor.shape, 7.0, dtype=tensor.dtype)  # fmt: skip

    values, scale, second = poisoned(want.values), poisoned(want.scale), poisoned(want.global_scale)
    args = InputArgs(
        x=x, values=values, scale=scale, global_scale=second, input_scale=input_scale, rows=None, pre_quant_scale=None,
        permutation=None, hadamard=0, activation="", limit=0.0, packed=False, spec=spec,
        stored=spec.activation,
    )  # fmt: skip
    quantize(args, tile)
    return (values, scale, second), (want.values, want.scale, want.global_scale)


def same_bits(got, want):
    if want is None:
        return got is None
    narrow = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[want.element_size()]
    return torch.equal(got.view(narrow), want.view(narrow))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("special", [True, False])
def test_codes_and_scales_have_the_bits_of_the_reference(spec, dtype, special):
    got, want = run(hard_input(9, 384, dtype, special), spec)
    for name, g, w in zip(("values", "scale", "global_scale"), got, want, strict=True):
        assert same_bits(g, w), name


@pytest.mark.parametrize("spec", [s for s in SPECS if s.activation_granularity == "tensor"], ids=str)
def test_a_static_scale_is_used_as_it_is(spec):
    got, want = run(hard_input(9, 384, torch.float32), spec, input_scale=torch.tensor([0.031]))
    assert all(same_bits(g, w) for g, w in zip(got, want, strict=True))


def test_a_row_longer_than_the_registers_hold_is_read_twice():
    spec = Spec.parse("int8 channel x int8 token")
    got, want = run(hard_input(7, 400, torch.bfloat16), spec, tile=InputTile(unit=128))
    assert all(same_bits(g, w) for g, w in zip(got, want, strict=True))


def test_every_16_bit_value_rounds_as_the_reference_rounds_it():
    spec = Spec.parse("e4m3 tensor x e4m3 tensor")
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).view(128, 512)
    got, want = run(x, spec, input_scale=torch.tensor([1.0]))
    assert all(same_bits(g, w) for g, w in zip(got, want, strict=True))
