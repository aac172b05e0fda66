"""What a checkpoint's JSON files say about its quantization.

Looked for in this order: `quantization_config` of config.json, of its `text_config` and the like (multimodal models),
the older `compression_config`, then the twin files quantize_config.json (GPTQ, AWQ) and hf_quant_config.json (ModelOpt).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hybrid_humming.checkpoint.files import read_json
from hybrid_humming.errors import CheckpointError, CheckpointMismatch

KEYS = ("quantization_config", "compression_config")
TWINS = ("quantize_config.json", "hf_quant_config.json")
_ACTIVATIONS = {"float16": "fp16", "bfloat16": "bf16", "half": "fp16"}


@dataclass(frozen=True, kw_only=True)
class QuantConfig:
    """The quantization half of a checkpoint's configuration.

    fields      the quantization_config object as written
    method      its quant_method
    source      where it was found, for messages
    activation  fp16 or bf16 as the model's dtype says; None if it says neither
    model       the whole config.json ({} if there is none)
    """

    path: Path
    source: str
    method: str
    fields: Mapping[str, Any]
    activation: str | None = None
    model: Mapping[str, Any] = field(default_factory=dict)

    def get(self, *names: str, default: Any = None) -> Any:
        """Return the first of `names` that is present and not null."""
        return next((self.fields[n] for n in names if self.fields.get(n) is not None), default)

    def integer(self, *names: str, default: int | None = None, fields: Mapping[str, Any] | None = None) -> int:
        """Return an integer field under any of its `names`; raises CheckpointMismatch if absent or of another type."""
        table = self.fields if fields is None else fields
        name = next((n for n in names if table.get(n) is not None), None)
        if name is None:
            if default is not None:
                return default
            raise CheckpointMismatch(f"{self.source} lacks {' or '.join(map(repr, names))}, which '{self.method}' needs")
        value = table[name]
        if isinstance(value, bool) or not isinstance(value, int):
            raise CheckpointMismatch(f"{self.source}: {name!r} is {value!r}; an integer is expected")
        return value

    def flag(self, *names: str, default: bool, fields: Mapping[str, Any] | None = None) -> bool:
        """Return a true/false field under any of its `names`; raises CheckpointMismatch for another type."""
        table = self.fields if fields is None else fields
        name = next((n for n in names if table.get(n) is not None), None)
        if name is None:
            return default
        if not isinstance(table[name], bool):
            raise CheckpointMismatch(f"{self.source}: {name!r} is {table[name]!r}; true or false is expected")
        return bool(table[name])


def read_config(path: str | Path) -> QuantConfig:
    """Return the quantization config of the checkpoint at `path`; raises CheckpointError if it has none."""
    folder = Path(path)
    folder = folder.parent if folder.is_file() else folder
    model = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    source, fields = _find(folder, model)
    return QuantConfig(
        path=folder,
        source=source,
        method=_method(source, fields),
        fields=fields,
        activation=_activation(model),
        model=model,
    )


def _find(folder: Path, model: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    for owner, table in (("", model), *((k, v) for k, v in model.items() if isinstance(v, dict))):
        for key in KEYS:
            if isinstance(table.get(key), dict):
                return f"config.json: {owner + '.' if owner else ''}{key}", table[key]
    for twin in TWINS:
        if (folder / twin).is_file():
            return twin, read_json(folder / twin)
    raise CheckpointError(
        f"{folder} has no quantization config: looked for {' and '.join(KEYS)} in config.json, and for {' and '.join(TWINS)}. "
        "Use hh.quantize on an unquantized checkpoint's weights"
    )


def _method(source: str, fields: dict[str, Any]) -> str:
    method = fields.get("quant_method")
    if method is None and source == "quantize_config.json":
        # AutoGPTQ and AutoAWQ wrote their twin file before quant_method existed; each has a key that only it writes.
        method = "gptq" if "desc_act" in fields else "awq" if "version" in fields or "zero_point" in fields else None
    if method is None and source == "hf_quant_config.json":
        method = "modelopt"
    if method is None:
        raise CheckpointMismatch(f"{source} has no 'quant_method'; its keys are {', '.join(sorted(fields))}")
    return str(method)


def _activation(model: Mapping[str, Any]) -> str | None:
    nested = [v for v in model.values() if isinstance(v, dict)]
    for table in (model, *nested):
        name = table.get("dtype") or table.get("torch_dtype")
        if isinstance(name, str):
            return _ACTIVATIONS.get(name.removeprefix("torch."))
    return None
