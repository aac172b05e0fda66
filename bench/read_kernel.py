"""A kernel that reads a buffer and does nothing else: the read roof.

buffer  [words] int32;  sink  [programs] int32, written only for a sum that random data does not give
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def read_kernel(
    buffer_ptr, sink_ptr, words, words_per_program, BLOCK: tl.constexpr, UNROLL: tl.constexpr, DEPENDENT: tl.constexpr
):  # fmt: skip
    """Each program reads `words_per_program` words and folds them by XOR."""
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
    base = tl.program_id(0) * words_per_program
    folded = tl.zeros([BLOCK], tl.int32)
    for start in tl.range(0, words_per_program, BLOCK * UNROLL):
        for u in tl.static_range(UNROLL):
            offsets = base + start + u * BLOCK + tl.arange(0, BLOCK)
            folded ^= tl.load(buffer_ptr + offsets, mask=offsets < words, other=0, eviction_policy="evict_first")
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()
    total = tl.xor_sum(folded, 0)
    if total == 12345:
        tl.store(sink_ptr + tl.program_id(0), total)


def read(buffer: torch.Tensor, sink: torch.Tensor, config: tuple[int, ...], dependent: bool) -> None:
    """Read `buffer` once; config = (words a load, warps, loads in flight, programs per SM)."""
    block, warps, unroll, per_sm = config
    programs = torch.cuda.get_device_properties(buffer.device).multi_processor_count * per_sm
    step = block * unroll
    words_per_program = triton.cdiv(triton.cdiv(buffer.numel(), programs), step) * step
    extra = {"launch_pdl": True} if dependent else {}
    read_kernel[(programs,)](
        buffer, sink, buffer.numel(), words_per_program, BLOCK=block, UNROLL=unroll, DEPENDENT=dependent, num_warps=warps, **extra
    )
