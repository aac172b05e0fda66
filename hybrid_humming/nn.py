"""Linear on a QWeight, and replace_linear, which turns a model's nn.Linear layers into it."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hybrid_humming import api
from hybrid_humming.call import gemm
from hybrid_humming.errors import LayoutError, SpecError
from hybrid_humming.ops import Options
from hybrid_humming.plan import Plan
from hybrid_humming.spec import Spec
from hybrid_humming.tag import PART, Tag
from hybrid_humming.weight import InputTransform, QWeight

Tensor = torch.Tensor


class Linear(nn.Module):
    """y [..., N] = x [..., K] @ dequantize(W).T + bias.

    x may be any float type: it is cast to the spec's activation type, and y back to x's type. The packed tensors are
    buffers, so `state_dict`, `to(device)` and safetensors work; `quantization` holds spec and layout as bytes, and loading a
    state dict of another spec or layout is refused.
    """

    bias: Tensor | None
    qweight: Tensor
    scale: Tensor

    def __init__(self, qweight: QWeight, bias: Tensor | None = None, *, options: Options | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features = qweight.k, qweight.n
        self.spec, self.layout, self.block_offset = qweight.spec, qweight.layout, qweight.block_offset
        self.hadamard = qweight.transform.hadamard if qweight.transform else None
        self.options = options
        self.plan: Plan | None = None
        self._names = tuple(qweight.tensors())
        self._compute_dtype = self.spec.activation_format.torch_storage if not self.spec.quantizes_activation else None
        for name, tensor in qweight.tensors().items():
            self.register_buffer(name, tensor)
        self.register_buffer(PART, Tag.of(qweight).to_tensor())
        self.register_buffer("bias", bias)
        self.__dict__["_cached"] = qweight

    @classmethod
    def from_linear(cls, linear: nn.Linear, spec: Spec | str, **kwargs: Any) -> Linear:
        """Return `linear` with its weight quantized to nearest by `spec`."""
        bias = None if linear.bias is None else linear.bias.detach()
        return cls(api.quantize(linear.weight.detach(), spec), bias, **kwargs)

    @property
    def qweight_value(self) -> QWeight:
        """The QWeight made of the module's buffers."""
        held = {name: getattr(self, name) for name in self._names}
        permutation, pre_quant = held.pop("permutation", None), held.pop("pre_quant_scale", None)
        transform = None
        if permutation is not None or pre_quant is not None or self.hadamard:
            transform = InputTransform(permutation=permutation, pre_quant_scale=pre_quant, hadamard=self.hadamard)
        return QWeight(spec=self.spec, layout=self.layout, block_offset=self.block_offset, transform=transform, **held)

    def set_plan(self, plan: Plan | None) -> None:
        """Run this plan instead of the planner's own; None gives the choice back."""
        self.plan = plan

    def forward(self, x: Tensor) -> Tensor:
        """Return y [..., N] in x's dtype."""
        xs = x if self._compute_dtype is None else x.to(self._compute_dtype)
        y = gemm(xs, self._value(), bias=self.bias, plan=self.plan, options=self.options)
        return y.to(x.dtype)

    def _value(self) -> QWeight:
        # Rebuilt only after the buffers were replaced (to(device), load_state_dict): a frozen value can't follow them.
        cached: QWeight = self.__dict__["_cached"]
        if cached.qweight is not self.qweight or cached.scale is not self.scale:
            cached = self.__dict__["_cached"] = self.qweight_value
        return cached

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        given = state_dict.get(prefix + PART)
        if given is not None:
            own, stored = Tag.of(self.__dict__["_cached"]), dataclasses.replace(Tag.from_tensor(given), sha256=None, notes="")
            if own != stored:
                raise LayoutError(
                    f"{prefix[:-1] or 'Linear'}: the state dict holds '{stored}', the module '{own}'; build the module with the "
                    "same spec, or repack the weight (hh.repack)"
                )
            state_dict[prefix + PART] = getattr(self, PART)  # a saved file's tag has a hash and padding besides
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        """Return the spec line and the sizes."""
        return f"{self.in_features} -> {self.out_features}, '{self.spec}', {self.layout.family}, bias={self.bias is not None}"


def replace_linear(
    model: nn.Module,
    spec: Spec | str | Callable[[str, nn.Linear], Spec | str | None],
    *,
    skip: tuple[str, ...] = (),
    options: Options | None = None,
) -> list[str]:
    """Quantize the nn.Linear layers of `model` in place and return the names of those replaced.

    spec  one spec for all, or a function (name, layer) -> spec, or None to leave the layer as it is
    skip  names to leave alone, with shell wildcards ("lm_head", "*.gate")

    Raises SpecError when nothing was replaced, and ShapeError when a spec doesn't fit a layer.
    """
    replaced = []
    for name, module in list(model.named_modules()):
        if type(module) is not nn.Linear or any(fnmatch.fnmatchcase(name, pattern) for pattern in skip):
            continue
        chosen = spec(name, module) if callable(spec) and not isinstance(spec, Spec) else spec
        if chosen is None:
            continue
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, Linear.from_linear(module, chosen, options=options))
        replaced.append(name)
    if not replaced:
        raise SpecError(f"replace_linear found no nn.Linear to replace in {type(model).__name__} (skip={list(skip)})")
    return replaced
