"""What the make_<exporter>.py scripts share: one tiny Llama, one tokenizer, one logical weight, and how a golden folder is written.

A golden folder holds what the exporter wrote (config.json, twin files, model.safetensors) and

    expected.safetensors  {layer: [N, K] fp32}, the exporter's own dequantized weight

Run a script with the exporter's own environment; none of them needs this library: `python tests/golden/make_hqq.py`.
"""

import json
import os
import re
import shutil
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

GOLDEN = Path(__file__).resolve().parent
KEPT = ("config.json", "hf_quant_config.json", "quantize_config.json", "model.safetensors", "model.safetensors.index.json")


def model(hidden=32, intermediate=64, layers=1, dtype=torch.bfloat16, **config):
    """A random Llama of a few KB, the same on every machine and call."""
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = LlamaConfig(
        hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=16, max_position_embeddings=32, tie_word_embeddings=False,
        bos_token_id=0, eos_token_id=0, pad_token_id=0, architectures=["LlamaForCausalLM"], **config,
    )  # fmt: skip
    made = LlamaForCausalLM(settings)
    for index, (_, weight) in enumerate(sorted(made.named_parameters())):
        if weight.dim() == 2:
            generator = torch.Generator().manual_seed(index)
            weight.data = torch.randn(weight.shape, generator=generator) * 0.1
    return made.to(dtype).eval()


def save_tokenizer(folder):
    """The smallest tokenizer that exporters accept."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {"a": 0, "b": 1, "[UNK]": 2}
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="[UNK]"))).save_pretrained(folder)


def one_weight():
    """The weight that every exporter packs: codes uint8 [32, 64], scale fp32 [32, 2], zero_point uint8 [32, 2]; groups of 32.

    4-bit codes; every code, and every zero point from 1 to 15, occurs; the scales are exact in fp16 and bf16.
    """
    n, k, group = 32, 64, 32
    codes = (torch.arange(n)[:, None] * 5 + torch.arange(k)[None] * 7) % 16
    groups = torch.arange(n * k // group).reshape(n, k // group)
    scale = (1 + (groups % 4) * 0.25) * 2.0 ** -(4 + groups % 5).float()
    return codes.to(torch.uint8), scale.float(), (1 + groups % 15).to(torch.uint8)


def one_weight_values(symmetric):
    """What `one_weight` decodes to, fp32 [32, 64]; symmetric: every zero point is 8."""
    codes, scale, zero = one_weight()
    zero = torch.full_like(zero, 8) if symmetric else zero
    return (codes.float() - zero.float().repeat_interleave(32, 1)) * scale.repeat_interleave(32, 1)


def write(name, expected, *, source=None, tensors=None, config=None, drop=None):
    """Make tests/golden/<name> from an exporter's folder `source`, or from `tensors` and the config.json object `config`.

    drop  regular expression of tensors to leave out of the file, to keep it small
    """
    folder = GOLDEN / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if source is not None:
        for file in KEPT:
            if (Path(source) / file).is_file():
                shutil.copy(Path(source) / file, folder / file)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    metadata = {"format": "pt"}
    if drop is not None:
        with safe_open(folder / "model.safetensors", "pt") as file:
            metadata = {k: v for k, v in (file.metadata() or {}).items() if not re.search(drop, k)}
            tensors = {k: file.get_tensor(k) for k in file.keys() if not re.search(drop, k)}  # noqa: SIM118
    if tensors is not None:
        save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors", metadata=metadata)
    if expected is not None:
        save_file({k: v.detach().float().contiguous() for k, v in expected.items()}, folder / "expected.safetensors")
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{name}: {size} bytes, {len(load_file(folder / 'model.safetensors'))} tensors")
