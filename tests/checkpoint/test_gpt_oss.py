"""gpt-oss: names with underscores, interleaved gate and up rows with their biases, and the activation's numbers."""

import pytest
import torch
from safetensors.torch import load_file

import hybrid_humming as hh
from hybrid_humming.checkpoint import load_canonical
from hybrid_humming.errors import CheckpointMismatch, MissingTensor
from hybrid_humming.reference import fused_moe
from hybrid_humming.reference.prologue import OAI_ALPHA, OAI_LIMIT
from tests.checkpoint.build import GOLDEN, golden, write

FOLDER = "transformers-gpt-oss"
EXPERTS = "model.layers.0.mlp.experts"


def edited(tmp_path, **parts):
    config, tensors = golden(FOLDER)
    for part, tensor in parts.items():
        tensors.pop(f"{EXPERTS}.{part}")
        if tensor is not None:
            tensors[f"{EXPERTS}.{part}"] = tensor
    return write(tmp_path, config, tensors)


def test_layers_are_the_two_projections():
    checkpoint = load_canonical(GOLDEN / FOLDER)
    assert {name: layer.shape for name, layer in checkpoint.layers.items()} == {
        f"{EXPERTS}.gate_up_proj": (2, 64, 64),
        f"{EXPERTS}.down_proj": (2, 64, 32),
    }
    assert checkpoint.rest == ["model.layers.0.mlp.router.weight"]


def test_biases_follow_their_rows():
    stored = golden(FOLDER)[1][f"{EXPERTS}.gate_up_proj_bias"]
    want = torch.cat([stored[:, 0::2], stored[:, 1::2]], 1)
    assert load_canonical(GOLDEN / FOLDER)[f"{EXPERTS}.gate_up_proj"].bias.equal(want)
    assert hh.load(GOLDEN / FOLDER).bias(f"{EXPERTS}.gate_up_proj").equal(want)
    down = golden(FOLDER)[1][f"{EXPERTS}.down_proj_bias"]
    assert hh.load(GOLDEN / FOLDER).bias(f"{EXPERTS}.down_proj").equal(down)


def test_clamp_and_alpha_are_kept(tmp_path):
    assert hh.load(GOLDEN / FOLDER).notes(f"{EXPERTS}.gate_up_proj") == {"activation": "swiglu_oai", "alpha": 1.702, "clamp": 7.0}
    assert hh.load(GOLDEN / FOLDER).notes(f"{EXPERTS}.down_proj") == {}
    config, tensors = golden(FOLDER)
    config["swiglu_limit"] = 5.0
    assert hh.load(write(tmp_path, config, tensors)).notes(f"{EXPERTS}.gate_up_proj")["clamp"] == 5.0


def test_the_reference_moe_computes_what_the_model_does():
    checkpoint, given = load_canonical(GOLDEN / FOLDER), load_file(GOLDEN / FOLDER / "product.safetensors")
    w13, w2 = checkpoint[f"{EXPERTS}.gate_up_proj"], checkpoint[f"{EXPERTS}.down_proj"]
    notes = checkpoint.layer(f"{EXPERTS}.gate_up_proj").notes
    assert (notes["alpha"], notes["clamp"]) == (OAI_ALPHA, OAI_LIMIT)
    y = fused_moe(
        given["x"], w13, w2, given["topk_weights"], given["topk_ids"], activation=notes["activation"], b13=w13.bias, b2=w2.bias
    )
    torch.testing.assert_close(y, given["y"])


@pytest.mark.parametrize("key", ["swiglu_limit", "swiglu_alpha"])
def test_a_clamp_that_is_no_number_is_refused(tmp_path, key):
    config, tensors = golden(FOLDER)
    config[key] = "seven"
    with pytest.raises(CheckpointMismatch, match=f"'{key}' is 'seven'; a number is expected"):
        load_canonical(write(tmp_path, config, tensors))


def test_low_nibble_first(tmp_path):
    blocks = torch.full((2, 64, 1, 16), 0xF2, dtype=torch.uint8)
    scales = torch.full((2, 64, 1), 127, dtype=torch.uint8)
    path = edited(tmp_path, down_proj_blocks=blocks, down_proj_scales=scales)
    qweight, _ = hh.load(path)[f"{EXPERTS}.down_proj"]
    assert hh.dequantize(qweight)[0, 0, :4].tolist() == [1, -6, 1, -6]


@pytest.mark.parametrize(
    "parts,error,text",
    [
        ({"down_proj_scales": None}, MissingTensor, "gpt-oss MXFP4 needs blocks, scales; missing are scales"),
        ({"down_proj_blocks": torch.zeros(2, 64, 16)}, CheckpointMismatch, r"blocks are F32 .*, expected U8 \[E, N, K/32, 16\]"),
        ({"down_proj_scales": torch.zeros(2, 64, 2, dtype=torch.uint8)}, CheckpointMismatch, r"expected U8 .* \[2, 64, 1\]"),
        ({"down_proj_bias": torch.zeros(2, 32)}, CheckpointMismatch, r"bias is F32 \[2, 32\], expected .* \[2, 64\]"),
    ],
)
def test_tensors_that_contradict_each_other(tmp_path, parts, error, text):
    with pytest.raises(error, match=text):
        load_canonical(edited(tmp_path, **parts))
