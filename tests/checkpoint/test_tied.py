"""Tied embeddings: a quantized lm_head beside the embedding, an unquantized one, or none at all."""

import pytest
import torch

import hybrid_humming as hh
from tests.checkpoint.build import golden, write

LAYER = "model.layers.0.self_attn.q_proj"
EMBEDDING = {"model.embed_tokens.weight": torch.zeros(16, 64, dtype=torch.bfloat16)}


@pytest.mark.parametrize("folder", ["modelopt-fp8", "modelopt-nvfp4", "hqq-4bit", "quark-fp8-tensor", "torchao-int8"])
@pytest.mark.parametrize("head", ["none", "plain", "quantized"])
def test_tied_checkpoints_load_whatever_was_saved_of_the_head(tmp_path, folder, head):
    config, tensors = golden(folder)
    config["tie_word_embeddings"] = True
    quantization = config["quantization_config"]
    for key in ("ignore", "exclude"):
        quantization[key] = [entry for entry in quantization.get(key, []) if entry != "lm_head" or head != "quantized"]
    tensors |= EMBEDDING
    if head == "plain":
        tensors["lm_head.weight"] = EMBEDDING["model.embed_tokens.weight"].clone()
    if head == "quantized":
        tensors |= {k.replace(LAYER, "lm_head"): v.clone() for k, v in tensors.items() if k.startswith(f"{LAYER}.")}
    loaded = hh.load(write(tmp_path, config, tensors))
    assert ("lm_head" in loaded) == (head == "quantized")
    assert ("lm_head.weight" in loaded.checkpoint.rest) == (head == "plain")
    assert loaded.tensor("model.embed_tokens.weight").shape == (16, 64)
    if head == "quantized":
        assert torch.equal(hh.dequantize(loaded["lm_head"][0]), hh.dequantize(loaded[LAYER][0]))
