"""AutoRound's own format: one config, several packings, settings per layer.

packing_format            read by    as
auto_round:auto_gptq      gptq       zero points stored minus one (v1)
auto_round:gptqmodel      gptq       zero points as they are (v2)
auto_round:auto_awq       awq        version gemm
auto_round:llm_compressor compressed-tensors layouts: mxfp4, mxfp8, nvfp4, fp8, int8
auto_round:fp8_static     fp8        one scale a row, static input_scale

extra_config maps a layer's name (or a regular expression) to settings that replace the config's own for it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from hybrid_humming.checkpoint.awq import AWQ
from hybrid_humming.checkpoint.compressed_tensors import CompressedTensors
from hybrid_humming.checkpoint.config import Fields, QuantConfig
from hybrid_humming.checkpoint.fp8 import FP8
from hybrid_humming.checkpoint.gptq import GPTQ
from hybrid_humming.checkpoint.registry import Importer, Parts, PlainLayer, ReadOptions, StoredLayer
from hybrid_humming.errors import CheckpointMismatch, UnknownQuantMethod, did_you_mean

PACKINGS = ("auto_gptq", "gptqmodel", "auto_awq", "llm_compressor", "fp8_static")
# (data_type, bits) -> format of compressed-tensors and what its weights' arguments are
FLOATS: dict[tuple[str, int], tuple[str, dict[str, Any]]] = {
    ("mx_fp", 4): ("mxfp4-pack-quantized", {"type": "float", "strategy": "group", "scale_dtype": "torch.uint8"}),
    ("mx_fp", 8): ("mxfp8-quantized", {"type": "float", "strategy": "group", "scale_dtype": "torch.uint8"}),
    ("nv_fp", 4): ("nvfp4-pack-quantized", {"type": "float", "strategy": "tensor_group"}),
    ("fp", 8): ("float-quantized", {"type": "float", "strategy": "channel"}),
    ("int", 8): ("int-quantized", {"type": "int", "strategy": "channel"}),
}
# What every layer's own table may change.
SETTINGS = ("bits", "group_size", "sym", "data_type", "act_bits", "act_group_size", "act_sym", "act_data_type", "act_dynamic")


class Streams(GPTQ):
    """GPTQ's layout in every width that AutoRound packs: its 5, 6 and 7 bits lie as one stream too."""

    widths = (2, 3, 4, 5, 6, 7, 8)


