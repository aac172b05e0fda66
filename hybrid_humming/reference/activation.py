"""quantize_input: float x -> codes and scales in the storage that kernels read; and back.

e4m3, e5m2        torch's float8 types
int8              torch.int8
int4 e2m1 e0m3    uint8 [M, K/2], two codes a byte, low nibble first; int4 in two's complement
e2m3 e3m2 e3m4    uint8, one code a byte
scale             token [M, 1], tensor [1], group [M, K/G] in the spec's activation scale format; global_scale [1] fp32
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from hybrid_humming.dtypes import ElementFormat, parse_format
from hybrid_humming.errors import ShapeError, SpecError
from hybrid_humming.reference.codes import decode, encode, round_scale
from hybrid_humming.reference.dequantize import decode_scale
from hybrid_humming.reference.quantize import power_of_two_scale
from hybrid_humming.spec import Spec

Tensor = torch.Tensor


class QuantizedInput(NamedTuple):
    """Quantized activations; see the module's head for each shape."""

    values: Tensor
    scale: Tensor | None
    global_scale: Tensor | None = None


def quantize_input(x: Tensor, spec: Spec, *, input_scale: Tensor | None = None) -> QuantizedInput:
    """Return x [..., K] quantized by the activation half of `spec`.

    A row (or group) of zeros gets a scale that decodes it to zero; one that holds NaN or infinity decodes to NaN as a whole.
    `input_scale` [1] is the static scale of tensor granularity; without it, the tensor's own absmax is used.
    """
    if not spec.quantizes_activation:
        raise SpecError(f"'{spec}' has {spec.activation} activations; there is nothing to quantize")
    if spec.activation_group_size and x.shape[-1] % spec.activation_group_size:
        raise ShapeError(f"x is {list(x.shape)}; K must be a multiple of the group size {spec.activation_group_size}")
    fmt, scale_fmt = spec.activation_format, parse_format(str(spec.activation_scale))
    k = x.shape[-1]
    work = x.float().reshape(-1, k)
    global_scale = None
    if spec.activation_secondary:
        absmax = torch.nan_to_num(work.abs().amax() if work.numel() else work.new_zeros(()), nan=0.0, posinf=0.0)
        top = scale_fmt.largest if not scale_fmt.is_wide else 1.0
        global_scale = (absmax / (fmt.largest * top)).reshape(1)
        if input_scale is not None:
            global_scale = input_scale.float().reshape(1)
        global_scale = torch.where(global_scale > 0, global_scale, 1.0)
        work = work / global_scale
    groups = work.view(work.shape[0], -1, spec.activation_group_size or k)
    if spec.activation_granularity == "tensor":
        scale = input_scale.float().reshape(1) if input_scale is not None else _scale_of(_absmax(work), fmt, scale_fmt)
        real = decode_scale(scale, scale_fmt.name, torch.float32).view(1, 1, 1)
    else:
        scale = _scale_of(groups.abs().amax(-1) if groups.numel() else groups.new_zeros(groups.shape[:2]), fmt, scale_fmt)
        real = decode_scale(scale, scale_fmt.name, torch.float32)[..., None]
    units = torch.nan_to_num(groups / torch.where(real > 0, real, 1.0), nan=0.0)
    codes = encode(units, fmt).view(*x.shape)
    return QuantizedInput(_store(codes, fmt), scale, global_scale)


def dequantize_input(quantized: QuantizedInput, spec: Spec, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the float activations [..., K] that `quantized` stands for."""
    work = torch.float64 if dtype == torch.float64 else torch.float32
    values = decode_input(quantized.values, spec.activation_format, work)
    k = values.shape[-1]
    flat = values.reshape(-1, spec.activation_group_size or k)
    if quantized.scale is not None:
        scale = decode_scale(quantized.scale, str(spec.activation_scale), work)
        flat = flat * (scale.reshape(-1, 1) if scale.numel() > 1 else scale.reshape(1, 1))
    if quantized.global_scale is not None:
        flat = flat * quantized.global_scale.to(work)
    return flat.view(values.shape).to(dtype)


def decode_input(values: Tensor, fmt: ElementFormat, dtype: torch.dtype) -> Tensor:
    """Return the exact values of stored activation codes, without any scale."""
    if values.dtype != torch.uint8:
        return values.to(dtype)
    if fmt.bits != 4:
        return decode(values, fmt, dtype)
    codes = torch.stack([values & 15, values >> 4], -1).flatten(-2)
    return decode(codes ^ 8 if fmt.name == "int4" else codes, fmt, dtype)


def _absmax(work: Tensor) -> Tensor:
    return work.abs().amax().reshape(1) if work.numel() else work.new_zeros(1)


def _scale_of(absmax: Tensor, fmt: ElementFormat, scale_fmt: ElementFormat) -> Tensor:
    finite = torch.isfinite(absmax)
    safe = torch.where(finite, absmax, 0.0)
    if scale_fmt.name == "e8m0":
        stored = power_of_two_scale(safe, fmt)
        return torch.where(finite, stored.view(torch.uint8), 255).view(torch.float8_e8m0fnu)
    stored = round_scale(torch.where(safe > 0, safe / fmt.largest, 1.0), scale_fmt)
    if stored.dtype == torch.uint8:  # e5m3: 255 is NaN
        return torch.where(finite, stored, 255)
    return torch.where(finite, stored.float(), torch.nan).to(stored.dtype)


def _store(codes: Tensor, fmt: ElementFormat) -> Tensor:
    if fmt.name == "int8":
        return (codes ^ 128).view(torch.int8)
    if fmt.bits == 4:
        codes = codes ^ 8 if fmt.name == "int4" else codes
        return codes[..., 0::2] | codes[..., 1::2] << 4
    return codes.view(fmt.torch_storage)
