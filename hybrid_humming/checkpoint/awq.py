"""AWQ, version gemm: AutoAWQ, and AutoRound's auto_awq export.

    qweight  [K, N*b/32]    int32  codes along N; within each 32 // b of them in the order 0 2 4 6 1 3 5 7 (8 bits: 0 2 1 3)
    qzeros   [K/G, N*b/32]  int32  zero points, packed alike, as they are
    scales   [K/G, N]       fp16 | bf16 | fp32
    bias     [N]

    w[n, k] = (code - zero_point) * scale

5, 6 and 7 bits are AutoRound's: 8 columns in the same order, then one bit stream along N. The layouts gemv, gemv_fast and
llm-awq share the method's name and not its bytes; they are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping

from hybrid_humming.checkpoint.bits import stream_words, unpack_columns, unpack_stream
from hybrid_humming.checkpoint.common import FLOATS, check_bias, float_format, model_format
from hybrid_humming.checkpoint.config import QuantConfig
from hybrid_humming.checkpoint.pieces import Pieces
from hybrid_humming.checkpoint.registry import Importer, Parts, ReadOptions, StoredLayer, expect, pick, require
from hybrid_humming.checkpoint.stacked import refuse_stacked
from hybrid_humming.errors import CheckpointMismatch, UnknownQuantMethod, did_you_mean
from hybrid_humming.lazy import Tensor, torch
from hybrid_humming.spec import Spec
from hybrid_humming.weight import CanonicalWeight

# The lane that holds the i-th column of a word, by bits.
LANES = {4: (0, 4, 1, 5, 2, 6, 3, 7), 8: (0, 2, 1, 3)}
WIDTHS = (4, 5, 6, 7, 8)
REFUSED = {
    "gemv": "its words run along K and its zero points are padded; convert with AutoAWQ to version gemm",
    "gemv_fast": "it interleaves four rows in int16 words; convert with AutoAWQ to version gemm",
    "llm-awq": "the original repository's layout interleaves rows; convert with AutoAWQ to version gemm",
    "exllama": "ExLlama reorders the weight when it loads; set version to gemm if the file was written by AutoAWQ",
    "marlin": "Marlin's repacked layout is for one kernel; use the gemm checkpoint",
    "ipex": "set version to gemm if the file was written by AutoAWQ",
}


class AWQ(Importer):
    """Reads `quant_method: awq`."""

    def __init__(self, config: QuantConfig, options: ReadOptions) -> None:
        super().__init__(config, options)
        version = str(config.get("version", default="gemm")).lower()
        if version != "gemm":
            why = f": {REFUSED[version]}." if version in REFUSED else "; readable is gemm."
            raise UnknownQuantMethod(
                f"{config.source}: AWQ version {version!r} is not read{why}{did_you_mean(version, [*REFUSED, 'gemm'])}"
            )
        self.bits = config.integer("bits", "w_bit", default=4)
        self.group_size = config.integer("group_size", "q_group_size", default=128)
        self.zero_point = config.flag("zero_point", default=True)
        if self.bits not in WIDTHS:
            raise UnknownQuantMethod(f"{config.source}: AWQ with {self.bits} bits is not read, only {', '.join(map(str, WIDTHS))}")
        if self.group_size < -1 or self.group_size == 0:
            raise CheckpointMismatch(f"{config.source}: group_size {self.group_size}; allowed are -1 and sizes > 0")

    def describe(self, name: str, parts: Parts) -> StoredLayer | None:
        """Return the layer, or None for a module without qweight; raises what `Importer.describe` says."""
        if "qweight" not in parts:
            return None
        refuse_stacked(name, parts, "AWQ", "AutoAWQ and AutoRound")
        require(name, parts, ("qweight", "scales", "qzeros") if self.zero_point else ("qweight", "scales"), "AWQ gemm")
        n, k = self._size(name, parts)
        stored = float_format(name, parts["scales"])
        group = None if self.group_size == -1 or self.group_size >= k else self.group_size
        spec = Spec(
            weight=f"uint{self.bits}" if self.zero_point else f"int{self.bits}",
            group_size=group,
            scale=stored,
            zero_point=self.zero_point,
            activation=model_format(self.config, stored),
        )
        groups = spec.scale_shape(n, k)[1]
        why = f"K={k} in groups of {group}" if group else f"one group over K={k}"
        expect(name, parts["scales"], FLOATS, (groups, n), why)
        if "qzeros" in parts:
            expect(name, parts["qzeros"], ("I32",), (groups, stream_words(n, self.bits)), why)
        check_bias(name, parts, n)

        rows = 32  # fill whole words at every width
        pieces = Pieces(part="qweight", decode=self._codes, dim=1, rows=rows, units=stream_words(rows, self.bits))

        def convert(tensors: Mapping[str, Tensor]) -> CanonicalWeight:
            return self.convert(name, spec, pieces.codes(tensors["qweight"], n, k), tensors)

        used = pick(parts, "qweight", "scales", "qzeros", *self.bias_parts)
        return StoredLayer(name=name, spec=spec, n=n, k=k, parts=used, convert=convert, pieces=pieces)

    def _codes(self, words: Tensor, rows: int) -> Tensor:
        return unpack_awq(words, self.bits, rows)

    def convert(self, name: str, spec: Spec, codes: Tensor, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the weight in the clear from its codes [N, K] and stored tensors."""
        n = codes.shape[0]
        zero_point = unpack_awq(tensors["qzeros"], self.bits, n) if "qzeros" in tensors else None
        if zero_point is not None and not spec.has_zero_point:
            _check_middle(name, zero_point, self.bits)
            zero_point = None
        return CanonicalWeight(
            spec=spec,
            codes=codes,
            scale=tensors["scales"].T.contiguous(),
            zero_point=zero_point,
            bias=tensors.get("bias"),
        )

    def _size(self, name: str, parts: Parts) -> tuple[int, int]:
        """Return (N, K): N from the scales, checked against the packed words, K from qweight's rows."""
        qweight, scales = parts["qweight"], parts["scales"]
        if qweight.dtype != "I32" or len(qweight.shape) != 2 or len(scales.shape) != 2:
            raise CheckpointMismatch(f"{name}: qweight is {qweight} beside scales {scales}, expected I32 [K, N*{self.bits}/32]")
        n, k = scales.shape[1], qweight.shape[0]
        columns = 4 if self.bits == 8 else 8  # that are packed together: no exporter leaves some of them out
        if n % columns:
            raise CheckpointMismatch(
                f"{name}: scales are {scales}, so N={n}; AWQ packs N in whole runs of {columns}: one of the two was cut"
            )
        if qweight.shape[1] != stream_words(n, self.bits):
            hint = ""
            if qweight.shape[0] == n or qweight.shape[1] == stream_words(qweight.shape[0], self.bits):
                hint = "; words along K are another layout (gemv), which is not read"
            raise CheckpointMismatch(
                f"{name}: qweight is {qweight}, but N={n} (scales) at {self.bits} bits takes {stream_words(n, self.bits)} "
                f"words a row{hint}"
            )
        return n, k


def unpack_awq(words: Tensor, bits: int, n: int) -> Tensor:
    """Return uint8 codes [N, rows] from words [rows, N*bits/32] in AWQ's column order."""
    if bits in LANES:
        return unpack_columns(words, bits, n, order=LANES[bits])
    codes = unpack_stream(words, bits, n)
    # Position i of each eight holds column 0 2 4 6 1 3 5 7 [i], so column j lies at LANES[4][j].
    return codes.unflatten(-1, (-1, 8))[..., list(LANES[4])].flatten(-2).T.contiguous()


def _check_middle(name: str, zero_point: Tensor, bits: int) -> None:
    low, high = (int(v) for v in torch.aminmax(zero_point))
    if low != high or low != 2 ** (bits - 1):
        raise CheckpointMismatch(
            f"{name}: the config says zero_point false, so every stored zero point must be {2 ** (bits - 1)}, but they span "
            f"{low}..{high}; if they are meant, set zero_point to true in the config"
        )
