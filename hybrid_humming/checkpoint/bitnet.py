"""BitNet b1.58: ternary weights, int8 activations.

    weight        [N/4, K]  uint8  rows r, r + N/4, r + N/2, r + 3N/4 in the bit pairs 0..3 of row r's bytes; pair = value + 1
                  [N, K]    16-bit floats of -1, 0, 1 (offline autobitlinear, unpacked)
    weight_scale  [1]       the divisor of linear_class "bitlinear", the multiplier of "autobitlinear"

    w[n, k] = value / weight_scale  |  value * weight_scale

The activations are quantized to int8, each row by its own absmax, as both layers of Transformers do.
"""

from __future__ import annotations

from collections.abc import Mapping

from hybrid_humming.checkpoint.common import FLOATS, check_bias, matrix, model_format, refuse_excluded
from hybrid_humming.checkpoint.config import QuantConfig
from hybrid_humming.checkpoint.registry import Importer, Parts, ReadOptions, StoredLayer, expect, pick, require
from hybrid_humming.errors import CheckpointMismatch, UnknownQuantMethod
from hybrid_humming.lazy import Tensor, torch
from hybrid_humming.spec import Spec
from hybrid_humming.weight import CanonicalWeight

CLASSES = ("bitlinear", "autobitlinear")
# Code of e0m1 (sign, magnitude) for value + 1 = 0, 1, 2.
CODES = (3, 0, 1, 0)


class BitNet(Importer):
    """Reads `quant_method: bitnet`."""

    def __init__(self, config: QuantConfig, options: ReadOptions) -> None:
        super().__init__(config, options)
        self.linear_class = str(config.get("linear_class", default="bitlinear"))
        if self.linear_class not in CLASSES:
            raise UnknownQuantMethod(f"{config.source}: linear_class {self.linear_class!r}; readable are {' and '.join(CLASSES)}")
        if config.get("quantization_mode", default="offline") != "offline":
            raise UnknownQuantMethod(
                f"{config.source}: quantization_mode 'online' stores unquantized weights; quantize them with hh.quantize"
            )
        if config.flag("use_rms_norm", default=False):
            raise UnknownQuantMethod(
                f"{config.source}: use_rms_norm puts a norm inside each linear layer, which is not read; "
                "only checkpoints with use_rms_norm false are"
            )
        self.skipped = config.strings("modules_to_not_convert")

    def describe(self, name: str, parts: Parts) -> StoredLayer | None:
        """Return the layer, or None for a module that is not ternary; raises what `Importer.describe` says."""
        if "weight" not in parts or (parts["weight"].dtype != "U8" and "weight_scale" not in parts):
            return None
        require(name, parts, ("weight", "weight_scale"), "BitNet")
        refuse_excluded(name, self.skipped, f"{self.config.source}.modules_to_not_convert")
        rows, k = matrix(name, parts["weight"], ("U8", *FLOATS), "[N/4, K] or [N, K]")
        packed = parts["weight"].dtype == "U8"
        n = rows * 4 if packed else rows
        expect(name, parts["weight_scale"], FLOATS, parts["weight_scale"].shape if parts["weight_scale"].numel == 1 else (1,))
        check_bias(name, parts, n)
        out = model_format(self.config)
        spec = Spec(weight="e0m1", granularity="tensor", activation="int8", out_dtype=out)

        def convert(tensors: Mapping[str, Tensor]) -> CanonicalWeight:
            stored = tensors["weight_scale"].float().reshape(1, 1)
            return CanonicalWeight(
                spec=spec,
                codes=ternary_codes(name, tensors["weight"], packed),
                scale=stored if self.linear_class == "autobitlinear" else 1 / stored,
                bias=tensors.get("bias"),
            )

        used = pick(parts, "weight", "weight_scale", *self.bias_parts)
        return StoredLayer(name=name, spec=spec, n=n, k=k, parts=used, convert=convert)


def ternary_codes(name: str, weight: Tensor, packed: bool) -> Tensor:
    """Return e0m1 codes [N, K] of a stored ternary weight; raises CheckpointMismatch for a value other than -1, 0, 1."""
    plus_one = torch.cat([weight >> 2 * i & 3 for i in range(4)]) if packed else (weight.float() + 1)
    bad = (plus_one != 0) & (plus_one != 1) & (plus_one != 2)
    if bool(bad.any()):
        row, column = (int(i) for i in bad.nonzero()[0])
        raise CheckpointMismatch(
            f"{name}: weight[{row}, {column}] is {float(plus_one[row, column]) - 1:g}; ternary weights are -1, 0 or 1"
        )
    return torch.tensor(CODES, dtype=torch.uint8, device=weight.device)[plus_one.long()]
