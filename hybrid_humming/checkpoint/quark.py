"""AMD Quark, export mode "quark", real quantized weights.

dtype                   weight                                    weight_scale                 weight_zero_point
fp4                     [N, K/2] uint8, low nibble first          [N, K/G] uint8 e8m0, e5m3    -
fp6_e2m3, fp6_e3m2      [N, 3K/4] uint8, one stream of 6 bits     [N, K/G] uint8               -
fp8_e4m3, fp8_e5m2      [N, K]                                    [] | [N] | [N, K/G] | blocks -
int8, uint8             [N, K];  per_group transposed: [K, N]     [] | [N] | [K/G, N]          [] | [N] | [K/G, N]
int4, uint4             [N, K/8] int32;  per_group: [K, N/8]      [] | [N] | [K/G, N]          packed along the same axis

    w[n, k] = (q - zero_point) * scale;   signed integers are two's complement, code = q + 2^(b-1)

pack_method "reorder" puts columns 0 2 4 6 1 3 5 7 in the lanes of a word, "order" 0 1 2 ... 7. Two stages (a list of two
specs, the second with is_scale_quant): weight_scale is FP8 and weight_scale_2 its own scale, one a tensor or a row.
A layer's settings: the first pattern of layer_quant_config that hits it, else layer_type_quant_config's Linear, else global.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass

from hybrid_humming.checkpoint.bits import unpack_lanes, unpack_nibbles, unpack_stream
from hybrid_humming.checkpoint.common import (
    FLOATS,
    as_e8m0,
    check_bias,
    check_numel,
    check_scalar,
    float_format,
    model_format,
    one,
    refuse_excluded,
    scalar,
    signed_codes,
)
from hybrid_humming.checkpoint.config import Fields, QuantConfig
from hybrid_humming.checkpoint.pieces import Pieces
from hybrid_humming.checkpoint.quark_scheme import Scheme, read_scheme
from hybrid_humming.checkpoint.registry import Importer, Parts, ReadOptions, StoredLayer, pick, require
from hybrid_humming.errors import CheckpointMismatch, UnknownQuantMethod
from hybrid_humming.lazy import Tensor, torch
from hybrid_humming.spec import Spec
from hybrid_humming.weight import CanonicalWeight

REORDER = (0, 4, 1, 5, 2, 6, 3, 7)
STORED = {
    **{"fp4": "U8", "fp6_e2m3": "U8", "fp6_e3m2": "U8", "fp8_e4m3": "F8_E4M3", "fp8_e5m2": "F8_E5M2"},
    **{"int8": "I8", "uint8": "U8", "int4": "I32", "uint4": "I32"},
}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where the codes of one layer lie. transposed: K comes first, as Quark stores integers in groups."""

    dtype: str
    transposed: bool
    reorder: bool

    @property
    def per_word(self) -> tuple[int, int]:
        """(codes, elements) along the packed axis: 8 in 1 word, 2 in 1 byte, 4 in 3 bytes, 1 in 1."""
        return {"I32": (8, 1), "F4": (2, 1), "F6": (4, 3)}.get(self._kind, (1, 1))

    @property
    def _kind(self) -> str:
        return {"fp4": "F4", "fp6_e2m3": "F6", "fp6_e3m2": "F6"}.get(self.dtype, STORED[self.dtype])

    def size(self, stored: tuple[int, ...]) -> tuple[int, int]:
        """Return (N, K) of a weight stored with this shape."""
        codes, elements = self.per_word
        rows, columns = stored[0], stored[1] // elements * codes
        return (columns, rows) if self.transposed else (rows, columns)

    def unpack(self, name: str, stored: Tensor) -> Tensor:
        """Return uint8 codes, [N, K] of a weight or [N, K/G] of zero points; integers offset-binary."""
        codes, elements = self.per_word
        count = stored.shape[-1] // elements * codes
        if self._kind == "I32":
            values = unpack_lanes(stored, 4, count, order=REORDER if self.reorder else None)
            values = values ^ 8 if self.dtype == "int4" else values
        elif self._kind == "F4":
            values = unpack_nibbles(stored, count)
        elif self._kind == "F6":
            values = unpack_stream(stored.contiguous().view(torch.int32), 6, count)
        elif self._kind == "I8":
            values = signed_codes(name, stored, 8)
        else:
            values = stored.view(torch.uint8)
        return values.T.contiguous() if self.transposed else values


