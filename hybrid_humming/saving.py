"""Weights -> our own files: `hh.save`, and `convert` for whole checkpoints.

    model.safetensors                                      one file, or
    model-00001-of-00003.safetensors ... and the index     shards
    config.json                                            quantization_config: quant_method, format_version, producer

Each weight is a module of tensors (checkpoint/ours.py names them) with its tag: spec line, layout and SHA-256. Written tensor by
tensor: what is in memory is one layer and what the readers hold ahead.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hybrid_humming import __version__
from hybrid_humming import pack as packing
from hybrid_humming.checkpoint.bits import pack_bytes
from hybrid_humming.checkpoint.config import KEYS, TWINS
from hybrid_humming.checkpoint.files import as_path
from hybrid_humming.checkpoint.ours import FORMAT_VERSION, METHOD
from hybrid_humming.checkpoint.writer import Writer
from hybrid_humming.device import DeviceInfo
from hybrid_humming.dtypes import parse_format
from hybrid_humming.errors import CheckpointError, DtypeError, ValueRangeError
from hybrid_humming.loading import Loaded
from hybrid_humming.spec import Spec
from hybrid_humming.tag import PART, Tag
from hybrid_humming.weight import CanonicalWeight, QWeight

Tensor = torch.Tensor
Weight = QWeight | CanonicalWeight
PARTS = (
    *("codes", "qweight", "scale", "zero_point", "secondary_scale", "input_scale", "pre_quant_scale", "permutation"),
    *("bias", PART),
)
SHARD_BYTES = 5_000_000_000
NOT_COPIED = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.pt", "*.pth", "*.gguf", "*.part", "config.json", *TWINS)


def save(
    path: str | Path,
    weights: Mapping[str, Weight | tuple[QWeight, Spec]],
    *,
    rest: Mapping[str, Tensor] | None = None,
    canonical: bool = False,
    config: Mapping[str, Any] | None = None,
    max_shard_bytes: int = SHARD_BYTES,
    overwrite: bool = False,
) -> None:
    """Write weights by layer name to `path`: a folder, or one file if it ends in .safetensors. `hh.load` reads them bit-equal.

    weights    a QWeight is written as its packed bytes, a CanonicalWeight as one bit stream a row; any mapping will do, and each
               weight is asked for once: what `hh.load` returned is read layer by layer, with its biases and unquantized tensors
    rest       other tensors by full name: norms, and biases as "<layer>.bias"
    canonical  unpack every weight first: as small, and independent of any layout
    config     the model's config.json, written beside with our quantization_config (folders only)
    """
    _check_arguments(weights, rest, config)
    if isinstance(weights, Loaded):
        config = weights.checkpoint.config.model if config is None else config
        stream: Iterable[tuple[str, Any]] = ((name, weights[name]) for name in weights)
    else:
        stream = weights.items()
    _save(as_path(path), weights, stream, dict(rest or {}), canonical, dict(config or {}), max_shard_bytes, overwrite)


def convert(
    loaded: Loaded,
    out: str | Path,
    *,
    canonical: bool = False,
    on: str | None = None,
    readers: int = 2,
    progress: bool | None = None,
    max_shard_bytes: int = SHARD_BYTES,
    overwrite: bool = False,
) -> None:
    """Write a whole checkpoint to `out` in our own files, read by `readers` threads, with what lies beside it (tokenizer ...).

    on        cpu or cuda: where layers are taken apart and packed; None: where they were loaded for
    progress  as in `Loaded.stream`
    """
    if on is not None:
        DeviceInfo.of(on)  # one that is not there is refused before anything is written
        loaded.checkpoint.device = on
    source, out = loaded.checkpoint.path, as_path(out)
    folder = out.parent if out.suffix == ".safetensors" else out
    if folder.resolve() == (source if source.is_dir() else source.parent).resolve():
        raise CheckpointError(f"{out} is where the checkpoint itself lies; choose another place")
    stream = ((name, qweight) for name, qweight, _ in loaded.stream(readers=readers, progress=progress))
    _save(out, loaded, stream, {}, canonical, dict(loaded.checkpoint.config.model), max_shard_bytes, overwrite)
    if source.is_dir() and out.suffix != ".safetensors":
        for file in sorted(source.iterdir()):
            if file.is_file() and not any(file.match(pattern) for pattern in NOT_COPIED):
                shutil.copy2(file, out / file.name)


def _check_arguments(weights: object, rest: object, config: object) -> None:
    """Raise DtypeError or CheckpointError for what can't be written, before a file is touched."""
    for what, value in (("weights", weights), ("rest", rest or {}), ("config", config or {})):
        if not isinstance(value, Mapping):
            raise DtypeError(f"hh.save: {what} is {type(value).__name__}; a mapping by name is expected")
    names = [*weights, *(rest or {})]  # type: ignore[misc, has-type]
    odd = [name for name in names if not isinstance(name, str)]
    if odd or not names:
        raise CheckpointError(f"hh.save: names are text, not {odd[0]!r}" if odd else "hh.save: there is nothing to save")
    for name, tensor in (rest or {}).items():  # type: ignore[attr-defined]
        if not isinstance(tensor, Tensor):
            raise DtypeError(f"hh.save: {name!r} of `rest` is {type(tensor).__name__}; a tensor is expected")
    try:
        json.dumps(config)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"hh.save: config can't be written as JSON: {error}") from None


