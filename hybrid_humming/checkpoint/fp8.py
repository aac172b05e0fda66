"""FP8 as DeepSeek, Qwen, MiniMax and vLLM write it: blocks, one scale a tensor, or one a row.

    weight            [N, K]  e4m3 | e5m2;   experts may be stacked: [E, N, K], with a leading E on each scale
    weight_scale_inv  [ceil(N/bn), ceil(K/bk)]  fp32 | bf16, or e8m0 (dtype or uint8); older name scale, Mistral's qscale_weight
    weight_scale      [] | [1] | [N] | [N, 1]   without blocks
    input_scale       [] | [1]                  activation_scheme "static"; also activation_scale

    w[n, k] = weight * scale           (multiplied, in spite of the name "inv")

Activations are e4m3: groups of bk along K beside blocks (powers of two with scale_fmt ue8m0), else one scale a row, or the
static one of the tensor. Where K is no multiple of bk such groups don't exist, and the activations stay 16 bits.
Experts in FP4 (expert_dtype fp4): weight [N, K/2] int8, two e2m1 codes a byte, scale [N, K/32] e8m0: mxfp4.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from hybrid_humming.checkpoint.bits import unpack_nibbles
from hybrid_humming.checkpoint.common import (
    FLOATS,
    as_e8m0,
    check_bias,
    check_numel,
    check_scalar,
    float_format,
    matrix,
    model_format,
    one,
    refuse_excluded,
    scalar,
)
from hybrid_humming.checkpoint.config import QuantConfig
from hybrid_humming.checkpoint.pieces import Pieces
from hybrid_humming.checkpoint.registry import Importer, Parts, ReadOptions, StoredLayer, pick, require
from hybrid_humming.errors import CheckpointMismatch, MissingTensor, UnknownQuantMethod
from hybrid_humming.lazy import Tensor, torch
from hybrid_humming.spec import Spec
from hybrid_humming.weight import CanonicalWeight

log = logging.getLogger("hybrid_humming")

WEIGHTS = {"F8_E4M3": "e4m3", "F8_E5M2": "e5m2"}
SCALE_NAMES = ("weight_scale_inv", "weight_scale", "scale", "qscale_weight")
INPUT_NAMES = ("input_scale", "activation_scale", "qscale_act")
PROJECTIONS = ("gate_up_proj", "down_proj")
STACKED = {"_scale_inv": "weight_scale_inv", "_activation_scale": "activation_scale", "_bias": "bias"}
EXPONENTS = ("F8_E8M0", "U8")


class FP8(Importer):
    """Reads `quant_method: fp8`."""

    def __init__(self, config: QuantConfig, options: ReadOptions) -> None:
        super().__init__(config, options)
        self.block = _block(config)
        self.scheme = str(config.get("activation_scheme", default="dynamic")).lower()
        if self.scheme not in ("dynamic", "static"):
            raise UnknownQuantMethod(f"{config.source}: activation_scheme {self.scheme!r}; readable are dynamic and static")
        fmt = config.get("fmt", default="e4m3")
        if fmt not in ("e4m3", "e5m2", "float8_e4m3fn", "float8_e5m2"):
            raise UnknownQuantMethod(f"{config.source}: fmt {fmt!r} is not read; readable are e4m3 and e5m2")
        self.powers = config.get("scale_fmt", default="float") == "ue8m0"
        if config.get("scale_fmt", default="float") not in ("ue8m0", "float"):
            raise UnknownQuantMethod(f"{config.source}: scale_fmt {config.get('scale_fmt')!r}; readable are ue8m0 and float")
        self.says_scheme = config.get("activation_scheme") is not None
        self.skipped = config.strings("modules_to_not_convert") + config.strings("ignored_layers")

    def split(self, tensor: str) -> tuple[str, str]:
        """Return (module, part); stacked experts are parameters themselves: `experts.down_proj`, `experts.down_proj_scale_inv`."""
        end = next((end for end in STACKED if tensor.endswith(end)), "")
        stem, part = tensor.removesuffix(end), STACKED.get(end, "weight")
        return (stem, part) if stem.rpartition(".")[2] in PROJECTIONS else super().split(tensor)

    def describe(self, name: str, parts: Parts) -> StoredLayer | None:
        """Return the layer, or None for a module that is not FP8; raises what `Importer.describe` says."""
        scale = next((part for part in SCALE_NAMES if part in parts), None)
        if "weight" not in parts or (parts["weight"].dtype not in WEIGHTS and scale is None):
            return None
        if scale is None:
            raise MissingTensor(f"{name}: weight is {parts['weight']}, but none of {', '.join(SCALE_NAMES)} is beside it")
        refuse_excluded(name, self.skipped, f"{self.config.source}: modules_to_not_convert")
        if parts["weight"].dtype == "I8":
            return self._fp4(name, parts, scale)
        *lead, n, k = matrix(name, parts["weight"], tuple(WEIGHTS), "[N, K]", experts=True)
        spec = self.spec(name, parts, scale, n, k)
        dtypes = EXPONENTS if spec.scale == "e8m0" else FLOATS
        check_numel(name, parts[scale], dtypes, (*lead, *spec.scale_shape(n, k)), spec)
        return self._layer(name, parts, spec, scale, (*lead, n, k))

    def spec(self, name: str, parts: Parts, scale: str, n: int, k: int) -> Spec:
        """Return the spec that the config and the shape of the stored scale mean."""
        info = parts[scale]
        stored = "e8m0" if info.dtype in EXPONENTS else float_format(name, info)
        out = model_format(self.config)
        weight = WEIGHTS[parts["weight"].dtype]
        lead = len(parts["weight"].shape) - 2
        if self.block is not None:
            activation = self.activation(name, parts, weight, k, out)
            return Spec(weight=weight, block=self.block, scale=stored, **activation)
        granularity = "tensor" if one(info.shape[lead:]) else "channel"
        if granularity == "channel" and info.numel != n * max(parts["weight"].shape[:lead], default=1):
            raise CheckpointMismatch(
                f"{name}: {scale} is {info} beside a weight of {n} rows: neither one scale nor one a row. Scales of several fused "
                "layers need their row counts; split the layer, or export one scale a row"
            )
        return Spec(weight=weight, granularity=granularity, scale=stored, **self.activation(name, parts, weight, k, out))

    def activation(self, name: str, parts: Parts, weight: str, k: int, out: str) -> dict[str, Any]:
        """Return the Spec fields of the activation half."""
        fields: dict[str, Any] = {"activation": "e4m3", "out_dtype": out}
        if self.scheme == "static":
            if not any(part in parts for part in INPUT_NAMES):
                raise MissingTensor(
                    f"{name}: activation_scheme is static, but none of {', '.join(INPUT_NAMES)} is there "
                    f"(present: {', '.join(sorted(parts))})"
                )
            return fields | {"activation_granularity": "tensor"}
        if self.block is None:
            return fields | {"activation_granularity": "token"}
        if k % self.block[1]:
            log.warning("%s: K=%d is no multiple of the block's %d, so its activations stay %s", name, k, self.block[1], out)
            return {"activation": out}
        return fields | {"activation_group_size": self.block[1], "activation_scale": "e8m0" if self.powers else None}

    def _fp4(self, name: str, parts: Parts, scale: str) -> StoredLayer:
        *lead, n, half = matrix(name, parts["weight"], ("I8",), "[N, K/2]", experts=True)
        k = half * 2
        spec = Spec(weight="mxfp4", **self.activation(name, parts, "e2m1", k, model_format(self.config)))
        spec.check_shape(n, k)
        check_numel(name, parts[scale], EXPONENTS, (*lead, n, k // 32), spec)
        return self._layer(name, parts, spec, scale, (*lead, n, k))

    def _layer(self, name: str, parts: Parts, spec: Spec, scale: str, shape: tuple[int, ...]) -> StoredLayer:
        *lead, n, k = shape
        check_bias(name, parts, *lead, n)
        inputs = next((part for part in INPUT_NAMES if part in parts), None)
        if inputs is not None:
            check_scalar(name, parts[inputs])
        static = spec.activation_granularity == "tensor"
        if inputs is not None and not static:
            if not self.says_scheme:
                raise CheckpointMismatch(
                    f"{name}: {inputs} is stored, but {self.config.source} has no activation_scheme; add it: static to use the "
                    "stored scale, dynamic to leave it"
                )
            log.warning("%s: activation_scheme is %s, so the stored %s is not used", name, self.scheme, inputs)

        def decode(stored: Tensor, _: int) -> Tensor:
            raw = stored.view(torch.uint8)
            return unpack_nibbles(raw, k) if spec.weight == "e2m1" else raw

        pieces = Pieces(part="weight", decode=decode)

        def convert(tensors: Mapping[str, Tensor]) -> CanonicalWeight:
            found = tensors[scale]
            found = as_e8m0(found) if spec.scale == "e8m0" else found
            return CanonicalWeight(
                spec=spec,
                codes=pieces.codes(tensors["weight"], *lead, n, k),
                scale=found.reshape(*lead, *spec.scale_shape(n, k)).contiguous(),
                input_scale=scalar(tensors, inputs) if static and inputs else None,
                bias=tensors.get("bias"),
            )

        require(name, parts, ("weight", scale), "FP8")
        used = pick(parts, "weight", scale, *([inputs] if inputs else []), *self.bias_parts)
        experts = lead[0] if lead else 0
        return StoredLayer(name=name, spec=spec, n=n, k=k, experts=experts, parts=used, convert=convert, pieces=pieces)


def _block(config: QuantConfig) -> tuple[int, int] | None:
    block = config.get("weight_block_size")
    if block is None:
        return None
    if not isinstance(block, list | tuple) or len(block) != 2 or not all(isinstance(b, int) and b > 0 for b in block):
        raise CheckpointMismatch(f"{config.source}: weight_block_size is {block!r}; two positive integers (N, K) are expected")
    return int(block[0]), int(block[1])
