"""torchao tensor subclasses saved to safetensors by Transformers: int8 and float8, by row, tensor or group.

_weight_qdata       [N, K]    int8 | e4m3
_weight_scale       [N, K/G]  fp32 | bf16 | fp16; by row [N, 1], by tensor [1, 1]
_weight_zero_point  int8, the scale's shape; zero for the symmetric configs that are read
_weight_act_quant_scale       static scale of the activations, where the config has one

w[n, k] = qdata * scale
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybrid_humming.checkpoint.common import FLOATS, check_bias, check_numel, float_format, matrix, model_format, signed_codes
from hybrid_humming.checkpoint.config import QuantConfig
from hybrid_humming.checkpoint.pieces import Pieces
from hybrid_humming.checkpoint.registry import Importer, Parts, ReadOptions, StoredLayer, pick, require
from hybrid_humming.errors import CheckpointMismatch, UnknownQuantMethod, did_you_mean
from hybrid_humming.lazy import Tensor, torch
from hybrid_humming.spec import Spec
from hybrid_humming.weight import CanonicalWeight

# quant_type -> (weight format, activation format or None for the model's 16 bits)
TYPES: dict[str, tuple[str, str | None]] = {
    "Int8WeightOnlyConfig": ("int8", None),
    "Int8DynamicActivationInt8WeightConfig": ("int8", "int8"),
    "Float8WeightOnlyConfig": ("e4m3", None),
    "Float8DynamicActivationFloat8WeightConfig": ("e4m3", "e4m3"),
}
STORED = {"int8": "I8", "e4m3": "F8_E4M3"}
PREFIX = "_weight_"


class TorchAO(Importer):
    """Reads `quant_method: torchao`."""

    def __init__(self, config: QuantConfig, options: ReadOptions) -> None:
        super().__init__(config, options)
        kind, self.data = _quant_type(config)
        if kind not in TYPES:
            raise UnknownQuantMethod(
                f"{config.source}: torchao's {kind} is not read; readable are {', '.join(TYPES)}.{did_you_mean(kind, TYPES)}"
            )
        self.kind = kind
        self.weight, self.activation = TYPES[kind]

    def split(self, tensor: str) -> tuple[str, str]:
        """Return (module, part): `mlp.up_proj._weight_qdata` is the part `qdata` of `mlp.up_proj`."""
        module, _, part = tensor.rpartition(".")
        return module, part.removeprefix(PREFIX)

    def describe(self, name: str, parts: Parts) -> StoredLayer | None:
        """Return the layer, or None for a module without a subclass; raises what `Importer.describe` says."""
        if not any(f".{PREFIX}" in f".{info.name}" for info in parts.values()):
            return None
        require(name, parts, ("qdata", "scale"), self.kind)
        n, k = matrix(name, parts["qdata"], (STORED[self.weight],), "[N, K]")
        scale, stored = parts["scale"], float_format(name, parts["scale"])
        columns = scale.shape[-1] if len(scale.shape) == 2 else 1
        granularity = "tensor" if scale.numel == 1 and n > 1 else "channel" if columns == 1 else "group"
        out = model_format(self.config, stored)
        if granularity == "group" and (not columns or k % columns):
            raise CheckpointMismatch(f"{name}: scale is {scale}, but K={k} is no multiple of its {columns} groups")
        asked, stored_size = _group_size(self.data), k // columns if granularity == "group" else None
        if stored_size != asked and (granularity == "group" or asked is not None):
            raise CheckpointMismatch(
                f"{name}: scale is {scale}, groups of {stored_size or k} beside K={k}, but {self.config.source} says "
                f"{self.kind} with group_size {asked}"
            )
        spec = Spec(
            weight=self.weight,
            granularity=granularity,
            group_size=k // columns if granularity == "group" else None,
            scale=stored,
            **_activation(self.activation, self.data, out),
        )
        check_numel(name, scale, FLOATS, spec.scale_shape(n, k), spec)
        check_bias(name, parts, n)

        def decode(stored: Tensor, _: int) -> Tensor:
            return stored.view(torch.uint8) if stored.is_floating_point() else signed_codes(name, stored, 8)

        pieces = Pieces(part="qdata", decode=decode)

        def convert(tensors: Mapping[str, Tensor]) -> CanonicalWeight:
            zero = tensors.get("zero_point")
            if zero is not None and bool(zero.any()):
                raise CheckpointMismatch(f"{name}: _weight_zero_point is not all zero; asymmetric {self.kind} is not read")
            return CanonicalWeight(
                spec=spec,
                codes=pieces.codes(tensors["qdata"], n, k),
                scale=tensors["scale"].reshape(spec.scale_shape(n, k)).contiguous(),
                bias=tensors.get("bias"),
            )

        used = pick(parts, "qdata", "scale", "zero_point", *self.bias_parts)
        return StoredLayer(name=name, spec=spec, n=n, k=k, parts=used, convert=convert, pieces=pieces)


def _quant_type(config: QuantConfig) -> tuple[str, Mapping[str, Any]]:
    kinds = config.get("quant_type")
    default = kinds.get("default") if isinstance(kinds, Mapping) else None
    if not isinstance(default, Mapping) or "_type" not in default or len(kinds) != 1:
        raise UnknownQuantMethod(
            f"{config.source}: quant_type is {kinds!r}; expected one 'default' config object, as current torchao writes it"
        )
    data = default.get("_data")
    return str(default["_type"]), data if isinstance(data, Mapping) else {}


def _group_size(data: Mapping[str, Any]) -> int | None:
    """Return the group size of the weight that the config says, as an option of its own or as its granularity; None: rows."""
    wanted = data.get("granularity")
    last = wanted[-1] if isinstance(wanted, list) and wanted else wanted
    inner = last.get("_data") if isinstance(last, Mapping) else None
    found = data.get("group_size") or (inner.get("group_size") if isinstance(inner, Mapping) else None)
    return found if isinstance(found, int) else None


def _activation(element: str | None, data: Mapping[str, Any], out: str) -> dict[str, Any]:
    if element is None:
        return {"activation": out}
    wanted = data.get("granularity")
    last = wanted[0] if isinstance(wanted, list) and wanted else wanted
    by_tensor = isinstance(last, Mapping) and last.get("_type") == "PerTensor"
    return {"activation": element, "activation_granularity": "tensor" if by_tensor else "token", "out_dtype": out}