class Quark(Importer):
    """Reads `quant_method: quark`."""

    def __init__(self, config: QuantConfig, options: ReadOptions) -> None:
        super().__init__(config, options)
        export = config.sub("export") or Fields(where=config.where, fields={})
        method, form = export.text("pack_method", default="reorder"), export.text("weight_format", default="real_quantized")
        if method not in ("reorder", "order"):
            raise UnknownQuantMethod(f"{config.source}: pack_method {method!r} is not read; readable are reorder and order")
        if form != "real_quantized":
            raise UnknownQuantMethod(
                f"{config.source}: weight_format {form!r} holds unquantized weights; export with real_quantized, or use hh.quantize"
            )
        _refuse_rotation(config)
        self.reorder = method == "reorder"
        self.skipped = config.strings("exclude")
        self._schemes: dict[str, Scheme] = {}

    def describe(self, name: str, parts: Parts) -> StoredLayer | None:
        """Return the layer, or None for a module that is not quantized; raises what `Importer.describe` says."""
        if "weight" not in parts or "weight_scale" not in parts:
            return None
        refuse_excluded(name, self.skipped, f"{self.config.source}: exclude")
        scheme = self.scheme(name)
        require(name, parts, ("weight", "weight_scale", *(("weight_scale_2",) if scheme.second else ())), f"Quark {scheme.dtype}")
        layout = Layout(dtype=scheme.dtype, transposed=scheme.is_integer and scheme.group_size is not None, reorder=self.reorder)
        weight = parts["weight"]
        if weight.dtype != STORED[scheme.dtype] or len(weight.shape) != 2 or not weight.numel:
            want = STORED[scheme.dtype]
            raise CheckpointMismatch(f"{name}: weight is {weight}, expected {want} of two dimensions ({scheme.dtype})")
        n, k = layout.size(weight.shape)
        spec = self._spec(name, parts, scheme)
        spec.check_shape(n, k)
        shape = spec.scale_shape(n, k)
        check_numel(name, parts["weight_scale"], _scale_dtypes(spec), shape[::-1] if layout.transposed else shape, spec)
        _check_zero_point(name, parts, spec, layout, shape)
        check_bias(name, parts, n)
        static = self._static(name, parts, spec)

        word = layout.per_word[0] if layout.transposed else 1
        pieces = Pieces(part="weight", decode=lambda w, _: layout.unpack(name, w), dim=int(layout.transposed), rows=word)

        def convert(tensors: Mapping[str, Tensor]) -> CanonicalWeight:
            scale = tensors["weight_scale"]
            scale = scale.T if layout.transposed and scale.dim() == 2 else scale
            second = tensors.get("weight_scale_2")
            return CanonicalWeight(
                spec=spec,
                codes=pieces.codes(tensors["weight"], n, k),
                scale=(as_e8m0(scale) if spec.scale == "e8m0" else scale).reshape(shape).contiguous(),
                zero_point=_zero_point(name, spec, layout, shape, tensors.get("weight_zero_point")),
                secondary_scale=None if second is None else second.float().reshape(-1),
                input_scale=_input_scale(name, tensors, static),
                bias=tensors.get("bias"),
            )

        used = pick(parts, "weight", "weight_scale", "weight_scale_2", "weight_zero_point", "input_zero_point", *self.bias_parts)
        used |= pick(parts, "input_scale", "input_scale_2")
        return StoredLayer(name=name, spec=spec, n=n, k=k, parts=used, convert=convert, pieces=pieces)

    def scheme(self, name: str) -> Scheme:
        """Return the scheme of module `name`."""
        by_name, by_type = self.config.sub("layer_quant_config"), self.config.sub("layer_type_quant_config")
        patterns = by_name.fields if by_name else ()
        pattern = next((p for p in patterns if fnmatch.fnmatchcase(name, p)), None)
        table = by_name.sub(pattern) if by_name and pattern is not None else None
        table = table or (by_type.sub("Linear") if by_type else None) or self.config.sub("global_quant_config")
        if table is None or not table.get("weight"):
            raise CheckpointMismatch(f"{name}: it has quantized tensors, but {self.config.source} has no weight settings for it")
        if table.where not in self._schemes:
            self._schemes[table.where] = read_scheme(table)
        return self._schemes[table.where]

    def _spec(self, name: str, parts: Parts, scheme: Scheme) -> Spec:
        scale = scheme.scale or float_format(name, parts["weight_scale"])
        stored = scale if scale in ("fp16", "bf16") else None
        zero = scheme.has_zero_point
        weight = f"u{scheme.weight}" if zero and scheme.weight.startswith("int") else scheme.weight
        return Spec(
            weight=weight,
            granularity=scheme.granularity,
            group_size=scheme.group_size,
            block=scheme.block,
            scale=scale,
            secondary=scheme.second,
            zero_point=zero,
            **scheme.activation_fields(model_format(self.config, stored)),
        )

    def _static(self, name: str, parts: Parts, spec: Spec) -> str | None:
        """Return the part that holds the static scale of the activations, or None; raises MissingTensor if the spec needs one."""
        if spec.activation_granularity == "tensor":
            require(name, parts, ("input_scale",), f"'{spec}'")
            check_scalar(name, parts["input_scale"])
            return "input_scale"
        return "input_scale_2" if spec.activation_secondary and "input_scale_2" in parts else None


