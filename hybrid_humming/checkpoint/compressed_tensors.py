"""compressed-tensors (llm-compressor): which layout a module has; the layouts themselves are in ct_packed, ct_plain, ct_float4.

pack-quantized                                   ct_packed  weight_packed int32, integers of 1 to 8 bits
int-quantized, float-quantized, naive-quantized  ct_plain   weight int8 or e4m3, one code an element
mxfp8-quantized                                  ct_plain   weight e4m3, weight_scale e8m0 as uint8
nvfp4-pack-quantized, mxfp4-pack-quantized       ct_float4  weight_packed uint8, two e2m1 codes a byte
mxfp6-pack-quantized                             ct_float4  weight_packed uint8, four e2m3 codes in three bytes

Experts stacked in one tensor [E, N, ...] are read in each of them: stacked.
"""

from __future__ import annotations

from hybrid_humming.checkpoint import ct_float4, ct_packed, ct_plain
from hybrid_humming.checkpoint.config import QuantConfig
from hybrid_humming.checkpoint.ct_scheme import Schemes
from hybrid_humming.checkpoint.registry import Importer, Parts, ReadOptions, StoredLayer
from hybrid_humming.checkpoint.stacked import describe_stacked, split_flat, stacked
from hybrid_humming.errors import UnknownQuantMethod, did_you_mean

QUANTIZED = ("weight_packed", "weight_scale")
LAYOUTS = {
    "pack-quantized": ct_packed.describe,
    "int-quantized": ct_plain.describe,
    "float-quantized": ct_plain.describe,
    "naive-quantized": ct_plain.describe,
    "mxfp8-quantized": ct_plain.describe,
    "nvfp4-pack-quantized": ct_float4.describe,
    "mxfp4-pack-quantized": ct_float4.describe,
    "mxfp6-pack-quantized": ct_float4.describe,
}
# Formats of older versions, with what to do.
REFUSED = {
    "marlin-24": "2:4 sparse in Marlin's order; requantize the original checkpoint",
    "sparse-24-bitmask": "2:4 sparse; requantize the original checkpoint",
    "sparse-bitmask": "sparse; requantize the original checkpoint",
    "dense": "its weights are not quantized",
}


class CompressedTensors(Importer):
    """Reads `quant_method: compressed-tensors`."""

    def __init__(self, config: QuantConfig, options: ReadOptions) -> None:
        super().__init__(config, options)
        self.schemes = Schemes(config)
        sparsity, transform = config.sub("sparsity_config"), config.sub("transform_config")
        layout = sparsity.text("format", default="dense") if sparsity else "dense"
        if layout != "dense":
            raise UnknownQuantMethod(f"{config.where}: sparse weights ({layout!r}) are not read; only dense ones are")
        rotations = transform.sub("config_groups") if transform else None
        if rotations and rotations.fields:
            raise UnknownQuantMethod(
                f"{config.where}: transform_config rotates weights and activations ({', '.join(rotations.fields)}), "
                "which is not read; use a checkpoint without transforms"
            )

    def split(self, tensor: str) -> tuple[str, str]:
        """Return (module, part); of stacked experts too, whose parameters are named `experts.down_proj_packed`."""
        return split_flat(tensor) or super().split(tensor)

    def describe(self, name: str, parts: Parts) -> StoredLayer | None:
        """Return the layer, or None for a module without quantized tensors; raises what `Importer.describe` says."""
        if not any(part in parts for part in QUANTIZED):
            return None
        scheme = self.schemes.of(name)
        layout = LAYOUTS.get(scheme.format)
        if layout is None:
            why = f": {REFUSED[scheme.format]}." if scheme.format in REFUSED else f"; readable are {', '.join(LAYOUTS)}."
            raise UnknownQuantMethod(
                f"{name}: compressed-tensors format {scheme.format!r} is not read{why}{did_you_mean(scheme.format, LAYOUTS)}"
            )
        if stacked(parts):
            return describe_stacked(name, parts, lambda one: layout(name, one, scheme, self.config.activation))
        return layout(name, parts, scheme, self.config.activation)
