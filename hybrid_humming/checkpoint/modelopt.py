"""NVIDIA ModelOpt: one algorithm for the checkpoint, or one a layer (MIXED_PRECISION).

algorithm                   weight                           weight_scale                          activations
NVFP4, NVFP4_AWQ            [N, K/2] uint8, two e2m1 a byte  [N, K/16] e4m3, and weight_scale_2    nvfp4, input_scale
W4A16_NVFP4                 same                             same                                  16 bits
W4A8_NVFP4_FP8              same                             same                                  e4m3, input_scale
MXFP4, W4A8_MXFP4_FP8       same                             [N, K/32] e8m0                        mxfp4 | e4m3, input_scale
FP8                         [N, K] e4m3                      []                                    e4m3, input_scale
FP8_PER_CHANNEL_PER_TOKEN   [N, K] e4m3                      [N]                                   e4m3 token
FP8_PB_WO                   [N, K] e4m3                      [N/128, K/128]                        16 bits
MXFP8                       [N, K] e4m3                      [N, K/32] e8m0                        mxfp8
W4A16_AWQ, W4A8_AWQ         [N/2, K] uint8, two rows a byte  [N, K/G]                              16 bits | e4m3, input_scale
W8A16, W8A8_SQ_PER_CHANNEL  [N, K] int8                      [N]                                   16 bits | int8, input_scale

    w[n, k] = code * weight_scale (* weight_scale_2 of NVFP4, a multiplier);   x is first multiplied by pre_quant_scale [K]

W4A8_AWQ's weight_scale_2 is no factor of the weight: it is the FP8 scale at which ModelOpt's own kernel holds the decoded
weight. The config is `quantization_config` of config.json or hf_quant_config.json (there under "quantization").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hybrid_humming.checkpoint.bits import unpack_nibbles
from hybrid_humming.checkpoint.common import (
    FLOATS,
    as_e8m0,
    check_bias,
    check_numel,
    check_scalar,
    float_format,
    matrix,
    model_format,
    refuse_excluded,
    scalar,
    signed_codes,
)
from hybrid_humming.checkpoint.config import Fields, QuantConfig
from hybrid_humming.checkpoint.files import read_json
from hybrid_humming.checkpoint.pieces import Pieces
from hybrid_humming.checkpoint.registry import Importer, Parts, ReadOptions, StoredLayer, expect, pick, require
from hybrid_humming.errors import CheckpointMismatch, UnknownQuantMethod, did_you_mean
from hybrid_humming.lazy import Tensor, torch
from hybrid_humming.spec import Spec
from hybrid_humming.weight import CanonicalWeight, InputTransform


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """How one quant_algo lies in the files.

    packing     codes: one an element | columns: two along K a byte | rows: two along N a byte
    stored      dtypes of the weight;  scale: dtypes of weight_scale
    activation  fields of the Spec's activation half; None: 16 bits
    static      the layer has an input_scale
    second      weight_scale_2 is there: "factor" of the weight, or "aside"
    """

    weight: str
    packing: str
    stored: tuple[str, ...]
    granularity: str
    scale: tuple[str, ...] = FLOATS
    activation: Mapping[str, Any] | None = None
    static: bool = False
    second: str | None = None


_STATIC_FP8 = {"activation": "e4m3", "activation_granularity": "tensor"}
_STATIC_INT8 = {"activation": "int8", "activation_granularity": "tensor"}
_TOKEN_FP8 = {"activation": "e4m3", "activation_granularity": "token"}
_E8M0 = ("U8", "F8_E8M0")

_NVFP4 = Algorithm(
    weight="nvfp4", packing="columns", stored=("U8",), granularity="group", scale=("F8_E4M3",), second="factor"
)  # fmt: skip
_MXFP4 = Algorithm(weight="mxfp4", packing="columns", stored=("U8",), granularity="group", scale=_E8M0)
_MXFP8 = Algorithm(weight="mxfp8", packing="codes", stored=("F8_E4M3",), granularity="group", scale=_E8M0)
_FP8 = Algorithm(weight="e4m3", packing="codes", stored=("F8_E4M3",), granularity="tensor")
_AWQ = Algorithm(weight="int4", packing="rows", stored=("U8",), granularity="group")
_INT8 = Algorithm(weight="int8", packing="codes", stored=("I8",), granularity="channel")

TWIN = "hf_quant_config.json"
ALGORITHMS: dict[str, Algorithm] = {
    "NVFP4": replace(_NVFP4, activation={"activation": "nvfp4"}, static=True),
    "NVFP4_AWQ": replace(_NVFP4, activation={"activation": "nvfp4"}, static=True),
    "W4A16_NVFP4": _NVFP4,
    "W4A8_NVFP4_FP8": replace(_NVFP4, activation=_STATIC_FP8, static=True),
    "W4A8_MXFP4_FP8": replace(_MXFP4, activation=_STATIC_FP8, static=True),
    "MXFP4": replace(_MXFP4, activation={"activation": "mxfp4"}),
    "MXFP8": replace(_MXFP8, activation={"activation": "mxfp8"}),
    "FP8": replace(_FP8, activation=_STATIC_FP8, static=True),
    "FP8_PER_CHANNEL_PER_TOKEN": replace(_FP8, granularity="channel", activation=_TOKEN_FP8),
    "FP8_PB_WO": replace(_FP8, granularity="block"),
    "W4A16_AWQ": _AWQ,
    "W4A8_AWQ": replace(_AWQ, activation=_STATIC_FP8, static=True, second="aside"),
    "W8A16": _INT8,
    "W8A8_SQ_PER_CHANNEL": replace(_INT8, activation=_STATIC_INT8, static=True),
}
REFUSED = {
    "NVFP4_SVD": "its low-rank residual needs a second product; export with another algorithm",
    "NVFP4_SVDQUANT": "its low-rank residual needs a second product; export with another algorithm",
}


class ModelOpt(Importer):
    """Reads `quant_method: modelopt`."""

    def __init__(self, config: QuantConfig, options: ReadOptions) -> None:
        super().__init__(config, options)
        self.fields: Fields = config.sub("quantization") or config
        self.skipped = self.fields.strings("ignore") + self.fields.strings("exclude_modules")
        self.layers = self.fields.sub("quantized_layers")
        self.algo = self.fields.text("quant_algo")
        self.group_size = _twin_group_size(config)
        if self.algo is None:
            raise CheckpointMismatch(f"{config.source} has no quant_algo; ModelOpt's other keys don't say which format this is")
        if self.algo != "MIXED_PRECISION":
            self._algorithm(config.source, self.algo)

    def describe(self, name: str, parts: Parts) -> StoredLayer | None:
        """Return the layer, or None for a module that is not quantized; raises what `Importer.describe` says."""
        if "weight" not in parts or "weight_scale" not in parts:
            return None
        refuse_excluded(name, self.skipped, f"{self.config.source}: its list of excluded modules")
        fields: Fields = self.fields
        if self.algo == "MIXED_PRECISION":
            own = self.layers.sub(name) if self.layers else None
            if own is None:
                raise CheckpointMismatch(f"{name}: it has quantized tensors, but quantized_layers doesn't list it")
            fields = own
        algo = self._algorithm(name, fields.text("quant_algo"))
        needed = ["weight", "weight_scale"]
        needed += ["weight_scale_2"] if algo.second else []
        needed += ["input_scale"] if algo.static else []
        require(name, parts, tuple(needed), f"ModelOpt {self.algo}")
        shape = matrix(name, parts["weight"], algo.stored, "[N, K]", experts=True)
        spec, (*lead, n, k) = self._spec(name, parts, algo, shape)
        spec.check_shape(n, k)
        check_numel(name, parts["weight_scale"], algo.scale, (*lead, *spec.scale_shape(n, k)), spec)
        group = fields.integer("group_size", default=self.group_size)
        grouped = algo.granularity == "group"
        if grouped and spec.weight == "int4" and not group:
            raise CheckpointMismatch(
                f"{name}: neither {self.config.source} nor {TWIN} says the group_size of {self.algo}, and the number of scales may "
                "have been cut with K; add it, as ModelOpt's exporter does"
            )
        if grouped and group and min(group, k) != (spec.group_size or k):
            raise CheckpointMismatch(
                f"{name}: group_size is {group} in {self.config.source}, but weight_scale {parts['weight_scale']} beside K={k} "
                f"means groups of {spec.group_size or k}"
            )
        return self._layer(name, parts, algo, spec, (*lead, n, k))

    def _algorithm(self, where: str, algo: str | None) -> Algorithm:
        if algo in ALGORITHMS:
            return ALGORITHMS[algo]
        algo = str(algo)
        why = f": {REFUSED[algo]}." if algo in REFUSED else f"; readable are {', '.join(ALGORITHMS)}."
        raise UnknownQuantMethod(f"{where}: ModelOpt quant_algo {algo!r} is not read{why}{did_you_mean(algo, ALGORITHMS)}")

    def _spec(self, name: str, parts: Parts, algo: Algorithm, shape: tuple[int, ...]) -> tuple[Spec, tuple[int, ...]]:
        """Return the spec and the logical shape of the weight, with its experts first if it has any."""
        *lead, rows, columns = shape
        n = rows * 2 if algo.packing == "rows" else rows
        k = columns * 2 if algo.packing == "columns" else columns
        scale, out = parts["weight_scale"], model_format(self.config)
        activation = {"activation": out} if algo.activation is None else {**algo.activation, "out_dtype": out}
        if algo.weight in ("nvfp4", "mxfp4", "mxfp8"):
            return Spec(weight=algo.weight, **activation), (*lead, n, k)
        stored = float_format(name, scale)
        group, block = None, None
        if algo.granularity == "group":
            groups = scale.shape[-1] if scale.shape else 0
            if not groups or k % groups:
                raise CheckpointMismatch(f"{name}: weight_scale is {scale}, but K={k} is no multiple of its {groups} groups")
            group = k // groups
        if algo.granularity == "block":
            block = (128, 128)
        granularity = algo.granularity if group != k else "channel"
        group = group if granularity == "group" else None
        spec = Spec(weight=algo.weight, granularity=granularity, group_size=group, block=block, scale=stored, **activation)
        return spec, (*lead, n, k)

    def _layer(self, name: str, parts: Parts, algo: Algorithm, spec: Spec, shape: tuple[int, ...]) -> StoredLayer:
        *lead, n, k = shape
        experts = lead[0] if lead else 0
        check_bias(name, parts, *lead, n)
        if "input_scale" in parts:
            check_scalar(name, parts["input_scale"])
        if "weight_scale_2" in parts:
            check_scalar(name, parts["weight_scale_2"], max(experts, 1))
        if "pre_quant_scale" in parts:
            expect(name, parts["pre_quant_scale"], FLOATS, (k,), "one factor a column of x")

        two_rows = algo.packing == "rows" and not lead
        pieces = Pieces(part="weight", decode=lambda weight, _: _codes(name, weight, algo, k), rows=2 if two_rows else 1)

        def convert(tensors: Mapping[str, Tensor]) -> CanonicalWeight:
            scale = tensors["weight_scale"]
            scale = as_e8m0(scale) if spec.scale == "e8m0" else scale
            second, pre = tensors.get("weight_scale_2"), tensors.get("pre_quant_scale")
            return CanonicalWeight(
                spec=spec,
                codes=pieces.codes(tensors["weight"], *lead, n, k),
                scale=scale.reshape(*lead, *spec.scale_shape(n, k)).contiguous(),
                secondary_scale=second.float().reshape(*lead, 1) if algo.second == "factor" and second is not None else None,
                input_scale=scalar(tensors, "input_scale") if algo.static else None,
                bias=tensors.get("bias"),
                transform=None if pre is None else InputTransform(pre_quant_scale=pre),
            )

        used = pick(parts, "weight", "weight_scale", "weight_scale_2", "input_scale", "pre_quant_scale", *self.bias_parts)
        return StoredLayer(name=name, spec=spec, n=n, k=k, experts=experts, parts=used, convert=convert, pieces=pieces)


def _twin_group_size(config: QuantConfig) -> int:
    """Return the group size that hf_quant_config.json gives, where config.json leaves it out; 0 if there is none."""
    if not (config.path / TWIN).is_file():
        return 0
    twin = Fields(where=TWIN, fields=read_json(config.path / TWIN)).sub("quantization")
    return twin.integer("group_size", default=0) if twin else 0


def _codes(name: str, weight: Tensor, algo: Algorithm, k: int) -> Tensor:
    """Return uint8 codes [.., N, K] of a stored weight."""
    if algo.packing == "columns":
        return unpack_nibbles(weight, k)
    if algo.packing == "rows":
        # Row 2i lies in the low nibbles and row 2i + 1 in the high ones, two's complement; code = value + 8.
        return torch.stack([weight & 0xF, weight >> 4], dim=-2).flatten(-3, -2) ^ 8
    return weight.view(torch.uint8) if weight.is_floating_point() else signed_codes(name, weight, 8)