def _scale_dtypes(spec: Spec) -> tuple[str, ...]:
    return {"e8m0": ("U8", "F8_E8M0"), "e5m3": ("U8",), "e4m3": ("F8_E4M3",), "e5m2": ("F8_E5M2",)}.get(spec.scale or "", FLOATS)


def _check_zero_point(name: str, parts: Parts, spec: Spec, layout: Layout, shape: tuple[int, int]) -> None:
    """Raise CheckpointMismatch unless the zero points, if there are any, are packed as the weight is, or plain floats."""
    if "weight_zero_point" not in parts:
        return
    info, codes = parts["weight_zero_point"], layout.per_word[0]
    rows, columns = shape[::-1] if layout.transposed else shape
    # By group along the last axis, N; by channel a vector of N, packed along it too; by tensor a single word.
    want = rows * -(-columns // codes) if layout.transposed else -(-rows * columns // codes)
    flat = [size for size in info.shape if size != 1]
    packed, plain = [rows, -(-columns // codes)] if layout.transposed else [want], [rows, columns]
    if flat not in ([size for size in packed if size != 1], [size for size in plain if size != 1], [want]):
        raise CheckpointMismatch(f"{name}: weight_zero_point is {info}, but '{spec}' needs {packed} words or {plain} numbers")


def _zero_point(name: str, spec: Spec, layout: Layout, shape: tuple[int, int], stored: Tensor | None) -> Tensor | None:
    if stored is None:
        if spec.has_zero_point:
            raise CheckpointMismatch(f"{name}: '{spec}' needs a weight_zero_point, and none is stored")
        return None
    if not layout.dtype.endswith(("int4", "int8")) or (not spec.has_zero_point and not bool(stored.any())):
        return None
    if not spec.has_zero_point:
        raise CheckpointMismatch(f"{name}: the config says symmetric, but weight_zero_point is not all zero")
    if stored.is_floating_point():
        raise UnknownQuantMethod(f"{name}: float zero points of Quark are not read")
    rows = stored if stored.dim() == 2 else stored.reshape(1, -1)
    return layout.unpack(name, rows).reshape(shape).contiguous()


def _input_scale(name: str, tensors: Mapping[str, Tensor], part: str | None) -> Tensor | None:
    zero = tensors.get("input_zero_point")
    if zero is not None and bool(zero.any()):
        raise UnknownQuantMethod(f"{name}: input_zero_point is {zero.flatten()[0].item()}; asymmetric activations are not read")
    if part is None:
        return None
    if not one(tuple(tensors[part].shape)):
        raise CheckpointMismatch(f"{name}: {part} has {tensors[part].numel()} elements; one static scale is expected")
    return scalar(tensors, part)


def _refuse_rotation(config: QuantConfig) -> None:
    """Raise for a rotation that the model applies to activations at run time; one folded into the weights needs nothing."""
    algos = config.get("algo_config", default=[])
    for algo in algos if isinstance(algos, list) else [algos]:
        if not isinstance(algo, Mapping) or str(algo.get("name", "")).lower() not in ("rotation", "quarot"):
            continue
        online = [key for key, value in algo.items() if key.startswith(("r3", "r4", "online")) and value]
        if online:
            raise UnknownQuantMethod(
                f"{config.source}: algo_config rotates activations at run time ({', '.join(online)}), which is not read; "
                "export with rotations that fold into the weights (r1, r2)"
            )
