"""quantize: float weight -> CanonicalWeight, round to nearest.

    symmetric    scale = absmax / largest,  code = nearest(w / scale)
    integer zp   scale = (max - min) / (2**b - 1) over a range that contains 0,  zero_point = nearest(-min / scale)
    float zp     the same range without 0 forced into it,  zero_point = -min / scale in the spec's format
    e8m0 scale   exponent="ocp": 2 ** (floor(log2 absmax) - exponent of the format's largest value); values saturate
                 exponent="least_error" (default): that power of two or the next, whichever leaves the group less squared error
    secondary    per tensor or row: absmax / (largest * largest scale), so that the first scale uses its whole range (NVFP4)

The scale is rounded to its format before the codes are chosen, so the codes are the best for the scale that is stored. A scale
that rounds down so far that the largest value would saturate by more than half a step takes the next larger value. A
group of zeros has scale 1 (e8m0: 2**-127) and codes of exactly 0. A scale beyond its format's range saturates, at either end.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from hybrid_humming.dtypes import ElementFormat, code_grid, parse_format
from hybrid_humming.errors import DeviceError, DtypeError, ShapeError, SpecError, ValueRangeError
from hybrid_humming.reference.codes import decode, divide, encode, fit_scale
from hybrid_humming.reference.dequantize import decode_scale, expand
from hybrid_humming.spec import Spec
from hybrid_humming.weight import CanonicalWeight, InputTransform, scale_shape

Tensor = torch.Tensor
EXPONENTS = ("least_error", "ocp")
TINY = 2.0**-126  # least normal fp32: below it a quotient by the scale is no longer accurate


def quantize(
    weight: Tensor,
    spec: Spec,
    *,
    transform: InputTransform | None = None,
    block_offset: tuple[int, int] = (0, 0),
    exponent: str = "least_error",
) -> CanonicalWeight:
    """Return `weight` [N, K] or [E, N, K] quantized by `spec`; NaN and infinities are refused with their index.

    block_offset  where this weight begins inside the block grid of the tensor that it was cut from (block granularity)
    exponent      rule for symmetric e8m0 scales: least_error | ocp, as above; other scales are the same under both
    """
    if exponent not in EXPONENTS:
        raise SpecError(f"exponent={exponent!r}: allowed are {' and '.join(EXPONENTS)}")
    if not isinstance(weight, Tensor) or weight.layout != torch.strided or not weight.is_floating_point():
        what = type(weight).__name__ if not isinstance(weight, Tensor) else str(weight.dtype)
        if isinstance(weight, Tensor) and weight.layout != torch.strided:
            what = f"{weight.layout}, not dense"
        raise DtypeError(f"weight is {what}; quantize takes a float tensor")
    if weight.is_meta:
        raise DeviceError("weight is on meta and holds no values; load it onto cpu or cuda before quantizing")
    if weight.dim() not in (2, 3) or weight.shape[0] == 0:
        raise ShapeError(f"weight is {list(weight.shape)}; quantize takes [N, K] or [E, N, K], none of them 0")
    spec.check_shape(weight.shape[-2], weight.shape[-1])
    w = weight.detach().float()
    bad = ~torch.isfinite(w)
    if bad.any():
        where = [int(i) for i in bad.nonzero()[0]]
        raise ValueRangeError(
            f"weight{where} is {float(weight[tuple(where)])} ({int(bad.sum())} of {bad.numel()} values are not finite in fp32); "
            "repair the weight before quantizing it"
        )
    secondary = _secondary_scale(w, spec)
    if secondary is not None:
        w = w / secondary[..., None]
    low, high = (_reduce(w, spec, how, block_offset).double() for how in (torch.amin, torch.amax))
    if spec.zero_point is None:
        scale, zero = symmetric_scale(torch.maximum(high, -low), spec.weight_format, spec.scale_format), None
    else:
        scale, zero = _range_scale(low, high, spec)
    shell = CanonicalWeight(
        spec=spec,
        codes=torch.zeros(weight.shape, dtype=torch.uint8, device=weight.device),
        scale=scale,
        zero_point=zero,
        secondary_scale=secondary,
        transform=transform,
        block_offset=block_offset,
    )
    units = w / expand(decode_scale(scale, spec.scale_format.name, torch.float32), shell)
    if zero is not None:
        units = units + expand(zero.float(), shell)
    if zero is None and spec.scale == "e8m0" and exponent == "least_error":
        return _least_error(units, shell)
    return shell.replace(codes=encode(units, spec.weight_format))


def _least_error(units: Tensor, shell: CanonicalWeight) -> CanonicalWeight:
    """Return the weight with each power-of-two scale, or twice it where that brings the group closer; units = w / scale."""
    spec, fmt = shell.spec, shell.spec.weight_format
    codes, wider = encode(units, fmt), encode(units / 2, fmt)
    error = _reduce((units - decode(codes, fmt)).double() ** 2, spec, torch.sum, shell.block_offset)
    error_wider = _reduce((units - 2 * decode(wider, fmt)).double() ** 2, spec, torch.sum, shell.block_offset)
    stored = shell.scale.view(torch.uint8)
    # Sums that are equal but for their order of addition count as equal, so that every device chooses alike.
    widen = (error_wider < error * (1 - 2.0**-30)) & (stored < 254)
    mask = expand(widen, shell)
    scale = (stored + widen.to(torch.uint8)).view(shell.scale.dtype)
    return shell.replace(codes=torch.where(mask, wider, codes), scale=scale)


def _secondary_scale(w: Tensor, spec: Spec) -> Tensor | None:
    if spec.secondary is None:
        return None
    dims = (-2, -1) if spec.secondary == "tensor" else (-1,)
    absmax = w.abs().amax(dims)
    absmax = absmax[..., None] if spec.secondary == "tensor" else absmax
    # A wide first scale has range to spare: 1 keeps it near the weights' own size.
    top = 1.0 if spec.scale_format.is_wide else spec.scale_format.largest
    return torch.where(absmax > 0, divide(absmax, max(spec.weight_format.largest, 1.0) * top).clamp(min=TINY), 1.0)


def _reduce(w: Tensor, spec: Spec, how: Callable[..., Tensor], offset: tuple[int, int]) -> Tensor:
    """[.., N, K] -> [.., R, C]: `how` (amin, amax or sum) over each scale's weights."""
    *lead, n, k = w.shape
    if spec.granularity == "tensor":
        return how(w, (-2, -1))[..., None, None]
    if spec.granularity == "channel":
        return how(w, -1)[..., None]
    if spec.granularity == "group":
        return how(w.unflatten(-1, (-1, spec.group_size or k)), -1)
    assert spec.block is not None
    (rows, cols), (block_n, block_k) = scale_shape(spec, n, k, offset), spec.block
    off_n, off_k = offset[0] % block_n, offset[1] % block_k
    fill = 0.0 if how is torch.sum else -math.inf if how is torch.amax else math.inf
    pad = (off_k, cols * block_k - k - off_k, off_n, rows * block_n - n - off_n)
    w = torch.nn.functional.pad(w, pad, value=fill)
    return how(w.view(*lead, rows, block_n, cols, block_k), (-3, -1))


