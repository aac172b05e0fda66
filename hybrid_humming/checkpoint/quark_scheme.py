"""Quark's quantization settings of one layer, as the fields of a Spec.

A tensor's settings: dtype, qscheme (per_tensor | per_channel | per_group | per_block), ch_axis, group_size, block_size, symmetric,
is_dynamic, scale_format; or a list of two, where the one with is_scale_quant quantizes the other's scales.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hybrid_humming.checkpoint.config import Fields
from hybrid_humming.errors import CheckpointMismatch, UnknownQuantMethod, did_you_mean

# Quark's names -> ours
DTYPES = {
    **{"fp4": "e2m1", "fp6_e2m3": "e2m3", "fp6_e3m2": "e3m2", "fp8_e4m3": "e4m3", "fp8_e5m2": "e5m2"},
    **{"int4": "int4", "uint4": "uint4", "int8": "int8", "uint8": "uint8"},
}
REFUSED = {
    "mx": "its exponents lie between the codes; export fp4 or fp6 with scale_format e8m0 instead",
    "int2": "export another width",
    "uint2": "export another width",
    "int3": "export another width",
    "mx6": "its blocks have two levels of exponents",
    "mx9": "its blocks have two levels of exponents",
    "bfp16": "its blocks share an exponent of another width",
    "fp8_e5m3": "e5m3 is a format of scales only",
}
SIXTEEN = ("float16", "bfloat16")
GRANULARITIES = {"per_tensor": "tensor", "per_channel": "channel", "per_group": "group", "per_block": "block"}
SCALES = {"e8m0": "e8m0", "e5m3": "e5m3"}


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """One layer's settings.

    dtype       Quark's name of the stored format;  weight: ours
    scale       e8m0, e5m3, e4m3, e5m2, or None where the stored float's own type counts
    second      tensor or channel: the scales have a scale of their own
    """

    dtype: str
    weight: str
    granularity: str
    group_size: int | None
    block: tuple[int, int] | None
    scale: str | None
    second: str | None
    has_zero_point: bool
    activation: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_integer(self) -> bool:
        """True for int and uint weights."""
        return "int" in self.dtype

    def activation_fields(self, default: str) -> dict[str, Any]:
        """Return the Spec fields of the activation half; `default` is the model's 16-bit type."""
        return {**self.activation, "out_dtype": default} if self.activation else {"activation": default}


def read_scheme(table: Fields) -> Scheme:
    """Return the scheme that one layer's table means; raises UnknownQuantMethod for settings that are not read, by name."""
    for key in ("output_tensors", "bias"):
        if table.get(key):
            raise UnknownQuantMethod(f"{table.where}: quantized {key} are not read; only weight and input_tensors are")
    spec, scales = _stages(table, "weight")
    dtype, granularity = _dtype(spec), _granularity(spec)
    if spec.flag("is_dynamic", default=False):
        raise UnknownQuantMethod(f"{spec.where}: a dynamic weight is stored unquantized; quantize it with hh.quantize")
    axis = spec.get("ch_axis")
    if granularity == "channel" and axis not in (0, -2):
        raise UnknownQuantMethod(f"{spec.where}: per_channel weights with ch_axis {axis} are not read; only axis 0 (rows) is")
    if granularity == "group" and axis not in (1, -1):
        raise UnknownQuantMethod(f"{spec.where}: per_group weights with ch_axis {axis} are not read; only axis 1 (along K) is")
    second, scale = None, SCALES.get(spec.text("scale_format") or "")
    if scales is not None:
        second, stored = _granularity(scales), _dtype(scales)
        if second not in ("tensor", "channel") or stored not in ("fp8_e4m3", "fp8_e5m2"):
            raise UnknownQuantMethod(
                f"{scales.where}: scales quantized to {stored} by {second} are not read; allowed are FP8 by tensor or channel"
            )
        scale = DTYPES[stored]
    return Scheme(
        dtype=dtype,
        weight=DTYPES[dtype],
        granularity=granularity,
        group_size=_group(spec) if granularity == "group" else None,
        block=_block(spec) if granularity == "block" else None,
        scale=scale,
        second=second,
        has_zero_point=dtype.startswith("uint") or ("int" in dtype and not spec.flag("symmetric", default=True)),
        activation=_activation(table),
    )


