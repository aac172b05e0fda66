"""gpt-oss: MXFP4 experts under Hugging Face's names.

    mlp.experts.gate_up_proj_blocks  [E, 2I, H/32, 16]  uint8, two e2m1 codes a byte, low nibble first; gate rows even, up rows odd
    mlp.experts.gate_up_proj_scales  [E, 2I, H/32]      uint8, e8m0
    mlp.experts.gate_up_proj_bias    [E, 2I]
    mlp.experts.down_proj_blocks     [E, H, I/32, 16]; _scales, _bias alike

    w[e, n, k] = e2m1 * 2^(scale - 127)

The gate rows come first in the canonical weight and then the up rows, the order of every other checkpoint; the bias too.
Between the two products the model computes (up + 1) * gate * sigmoid(alpha * gate) with gate clamped from above and up on both
sides; its `alpha` and `clamp` are kept in the layer's `notes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybrid_humming.checkpoint.bits import unpack_nibbles
from hybrid_humming.checkpoint.common import as_e8m0, check_bias, model_format
from hybrid_humming.checkpoint.config import Fields
from hybrid_humming.checkpoint.pieces import Pieces
from hybrid_humming.checkpoint.registry import Importer, Parts, StoredLayer, expect, pick, require
from hybrid_humming.errors import CheckpointMismatch
from hybrid_humming.lazy import Tensor, torch
from hybrid_humming.spec import Spec
from hybrid_humming.weight import CanonicalWeight

ALPHA = 1.702
CLAMP = 7.0
PROJECTIONS = ("gate_up_proj", "down_proj")
PARTS = ("blocks", "scales", "bias")


class GptOss(Importer):
    """Reads `quant_method: mxfp4`."""

    def split(self, tensor: str) -> tuple[str, str]:
        """Return (module, part): `mlp.experts.down_proj_blocks` is the part `blocks` of `mlp.experts.down_proj`."""
        stem, _, part = tensor.rpartition("_")
        if part in PARTS and stem.rpartition(".")[2] in PROJECTIONS:
            return stem, part
        return super().split(tensor)

    def describe(self, name: str, parts: Parts) -> StoredLayer | None:
        """Return the stacked experts, or None for another module; raises what `Importer.describe` says."""
        if "blocks" not in parts and "scales" not in parts:
            return None
        require(name, parts, ("blocks", "scales"), "gpt-oss MXFP4")
        blocks = parts["blocks"]
        if blocks.dtype != "U8" or len(blocks.shape) != 4 or blocks.shape[-1] != 16:
            raise CheckpointMismatch(f"{name}: blocks are {blocks}, expected U8 [E, N, K/32, 16]")
        experts, n, groups, _ = blocks.shape
        expect(name, parts["scales"], ("U8", "F8_E8M0"), (experts, n, groups), "one exponent a block of 32")
        check_bias(name, parts, experts, n)
        k = groups * 32
        interleaved = name.rpartition(".")[2] == "gate_up_proj"
        if interleaved and n % 2:
            raise CheckpointMismatch(f"{name}: {n} rows can't be gate and up rows in turn")
        spec = Spec(weight="mxfp4", activation=model_format(self.config))

        def decode(stored: Tensor, _: int) -> Tensor:
            codes = unpack_nibbles(stored.flatten(-2), k)
            return gate_first(codes) if interleaved else codes

        pieces = Pieces(part="blocks", decode=decode)

        def convert(tensors: Mapping[str, Tensor]) -> CanonicalWeight:
            codes = pieces.codes(tensors["blocks"], experts, n, k)
            scale, bias = tensors["scales"], tensors.get("bias")
            if interleaved:
                scale = gate_first(scale)
                bias = None if bias is None else gate_first(bias)
            return CanonicalWeight(spec=spec, codes=codes, scale=as_e8m0(scale), bias=bias)

        return StoredLayer(
            name=name,
            spec=spec,
            n=n,
            k=k,
            experts=experts,
            parts=pick(parts, *PARTS),
            convert=convert,
            pieces=pieces,
            notes=self.notes() if interleaved else {},
            arrange_bias=gate_first if interleaved else None,
        )

    def notes(self) -> dict[str, Any]:
        """Return the numbers of the activation between the two products."""
        model = Fields(where="config.json", fields=self.config.model)
        alpha, clamp = (model.number(key, default=value) for key, value in (("swiglu_alpha", ALPHA), ("swiglu_limit", CLAMP)))
        return {"activation": "swiglu_oai", "alpha": alpha, "clamp": clamp}


def gate_first(tensor: Tensor) -> Tensor:
    """Return [E, 2I, ...] with rows gate 0, up 0, gate 1, up 1 ... as all gates, then all ups."""
    return torch.cat([tensor[:, 0::2], tensor[:, 1::2]], dim=1)
