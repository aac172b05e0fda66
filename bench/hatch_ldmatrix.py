"""What LDSM's hidden codes do on a Hopper GPU: which byte of shared memory each result byte comes from, and how it is widened.

Each source field (4 or 2 bits) is told apart by running with its number's digits as data, a few bits a run. A result byte is then
read back as that number; the last run, with known random data, shows whether the byte is the field's signed value.
"""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path
from typing import Any

import numpy as np

from bench import hatch_cubins

SOURCE = Path(__file__).with_suffix(".cu")
FIELDS = {"ldsm_s4_to_s8": 4, "ldsm_s2_to_s4": 2}
STRIDES = (16, 8)
SM = 90


def build(count: str, stride: int) -> Any:
    regs = {"x4": "{%0, %1, %2, %3}", "x2": "{%0, %1}"}[count]
    defines = {"STRIDE": stride, "COUNT": f'"{count}"', "LIST": f'"{regs}"'}
    return hatch_cubins.compile_cuda(SOURCE, "probe", sm=SM, defines=defines, signature=(("in", "pointer"), ("out", "pointer")))


def build_all() -> None:
    """Compile every probe, for the store."""
    for stride in STRIDES:
        build("x4", stride)


def probe(edit: str | None, stride: int) -> dict[str, Any]:
    """One edit at one stride; raises what the driver raises."""
    import torch

    from hybrid_humming.cuda_kernels.patch import EDITS, patch_cubin
    from hybrid_humming.jit.cuda import load

    built = build("x4", stride)
    if edit is not None:
        built = dataclasses.replace(built, cubin=patch_cubin(built.cubin, {EDITS[edit]: 1}, sm=SM))
    kernel = load(built, sizes=[8, 8])

    def run(data: np.ndarray) -> np.ndarray:
        source = torch.from_numpy(data.copy()).cuda()
        out = torch.full((512,), 0xEE, dtype=torch.uint8, device="cuda")
        params = [struct.pack("<Q", t.data_ptr()) for t in (source, out)]
        kernel.launch(grid=(1, 1, 1), threads=32, params=params, stream=torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()
        return out.cpu().numpy()

    bits = FIELDS.get(edit or "", 8)
    return explain(run, bits, half=edit == "ldsm_s2_to_s4")


def explain(run: Any, bits: int, *, half: bool) -> dict[str, Any]:
    """Where each result field comes from. A result field is a byte, or a nibble if `half`; the source field has `bits` bits."""
    each = 8 // bits
    total = 4096 * each
    number = np.arange(total)
    result = np.zeros(1024 if half else 512, np.int64)
    for digit in range(0, 16, bits):
        fields = (number >> digit & (1 << bits) - 1).reshape(4096, each)
        data = (fields << bits * np.arange(each)).sum(1).astype(np.uint8)
        result |= (split(run(data), half) & (1 << bits) - 1) << digit
    random = np.random.default_rng(0).integers(0, 256, 4096).astype(np.uint8)
    fields = (random[:, None].astype(np.int64) >> bits * np.arange(each) & (1 << bits) - 1).reshape(-1)
    got = split(run(random), half)
    inside = result < total
    source = fields[np.where(inside, result, 0)]
    width = 4 if half else 8
    signed = np.where(source >> bits - 1 & 1, source - (1 << bits), source) & (1 << width) - 1
    return {
        "all_fields_come_from_memory": bool(inside.all()),
        "sign_extended": bool((got == signed)[inside].all()),
        "zero_extended": bool((got == source)[inside].all()),
        "distinct_sources": len(set(result.tolist())),
        "source_of_lane0": result[: len(result) // 32].tolist(),
        "source_of_lane1": result[len(result) // 32 : len(result) // 16].tolist(),
        "first_bytes": got[:16].tolist(),
    }


def split(data: np.ndarray, half: bool) -> np.ndarray:
    wide = data.astype(np.int64)
    return np.stack([wide & 15, wide >> 4], -1).reshape(-1) if half else wide


def attempt(edit: str, stride: int) -> dict[str, Any]:
    """One try; `edit` may be "none", the plain instruction as a control."""
    found = probe(None if edit == "none" else edit, stride)
    return {"ok": True, "edit": edit, "stride": stride, **found}