def _activation(table: Fields) -> dict[str, Any]:
    if not table.get("input_tensors"):
        return {}
    spec, scales = _stages(table, "input_tensors")
    if spec.get("dtype") in SIXTEEN:
        return {}
    dtype, granularity = _dtype(spec), _granularity(spec)
    if not spec.flag("symmetric", default=True) or dtype.startswith("uint"):
        raise UnknownQuantMethod(f"{spec.where}: asymmetric input_tensors ({dtype}) are not read; only symmetric ones are")
    element = DTYPES[dtype]
    if granularity == "group":
        scale = SCALES.get(spec.text("scale_format") or "")
        fields = {"activation": element, "activation_group_size": _group(spec), "activation_scale": scale}
        return fields | ({"activation_scale": "e4m3", "activation_secondary": "tensor"} if scales is not None else {})
    if granularity == "block":
        raise UnknownQuantMethod(f"{spec.where}: per_block input_tensors are not read; per_tensor, per_channel and per_group are")
    if granularity == "tensor" and not spec.flag("is_dynamic", default=False):
        return {"activation": element, "activation_granularity": "tensor"}
    # A dynamic scale for each row: what every server does with dynamic per_tensor too.
    return {"activation": element, "activation_granularity": "token"}


def _stages(table: Fields, what: str) -> tuple[Fields, Fields | None]:
    """Return the settings of the values and of their scales (None for one stage)."""
    settings = table.get(what)
    where = f"{table.where}.{what}"
    listed = settings if isinstance(settings, list) else [settings]
    if not all(isinstance(stage, Mapping) for stage in listed):
        raise CheckpointMismatch(f"{where} is {settings!r}; an object, or a list of two, is expected")
    stages = [Fields(where=where, fields=stage) for stage in listed]
    values = [stage for stage in stages if not stage.flag("is_scale_quant", default=False)]
    scales = [stage for stage in stages if stage.flag("is_scale_quant", default=False)]
    if len(values) != 1 or len(scales) > 1:
        kinds = ", ".join(str(stage.get("dtype")) for stage in stages)
        raise UnknownQuantMethod(
            f"{where}: quantization in {len(values)} stages of values ({kinds}) is not read; one stage, and one of its scales, are"
        )
    return values[0], scales[0] if scales else None


def _dtype(spec: Fields) -> str:
    dtype = str(spec.text("dtype"))
    if dtype not in DTYPES:
        why = f": {REFUSED[dtype]}." if dtype in REFUSED else f"; readable are {', '.join(DTYPES)}."
        raise UnknownQuantMethod(f"{spec.where}: Quark dtype {dtype!r} is not read{why}{did_you_mean(dtype, DTYPES)}")
    return dtype


def _granularity(spec: Fields) -> str:
    scheme = str(spec.text("qscheme"))
    if scheme not in GRANULARITIES:
        raise UnknownQuantMethod(f"{spec.where}: qscheme {scheme!r} is not read; readable are {', '.join(GRANULARITIES)}")
    return GRANULARITIES[scheme]


def _group(spec: Fields) -> int:
    size = spec.integer("group_size")
    if size < 1:
        raise CheckpointMismatch(f"{spec.where}: per_group with group_size {size}; a positive integer is expected")
    return size


def _block(spec: Fields) -> tuple[int, int]:
    block = spec.get("block_size")
    if not isinstance(block, list | tuple) or len(block) != 2 or not all(isinstance(b, int) and b > 0 for b in block):
        raise CheckpointMismatch(f"{spec.where}: per_block with block_size {block!r}; two positive integers are expected")
    return int(block[0]), int(block[1])