def _save(
    path: Path,
    weights: Mapping[str, Any],
    stream: Iterable[tuple[str, Any]],
    rest: dict[str, Tensor],
    canonical: bool,
    config: dict[str, Any],
    shard_bytes: int,
    overwrite: bool,
) -> None:
    loaded = weights if isinstance(weights, Loaded) else None
    others: dict[str, tuple[torch.dtype, Callable[[], Tensor]]] = {}
    if loaded is not None:
        infos = {name: loaded.checkpoint.files[name] for name in loaded.checkpoint.rest}
        others |= {name: (info.torch_dtype, info.read) for name, info in infos.items()}
        decoded = loaded.checkpoint.plain
        others |= {_full(name, "weight"): (parse_format(p.dtype).torch_storage, p.read) for name, p in decoded.items()}
    names = [_full(layer, part) for layer in weights for part in PARTS] + [*others, *rest]
    metadata = {"format": "pt", "producer": f"{METHOD} {__version__}"}
    try:
        with Writer(path, names, metadata=metadata, shard_bytes=shard_bytes, overwrite=overwrite) as writer:
            for name, value in stream:
                weight = value[0] if isinstance(value, tuple) else value
                bias = rest.pop(_full(name, "bias"), None)
                if loaded is not None and bias is None:
                    bias = loaded.bias(name)
                _write(writer, name, weight, bias, canonical, loaded.notes(name) if loaded is not None else {})
            others |= {name: (tensor.dtype, partial(rest.__getitem__, name)) for name, tensor in rest.items()}
            # Descending element sizes: after a tag, which ends at a multiple of 8, each is aligned.
            for name, (_, read) in sorted(others.items(), key=lambda item: (-item[1][0].itemsize, item[0])):
                writer.add({name: read()})
    except OSError as error:
        raise CheckpointError(f"{path} can't be written: {error.strerror or error}") from error
    if not writer.single:
        _write_config(path, config)


def _write(writer: Writer, name: str, weight: Weight, bias: Tensor | None, canonical: bool, notes: Mapping[str, Any]) -> None:
    if not isinstance(weight, QWeight | CanonicalWeight):
        raise DtypeError(f"{name!r} is {type(weight).__name__}; hh.save writes QWeight and CanonicalWeight, others go into `rest`")
    if canonical and isinstance(weight, QWeight):
        weight = packing.unpack(weight)
    tensors = _tensors(weight)
    if bias is not None:
        tensors["bias"] = bias
    tag = Tag.of(weight, notes)
    if isinstance(weight, CanonicalWeight):
        tensors["codes"] = _bit_packed(name, weight)
        tag = dataclasses.replace(tag, k=weight.k)
    tag = dataclasses.replace(tag, sha256=tag.digest(tensors))
    writer.add({_full(name, part): tensor for part, tensor in tensors.items()}, (_full(name, PART), str(tag)))


def _bit_packed(name: str, weight: CanonicalWeight) -> Tensor:
    codes, bits = weight.codes, weight.spec.bits
    if codes.numel() and int(codes.max()) >= 2**bits:
        raise ValueRangeError(f"{name}: codes reach {int(codes.max())}, but {weight.spec.weight} has codes 0..{2**bits - 1}")
    return pack_bytes(codes, bits)


def _tensors(weight: Weight) -> dict[str, Tensor]:
    if isinstance(weight, QWeight):
        return weight.tensors()
    found = {part: getattr(weight, part) for part in ("codes", "scale", "zero_point", "secondary_scale", "input_scale", "bias")}
    if weight.transform is not None:
        found |= {part: getattr(weight.transform, part) for part in ("pre_quant_scale", "permutation")}
    return {part: tensor for part, tensor in found.items() if tensor is not None}


def _full(layer: str, part: str) -> str:
    return f"{layer}.{part}" if layer else part


def _write_config(folder: Path, model: Mapping[str, Any]) -> None:
    """config.json: the model's own with our quantization_config in place of any other."""
    own = {"quant_method": METHOD, "format_version": FORMAT_VERSION, "producer": f"{METHOD} {__version__}"}
    kept = {key: _without(value) for key, value in model.items() if key not in KEYS}
    (folder / "config.json").write_text(json.dumps(kept | {"quantization_config": own}, indent=2) + "\n")


def _without(value: Any) -> Any:
    return {key: entry for key, entry in value.items() if key not in KEYS} if isinstance(value, dict) else value
