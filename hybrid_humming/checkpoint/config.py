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
class Fields:
    """A JSON object of a config, read with types: a field of another type raises CheckpointMismatch naming file and key.

    where  the object's place, for messages
    """

    where: str
    fields: Mapping[str, Any]

    def get(self, *names: str, default: Any = None) -> Any:
        """Return the first of `names` that is present and not null, as it is."""
        return next((self.fields[n] for n in names if self.fields.get(n) is not None), default)

    def integer(self, *names: str, default: int | None = None) -> int:
        """Return an integer under any of its `names`; without a default the field must be there."""
        value = self.get(*names, default=default)
        if value is None:
            raise CheckpointMismatch(f"{self.where} lacks {' or '.join(map(repr, names))}, an integer")
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(names, value, "an integer")
        return value

    def number(self, *names: str, default: float) -> float:
        """Return a number under any of its `names`, or the default."""
        value = self.get(*names, default=default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(names, value, "a number")
        return float(value)

    def flag(self, *names: str, default: bool) -> bool:
        """Return true or false under any of its `names`."""
        value = self.get(*names, default=default)
        if not isinstance(value, bool):
            raise self._wrong(names, value, "true or false")
        return value

    def text(self, *names: str, default: str | None = None) -> str | None:
        """Return a string under any of its `names`, or the default."""
        value = self.get(*names, default=default)
        if value is not None and not isinstance(value, str):
            raise self._wrong(names, value, "a string")
        return value

    def strings(self, *names: str) -> tuple[str, ...]:
        """Return a list of strings under any of its `names`; () if absent."""
        value = self.get(*names, default=())
        if not isinstance(value, list | tuple) or not all(isinstance(entry, str) for entry in value):
            raise self._wrong(names, value, "a list of strings")
        return tuple(value)

    def sub(self, *names: str) -> Fields | None:
        """Return an object under any of its `names`; None if absent."""
        value = self.get(*names)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self._wrong(names, value, "an object")
        return Fields(where=f"{self.where}.{next(n for n in names if self.fields.get(n) is not None)}", fields=value)

    def _wrong(self, names: tuple[str, ...], value: Any, want: str) -> CheckpointMismatch:
        name = next(n for n in names if self.fields.get(n) is not None)
        return CheckpointMismatch(f"{self.where}: {name!r} is {value!r}; {want} is expected")


@dataclass(frozen=True, kw_only=True)
class QuantConfig(Fields):
    """The quantization half of a checkpoint's configuration.

    fields      the quantization_config object as written
    method      its quant_method
    where       where it was found, for messages
    activation  fp16 or bf16 as the model's dtype says; None if it says neither
    model       the whole config.json ({} if there is none)
    """

    path: Path
    method: str
    activation: str | None = None
    model: Mapping[str, Any] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """Where the config was found."""
        return self.where


def read_config(path: str | Path) -> QuantConfig:
    """Return the quantization config of the checkpoint at `path`; raises CheckpointError if it has none."""
    folder = Path(path)
    folder = folder.parent if folder.is_file() else folder
    model = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    source, fields = _find(folder, model)
    return QuantConfig(
        path=folder,
        where=source,
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
