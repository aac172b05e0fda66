"""GPTQ: AutoGPTQ, GPTQModel, AutoRound's auto_gptq export.

    qweight  [K*b/32, N]  int32   codes of b bits as one bit stream along K, low bits first
    scales   [K/G, N]     fp16 | bf16 | fp32
    qzeros   [K/G, N*b/32] int32  zero points as one bit stream along N; or unpacked, int8 | uint8 [K/G, N]
    g_idx    [K]          int32   group of each column (act-order: in any order)
    bias     [N]

    w[n, k] = (code - zero_point) * scale,   zero_point = stored + 1 (v1, checkpoint_format "gptq") | stored (v2, "gptq_v2")

The label is not reliable: files with true zero points are labelled "gptq". A symmetric layer tells by itself, since its
zero point is 2^(b-1): one less stored means v1, itself means v2. An asymmetric layer is read as labelled (AutoRound writes no
label, and v1); without a label it is refused unless `gptq_zero_points` says which. A true zero point of 0 is stored in v1 as
-1, that is all ones, and wraps to 0 again; GPTQModel subtracts from whole words, so there a borrow is undone word by word.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from hybrid_humming.checkpoint.act_order import group_order, reorder
from hybrid_humming.checkpoint.bits import stream_words, unpack_stream
from hybrid_humming.checkpoint.config import Fields, QuantConfig
from hybrid_humming.checkpoint.files import TensorInfo
from hybrid_humming.checkpoint.pieces import Pieces
from hybrid_humming.checkpoint.registry import Importer, Parts, ReadOptions, StoredLayer, expect, pick, require
from hybrid_humming.checkpoint.rules import dynamic_override
from hybrid_humming.checkpoint.stacked import refuse_stacked
from hybrid_humming.dtypes import from_torch
from hybrid_humming.errors import AmbiguousCheckpoint, CheckpointMismatch, UnknownQuantMethod, did_you_mean
from hybrid_humming.lazy import Tensor, torch
from hybrid_humming.spec import Spec
from hybrid_humming.weight import CanonicalWeight

log = logging.getLogger("hybrid_humming")

ZERO_POINTS = {"gptq": "v1", "gptq_v2": "v2"}
# Formats under the same quant_method whose bytes lie otherwise.
REFUSED = {
    "gptq_p": "the planar layout splits each code over bit planes; save with format gptq_v2 instead",
    "marlin": "Marlin's repacked layout is for one kernel; load the original GPTQ checkpoint instead",
    "bitblas": "BitBLAS's repacked layout is for one kernel; load the original GPTQ checkpoint instead",
    "qqq": "QQQ's two-level layout is not read",
}
SCALES = ("F16", "BF16", "F32")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Settings of one layer: the config's, with its `dynamic` overrides."""

    bits: int
    group_size: int
    sym: bool
    desc_act: bool


