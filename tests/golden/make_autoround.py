"""Remake tests/golden/autoround-gptq-*: a tiny Llama quantized by auto-round, exported as auto_gptq, run by its own layers.

python -m venv ar && ar/bin/pip install torch==2.13.0 auto-round==0.16.1
HF_HUB_OFFLINE=1 AR_ALLOW_W8_ASYM=1 ar/bin/python tests/golden/make_autoround.py
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from auto_round import AutoRound
from auto_round_extension.torch.qlinear_torch_zp import QuantLinear
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

HERE = Path(__file__).parent
HIDDEN, INTERMEDIATE, G = 32, 64, 32
KEEP = ("q_proj", "down_proj")
VARIANTS = {f"w{bits}-{'sym' if sym else 'asym'}": (bits, sym) for bits in (2, 3, 4, 8) for sym in (True, False)}
KEYS = ("bits", "group_size", "sym", "data_type", "quant_method", "provider", "autoround_version", "desc_act", "lm_head",
        "packing_format", "block_name_to_quantize", "true_sequential", "damp_percent", "checkpoint_format", "dynamic")  # fmt: skip


def tiny_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=INTERMEDIATE, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        vocab_size=64, max_position_embeddings=64, architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    return LlamaForCausalLM(config).half()


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[UNK]")


def dequantized(parts: dict[str, torch.Tensor], bits: int) -> torch.Tensor:
    """The layer's product with the identity, in fp32: its weight [N, K]."""
    n, k = parts["scales"].shape[1], parts["qweight"].shape[0] * 32 // bits
    layer = QuantLinear(bits, G, k, n, False)
    layer.qweight, layer.qzeros, layer.scales = parts["qweight"], parts["qzeros"], parts["scales"].float()
    return layer(torch.eye(k)).T.contiguous()


def make(name: str, bits: int, sym: bool) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        rounder = AutoRound(
            tiny_llama(), tokenizer(), iters=0, disable_opt_rtn=True, device_map="cpu", bits=bits, group_size=G, sym=sym
        )
        rounder.quantize_and_save(scratch, format="auto_gptq")
        written = next(Path(scratch).rglob("config.json")).parent
        config = json.loads((written / "config.json").read_text())
        tensors = {k: v for file in written.glob("*.safetensors") for k, v in load_file(file).items()}
    kept = {k: v.contiguous() for k, v in tensors.items() if any(f".{layer}." in k for layer in KEEP)}
    layers = sorted({k.rpartition(".")[0] for k in kept})
    expected = {}
    for layer in layers:
        parts = {k.rpartition(".")[2]: v for k, v in kept.items() if k.startswith(f"{layer}.")}
        expected[layer] = dequantized(parts, bits)
    quantization = {k: v for k, v in config["quantization_config"].items() if k in KEYS}
    text = {"model_type": "llama", "dtype": config.get("dtype", config.get("torch_dtype")), "quantization_config": quantization}
    folder = HERE / f"autoround-gptq-{name}"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(text, indent=2) + "\n")
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    save_file(expected, folder / "expected.safetensors")


if __name__ == "__main__":
    for name in sys.argv[1:] or VARIANTS:
        make(name, *VARIANTS[name])
