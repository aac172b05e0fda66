"""apply_transform: what happens to x before the product."""

from __future__ import annotations

import torch

from hybrid_humming.errors import DtypeError, ShapeError
from hybrid_humming.weight import InputTransform

Tensor = torch.Tensor


def apply_transform(x: Tensor, transform: InputTransform) -> Tensor:
    """Return x [..., K] scaled per channel, Hadamard-transformed and gathered, in this order and in x's dtype."""
    if transform.pre_quant_scale is not None:
        if x.dtype.itemsize < 2:
            raise DtypeError(f"x is {x.dtype}; pre_quant_scale multiplies x before it is quantized: pass x in fp16 or wider")
        x = x * transform.pre_quant_scale.to(x.dtype)
    if transform.hadamard:
        x = hadamard(x, transform.hadamard)
    if transform.permutation is not None:
        x = x.index_select(-1, transform.permutation.long())
    return x


def hadamard(x: Tensor, size: int) -> Tensor:
    """Return the orthonormal Walsh-Hadamard transform of x over blocks of `size` along the last dimension."""
    if x.shape[-1] % size:
        raise ShapeError(f"K={x.shape[-1]} is not a multiple of the Hadamard block {size}")
    work = torch.float64 if x.dtype == torch.float64 else torch.float32
    y = x.to(work)
    step = 1
    while step < size:
        y = y.reshape(*x.shape[:-1], x.shape[-1] // (2 * step), 2, step)
        y = torch.stack([y[..., 0, :] + y[..., 1, :], y[..., 0, :] - y[..., 1, :]], -2)
        step *= 2
    return (y.reshape(x.shape) * size**-0.5).to(x.dtype)
