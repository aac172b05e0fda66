"""Values to codes and back for every element format, in torch."""

from __future__ import annotations

import functools

import numpy as np
import torch

from hybrid_humming.dtypes import ElementFormat, code_grid

Tensor = torch.Tensor
CHUNK = 1 << 22


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
        out[part] = _nearest(flat[part], fmt)
    return out.view(values.shape)


def _nearest(values: Tensor, fmt: ElementFormat) -> Tensor:
    values = values if values.dtype == torch.float64 else values.float()
    if fmt.is_integer and fmt.bits > 1:  # an integer is even where its code is; not so for int1
        offset = 2 ** (fmt.bits - 1) if fmt.kind == "int" else 0
        return (values.round().clamp(fmt.smallest, fmt.largest) + offset).to(torch.uint8)
    bounds, codes = _bounds(fmt, values.dtype, values.device)
    return codes[torch.bucketize(values, bounds, out_int32=True)]


@functools.lru_cache(maxsize=128)
def _bounds(fmt: ElementFormat, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the largest value that still rounds down, for each gap of the grid, and the grid's codes."""
    grid, codes = code_grid(fmt)
    middle = torch.from_numpy((grid[1:] + grid[:-1]) / 2).to(dtype)  # exact in fp32 too
    below = torch.nextafter(middle, torch.full_like(middle, -torch.inf))
    lower_is_even = torch.from_numpy(codes[:-1] % 2 == 0)
    return torch.where(lower_is_even, middle, below).to(device), torch.from_numpy(codes.astype(np.uint8)).to(device)


def divide(values: Tensor, by: float) -> Tensor:
    """Return values / by, the same bits on every device (CUDA multiplies by the reciprocal of a Python number)."""
    return values / values.new_tensor(by)


def round_scale(scale: Tensor, fmt: ElementFormat) -> Tensor:
    """Return `scale` (>= 0) stored in `fmt`, saturated at its largest finite value; a positive scale stays positive."""
    tiny = 2.0 ** (1 - fmt.bias - fmt.mantissa_bits) if fmt.is_wide else _positive(fmt)[0]
    scale = torch.where(scale > 0, scale.double().clamp(tiny, fmt.largest), scale.double())
    return scale.to(fmt.torch_storage) if fmt.is_wide else encode(scale, fmt).view(fmt.torch_storage)


def fit_scale(extent: Tensor, reach: float, slack: float, fmt: ElementFormat) -> Tensor:
    """Return the scale in `fmt` nearest to extent / reach, or the next larger one where the nearest would cut off too much.

    extent  largest magnitude (or span) that the codes have to reach, in fp64; 0 gives a scale of 1
    reach   largest code value;  slack  what may lie beyond it, in code units: half the last step, so that saturating costs
            no more than rounding does
    """
    wanted = torch.where(extent > 0, divide(extent, reach), 1.0)
    stored = round_scale(wanted, fmt)
    if fmt.is_wide:
        bits, real = stored.view({2: torch.int16, 4: torch.int32}[stored.element_size()]), stored.double()
    else:
        bits = stored.view(torch.uint8)
        real = decode(bits, fmt, torch.float64)
    short = (extent > real * (reach + slack)) & (real < fmt.largest)
    return (bits + short.to(bits.dtype)).view(stored.dtype)  # codes of positive values ascend with them


def _positive(fmt: ElementFormat) -> list[float]:
    table = fmt.values
    return sorted(table[np.isfinite(table) & (table > 0)].tolist())
