"""gemm, transforms and fused_moe against the plainest torch that says the same."""

import math

import pytest
import torch

from hybrid_humming.errors import DtypeError, ShapeError, SpecError
from hybrid_humming.reference import apply_transform, dequantize, dequantize_input, fused_moe, gemm, quantize, quantize_input
from hybrid_humming.spec import Spec
from hybrid_humming.weight import InputTransform

E, K, INNER, TOKENS = 3, 64, 32, 7


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def weights(line="int4 g32 x bf16"):
    spec = Spec.parse(line)
    return quantize(normal(E, 2 * INNER, K), spec), quantize(normal(E, K, INNER, seed=1), spec)


def plain(x, w13, w2, factors, ids, act, b13=None, b2=None):
    """Token by token, slot by slot."""
    gate_up, down = dequantize(w13, torch.float64), dequantize(w2, torch.float64)
    y = torch.zeros(x.shape[0], K, dtype=torch.float64)
    for t in range(x.shape[0]):
        for j in range(ids.shape[1]):
            e = int(ids[t, j])
            if 0 <= e < E:
                both = gate_up[e] @ x[t].double() + (0 if b13 is None else b13[e].double())
                out = down[e] @ act(both) + (0 if b2 is None else b2[e].double())
                y[t] += float(factors[t, j]) * out
    return y


def swiglu(both):
    gate, up = both[:INNER], both[INNER:]
    return gate / (1 + torch.exp(-gate)) * up


def gelu(both):
    gate, up = both[:INNER], both[INNER:]
    return gate * 0.5 * (1 + torch.erf(gate / math.sqrt(2))) * up


def oai_interleaved(both):
    gate, up = both[0::2], both[1::2]
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return (up + 1) * gate / (1 + torch.exp(-1.702 * gate))


def batch():
    ids = torch.tensor([[0, 1], [2, -1], [1, 1], [E, 0], [0, 2], [-1, 99], [2, 1]], dtype=torch.int32)
    return normal(TOKENS, K, seed=2) * 3, torch.rand(TOKENS, 2, generator=torch.Generator().manual_seed(3)), ids


@pytest.mark.parametrize(
    ("name", "act", "interleaved"), [("silu", swiglu, False), ("gelu", gelu, False), ("swiglu_oai", oai_interleaved, True)]
)
@pytest.mark.parametrize("bias", [False, True])
def test_fused_moe_is_the_sum_over_slots(name, act, interleaved, bias):
    x, factors, ids = batch()
    w13, w2 = weights()
    b13, b2 = (normal(E, 2 * INNER), normal(E, K)) if bias else (None, None)
    y = fused_moe(x, w13, w2, factors, ids, activation=name, interleaved=interleaved, b13=b13, b2=b2)
    torch.testing.assert_close(y, plain(x, w13, w2, factors, ids, act, b13, b2), rtol=1e-12, atol=1e-12)


def test_ids_of_no_expert_add_exactly_nothing():
    x, factors, ids = batch()
    w13, w2 = weights()
    dead = (ids < 0) | (ids >= E)
    y = fused_moe(x, w13, w2, torch.where(dead, torch.nan, factors), ids, b13=normal(E, 2 * INNER), b2=normal(E, K))
    assert (y[5] == 0).all()
    live = fused_moe(x, w13, w2, torch.where(dead, 0.0, factors), ids.clamp(0, E - 1), b13=normal(E, 2 * INNER), b2=normal(E, K))
    torch.testing.assert_close(y, live, rtol=1e-12, atol=1e-12)


def test_no_tokens():
    w13, w2 = weights()
    y = fused_moe(torch.zeros(0, K), w13, w2, torch.zeros(0, 2), torch.zeros(0, 2, dtype=torch.int32))
    assert tuple(y.shape) == (0, K)


@pytest.mark.parametrize(
    "line", ["e4m3 channel x e4m3 token", "nvfp4 x nvfp4", "mxfp4 x mxfp8", "uint4 g32 zp x bf16", "nvfp4 x bf16"]
)
def test_one_expert_for_all_is_two_gemms(line):
    x, factors, _ = batch()
    w13, w2 = weights(line)
    ids = torch.ones(TOKENS, 1, dtype=torch.int32)
    y = fused_moe(x, w13, w2, factors[:, :1], ids)
    dense13, dense2 = quantize(normal(E, 2 * INNER, K)[1], w13.spec), quantize(normal(E, K, INNER, seed=1)[1], w13.spec)
    both = gemm(x, dense13)
    want = gemm(torch.nn.functional.silu(both[:, :INNER]) * both[:, INNER:], dense2) * factors[:, :1].double()
    torch.testing.assert_close(y, want, rtol=1e-12, atol=1e-12)


