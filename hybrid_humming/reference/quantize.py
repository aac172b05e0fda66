"""quantize: float weight -> CanonicalWeight, round to nearest.

    symmetric    scale = absmax / largest,  code = nearest(w / scale)
    integer zp   scale = (max - min) / (2**b - 1) over a range that contains 0,  zero_point = nearest(-min / scale)
    float zp     the same range without 0 forced into it,  zero_point = -min / scale in the spec's format
    e8m0 scale   the OCP MX rule: 2 ** (floor(log2 absmax) - exponent of the format's largest value); values saturate
    secondary    per tensor or row: absmax / (largest * largest scale), so that the first scale uses its whole range (NVFP4)

The scale is rounded to its format before the codes are chosen, so the codes are the best for the scale that is stored.
"""

from __future__ import annotations

import math

import torch

from hybrid_humming.dtypes import ElementFormat, parse_format
from hybrid_humming.errors import DtypeError, ShapeError, ValueRangeError
from hybrid_humming.reference.codes import encode, round_scale
from hybrid_humming.reference.dequantize import decode_scale, expand
from hybrid_humming.spec import Spec
from hybrid_humming.weight import CanonicalWeight, InputTransform

Tensor = torch.Tensor


def quantize(weight: Tensor, spec: Spec, *, transform: InputTransform | None = None) -> CanonicalWeight:
    """Return `weight` [N, K] or [E, N, K] quantized by `spec`; NaN and infinities are refused with their index."""
    if not weight.is_floating_point():
        raise DtypeError(f"weight is {weight.dtype}; quantize takes a float tensor")
    if weight.dim() not in (2, 3):
        raise ShapeError(f"weight is {list(weight.shape)}; quantize takes [N, K] or [E, N, K]")
    bad = ~torch.isfinite(weight)
    if bad.any():
        where = [int(i) for i in bad.nonzero()[0]]
        raise ValueRangeError(
            f"weight{where} is {float(weight[tuple(where)])} ({int(bad.sum())} values are not finite); "
            "repair the weight before quantizing it"
        )
    spec.check_shape(weight.shape[-2], weight.shape[-1])
    w = weight.float()
    secondary = _secondary_scale(w, spec)
    if secondary is not None:
        w = w / secondary[..., None]
    low, high = _reduce(w, spec, torch.amin), _reduce(w, spec, torch.amax)
    if spec.zero_point is None:
        scale = _symmetric_scale(torch.maximum(high, -low), spec)
        zero = None
    else:
        scale, zero = _range_scale(low, high, spec)
    shell = CanonicalWeight(
        spec=spec,
        codes=torch.zeros(weight.shape, dtype=torch.uint8, device=weight.device),
        scale=scale,
        zero_point=zero,
        secondary_scale=secondary,
        transform=transform,
    )
    real = decode_scale(scale, spec.scale_format.name, torch.float32)
    units = w / expand(torch.where(real > 0, real, 1.0), shell)
    if zero is not None:
        units = units + expand(zero.float(), shell)
    return shell.replace(codes=encode(units, spec.weight_format))


def _secondary_scale(w: Tensor, spec: Spec) -> Tensor | None:
    if spec.secondary is None:
        return None
    dims = (-2, -1) if spec.secondary == "tensor" else (-1,)
    absmax = w.abs().amax(dims)
    absmax = absmax[..., None] if spec.secondary == "tensor" else absmax
    # A wide first scale has range to spare: 1 keeps it near the weights' own size.
    top = 1.0 if spec.scale_format.is_wide else spec.scale_format.largest
    scale = absmax / (spec.weight_format.largest * top)
    return torch.where(scale > 0, scale, 1.0)


def _reduce(w: Tensor, spec: Spec, how) -> Tensor:  # type: ignore[no-untyped-def]
    """[.., N, K] -> [.., R, C]: `how` (amin or amax) over each scale's weights."""
    *lead, n, k = w.shape
    if spec.granularity == "tensor":
        return how(w, (-2, -1))[..., None, None]
    if spec.granularity == "channel":
        return how(w, -1)[..., None]
    if spec.granularity == "group":
        return how(w.unflatten(-1, (-1, spec.group_size or k)), -1)
    assert spec.block is not None
    rows, cols = spec.scale_shape(n, k)
    fill = -math.inf if how is torch.amax else math.inf
    w = torch.nn.functional.pad(w, (0, cols * spec.block[1] - k, 0, rows * spec.block[0] - n), value=fill)
    return how(w.view(*lead, rows, spec.block[0], cols, spec.block[1]), (-3, -1))


def _symmetric_scale(absmax: Tensor, spec: Spec) -> Tensor:
    fmt, scale_fmt = spec.weight_format, spec.scale_format
    if scale_fmt.name == "e8m0":
        return power_of_two_scale(absmax, fmt)
    # int1 holds only 0 and -1: its scale is the whole absmax.
    scale = absmax / max(fmt.largest, -fmt.smallest if fmt.bits == 1 else 0.0)
    return round_scale(torch.where(absmax > 0, scale, 1.0), scale_fmt)


def power_of_two_scale(absmax: Tensor, fmt: ElementFormat) -> Tensor:
    """Return e8m0 scales by the OCP MX rule; all-zero groups get 2**-127."""
    emax = math.floor(math.log2(fmt.largest)) if fmt.largest >= 1 else 0
    exponent = torch.frexp(absmax.double())[1] - 1 - emax
    code = torch.where(absmax > 0, (exponent + 127).clamp(0, 254), 0)
    return code.to(torch.uint8).view(torch.float8_e8m0fnu)


def _range_scale(low: Tensor, high: Tensor, spec: Spec) -> tuple[Tensor, Tensor]:
    steps = 2**spec.bits - 1
    if spec.zero_point == "int":
        low, high = low.clamp(max=0), high.clamp(min=0)
    span = high - low
    scale = torch.where(span > 0, span / steps, torch.where(low != 0, low.abs(), 1.0))
    stored = round_scale(scale, spec.scale_format)
    real = decode_scale(stored, spec.scale_format.name, torch.float32)
    zero = -low / real
    if spec.zero_point == "int":
        return stored, zero.round().clamp(0, steps).to(torch.uint8)
    return stored, zero.to(parse_format(str(spec.zero_point)).torch_storage)
