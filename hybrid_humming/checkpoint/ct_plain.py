"""compressed-tensors: one code an element (int-quantized, float-quantized, naive-quantized, mxfp8-quantized).

weight             [N, K]    int8 (b bits in two's complement) | e4m3
weight_scale       [N, K/G]  fp16 | bf16 | fp32;  channel [N, 1], tensor [1], block [ceil(N/bn), ceil(K/bk)];
                             mxfp8: uint8, e8m0
weight_zero_point  int8, the scale's shape

w[n, k] = (q - zero_point) * scale;   code = q + 2^(b-1) for integers
"""

from __future__ import annotations

from collections.abc import Mapping

from hybrid_humming.checkpoint.ct_scheme import (
    SCALES,
    Scheme,
    activation_fields,
    check_scale,
    integer_spec,
    static_input,
    static_parts,
)
from hybrid_humming.checkpoint.pieces import Pieces
from hybrid_humming.checkpoint.registry import Parts, StoredLayer, expect, pick, require
from hybrid_humming.errors import CheckpointMismatch, UnknownQuantMethod
from hybrid_humming.lazy import Tensor, torch
from hybrid_humming.spec import Spec
from hybrid_humming.weight import CanonicalWeight

STRATEGIES = ("tensor", "channel", "group", "block")


def describe(name: str, parts: Parts, scheme: Scheme, activation: str | None) -> StoredLayer:
    """Return a layer of one code an element; `activation` is the model's 16-bit type, where the config gives it."""
    args = scheme.weights
    if args.strategy not in STRATEGIES:
        raise UnknownQuantMethod(
            f"{name}: {scheme.format} weights by {args.strategy} are not read; allowed are {', '.join(STRATEGIES)}"
        )
    needed = ("weight", "weight_scale") if args.symmetric else ("weight", "weight_scale", "weight_zero_point")
    require(name, parts, needed, scheme.format)
    spec, scales = _spec(name, parts, scheme, activation), ("U8", "F8_E8M0") if scheme.format == "mxfp8-quantized" else SCALES
    weight = parts["weight"]
    if len(weight.shape) != 2:
        raise CheckpointMismatch(f"{name}: weight is {weight}, expected [N, K]")
    n, k = weight.shape
    expect(
        name, weight, ("I8",) if args.kind == "int" else ("F8_E4M3",), (n, k), f"{scheme.format}, {args.kind} of {args.bits} bits"
    )
    spec.check_shape(n, k)
    check_scale(name, parts, spec, n, k, scales)
    if "weight_zero_point" in parts and parts["weight_zero_point"].numel != parts["weight_scale"].numel:
        raise CheckpointMismatch(
            f"{name}: weight_zero_point is {parts['weight_zero_point']}, but weight_scale is {parts['weight_scale']}"
        )
    used = pick(parts, *needed, "weight_zero_point", *static_parts(name, parts, spec), "bias")

    def decode(stored: Tensor, _: int) -> Tensor:
        return stored.view(torch.uint8) if stored.is_floating_point() else offset_binary(name, stored, spec.bits)

    pieces = Pieces(part="weight", decode=decode)

    def convert(tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        return convert_plain(name, spec, pieces.codes(tensors["weight"], n, k), tensors)

    return StoredLayer(name=name, spec=spec, n=n, k=k, parts=used, convert=convert, pieces=pieces)


def convert_plain(name: str, spec: Spec, codes: Tensor, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
    """Return the weight in the clear from the codes [N, K] and tensors of a layer of one code an element."""
    scale, (n, k) = tensors["weight_scale"], codes.shape
    shape = spec.scale_shape(n, k)
    scale = scale.view(torch.float8_e8m0fnu) if spec.scale == "e8m0" else scale
    zero_point = tensors.get("weight_zero_point")
    if zero_point is not None and not spec.has_zero_point:
        # Older versions store the zero points of symmetric layers too, as zeros.
        if bool(zero_point.float().any()):
            raise CheckpointMismatch(f"{name}: the scheme is symmetric, but weight_zero_point is not all zero")
        zero_point = None
    return CanonicalWeight(
        spec=spec,
        codes=codes,
        scale=scale.reshape(shape).contiguous(),
        zero_point=None if zero_point is None else offset_binary(name, zero_point.reshape(shape), spec.bits),
        input_scale=static_input(name, tensors),
        bias=tensors.get("bias"),
    )


def offset_binary(name: str, values: Tensor, bits: int) -> Tensor:
    """Return uint8 codes q + 2^(bits-1) of int8 `values`; raises CheckpointMismatch if one does not fit."""
    half = 2 ** (bits - 1)
    low, high = (int(v) for v in torch.aminmax(values))
    if low < -half or high >= half:
        raise CheckpointMismatch(f"{name}: integers span {low}..{high}, but {bits} bits hold {-half}..{half - 1}")
    return (values.to(torch.int16) + half).to(torch.uint8)


def _spec(name: str, parts: Parts, scheme: Scheme, activation: str | None) -> Spec:
    if scheme.format != "mxfp8-quantized":
        return integer_spec(name, parts, scheme, activation)
    if scheme.weights.group_size != 32:
        raise CheckpointMismatch(f"{name}: mxfp8 groups have 32 weights, but the scheme says {scheme.weights.group_size}")
    return Spec(weight="mxfp8", **activation_fields(scheme, activation or "bf16"))
