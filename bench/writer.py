"""The small kernel between two GEMMs of a chain: it writes x, as the layer before would.

It lets its dependents launch at once (griddepcontrol), so that a GEMM with dependent launch may load weights meanwhile; a GEMM
without it starts when the writer is done.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

BLOCK = 2048


@triton.jit
def copy_kernel(source_ptr, target_ptr, count, DEPENDENT: tl.constexpr, BLOCK: tl.constexpr):
    """Copy `count` words; one program per BLOCK of them."""
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    tl.store(target_ptr + offsets, tl.load(source_ptr + offsets, mask=inside), mask=inside)


def make_writer(x: torch.Tensor) -> Callable[[], None]:
    """Return a call that writes contiguous `x` with the values that it holds now, from a copy of it."""
    target = x.view(torch.uint8).view(-1)
    target = target.view(torch.int32) if target.numel() % 4 == 0 and target.data_ptr() % 4 == 0 else target
    source = target.clone()
    dependent = torch.cuda.get_device_capability(x.device) >= (9, 0)
    grid = (triton.cdiv(target.numel(), BLOCK),)

    def write() -> None:
        copy_kernel[grid](source, target, target.numel(), DEPENDENT=dependent, BLOCK=BLOCK, num_warps=4)

    return write
