"""Scales and zero points of the hopper layout: one contiguous run for each tile of rows and step of 128 along K.

A kernel advances 128 k at a time and needs, for each row n of its tile, every scale of that step. With G the group size and
J = max(1, 128 / G) groups in a step:

    channel         [1, padded_n]
    group, block    [ceil(K / max(G, 128)), padded_n * J]   element n * J + j of row i is group i * J + j of weight row n
    tensor          [1, 1]

Blocks are repeated for each row n that they cover, so that the kernels see groups only: 2 bytes for every 128 weights at the
usual 128x128. Rows past N and groups past K are 0. With experts every tensor has a leading [E].
"""

from __future__ import annotations

import torch

from hybrid_humming.errors import LayoutError
from hybrid_humming.spec import PackLayout, Spec
from hybrid_humming.weight import scale_shape

STEP = 128  # k that a kernel advances at a time


def group_of(spec: Spec) -> int | None:
    """Return the weights along K that share a scale; None where the scale is constant along K."""
    if spec.granularity == "group":
        return spec.group_size
    return spec.block[1] if spec.granularity == "block" and spec.block else None


def groups_in_step(spec: Spec) -> int:
    """Return how many scales one row has in a step of 128 k."""
    group = group_of(spec)
    return 1 if group is None else max(1, STEP // group)


def reject_scales(spec: Spec) -> str | None:
    """Return why this layout can't hold the spec's scales, or None."""
    group = group_of(spec)
    if group is None or group in (16, 32, 64) or group % STEP == 0:
        return None
    return f"scales along K span {group} weights; the layout holds 16, 32, 64 and multiples of {STEP}"


def packed_scale_shape(spec: Spec, layout: PackLayout, block_offset: tuple[int, int]) -> tuple[int, int]:
    """Return the shape of one matrix's packed scales: [1, 1] by tensor, else [steps, padded_n * scales in a step]."""
    columns = scale_shape(spec, layout.n, layout.k, block_offset)[1]
    per_row = groups_in_step(spec)
    return (1, 1) if spec.granularity == "tensor" else (-(-columns // per_row), layout.padded_n * per_row)


def pack_scales(tensor: torch.Tensor, spec: Spec, layout: PackLayout, block_offset: tuple[int, int] = (0, 0)) -> torch.Tensor:
    """[E?, R, C] canonical scales or zero points -> the layout's tensor, same dtype."""
    if spec.granularity == "tensor":
        return tensor.contiguous()
    raw = tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor  # torch can't pad every narrow float
    if spec.granularity == "block":
        raw = raw[..., _block_rows(spec, layout, block_offset).to(raw.device), :]
    per_row = groups_in_step(spec)
    steps = -(-raw.shape[-1] // per_row)
    raw = torch.nn.functional.pad(raw, (0, steps * per_row - raw.shape[-1], 0, layout.padded_n - raw.shape[-2]))
    tiled = raw.unflatten(-1, (steps, per_row)).transpose(-3, -2)  # [.., steps, padded_n, J]
    return tiled.flatten(-2).contiguous().view(tensor.dtype)


def unpack_scales(tensor: torch.Tensor, spec: Spec, layout: PackLayout, block_offset: tuple[int, int] = (0, 0)) -> torch.Tensor:
    """The inverse of `pack_scales`: [E?, R, C] canonical scales or zero points."""
    if spec.granularity == "tensor":
        return tensor
    raw = tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor
    rows, columns = scale_shape(spec, layout.n, layout.k, block_offset)
    tiled = raw.unflatten(-1, (layout.padded_n, groups_in_step(spec))).transpose(-3, -2)
    canonical = tiled.flatten(-2)[..., : layout.n, :columns]
    if spec.granularity == "block":
        owner = _block_rows(spec, layout, block_offset)
        first = torch.searchsorted(owner, torch.arange(rows))
        canonical = canonical[..., first.to(raw.device), :]
    return canonical.contiguous().view(tensor.dtype)


def _block_rows(spec: Spec, layout: PackLayout, block_offset: tuple[int, int]) -> torch.Tensor:
    """[N] index of the scale row that each weight row belongs to."""
    assert spec.block is not None
    (block_n, block_k), (offset_n, offset_k) = spec.block, block_offset
    if offset_k % block_k:
        raise LayoutError(
            f"the shard starts {offset_k % block_k} weights inside a block of {block_k} along K; the hopper layout needs a shard "
            f"to start at a multiple of {block_k}: pack it with family='portable'"
        )
    return (torch.arange(layout.n) + offset_n % block_n) // block_n
