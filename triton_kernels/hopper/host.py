"""What the launchers of this folder share: operands as the kernels want them, the decoder, the counters of split K."""

from __future__ import annotations

from typing import Any

import torch

from hybrid_humming.errors import CompileError, PlanError
from hybrid_humming.spec import PackLayout, Spec
from hybrid_humming.triton_kernels.hopper.decode.decoder import Decoder, decoder
from hybrid_humming.triton_kernels.hopper.plan import COUNTERS

ARENA = 1 << 20  # counters of one device that captured launches take theirs from: 4 MiB

_counters: dict[tuple[int, int], torch.Tensor] = {}
_arenas: dict[int, list[Any]] = {}  # device -> [counters, index of the next free one]


def counters(device: torch.device, tiles: int) -> torch.Tensor:
    """Return int32 zeros [>= tiles] that no other launch uses at the same time; every kernel leaves zeros behind.

    Launches on one stream share a tensor: they run one after the other. A captured launch may be replayed beside any other, on
    any stream, so it takes counters of its own, from an arena that the warm-up before the capture has made. After some
    thousand captured launches the arena begins anew, and then the first and the last graph must not run side by side.
    """
    if tiles > COUNTERS:
        raise PlanError(f"{tiles} tiles share K with other CTAs; at most {COUNTERS} may: use larger blocks or split_k=1")
    if device.type != "cuda":
        return torch.zeros(COUNTERS, dtype=torch.int32)
    index = device.index
    if torch.cuda.is_current_stream_capturing():
        arena = _arenas.get(index)
        if arena is None:
            raise CompileError("a CUDA graph is being captured before this kernel ran once; run the same call before the capture")
        begin = arena[1] if arena[1] + tiles <= ARENA else 0
        arena[1] = begin + -(-tiles // 32) * 32  # aligned alike, for the compiled kernel is specialised on it
        return arena[0][begin:]
    key = index, torch._C._cuda_getCurrentRawStream(index)
    found = _counters.get(key)
    if found is None:
        found = _counters[key] = torch.zeros(COUNTERS, dtype=torch.int32, device=device)
        if index not in _arenas:
            _arenas[index] = [torch.zeros(ARENA, dtype=torch.int32, device=device), 0]
    return found


def aligned_rows(x: torch.Tensor) -> torch.Tensor:
    """Return x [M, K] with 16-byte aligned rows whose stride is a multiple of 16: x itself, or a copy padded with zeros."""
    if x.stride(1) == 1 and x.stride(0) % 16 == 0 and x.shape[1] % 16 == 0 and x.data_ptr() % 16 == 0:
        return x
    padded = x.new_zeros(x.shape[0], -(-x.shape[1] // 16) * 16)
    padded[:, : x.shape[1]] = x
    return padded


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return narrow floats as uint8, other tensors as they are."""
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor


def decoder_of(spec: Spec, layout: PackLayout, sm: int = 90) -> Decoder:
    """Return the decoder that a kernel needs for this weight on `sm`, its zero point subtracted on the way."""
    zero = None
    if spec.zero_point == "int":
        zero = "int"
    elif spec.has_zero_point:
        # A bf16 zero point of an unsigned integer fits fp16: 8 bits of mantissa, and a range of a few hundred.
        zero = "float" if spec.zero_point in (spec.activation, "bf16") else "float_pair"
    return decoder(layout.encoding, spec.activation, zero_point=zero, sm=sm)
