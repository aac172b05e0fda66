"""Checkpoints for tests: a golden one, changed at will and written anew."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
LAYER = "model.layers.0.mlp.down_proj"
Tensors = dict[str, torch.Tensor]


def golden(folder: str) -> tuple[dict[str, Any], Tensors]:
    """config.json and the tensors of a golden checkpoint."""
    return json.loads((GOLDEN / folder / "config.json").read_text()), load_file(GOLDEN / folder / "model.safetensors")


def write(path: Path, config: dict[str, Any], tensors: Tensors, shards: int = 1) -> Path:
    """Write a checkpoint folder, its tensors dealt out over `shards` files with an index, and return the folder."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    if shards == 1:
        save_file(tensors, path / "model.safetensors")
        return path
    names = sorted(tensors)
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        save_file({name: tensors[name] for name in names[i::shards]}, path / file)
        weight_map |= dict.fromkeys(names[i::shards], file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return path


def changed(
    path: Path, folder: str, *, quantization: dict[str, Any] | None = None, layer: str = "", **parts: torch.Tensor | None
) -> Path:
    """Write a golden checkpoint with fields of its quantization config and parts of a layer replaced (None: removed).

    layer  its name; the first tensor's by default
    """
    config, tensors = golden(folder)
    config["quantization_config"] |= quantization or {}
    config["quantization_config"] = {k: v for k, v in config["quantization_config"].items() if v is not None}
    layer = layer or next(iter(tensors)).rpartition(".")[0]
    for part, tensor in parts.items():
        tensors.pop(f"{layer}.{part}", None)
        if tensor is not None:
            tensors[f"{layer}.{part}"] = tensor
    return write(path, config, tensors)


def stack(tensors: Tensors, layers: int) -> Tensors:
    """The tensors of one layer, repeated under `layers` names."""
    return {name.replace("layers.0.", f"layers.{i}."): tensor.clone() for i in range(layers) for name, tensor in tensors.items()}
