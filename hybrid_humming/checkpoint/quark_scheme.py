"""Quark's quantization settings of one layer, as the fields of a Spec.

A tensor's settings: dtype, qscheme (per_tensor | per_channel | per_group | per_block), ch_axis, group_size, block_size, symmetric,
is_dynamic, scale_format; or a list of two, where the one with is_scale_quant quantizes the other's scales.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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


def read_scheme(where: str, table: Mapping[str, Any]) -> Scheme:
    """Return the scheme that one layer's table means; raises UnknownQuantMethod for settings that are not read, by name."""
    for key in ("output_tensors", "bias"):
        if table.get(key):
            raise UnknownQuantMethod(f"{where}: quantized {key} are not read; only weight and input_tensors are")
    spec, scales = _stages(where, "weight", table["weight"])
    dtype = _dtype(where, spec)
    granularity = _granularity(where, spec)
    if spec.get("is_dynamic"):
        raise UnknownQuantMethod(f"{where}: a dynamic weight is stored unquantized; quantize it with hh.quantize")
    axis = spec.get("ch_axis")
    if granularity == "channel" and axis not in (0, -2):
        raise UnknownQuantMethod(f"{where}: per_channel weights with ch_axis {axis} are not read; only axis 0 (rows) is")
    if granularity == "group" and axis not in (1, -1):
        raise UnknownQuantMethod(f"{where}: per_group weights with ch_axis {axis} are not read; only axis 1 (along K) is")
    block = spec.get("block_size")
    second, scale = None, SCALES.get(str(spec.get("scale_format")))
    if scales is not None:
        second, scale = _granularity(where, scales), _dtype(where, scales)
        if second not in ("tensor", "channel") or scale not in ("fp8_e4m3", "fp8_e5m2"):
            raise UnknownQuantMethod(
                f"{where}: scales quantized to {scale} by {second} are not read; allowed are FP8 by tensor or channel"
            )
        scale = DTYPES[scale]
    return Scheme(
        dtype=dtype,
        weight=DTYPES[dtype],
        granularity=granularity,
        group_size=_group(where, spec) if granularity == "group" else None,
        block=(int(block[0]), int(block[1])) if granularity == "block" and block else None,
        scale=scale,
        second=second,
        has_zero_point=dtype.startswith("uint") or ("int" in dtype and spec.get("symmetric") is False),
        activation=_activation(where, table.get("input_tensors")),
    )


def _activation(where: str, settings: Any) -> dict[str, Any]:
    if not settings:
        return {}
    spec, scales = _stages(where, "input_tensors", settings)
    if spec.get("dtype") in SIXTEEN:
        return {}
    dtype, granularity = _dtype(where, spec), _granularity(where, spec)
    if spec.get("symmetric") is False or dtype.startswith("uint"):
        raise UnknownQuantMethod(f"{where}: asymmetric input_tensors ({dtype}) are not read; only symmetric ones are")
    element = DTYPES[dtype]
    if granularity == "group":
        group, scale = _group(where, spec), SCALES.get(str(spec.get("scale_format")))
        fields = {"activation": element, "activation_group_size": group, "activation_scale": scale}
        return fields | ({"activation_scale": "e4m3", "activation_secondary": "tensor"} if scales is not None else {})
    if granularity == "block":
        raise UnknownQuantMethod(f"{where}: per_block input_tensors are not read; per_tensor, per_channel and per_group are")
    if granularity == "tensor" and not spec.get("is_dynamic"):
        return {"activation": element, "activation_granularity": "tensor"}
    # A dynamic scale for each row: what every server does with dynamic per_tensor too.
    return {"activation": element, "activation_granularity": "token"}


def _stages(where: str, what: str, settings: Any) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """Return the settings of the values and of their scales (None for one stage)."""
    stages = settings if isinstance(settings, list) else [settings]
    values = [stage for stage in stages if not stage.get("is_scale_quant")]
    scales = [stage for stage in stages if stage.get("is_scale_quant")]
    if len(values) != 1 or len(scales) > 1:
        kinds = ", ".join(str(stage.get("dtype")) for stage in stages)
        raise UnknownQuantMethod(
            f"{where}: {what} quantized in {len(values)} stages of values ({kinds}) is not read; "
            "one stage, and one of its scales, are"
        )
    return values[0], scales[0] if scales else None


def _dtype(where: str, spec: Mapping[str, Any]) -> str:
    dtype = str(spec.get("dtype"))
    if dtype not in DTYPES:
        why = f": {REFUSED[dtype]}." if dtype in REFUSED else f"; readable are {', '.join(DTYPES)}."
        raise UnknownQuantMethod(f"{where}: Quark dtype {dtype!r} is not read{why}{did_you_mean(dtype, DTYPES)}")
    return dtype


def _granularity(where: str, spec: Mapping[str, Any]) -> str:
    scheme = str(spec.get("qscheme"))
    if scheme not in GRANULARITIES:
        raise UnknownQuantMethod(f"{where}: qscheme {scheme!r} is not read; readable are {', '.join(GRANULARITIES)}")
    return GRANULARITIES[scheme]


def _group(where: str, spec: Mapping[str, Any]) -> int:
    size = spec.get("group_size")
    if not isinstance(size, int) or size < 1:
        raise CheckpointMismatch(f"{where}: per_group with group_size {size!r}; a positive integer is expected")
    return size
