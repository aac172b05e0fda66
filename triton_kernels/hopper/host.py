"""What the launchers of this folder share: operands as the kernels want them, the decoder, the counters of split K."""

from __future__ import annotations

import torch

from hybrid_humming.errors import PlanError
from hybrid_humming.spec import PackLayout, Spec
from hybrid_humming.triton_kernels.hopper.decode.decoder import Decoder, decoder

COUNTERS = 1 << 16  # tiles of one launch that may be summed over several CTAs

_counters: dict[tuple[torch.device, int], torch.Tensor] = {}


def counters(device: torch.device, tiles: int) -> torch.Tensor:
    """Return int32 zeros [COUNTERS], the same tensor for each launch on this stream; every kernel leaves zeros behind."""
    if tiles > COUNTERS:
        raise PlanError(f"{tiles} tiles share K with other CTAs; at most {COUNTERS} may: use larger blocks or split_k=1")
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    if (device, stream) not in _counters:
        _counters[device, stream] = torch.zeros(COUNTERS, dtype=torch.int32, device=device)
    return _counters[device, stream]


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


def decoder_of(spec: Spec, layout: PackLayout) -> Decoder:
    """Return the decoder that a kernel needs for this weight, its integer zero point subtracted on the way."""
    zero = None
    if spec.has_zero_point:
        zero = "int" if spec.zero_point == "int" else "float"
    return decoder(layout.encoding, spec.activation, zero_point=zero)