class AutoRound(Importer):
    """Reads `quant_method: auto-round`."""

    def __init__(self, config: QuantConfig, options: ReadOptions) -> None:
        super().__init__(config, options)
        written = str(config.get("packing_format", default="auto_round:auto_gptq"))
        packing = written.rpartition(":")[2].removeprefix("auto_round").lstrip(":_") or "auto_gptq"
        self.packing = {"gptq": "auto_gptq", "awq": "auto_awq"}.get(packing, packing)
        if self.packing not in PACKINGS:
            raise UnknownQuantMethod(
                f"{config.source}: packing_format {written!r} is not read; readable are {', '.join(PACKINGS)}."
                + did_you_mean(self.packing, PACKINGS)
            )
        self.extra = config.sub("extra_config") or Fields(where=config.where, fields={})
        self._readers: dict[tuple[tuple[str, Any], ...], Importer] = {}

    def describe(self, name: str, parts: Parts) -> StoredLayer | PlainLayer | None:
        """Return the layer, or None for a module that is not quantized; raises what `Importer.describe` says."""
        if not any(part in parts for part in ("qweight", "weight_packed", "weight_scale")):
            return None
        settings = {key: self.config.fields[key] for key in SETTINGS if self.config.fields.get(key) is not None}
        settings |= {key: value for key, value in self.overrides(name).items() if key in SETTINGS and value is not None}
        bits = Fields(where=self.config.where, fields=settings).integer("bits", default=4)
        if bits > 8:
            raise CheckpointMismatch(
                f"{name}: extra_config says {bits} bits, that is not quantized, but the files hold quantized tensors"
            )
        key = tuple(sorted((k, str(v)) for k, v in settings.items()))
        reader = self._readers.get(key)
        if reader is None:
            reader = self._readers[key] = self._reader(name, Fields(where=self.config.where, fields=settings))
        return reader.describe(name, parts)

    def overrides(self, name: str) -> Mapping[str, Any]:
        """Return the settings that extra_config has for module `name`: its own name first, then a regular expression."""
        own = self.extra.sub(name)
        if own is not None:
            return own.fields
        for pattern in self.extra.fields:
            if set(pattern) & set("*+?^$[](|\\"):
                try:
                    hit = re.search(pattern, name)
                except re.error as error:
                    raise CheckpointMismatch(f"extra_config rule {pattern!r} is no regular expression: {error}") from None
                table = self.extra.sub(pattern)
                if hit and table is not None:
                    return table.fields
        return {}

    def _reader(self, name: str, settings: Fields) -> Importer:
        integers, act_bits = self.packing in ("auto_gptq", "gptqmodel", "auto_awq"), settings.integer("act_bits", default=16)
        if integers and settings.text("data_type", default="int") != "int":
            raise UnknownQuantMethod(
                f"{name}: packing {self.packing} with data_type {settings.get('data_type')!r} is not read; it holds integers"
            )
        if integers and act_bits < 16:
            raise UnknownQuantMethod(
                f"{name}: act_bits {act_bits} with packing {self.packing} is not read; "
                "integers in these packings have 16-bit activations"
            )
        if self.packing == "auto_awq":
            fields = {**settings.fields, "quant_method": "awq", "zero_point": True}
            return AWQ(self._config(fields), self.options)
        if self.packing in ("auto_gptq", "gptqmodel"):
            label = "gptq" if self.packing == "auto_gptq" else "gptq_v2"
            fields = {**settings.fields, "quant_method": "gptq", "desc_act": False, "checkpoint_format": label}
            return Streams(self._config(fields), self.options)
        if self.packing == "fp8_static":
            scheme = "static" if not settings.flag("act_dynamic", default=True) else "dynamic"
            return FP8(self._config({"quant_method": "fp8", "activation_scheme": scheme}), self.options)
        return CompressedTensors(self._config(self._compressed(name, settings)), self.options)

    def _config(self, fields: dict[str, Any]) -> QuantConfig:
        return dataclasses.replace(self.config, fields=fields, method=str(fields["quant_method"]))

    def _compressed(self, name: str, settings: Fields) -> dict[str, Any]:
        """Return the compressed-tensors config that says the same."""
        kind, bits = str(settings.text("data_type", default="int")), settings.integer("bits", default=4)
        kind = next((known for known, _ in FLOATS if kind == known or kind.startswith(f"{known}_")), kind)
        if (kind, bits) not in FLOATS:
            known = ", ".join(f"{k} {b}" for k, b in FLOATS)
            raise UnknownQuantMethod(
                f"{name}: data_type {kind} of {bits} bits in packing llm_compressor is not read; readable are {known}"
            )
        form, weights = FLOATS[kind, bits]
        group = settings.get("group_size")
        grouped = weights["strategy"] in ("group", "tensor_group")
        weights = {**weights, "num_bits": bits, "symmetric": True, "dynamic": False, "group_size": group if grouped else None}
        act_bits = settings.integer("act_bits", default=16)
        inputs = None
        if act_bits < 16:
            strategy = weights["strategy"] if grouped else "token" if settings.flag("act_dynamic", default=True) else "tensor"
            dynamic = "local" if strategy == "tensor_group" else strategy != "tensor"
            act_group = settings.get("act_group_size") if grouped else None
            inputs = {**weights, "num_bits": act_bits, "strategy": strategy, "dynamic": dynamic, "group_size": act_group}
        group_0 = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "format": form}
        return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group_0}, "format": form}
