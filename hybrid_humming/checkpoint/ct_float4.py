"""compressed-tensors: floats of 4 and 6 bits in bytes (nvfp4-pack-quantized, mxfp4-pack-quantized, mxfp6-pack-quantized).

    weight_packed        [N, K/2]   uint8, two e2m1 codes a byte, low nibble first  |  [N, 3K/4] e2m3, one stream of 6 bits (mxfp6)
    weight_scale         [N, K/16]  e4m3 (nvfp4)  |  [N, K/32] uint8, e8m0 (mxfp4, mxfp6)
    weight_global_scale  [1]        fp32 (nvfp4), a divisor: w = e2m1 * scale / global
    input_global_scale   [1]        fp32 (nvfp4 activations), a divisor too

The canonical weight keeps 1 / global as its secondary scale. e8m0's code 255 is NaN, as the format says; compressed-tensors'
own decoder makes it infinity.
"""

from __future__ import annotations

from collections.abc import Mapping

from hybrid_humming.checkpoint.bits import unpack_nibbles, unpack_stream
from hybrid_humming.checkpoint.ct_scheme import Scheme, activation_fields, check_scale, static_input, static_parts
from hybrid_humming.checkpoint.pieces import Pieces
from hybrid_humming.checkpoint.registry import Parts, StoredLayer, expect, pick, require
from hybrid_humming.errors import CheckpointMismatch
from hybrid_humming.lazy import Tensor, torch
from hybrid_humming.spec import Spec
from hybrid_humming.weight import CanonicalWeight

# format -> shorthand, bits, group size, dtypes of weight_scale
LAYOUTS = {
    "nvfp4-pack-quantized": ("nvfp4", 4, 16, ("F8_E4M3",)),
    "mxfp4-pack-quantized": ("mxfp4", 4, 32, ("U8", "F8_E8M0")),
    "mxfp6-pack-quantized": ("mxfp6", 6, 32, ("U8", "F8_E8M0")),
}


def describe(name: str, parts: Parts, scheme: Scheme, activation: str | None) -> StoredLayer:
    """Return an nvfp4, mxfp4 or mxfp6 layer; `activation` is the model's 16-bit type, where the config gives it."""
    short, bits, group_size, scales = LAYOUTS[scheme.format]
    needed = ["weight_packed", "weight_scale"] + (["weight_global_scale"] if short == "nvfp4" else [])
    require(name, parts, tuple(needed), scheme.format)
    if scheme.weights.group_size not in (None, group_size) or (scheme.weights.kind, scheme.weights.bits) != ("float", bits):
        raise CheckpointMismatch(
            f"{name}: {scheme.format} is float of {bits} bits in groups of {group_size}, but the scheme says "
            f"{scheme.weights.kind} of {scheme.weights.bits} bits in groups of {scheme.weights.group_size}"
        )
    spec = Spec(weight=short, **activation_fields(scheme, activation or "bf16"))
    packed = parts["weight_packed"]
    if packed.dtype != "U8" or len(packed.shape) != 2 or packed.shape[1] * 8 % bits:
        raise CheckpointMismatch(f"{name}: weight_packed is {packed}, expected U8 [N, K*{bits}/8]")
    n, k = packed.shape[0], packed.shape[1] * 8 // bits
    spec.check_shape(n, k)
    check_scale(name, parts, spec, n, k, scales)
    if "weight_global_scale" in needed:
        divisor = parts["weight_global_scale"]
        expect(name, divisor, ("F32",), () if divisor.shape == () else (1,))
    used = pick(parts, *needed, *static_parts(name, parts, spec), "bias")

    def decode(stored: Tensor, _: int) -> Tensor:
        return unpack_nibbles(stored, k) if bits == 4 else unpack_stream(stored.view(torch.int32), bits, k)

    pieces = Pieces(part="weight_packed", decode=decode)

    def convert(tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        scale, divisor = tensors["weight_scale"], tensors.get("weight_global_scale")
        return CanonicalWeight(
            spec=spec,
            codes=pieces.codes(tensors["weight_packed"], n, k),
            scale=scale.view(torch.float8_e8m0fnu) if short != "nvfp4" else scale,
            secondary_scale=None if divisor is None else 1 / divisor.float().reshape(1),
            input_scale=static_input(name, tensors),
            bias=tensors.get("bias"),
        )

    return StoredLayer(name=name, spec=spec, n=n, k=k, parts=used, convert=convert, pieces=pieces)
