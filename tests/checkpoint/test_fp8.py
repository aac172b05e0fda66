"""FP8: DeepSeek's blocks with a partial last one, exponents as scales, one scale a tensor or row, stacked experts."""

import pytest
import torch

from hybrid_humming.checkpoint import load_canonical
from hybrid_humming.errors import CheckpointMismatch, MissingTensor, UnknownQuantMethod
from hybrid_humming.reference import dequantize
from tests.checkpoint.build import GOLDEN, LAYER, changed, golden, write

BLOCK = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}


def checkpoint(path, tensors, layer=LAYER, **fields):
    config = {"model_type": "llama", "dtype": "bfloat16", "quantization_config": BLOCK | fields}
    return write(path, config, {f"{layer}.{part}" if part else layer: tensor for part, tensor in tensors.items()})


@pytest.mark.parametrize("n,k", [(576, 256), (192, 192), (224, 576), (4, 128), (129, 128)])
def test_the_last_block_may_be_partial(tmp_path, n, k):
    generator = torch.Generator().manual_seed(n)
    weight = torch.randn(n, k, generator=generator).to(torch.float8_e4m3fn)
    scale = torch.rand(-(-n // 128), -(-k // 128), generator=generator) + 0.5
    found = load_canonical(checkpoint(tmp_path, {"weight": weight, "weight_scale_inv": scale}))[LAYER]
    rows, columns = torch.arange(n) // 128, torch.arange(k) // 128
    assert torch.equal(dequantize(found), weight.float() * scale[rows][:, columns])
    # Groups of 128 activations exist only where they divide K.
    assert str(found.spec) == f"e4m3 b128x128{' x e4m3 g128' if k % 128 == 0 else ':fp32 x bf16'}"


def test_too_few_scale_rows_are_refused_with_both_shapes(tmp_path):
    tensors = {"weight": torch.zeros(576, 256).to(torch.float8_e4m3fn), "weight_scale_inv": torch.ones(4, 2)}
    with pytest.raises(CheckpointMismatch, match=r"weight_scale_inv is F32 \[4, 2\], but 'e4m3 b128x128 .*' needs .* \[5, 2\]"):
        load_canonical(checkpoint(tmp_path, tensors))


@pytest.mark.parametrize("stored", ["e8m0", "uint8", "fp32"])
def test_ue8m0_scales_in_each_dtype_are_powers_of_two(tmp_path, stored):
    exponent = torch.tensor([[0, 120], [127, 254]], dtype=torch.uint8)
    scale = {"e8m0": exponent.view(torch.float8_e8m0fnu), "uint8": exponent, "fp32": torch.exp2(exponent.double() - 127).float()}
    tensors = {"weight": torch.ones(256, 256).to(torch.float8_e4m3fn), "weight_scale_inv": scale[stored]}
    found = load_canonical(checkpoint(tmp_path, tensors, scale_fmt="ue8m0"))[LAYER]
    assert str(found.spec) == f"e4m3 b128x128{'' if stored == 'fp32' else ':e8m0'} x e4m3 g128:e8m0"
    assert dequantize(found, torch.float64)[[0, 0, 128, 128], [0, 128, 0, 128]].log2().tolist() == [-127, -7, 0, 127]


@pytest.mark.parametrize("name", ["scale", "qscale_weight"])
def test_older_names_of_the_block_scale(tmp_path, name):
    tensors = {"weight": torch.ones(128, 128).to(torch.float8_e4m3fn), name: torch.full((1, 1), 3.0)}
    assert dequantize(load_canonical(checkpoint(tmp_path, tensors))[LAYER]).unique().tolist() == [3.0]


def test_activations_static_and_dynamic():
    assert load_canonical(GOLDEN / "handmade-fp8-tensor-static")[LAYER].input_scale.tolist() == [0.125]
    lines = {f: str(load_canonical(GOLDEN / f"handmade-fp8-{f}").spec(LAYER)) for f in ("tensor-static", "tensor-dynamic", "e5m2")}
    assert lines == {
        "tensor-static": "e4m3 tensor x e4m3 tensor",
        "tensor-dynamic": "e4m3 tensor x e4m3 token",
        "e5m2": "e5m2 tensor x e4m3 token",
    }


def test_stacked_experts(tmp_path):
    weight = torch.randn(3, 192, 128, generator=torch.Generator().manual_seed(0)).to(torch.float8_e4m3fn)
    scale = torch.rand(3, 2, 1) + 0.5
    stacked = {"gate_up_proj": weight, "gate_up_proj_scale_inv": scale}
    config = {"model_type": "qwen3_moe", "dtype": "bfloat16", "quantization_config": BLOCK}
    prefix = "model.layers.0.mlp.experts"
    found = load_canonical(write(tmp_path, config, {f"{prefix}.{part}": tensor for part, tensor in stacked.items()}))
    assert found.layer(f"{prefix}.gate_up_proj").shape == (3, 192, 128)
    rows = torch.arange(192) // 128
    assert torch.equal(dequantize(found[f"{prefix}.gate_up_proj"]), weight.float() * scale[:, rows])


@pytest.mark.parametrize(
    "entry,hits", [(LAYER, True), ("model.layers.0.mlp", True), ("mlp.down", False), ("model.layers.0.ml", False)]
)
def test_modules_to_not_convert_names_modules_and_their_parents_only(tmp_path, entry, hits):
    path = changed(tmp_path, "handmade-fp8-tensor-dynamic", quantization={"modules_to_not_convert": [entry]})
    if hits:
        with pytest.raises(CheckpointMismatch, match="lists .* as not quantized, but the files hold quantized tensors for it"):
            load_canonical(path)
    else:
        assert LAYER in load_canonical(path)


def test_unquantized_modules_beside_are_left_alone():
    checkpoint = load_canonical(GOLDEN / "transformers-fp8-block")
    assert "layers.0.mlp.gate.weight" in checkpoint.rest


@pytest.mark.parametrize(
    "fields,parts,error,text",
    [
        ({}, {"weight_scale": None}, MissingTensor, "weight is F8_E4M3 .*, but none of weight_scale_inv, .* is beside it"),
        ({"activation_scheme": "static"}, {}, MissingTensor, "activation_scheme is static, but none of input_scale"),
        ({"scale_fmt": "e8m0"}, {}, UnknownQuantMethod, "scale_fmt 'e8m0'; readable are ue8m0 and float"),
        ({"activation_scheme": "group"}, {}, UnknownQuantMethod, "activation_scheme 'group'; readable are dynamic and static"),
        ({"fmt": "e3m4"}, {}, UnknownQuantMethod, "fmt 'e3m4' is not read"),
        ({}, {"weight_scale": torch.ones(3)}, CheckpointMismatch, r"weight_scale is F32 \[3\] beside a weight of 40 rows"),
        ({"weight_block_size": [128]}, {}, CheckpointMismatch, "weight_block_size is .*; two positive integers"),
        ({"weight_block_size": 128}, {}, CheckpointMismatch, "weight_block_size is 128; two positive integers"),
        ({"ignored_layers": "lm_head"}, {}, CheckpointMismatch, "'ignored_layers' is 'lm_head'; a list of strings is expected"),
    ],
)
def test_what_is_wrong_with_a_layer_is_said(tmp_path, fields, parts, error, text):
    with pytest.raises(error, match=text):
        load_canonical(changed(tmp_path, "handmade-fp8-tensor-dynamic", quantization=fields, **parts))


def test_golden_has_the_layer_the_tests_change():
    assert f"{LAYER}.weight_scale" in golden("handmade-fp8-tensor-dynamic")[1]