def symmetric_scale(absmax: Tensor, fmt: ElementFormat, scale_fmt: ElementFormat) -> Tensor:
    """Return the stored scale of symmetric codes for finite `absmax` of any shape."""
    absmax = absmax.double()
    if scale_fmt.name == "e8m0":
        return power_of_two_scale(absmax, fmt)
    grid, _ = code_grid(fmt)
    # int1 holds only 0 and -1: its scale is the whole absmax.
    return fit_scale(absmax, max(fmt.largest, 1.0), float(grid[-1] - grid[-2]) / 2, scale_fmt)


def power_of_two_scale(absmax: Tensor, fmt: ElementFormat) -> Tensor:
    """Return e8m0 scales by the OCP MX rule; all-zero groups get 2**-127."""
    emax = math.floor(math.log2(fmt.largest)) if fmt.largest >= 1 else 0
    exponent = torch.frexp(absmax.double())[1] - 1 - emax
    code = torch.where(absmax > 0, (exponent + 127).clamp(0, 254), 0)
    return code.to(torch.uint8).view(torch.float8_e8m0fnu)


def _range_scale(low: Tensor, high: Tensor, spec: Spec) -> tuple[Tensor, Tensor]:
    """Scales and zero points for weights in low..high (fp64)."""
    with_zero = low.clamp(max=0), high.clamp(min=0)
    if spec.zero_point == "int":
        stored, zero = _affine(*with_zero, spec)
        return stored, zero.round().clamp(0, 2**spec.bits - 1).to(torch.uint8)
    storage = parse_format(str(spec.zero_point)).torch_storage
    stored, zero = _affine(low, high, spec)
    # Far from 0 a 16-bit zero point is coarser than a step; such a range is widened to hold 0.
    coarse = (zero.to(storage).double() - zero).abs() > 0.5
    if coarse.any():
        stored, zero = _affine(torch.where(coarse, with_zero[0], low), torch.where(coarse, with_zero[1], high), spec)
    return stored, zero.to(storage)


def _affine(low: Tensor, high: Tensor, spec: Spec) -> tuple[Tensor, Tensor]:
    steps = float(2**spec.bits - 1)
    # One value alone is code 0 with zero point -+1, so its scale is its own magnitude.
    extent = torch.where(high > low, high - low, low.abs() * steps)
    if spec.scale_format.name == "e8m0":  # the least power of two that covers the range
        mantissa, exponent = torch.frexp(divide(extent, steps))
        code = torch.where(extent > 0, (exponent - (mantissa == 0.5).int() + 127).clamp(0, 254), 0)
        stored = code.to(torch.uint8).view(torch.float8_e8m0fnu)
    else:
        stored = fit_scale(extent, steps, 0.5, spec.scale_format)
    real = decode_scale(stored, spec.scale_format.name, torch.float64)
    return stored, -low / real
