"""Remake tests/golden/autoround-* of auto-round's own format and its AWQ and MX exports, decoded by its own layers and formulas.

python -m venv ar && ar/bin/pip install torch==2.13.0 auto-round==0.16.1 compressed-tensors
HF_HUB_OFFLINE=1 ar/bin/python tests/golden/make_autoround_native.py [names]
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from auto_round import AutoRound
from auto_round.data_type.nvfp import get_reciprocal
from auto_round.experimental.qmodules.fp4_utils import unpack_fp4_from_uint8
from auto_round.experimental.qmodules.mx import get_fp_scale
from auto_round.export.export_to_awq.utils import dequantize_gemm
from auto_round_extension.torch import qlinear_torch, qlinear_torch_zp
from make_autoround import KEEP, tiny_llama
from safetensors.torch import load_file
from tiny import write
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

Q_PROJ = "model.layers.0.self_attn.q_proj"
DOWN = "model.layers.0.mlp.down_proj"
INT = {"bits": 4, "group_size": 32}
TEXT = {"dataset": [" ".join(["a b"] * 16)] * 4, "nsamples": 2, "seqlen": 16}
VARIANTS = {
    "native-gptq-sym": ("auto_round", {**INT, "sym": True}),
    "native-gptqmodel-asym": ("auto_round:gptqmodel", {**INT, "sym": False}),
    "native-awq-asym": ("auto_round:auto_awq", {**INT, "sym": False}),
    "native-per-layer": ("auto_round", {**INT, "sym": True, "layer_config": {DOWN: {"bits": 8}, Q_PROJ: {"group_size": 16}}}),
    "native-w5-awq": ("auto_round:auto_awq", {"bits": 5, "group_size": 32, "sym": False}),
    "awq-asym": ("auto_awq", {**INT, "sym": False}),
    "native-mxfp4": ("auto_round", {"scheme": "MXFP4"}),
    "native-mxfp8": ("auto_round", {"scheme": "MXFP8"}),
    "native-nvfp4": ("auto_round", {"scheme": "NVFP4", **TEXT}),
    "native-fp8-static": ("auto_round", {"scheme": "FP8_STATIC", **TEXT}),
}


def tokenizer():
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[UNK]")


def make(name, form, settings):
    with tempfile.TemporaryDirectory() as scratch:
        rounder = AutoRound(tiny_llama(), tokenizer(), iters=0, disable_opt_rtn=True, device_map="cpu", **settings)
        rounder.quantize_and_save(scratch, format=form)
        written = next(Path(scratch).rglob("config.json")).parent
        config = json.loads((written / "config.json").read_text())
        tensors = {k: v for file in written.glob("*.safetensors") for k, v in load_file(file).items()}
    kept = {k: v for k, v in tensors.items() if any(f".{layer}." in k for layer in KEEP)}
    expected = {}
    for layer in sorted({k.rpartition(".")[0] for k in kept}):
        parts = {k.rpartition(".")[2]: v for k, v in kept.items() if k.startswith(f"{layer}.")}
        expected[layer] = decode(parts, config["quantization_config"], layer)
    shown = {"model_type": "llama", "dtype": config.get("dtype", config.get("torch_dtype"))}
    shown["quantization_config"] = config["quantization_config"]
    write(f"autoround-{name}", expected, tensors=kept, config=shown)


def decode(parts, config, layer):
    """The values of one layer [N, K] in fp32, by auto-round's own unpacking and dequantization."""
    rule = config | config.get("extra_config", {}).get(layer, {})
    if "qweight" in parts and "awq" in config.get("packing_format", config["quant_method"]):
        scales = parts["scales"].float()
        return dequantize_gemm(parts["qweight"], parts["qzeros"], scales, rule["bits"], rule["group_size"]).T
    if "qweight" in parts:
        n, k = parts["scales"].shape[1], parts["qweight"].shape[0] * 32 // rule["bits"]
        kind = qlinear_torch if "gptqmodel" in config["packing_format"] else qlinear_torch_zp
        linear = kind.QuantLinear(rule["bits"], rule["group_size"], k, n, False)
        linear.qweight, linear.qzeros, linear.scales = parts["qweight"], parts["qzeros"], parts["scales"].float()
        return linear(torch.eye(k)).T
    scale = parts["weight_scale"]
    if "weight_packed" in parts:
        packed = parts["weight_packed"]
        weight = unpack_fp4_from_uint8(packed, packed.shape[0], packed.shape[1] * 2, dtype=torch.float32)
    else:
        weight = parts["weight"].float()
    if scale.dim() == 1:
        return weight * scale.float()[:, None]
    wide = get_fp_scale(scale) if scale.dtype == torch.uint8 else scale.float()
    wide = wide.float().repeat_interleave(weight.shape[1] // scale.shape[1], 1)
    if "weight_global_scale" in parts:
        return weight * get_reciprocal(parts["weight_global_scale"]) * wide
    return weight * wide


if __name__ == "__main__":
    for case in sys.argv[1:] or VARIANTS:
        make(case, *VARIANTS[case])
