"""compressed-tensors: integers of 1 to 8 bits in int32 words (format pack-quantized).

    weight_packed      [N, K*b/32]  int32  codes as one bit stream along K, low bits first; code = q + 2^(b-1)
    weight_scale       [N, K/G]     fp16 | bf16 | fp32;  channel [N, 1], tensor [1]
    weight_shape       [2]          int64 (N, K)
    weight_zero_point  [N*b/32, K/G] int32, packed along N the same way;  or int8 [N, K/G], plain
    weight_g_idx       [K]          int32, group of each column (actorder "group", written by older versions)

    w[n, k] = (code - zero_point) * scale;   symmetric: zero_point = 2^(b-1)

Older versions packed 32 // b whole codes a word for widths that do not divide 32; the packed width tells the two apart.
"""

from __future__ import annotations

from collections.abc import Mapping

from hybrid_humming.checkpoint.act_order import group_order, reorder
from hybrid_humming.checkpoint.bits import lane_words, stream_words, unpack_lanes, unpack_stream
from hybrid_humming.checkpoint.ct_scheme import SCALES, Scheme, check_scale, integer_spec, static_input, static_parts
from hybrid_humming.checkpoint.pieces import Pieces
from hybrid_humming.checkpoint.registry import Parts, StoredLayer, expect, pick, require
from hybrid_humming.errors import CheckpointMismatch, UnknownQuantMethod
from hybrid_humming.lazy import Tensor, torch
from hybrid_humming.spec import Spec
from hybrid_humming.weight import CanonicalWeight


def describe(name: str, parts: Parts, scheme: Scheme, activation: str | None) -> StoredLayer:
    """Return a pack-quantized layer; `activation` is the model's 16-bit type, where the config gives it."""
    args = scheme.weights
    if args.kind != "int" or args.strategy not in ("tensor", "channel", "group"):
        raise UnknownQuantMethod(
            f"{name}: pack-quantized holds int by tensor, channel or group, not {args.kind} by {args.strategy}"
        )
    needed = ["weight_packed", "weight_scale", "weight_shape"]
    needed += [] if args.symmetric else ["weight_zero_point"]
    needed += ["weight_g_idx"] if args.actorder in ("group", "dynamic") else []
    require(name, parts, tuple(needed), "pack-quantized")
    n, k = _logical_shape(name, parts)
    spec = integer_spec(name, parts, scheme, activation)
    spec.check_shape(n, k)
    _check_packed(name, parts, spec, n, k)
    used = pick(parts, *needed, "weight_g_idx", *static_parts(name, parts, spec), "bias")

    def decode(words: Tensor, _: int) -> Tensor:
        dense = words.shape[-1] == stream_words(k, spec.bits)
        return (unpack_stream if dense else unpack_lanes)(words, spec.bits, k)

    pieces = Pieces(part="weight_packed", decode=decode, unsorted=True)

    def convert(tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        return convert_packed(name, spec, pieces.codes(tensors["weight_packed"], n, k), tensors)

    return StoredLayer(name=name, spec=spec, n=n, k=k, parts=used, convert=convert, pieces=pieces)


def convert_packed(name: str, spec: Spec, codes: Tensor, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
    """Return the weight in the clear from the codes [N, K] and tensors of a pack-quantized layer."""
    bits, (n, k) = spec.bits, codes.shape
    columns = spec.scale_shape(n, k)[1]
    scale = tensors["weight_scale"].reshape(-1, columns)
    zero_point = None
    if spec.has_zero_point:
        stored = tensors["weight_zero_point"]
        if stored.dtype == torch.int32:
            dense = stored.shape[0] == stream_words(scale.shape[0], bits)
            zero_point = (unpack_stream if dense else unpack_lanes)(stored, bits, scale.shape[0], dim=0)
        else:
            zero_point = (stored.to(torch.int16) + 2 ** (bits - 1)).to(torch.uint8).reshape(-1, columns)
    weight = CanonicalWeight(
        spec=spec,
        codes=codes,
        scale=scale.contiguous(),
        zero_point=zero_point,
        input_scale=static_input(name, tensors),
        bias=tensors.get("bias"),
    )
    g_idx = tensors.get("weight_g_idx")
    # -1 is what the module was initialised with: no order was ever set.
    if g_idx is None or bool((g_idx == -1).all()):
        return weight
    return reorder(weight, group_order(name, g_idx, spec.group_size or k, columns))


def _logical_shape(name: str, parts: Parts) -> tuple[int, int]:
    """Return (N, K) from weight_shape, the one stored tensor that is read while describing (16 bytes)."""
    packed, info = parts["weight_packed"], parts["weight_shape"]
    if packed.dtype != "I32" or len(packed.shape) != 2:
        raise CheckpointMismatch(f"{name}: weight_packed is {packed}, expected I32 [N, words]")
    expect(name, info, ("I64", "I32"), (2,), "(N, K)")
    n, k = info.integers()
    if n != packed.shape[0]:
        raise CheckpointMismatch(f"{name}: weight_packed has {packed.shape[0]} rows, but weight_shape says [{n}, {k}]")
    return n, k


def _check_packed(name: str, parts: Parts, spec: Spec, n: int, k: int) -> None:
    bits, words = spec.bits, parts["weight_packed"].shape[1]
    widths = {stream_words(k, bits), lane_words(k, bits)}
    if words not in widths:
        raise CheckpointMismatch(
            f"{name}: weight_packed has {words} words a row, but K={k} (weight_shape) at {bits} bits takes "
            f"{' or '.join(map(str, sorted(widths)))}; one of the two was cut without the other"
        )
    check_scale(name, parts, spec, n, k, SCALES)
    rows, columns = spec.scale_shape(n, k)
    zero = parts.get("weight_zero_point")
    if spec.has_zero_point and zero is not None:
        packed = {(width(rows, bits), columns) for width in (stream_words, lane_words)}
        plain = zero.dtype == "I8" and zero.numel == rows * columns
        if not plain and (zero.dtype != "I32" or zero.shape not in packed):
            raise CheckpointMismatch(
                f"{name}: weight_zero_point is {zero}, expected packed I32 {list(max(packed))} or plain I8 {[rows, columns]}"
            )
    if "weight_g_idx" in parts:
        expect(name, parts["weight_g_idx"], ("I32", "I64"), (k,))
    if "bias" in parts:
        expect(name, parts["bias"], SCALES, (n,))
