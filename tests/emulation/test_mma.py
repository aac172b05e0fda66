"""The emulated arithmetic against independent ones: ml_dtypes, Python's fractions, int64, and the library's reference."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch

from hybrid_humming.cuda_kernels.patch import InstructionDescriptor
from hybrid_humming.reference import dequantize
from hybrid_humming.reference.activation import dequantize_input, quantize_input
from hybrid_humming.reference.quantize import quantize
from hybrid_humming.spec import Spec
from tests.emulation import fragments
from tests.emulation.mma import DEPTH, accumulate, decode, scale_block, tensor_mma, warp_mma, warpgroup_mma

EIGHT = ("e4m3", "e5m2", "e3m4", "e2m3", "e3m2", "e2m1")
BITS = {"e4m3": 8, "e5m2": 8, "e3m4": 8, "e2m3": 6, "e3m2": 6, "e2m1": 4, "e0m3": 4, "int8": 8, "uint8": 8, "fp16": 16, "bf16": 16}
KINDS = [
    *[("f16", a, b) for a in ("fp16", "bf16") for b in ("fp16", "bf16") if a == b],
    *[("f8f6f4", a, b) for a in EIGHT for b in EIGHT],
    *[("mxf8f6f4", a, b) for a in EIGHT for b in EIGHT],
    ("mxf4", "e2m1", "e2m1"),
    *[("mxf4nvf4", a, b) for a in ("e2m1", "e0m3") for b in ("e2m1", "e0m3")],
    *[("i8", a, b) for a in ("int8", "uint8") for b in ("int8", "uint8")],
]
SCALES = {"mxf8f6f4": ("e8m0", 1), "mxf4": ("e8m0", 2), "mxf4nvf4": ("e4m3", 4)}


def codes(random, fmt: str, shape) -> np.ndarray:
    """Finite codes of every magnitude; of bf16 those that add up exactly in float64."""
    if fmt == "bf16":
        values = random.standard_normal(shape) * 2.0 ** random.integers(-12, 12, shape)
        return values.astype(ml_dtypes.bfloat16).view(np.uint16).astype(np.int64)
    out = random.integers(0, 1 << BITS[fmt], shape)
    return np.where(np.isfinite(decode(out, fmt)), out, 1)


def operands(kind: str, a: str, b: str, m: int = 128, n: int = 16, seed: int = 0):
    random = np.random.default_rng(seed)
    scale, vector = SCALES.get(kind, ("", 0))
    accumulator = "int32" if kind == "i8" else "fp32"
    descriptor = InstructionDescriptor(kind=kind, a=a, b=b, m=m, n=n, scale=scale, accumulator=accumulator)
    left, right = codes(random, a, (m, DEPTH[kind])), codes(random, b, (n, DEPTH[kind]))
    if not vector:
        return descriptor, left, right, None, None
    low, high = (100, 150) if scale == "e8m0" else (1, 126)
    return descriptor, left, right, *(random.integers(low, high, (rows, vector)) for rows in (m, n))


@pytest.mark.parametrize(("kind", "a", "b"), KINDS)
def test_every_kind_gives_the_exact_sum_rounded_once(kind, a, b):
    descriptor, left, right, sa, sb = operands(kind, a, b)
    d0 = np.zeros((128, 16), np.int32 if kind == "i8" else np.float32)
    d = tensor_mma(descriptor, left, right, d0, sa, sb)
    for m, n in ((0, 0), (127, 15), (64, 3), (5, 8)):
        exact = Fraction(0)
        for k in range(DEPTH[kind]):
            term = Fraction(decode(left[m, k], a).item()) * Fraction(decode(right[n, k], b).item())
            if sa is not None:
                block = DEPTH[kind] // sa.shape[1]
                fmt = descriptor.scale
                term *= Fraction(decode(sa[m, k // block], fmt).item()) * Fraction(decode(sb[n, k // block], fmt).item())
            exact += term
        if kind == "i8":
            assert d[m, n] == exact
        else:
            assert abs(Fraction(float(d[m, n])) - exact) <= abs(exact) * Fraction(1, 2**24) + Fraction(1, 2**149)


def test_hidden_values_are_the_tables():
    assert decode(np.arange(16), "e0m3").tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0, -1, -2, -3, -4, -5, -6, -7]
    below = np.arange(0x70, dtype=np.uint8)
    assert np.array_equal(decode(below, "e3m4"), below.view(ml_dtypes.float8_e3m4).astype(float))
    assert decode(np.array([0x70, 0x7E, 0xFE]), "e3m4").tolist() == [16.0, 30.0, -30.0]
    assert np.isnan(decode(np.array([0x7F, 0xFF]), "e3m4")).all()


def test_integers_wrap_as_32_bits():
    assert accumulate(np.array([[2**31 - 1]], np.int32), np.array([[1.0]])).item() == -(2**31)


def test_a_sum_is_rounded_once_and_not_by_term():
    descriptor = InstructionDescriptor(kind="f16", a="bf16", b="bf16", m=64, n=8)
    a = np.zeros((64, 16), np.int64)
    a[0] = np.frombuffer(np.array([1.0] + [2.0**-24] * 15, ml_dtypes.bfloat16).tobytes(), np.uint16)
    b = np.full((8, 16), 0x3F80)
    d = tensor_mma(descriptor, a, b, np.zeros((64, 8), np.float32))
    assert d[0, 0] == np.float32(1.0 + 15 * 2.0**-24) != np.float32(1.0)


@pytest.mark.parametrize(
    "spec", ["nvfp4 x nvfp4", "mxfp4 x mxfp4", "mxfp8 x mxfp8", "mxfp4 x mxfp8", "e0m3 g16:e4m3+tensor x e0m3 g16:e4m3+tensor"]
)
def test_whole_products_are_the_reference(spec):
    """Steps of K through the instruction add up to the reference product of the same codes."""
    spec = Spec.parse(spec)
    torch.manual_seed(0)
    weight, x = quantize(torch.randn(128, 256), spec), quantize_input(torch.randn(16, 256), spec)
    exact = dequantize_input(x, spec, torch.float64) @ dequantize(weight, torch.float64).T
    a, b = weight.codes.numpy().astype(np.int64), x.values.view(torch.uint8).numpy().astype(np.int64)
    if spec.activation_format.bits == 4:
        b = np.stack([b & 15, b >> 4], -1).reshape(16, 256)
    four = spec.activation_format.bits == 4
    kind = "mxf4nvf4" if four else "mxf8f6f4"
    descriptor = InstructionDescriptor(
        kind=kind, a=str(spec.weight), b=str(spec.activation), m=128, n=16, scale=str(spec.scale_format)
    )  # fmt: skip
    sa, sb = weight.scale.view(torch.uint8).numpy(), x.scale.view(torch.uint8).numpy()
    depth, block = DEPTH[kind], spec.group_size
    d = np.zeros((128, 16), np.float32)
    for k in range(0, 256, depth):
        s = slice(k // block, (k + depth) // block)
        d = tensor_mma(descriptor, a[:, k : k + depth], b[:, k : k + depth], d, sa[:, s], sb[:, s])
    scale = float(weight.secondary_scale) * float(x.global_scale) if spec.secondary else 1.0
    got = torch.from_numpy(d.T.astype(np.float64)) * scale
    assert (got - exact).norm() <= 1e-6 * exact.norm()


def test_what_hardware_refuses_is_refused():
    descriptor, a, b, sa, sb = operands("mxf4nvf4", "e0m3", "e2m1")
    d = np.zeros((128, 16), np.float32)
    with pytest.raises(ValueError, match="e0m3"):
        tensor_mma(descriptor, a, b, d, sa[:, :2], sb[:, :2])
    with pytest.raises(ValueError, match="two scale"):
        tensor_mma(descriptor, a, b, d)
    with pytest.raises(ValueError, match="multiplies"):
        tensor_mma(descriptor, a[:, :32], b, d, sa, sb)
    with pytest.raises(ValueError, match="no 1 scales"):
        scale_block("mxf4nvf4", "e4m3", 1)
    with pytest.raises(ValueError, match="ue8m0"):
        scale_block("mxf4nvf4", "e4m3", 2)


@pytest.mark.parametrize(("rows", "bits"), [(16, 16), (16, 8), (16, 4), (8, 16), (8, 8), (8, 4)])
def test_fragments_hold_each_element_once(rows, bits):
    matrix = np.random.default_rng(0).integers(0, 1 << bits, (rows, 256 // bits))
    words = fragments.to_words(matrix, bits)
    assert words.shape == (32, rows // 4) and np.array_equal(fragments.to_matrix(words, rows, bits), matrix)
    row, column = fragments.accumulator_index()
    assert len(set(zip(row.flat, column.flat, strict=True))) == 128


def test_fragments_are_those_of_the_documented_example():
    """m16n8k32, 8-bit types: lane 5 holds row 1, columns 4 to 7 in its first register, row 9 in its second, k + 16 in its third."""
    row, column = fragments.operand_index(16, 8)
    assert row[5, 0].tolist() == [1] * 4 and column[5, 0].tolist() == [4, 5, 6, 7]
    assert row[5, 1].tolist() == [9] * 4 and column[5, 2].tolist() == [20, 21, 22, 23]
    row, column = fragments.operand_index(8, 4)
    assert row[31, 1].tolist() == [7] * 8 and column[31, 1].tolist() == list(range(56, 64))


@pytest.mark.parametrize(
    ("rows", "count", "byte", "thread"), [(16, 4, 0, 0), (16, 4, 0, 1), (8, 4, 0, 3), (16, 1, 2, 1), (8, 2, 2, 0)]
)
def test_scale_registers_hold_each_row_once(rows, count, byte, thread):
    words = np.arange(32, dtype=np.uint32) * 0x01010101 + np.uint32(0x60402000)
    got = fragments.scale_matrix(words, rows, count, byte, thread)
    lanes = [4 * (r % 8) + (2 * thread + r // 8 if rows == 16 else thread) for r in range(rows)]
    assert got.tolist() == [[int(words[lane]) >> 8 * (byte + i) & 255 for i in range(count)] for lane in lanes]


@pytest.mark.parametrize("fmt", EIGHT)
def test_containers_of_kind_f8f6f4_keep_the_code(fmt):
    every = np.arange(1 << BITS[fmt])
    assert np.array_equal(fragments.uncontained(fragments.container(every, fmt), fmt), every)


@pytest.mark.parametrize(
    ("a", "b", "scale", "vector"), [("e5m2", "e3m4", "", 0), ("e4m3", "e2m1", "e8m0", 1), ("e0m3", "e0m3", "e4m3", 4)]
)
def test_a_warps_instruction_multiplies_its_fragments(a, b, scale, vector):
    """Codes to registers, registers to codes, product: that of the codes themselves."""
    random = np.random.default_rng(1)
    bits = 4 if vector == 4 else 8
    k = 256 // bits
    left, right = codes(random, a, (16, k)), codes(random, b, (8, k))
    sa = sb = None
    if vector:
        low, high = (110, 140) if scale == "e8m0" else (1, 120)
        sa, sb = (random.integers(low, high, (rows, vector)) for rows in (16, 8))
    pack = (lambda c, f: c) if bits == 4 else fragments.container
    unpack = (lambda c, f: c) if bits == 4 else fragments.uncontained
    through = [
        unpack(fragments.to_matrix(fragments.to_words(pack(c, f), bits), len(c), bits), f) for c, f in ((left, a), (right, b))
    ]
    d = warp_mma(a, b, *through, np.zeros((16, 8), np.float32), sa, sb, scale)
    values = decode(left, a), decode(right, b)
    if vector:
        values = tuple(v * np.repeat(decode(s, scale), k // vector, 1) for v, s in zip(values, (sa, sb), strict=True))
    assert np.array_equal(d, (values[0] @ values[1].T).astype(np.float32))


def test_a_warpgroups_instruction_is_the_product():
    random = np.random.default_rng(2)
    a, b = codes(random, "e4m3", (64, 32)), codes(random, "e4m3", (24, 32))
    d = warpgroup_mma("e4m3", "e4m3", a, b, np.ones((64, 24), np.float32))
    assert np.array_equal(d, (1 + decode(a, "e4m3") @ decode(b, "e4m3").T).astype(np.float32))
