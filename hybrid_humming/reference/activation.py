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
from hybrid_humming.reference.codes import decode, divide, encode, round_scale
from hybrid_humming.reference.dequantize import decode_scale
from hybrid_humming.reference.quantize import TINY, symmetric_scale
from hybrid_humming.spec import Spec

Tensor = torch.Tensor


class QuantizedInput(NamedTuple):
    """Quantized activations; see the module's head for each shape."""

    values: Tensor
    scale: Tensor | None
    global_scale: Tensor | None = None


def quantize_input(x: Tensor, spec: Spec, *, input_scale: Tensor | None = None) -> QuantizedInput:
    """Return x [..., K] quantized by the activation half of `spec`.

    input_scale  [1]  tensor granularity: the static scale. Groups with a second scale: the static global scale. Without it
                      the tensor's own absmax is used.

    A row (or group) of zeros decodes to zeros; one that holds NaN or infinity decodes to NaN as a whole. Under a static scale
    NaN and infinity become NaN where the format has one; in a finite-only format NaN becomes 0 and infinity saturates.
    """
    if not spec.quantizes_activation:
        raise SpecError(f"'{spec}' has {spec.activation} activations; there is nothing to quantize")
    k = x.shape[-1]
    fmt, scale_fmt, group = spec.activation_format, parse_format(str(spec.activation_scale)), spec.activation_group_size or k
    if k % group:
        raise ShapeError(f"x is {list(x.shape)}; K must be a multiple of the group size {group}")
    if fmt.bits == 4 and k % 2:
        raise ShapeError(f"x is {list(x.shape)}; {fmt} activations are stored two a byte, so K must be even")
    work = x.float().reshape(-1, k)
    global_scale = None
    if spec.activation_secondary:
        global_scale = _global_scale(work, fmt, scale_fmt) if input_scale is None else input_scale.float().reshape(1)
        work = work / global_scale
    groups = work.unflatten(-1, (k // group, group))
    if spec.activation_granularity != "tensor":
        scale = _scale_of(groups.abs().amax(-1), fmt, scale_fmt)
        real = decode_scale(scale, scale_fmt.name, torch.float32)[..., None]
    else:
        absmax = work.abs().amax().reshape(1) if work.numel() else work.new_zeros(1)
        scale = _scale_of(absmax, fmt, scale_fmt) if input_scale is None else round_scale(input_scale.reshape(1), scale_fmt)
        real = decode_scale(scale, scale_fmt.name, torch.float32)[..., None, None]
    units = groups / torch.where(real > 0, real, 1.0)
    codes = encode(torch.nan_to_num(units, nan=0.0), fmt)
    if fmt.specials != "none":
        codes = torch.where(torch.isfinite(groups), codes, 2 ** (fmt.bits - 1) - 1)
    return QuantizedInput(_store(codes.view(x.shape), fmt), scale, global_scale)


def dequantize_input(quantized: QuantizedInput, spec: Spec, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the float activations [..., K] that `quantized` stands for."""
    work = torch.float64 if dtype == torch.float64 else torch.float32
    values = decode_input(quantized.values, spec.activation_format, work)
    k = values.shape[-1]
    group = spec.activation_group_size or k
    flat = values.reshape(-1, k).unflatten(-1, (k // group, group))
    if quantized.scale is not None:
        scale = decode_scale(quantized.scale, str(spec.activation_scale), work)
        flat = flat * (scale.reshape(*flat.shape[:2], 1) if spec.activation_granularity != "tensor" else scale.reshape(1, 1, 1))
    if quantized.global_scale is not None:
        flat = flat * quantized.global_scale.to(work)
    return flat.reshape(values.shape).to(dtype)


def decode_input(values: Tensor, fmt: ElementFormat, dtype: torch.dtype) -> Tensor:
    """Return the exact values of stored activation codes, without any scale."""
    if values.dtype != torch.uint8:
        return values.to(dtype)
    if fmt.bits != 4:
        return decode(values, fmt, dtype)
    codes = torch.stack([values & 15, values >> 4], -1).flatten(-2)
    return decode(codes ^ 8 if fmt.name == "int4" else codes, fmt, dtype)


def widen_input(values: Tensor, fmt: ElementFormat, stored: ElementFormat) -> Tensor:
    """Return stored activation codes of `fmt` [.., K] in the storage of `stored`, a format that holds each of their values."""
    return decode_input(values, fmt, torch.float32).to(stored.torch_storage)


def _global_scale(work: Tensor, fmt: ElementFormat, scale_fmt: ElementFormat) -> Tensor:
    """[1] fp32: the largest finite magnitude then needs the largest group scale."""
    finite = torch.where(torch.isfinite(work), work.abs(), 0.0)
    absmax = finite.amax().reshape(1) if work.numel() else work.new_zeros(1)
    top = 1.0 if scale_fmt.is_wide else scale_fmt.largest
    return torch.where(absmax > 0, divide(absmax, fmt.largest * top).clamp(min=TINY), 1.0)


def _scale_of(absmax: Tensor, fmt: ElementFormat, scale_fmt: ElementFormat) -> Tensor:
    """Stored scales for `absmax` of any shape; NaN where it is not finite."""
    finite = torch.isfinite(absmax)
    stored = symmetric_scale(torch.where(finite, absmax, 0.0), fmt, scale_fmt)
    if scale_fmt.is_wide:
        return torch.where(finite, stored, torch.nan)
    nan = 255 if scale_fmt.kind == "scale" else 127
    return torch.where(finite, stored.view(torch.uint8), nan).view(stored.dtype)


def _store(codes: Tensor, fmt: ElementFormat) -> Tensor:
    if fmt.name == "int8":
        return (codes ^ 128).view(torch.int8)
    if fmt.bits == 4:
        codes = codes ^ 8 if fmt.name == "int4" else codes
        return codes[..., 0::2] | codes[..., 1::2] << 4
    return codes.view(fmt.torch_storage)
