"""Values to codes and back for every element format, in torch."""

from __future__ import annotations

import functools

import numpy as np
import torch

from hybrid_humming.dtypes import ElementFormat

Tensor = torch.Tensor
CHUNK = 1 << 24


def decode(codes: Tensor, fmt: ElementFormat, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the exact values of unsigned `codes` in fp32 or fp64 (every narrow format is exact in both)."""
    table = torch.from_numpy(np.array(fmt.values)).to(codes.device, dtype)
    return table[codes.int()]


def encode(values: Tensor, fmt: ElementFormat) -> Tensor:
    """Return uint8 codes nearest to `values`, ties to the even code, saturating; NaN is the caller's to refuse."""
    flat = values.reshape(-1)
    out = torch.empty(flat.shape, dtype=torch.uint8, device=flat.device)
    for begin in range(0, flat.numel(), CHUNK):
        part = slice(begin, begin + CHUNK)
        out[part] = _nearest(flat[part].double(), fmt)
    return out.view(values.shape)


def _nearest(values: Tensor, fmt: ElementFormat) -> Tensor:
    if fmt.is_integer:  # the grid is the integers: rounding is the search
        offset = 2 ** (fmt.bits - 1) if fmt.kind == "int" else 0
        return (values.round().clamp(fmt.smallest, fmt.largest) + offset).to(torch.uint8)
    middle, tie_to_upper, codes = _boundaries(fmt, values.device)
    low = torch.bucketize(values, middle)
    at_tie = (low < middle.numel()) & (values == middle[low.clamp(max=middle.numel() - 1)])
    up = at_tie & tie_to_upper[low.clamp(max=middle.numel() - 1)]
    return codes[low + up.long()]


@functools.lru_cache(maxsize=128)
def _boundaries(fmt: ElementFormat, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    table = fmt.values
    keep = np.isfinite(table) & (table >= fmt.smallest) & (table <= fmt.largest) & ~((table == 0) & np.signbit(table))
    codes = np.flatnonzero(keep)
    codes = codes[np.argsort(table[codes], kind="stable")]
    grid = table[codes]
    middle = torch.from_numpy((grid[1:] + grid[:-1]) / 2)
    tie_to_upper = torch.from_numpy(codes[:-1] % 2 == 1)
    return middle.to(device), tie_to_upper.to(device), torch.from_numpy(codes.astype(np.uint8)).to(device)


def round_scale(scale: Tensor, fmt: ElementFormat) -> Tensor:
    """Return `scale` (>= 0) stored in `fmt`, saturated at its largest finite value; a positive scale stays positive."""
    tiny = _smallest_positive(fmt)
    scale = torch.where(scale > 0, scale.double().clamp(tiny, fmt.largest), scale.double())
    if fmt.is_wide:
        return scale.to(fmt.torch_storage)
    codes = encode(scale, fmt)
    return codes.view(fmt.torch_storage)


def scale_values(scale: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the values of a stored scale tensor in fp32 or fp64; unsigned formats are told apart by their torch dtype."""
    if scale.dtype == torch.float8_e8m0fnu:
        from hybrid_humming.dtypes import parse_format

        return decode(scale.view(torch.uint8), parse_format("e8m0"), dtype)
    return scale.to(dtype)


def _smallest_positive(fmt: ElementFormat) -> float:
    if fmt.is_wide:
        return 2.0 ** (1 - fmt.bias - fmt.mantissa_bits)
    table = fmt.values
    return float(table[np.isfinite(table) & (table > 0)].min())