class GPTQ(Importer):
    """Reads `quant_method: gptq`.

    widths  the bits whose codes lie as one stream; GPTQModel writes 5, 6 and 7 in its planar layout
    """

    widths: ClassVar[tuple[int, ...]] = (2, 3, 4, 8)

    def __init__(self, config: QuantConfig, options: ReadOptions) -> None:
        super().__init__(config, options)
        rules = config.sub("dynamic")
        self.dynamic = rules.fields if rules else None
        self.zero_points = zero_point_version(config, options)
        self.borrows = _written_by(config, "gptqmodel")
        if self.zero_points == "v1" and self.borrows and not config.flag("sym", default=True):
            log.warning(
                "%s: asymmetric GPTQ by GPTQModel, labelled 'gptq': zero points are read as v1 (stored minus one). Some of its "
                "versions wrote v2 under that label; if results are off, load with gptq_zero_points='v2'",
                config.source,
            )

    def describe(self, name: str, parts: Parts) -> StoredLayer | None:
        """Return the layer, or None for a module without qweight; raises what `Importer.describe` says."""
        if "qweight" not in parts:
            return None
        refuse_stacked(name, parts, "GPTQ", "AutoGPTQ, GPTQModel and AutoRound")
        rule = self.rule(name)
        require(name, parts, ("qweight", "scales") if rule.sym else ("qweight", "scales", "qzeros"), "GPTQ")
        if rule.desc_act:
            require(name, parts, ("g_idx",), "GPTQ with desc_act")
        n, k = _size(name, parts, rule.bits)
        spec = self.spec(name, rule, parts["scales"], k)
        spec.check_shape(n, k)
        _check_parts(name, parts, rule, spec, n, k)
        if not rule.sym and self.zero_points is None:
            raise AmbiguousCheckpoint(
                f"{name}: asymmetric GPTQ without a checkpoint_format in {self.config.source}: zero points may be stored minus "
                "one (v1) or as they are (v2); say which with gptq_zero_points='v1' or 'v2'"
            )
        used = pick(parts, "qweight", "scales", "qzeros", "g_idx", *self.bias_parts)

        pieces = Pieces(part="qweight", decode=lambda words, _: unpack_stream(words.T, rule.bits, k), dim=1, unsorted=True)

        def convert(tensors: Mapping[str, Tensor]) -> CanonicalWeight:
            return self.convert(name, rule, spec, pieces.codes(tensors["qweight"], n, k), tensors)

        return StoredLayer(name=name, spec=spec, n=n, k=k, parts=used, convert=convert, pieces=pieces)

    def rule(self, name: str) -> Rule:
        """Return the settings of module `name`; raises for bits that are not read, or a rule that excludes it."""
        override = dynamic_rule(self.dynamic, name)
        fields = Fields(where=self.config.where, fields={**self.config.fields, **override})
        bits = fields.integer("bits")
        if bits not in self.widths:
            planar = "; GPTQModel writes these in its planar layout (gptq_p)" if bits in (5, 6, 7) else ""
            allowed = ", ".join(map(str, self.widths))
            raise UnknownQuantMethod(f"{name}: GPTQ with {bits} bits is not read, only {allowed}{planar}")
        return Rule(
            bits=bits,
            group_size=fields.integer("group_size", default=-1),
            sym=fields.flag("sym", default=True),
            desc_act=fields.flag("desc_act", default=False),
        )

    def spec(self, name: str, rule: Rule, scales: TensorInfo, k: int) -> Spec:
        """Return the layer's spec; a group as long as K, or longer, is `channel`."""
        if scales.dtype not in SCALES:
            raise CheckpointMismatch(f"{name}: scales are {scales}, expected one of {', '.join(SCALES)}")
        if rule.group_size < -1 or rule.group_size == 0:
            raise CheckpointMismatch(f"{name}: group_size {rule.group_size} in {self.config.source}; allowed are -1 and sizes > 0")
        scale = from_torch(scales.torch_name).name
        activation = self.config.activation or (scale if scale in ("fp16", "bf16") else "bf16")
        group = None if rule.group_size == -1 or rule.group_size >= k else rule.group_size
        weight = f"int{rule.bits}" if rule.sym else f"uint{rule.bits}"
        return Spec(weight=weight, group_size=group, scale=scale, zero_point=not rule.sym, activation=activation)

    def convert(self, name: str, rule: Rule, spec: Spec, codes: Tensor, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the weight in the clear from its codes [N, K] and stored tensors."""
        scale = tensors["scales"].T.contiguous()
        zero_point = None
        if "qzeros" in tensors:
            zero_point = self.read_zero_points(name, rule, tensors["qzeros"], codes.shape[0])
        order = None
        if "g_idx" in tensors and not _is_placeholder(tensors["g_idx"], rule, scale.shape[1]):
            order = group_order(name, tensors["g_idx"], spec.group_size or codes.shape[1], scale.shape[1])
        weight = CanonicalWeight(
            spec=spec, codes=codes, scale=scale, zero_point=None if rule.sym else zero_point, bias=tensors.get("bias")
        )
        return reorder(weight, order)

    def read_zero_points(self, name: str, rule: Rule, stored: Tensor, n: int) -> Tensor:
        """Return the true zero points, uint8 [N, K/G]; raises if a symmetric layer's are not the midpoint."""
        bits, top = rule.bits, 2**rule.bits - 1
        packed = stored.dtype == torch.int32
        version = self.zero_points
        if rule.sym:
            plain = unpack_stream(stored, bits, n) if packed else stored.view(torch.uint8) & top
            version = symmetric_version(name, plain, bits)
        if version == "v1" and packed and self.borrows and bits != 3:
            stored, version = stored + _ones(bits), "v2"
        plain = unpack_stream(stored, bits, n) if packed else stored.view(torch.uint8) & top
        return ((plain + 1) & top if version == "v1" else plain).T.contiguous()


def zero_point_version(config: QuantConfig, options: ReadOptions) -> str | None:
    """Return v1 or v2 as the user, the label or the writer says, or None; raises for a layout that is not GPTQ's own."""
    label = config.text("checkpoint_format", "format")
    if config.flag("is_marlin_format", default=False):
        label = "marlin"
    if label in REFUSED:
        raise UnknownQuantMethod(f"{config.source}: checkpoint_format {label!r} is not read: {REFUSED[label]}")
    if label is not None and label not in ZERO_POINTS:
        raise UnknownQuantMethod(
            f"{config.source}: checkpoint_format {label!r} is unknown; readable are {', '.join(ZERO_POINTS)}."
            + did_you_mean(label, [*ZERO_POINTS, *REFUSED])
        )
    word = config.text("pack_dtype", default="int32") or ""
    if word.removeprefix("torch.") != "int32":
        raise UnknownQuantMethod(f"{config.source}: pack_dtype {word!r} is not read; only int32 words are")
    asked = options.gptq_zero_points
    if asked not in (None, "v1", "v2"):
        raise CheckpointMismatch(f"gptq_zero_points={asked!r}: allowed are 'v1' (stored minus one) and 'v2' (stored as they are)")
    if label is None and _written_by(config, "auto-round"):
        return asked or "v1"
    return asked or ZERO_POINTS.get(label or "")


def symmetric_version(name: str, stored: Tensor, bits: int) -> str:
    """Return v1 or v2 as the zero points of a symmetric layer tell: all 2^(b-1) - 1, or all 2^(b-1)."""
    middle = 2 ** (bits - 1)
    low, high = (int(value) for value in torch.aminmax(stored))
    if low == high and low in (middle - 1, middle):
        return "v1" if low < middle else "v2"
    raise CheckpointMismatch(
        f"{name}: the config says sym, so every stored zero point must be {middle - 1} (v1) or {middle} (v2), but they span "
        f"{low}..{high}; if the zero points are meant, set sym to false in the config"
    )


def dynamic_rule(dynamic: Mapping[str, object] | None, name: str) -> Mapping[str, object]:
    """Return the overrides for module `name` ({} if none); raises if the rules say that it is not quantized."""
    override = dynamic_override(dynamic, name)
    if override is False:
        raise CheckpointMismatch(f"{name}: a '-:' rule of `dynamic` says it is not quantized, but it has a qweight")
    return override or {}


def _size(name: str, parts: Parts, bits: int) -> tuple[int, int]:
    """Return (N, K); K is g_idx's length where it is there, else what the words hold."""
    qweight = parts["qweight"]
    if qweight.dtype != "I32" or len(qweight.shape) != 2:
        raise CheckpointMismatch(f"{name}: qweight is {qweight}, expected I32 [K*{bits}/32, N]")
    rows, n = qweight.shape
    k = parts["g_idx"].numel if "g_idx" in parts else rows * 32 // bits
    if stream_words(k, bits) != rows:
        raise CheckpointMismatch(
            f"{name}: qweight has {rows} rows, but K={k} (from g_idx) at {bits} bits takes {stream_words(k, bits)}"
        )
    return n, k


def _check_parts(name: str, parts: Parts, rule: Rule, spec: Spec, n: int, k: int) -> None:
    groups = spec.scale_shape(n, k)[1]
    why = f"K={k} in groups of {spec.group_size}" if spec.group_size else f"one group over K={k}"
    expect(name, parts["scales"], SCALES, (groups, n), why)
    if "g_idx" in parts:
        expect(name, parts["g_idx"], ("I32", "I64"), (k,))
    if "bias" in parts:
        expect(name, parts["bias"], SCALES, (n,))
    if "qzeros" in parts:
        zeros, packed = parts["qzeros"], (groups, stream_words(n, rule.bits))
        plain = zeros.dtype in ("I8", "U8") and zeros.shape == (groups, n)
        if not plain and (zeros.dtype != "I32" or zeros.shape != packed):
            raise CheckpointMismatch(
                f"{name}: qzeros is {zeros}, expected packed I32 {list(packed)} or unpacked I8 or U8 {[groups, n]} ({why})"
            )


def _is_placeholder(g_idx: Tensor, rule: Rule, groups: int) -> bool:
    # Without desc_act some writers leave g_idx at zero; read literally, it would give every column the first group's scale.
    return not rule.desc_act and groups > 1 and not bool(g_idx.any())


def _written_by(config: QuantConfig, writer: str) -> bool:
    meta = config.get("meta", default={})
    quantizer = meta.get("quantizer") if isinstance(meta, Mapping) else None
    listed = quantizer if isinstance(quantizer, list) else [quantizer]
    return any(str(entry).startswith(writer) for entry in (*listed, config.get("provider")))


def _ones(bits: int) -> int:
    """An int32 with a one in each lane of `bits`."""
    return sum(1 << shift for shift in range(0, 32, bits))