def test_fused_moe_refuses_what_does_not_fit():
    x, factors, ids = batch()
    w13, w2 = weights()
    with pytest.raises(
        SpecError, match=r"activation 'silo': allowed are silu, gelu, gelu_tanh, swiglu_oai\. Did you mean 'silu'\?"
    ):
        fused_moe(x, w13, w2, factors, ids, activation="silo")
    with pytest.raises(ShapeError, match=r"x is \[7, 32\]; it must be \[T, K\] with K=64"):
        fused_moe(x[:, :32], w13, w2, factors, ids)
    with pytest.raises(ShapeError, match=r"topk_ids is \[7, 2\] and topk_weights \[7, 1\]; both must be \[T=7, top_k\]"):
        fused_moe(x, w13, w2, factors[:, :1], ids)
    with pytest.raises(ShapeError, match="w13 has 3 experts and w2 has 0"):
        fused_moe(x, w13, quantize(normal(K, INNER), w2.spec), factors, ids)
    with pytest.raises(ShapeError, match="w13 has N=64 and w2 has K=64; gate and up need N = 2"):
        fused_moe(x, w13, quantize(normal(E, K, 64), w2.spec), factors, ids)


def test_gemm_is_the_product_of_both_dequantized_sides():
    x = normal(5, K)
    for line in ("int4 g32 x bf16", "e4m3 channel x e4m3 token"):
        spec = Spec.parse(line)
        w = quantize(normal(8, K), spec)
        real = dequantize_input(quantize_input(x, spec), spec, torch.float64) if spec.quantizes_activation else x.double()
        bias = normal(8)
        want = real @ dequantize(w, torch.float64).T + bias.double()
        assert torch.equal(gemm(x, w, bias=bias), want)
        assert tuple(gemm(x.reshape(1, 5, K), w).shape) == (1, 5, 8)


def test_gemm_refuses_what_does_not_fit():
    w13, _ = weights()
    with pytest.raises(ShapeError, match="weight has 3 experts; gemm takes a dense weight"):
        gemm(normal(5, K), w13)
    with pytest.raises(ShapeError, match=r"x is \[5, 32\], but the weight is \[8, 64\]: x needs K=64"):
        gemm(normal(5, 32), quantize(normal(8, K), w13.spec))


@pytest.mark.parametrize("zero", ["zp", "zp:bf16"])
@pytest.mark.parametrize("activation", ["bf16", "fp16", "e4m3 token", "int8 token", "int8 g32", "e2m1 token", "mxfp8"])
def test_zero_point_is_never_ignored(activation, zero):
    spec = Spec.parse(f"uint4 g32 {zero} x {activation}")
    w = quantize(normal(8, K), spec)
    three = torch.full_like(w.zero_point, 3)
    x = normal(5, K).bfloat16()
    y, ignored = gemm(x, w.replace(zero_point=three)), gemm(x, w.replace(zero_point=torch.zeros_like(three)))
    scale = w.scale.double().repeat_interleave(32, -1)
    real = dequantize_input(quantize_input(x, spec), spec, torch.float64) if spec.quantizes_activation else x.double()
    torch.testing.assert_close(ignored - y, real @ (3 * scale).T, rtol=1e-9, atol=1e-9)
    assert not torch.equal(y, ignored)


def test_transforms_apply_in_order():
    x = normal(4, 16).double()
    scale, permutation = torch.rand(16) + 0.5, torch.randperm(16, generator=torch.Generator().manual_seed(0)).int()
    h = torch.tensor([[1.0]], dtype=torch.float64)
    for _ in range(3):
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)]) / math.sqrt(2)
    want = ((x * scale.double()).view(4, 2, 8) @ h).view(4, 16)[:, permutation.long()]
    got = apply_transform(x, InputTransform(pre_quant_scale=scale, hadamard=8, permutation=permutation))
    torch.testing.assert_close(got, want, rtol=1e-14, atol=1e-14)
    assert tuple(apply_transform(x[:0], InputTransform(hadamard=8)).shape) == (0, 16)


def test_hadamard_twice_is_the_identity():
    x = normal(4, 64).double()
    twice = apply_transform(apply_transform(x, InputTransform(hadamard=64)), InputTransform(hadamard=64))
    torch.testing.assert_close(twice, x, rtol=1e-14, atol=1e-14)


def test_transform_refusals():
    with pytest.raises(ShapeError, match="K=48 is not a multiple of the Hadamard block 32"):
        apply_transform(normal(2, 48), InputTransform(hadamard=32))
    with pytest.raises(DtypeError, match="pre_quant_scale multiplies x before it is quantized"):
        apply_transform(torch.zeros(2, 8, dtype=torch.int8), InputTransform(pre_quant_scale=torch.ones(8)))
    with pytest.raises(ShapeError, match="hadamard block 12: must be a power of two"):
        InputTransform(hadamard=12)
    with pytest.raises(DtypeError, match=r"permutation is torch\.int64; it must be int32 \[K\]"):
        InputTransform(permutation=torch.arange(8))
