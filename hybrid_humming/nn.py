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
from hybrid_humming.errors import DtypeError, LayoutError, ShapeError, SpecError
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
        if not isinstance(qweight, QWeight):
            raise DtypeError(f"qweight is {type(qweight).__name__}; pass a QWeight, or use Linear.from_linear for an nn.Linear")
        if qweight.experts:
            raise ShapeError(f"the weight has {qweight.experts} experts; Linear takes one dense weight [N, K]")
        if bias is not None and (not isinstance(bias, Tensor) or tuple(bias.shape) != (qweight.n,)):
            have = list(bias.shape) if isinstance(bias, Tensor) else type(bias).__name__
            raise ShapeError(f"bias is {have}; it must be a tensor [{qweight.n}]")
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
        self.__dict__["_cached"], self.__dict__["_held"] = qweight, tuple(qweight.tensors().values())

    @classmethod
    def from_linear(cls, linear: nn.Linear, spec: Spec | str, **kwargs: Any) -> Linear:
        """Return `linear` with its weight quantized to nearest by `spec`."""
        if not isinstance(linear, nn.Linear):
            raise DtypeError(f"linear is {type(linear).__name__}; pass an nn.Linear, or a QWeight to hh.Linear")
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
        if not x.is_floating_point():
            raise DtypeError(f"x is {x.dtype}; hh.Linear takes a float x")
        xs = x if self._compute_dtype is None else x.to(self._compute_dtype)
        bias = self.bias.float() if self.bias is not None and self.bias.dtype == torch.float64 else self.bias
        y = gemm(xs, self._value(), bias=bias, plan=self.plan, options=self.options)
        return y.to(x.dtype)

    def _value(self) -> QWeight:
        # Rebuilt only after the buffers were replaced (to(device), load_state_dict): a frozen value can't follow them.
        cached: QWeight = self.__dict__["_cached"]
        held: tuple[Tensor, ...] = self.__dict__["_held"]
        if any(self._buffers[name] is not tensor for name, tensor in zip(self._names, held, strict=True)):
            cached = self.__dict__["_cached"] = self.qweight_value
            self.__dict__["_held"] = tuple(cached.tensors().values())
        return cached

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Linear:
        # `half()` and `to(dtype)` are about the model's arithmetic: the bytes of a packed weight mean what the spec says.
        def keep_dtype(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            if moved.dtype == tensor.dtype or not any(tensor is self._buffers[name] for name in self._names):
                return moved
            return tensor.to(moved.device)

        super()._apply(keep_dtype, recurse)
        return self

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
    if not isinstance(model, nn.Module) or type(model) is nn.Linear:
        raise SpecError(f"model is {type(model).__name__}; pass the module that holds the layers (one layer: Linear.from_linear)")
    if isinstance(skip, str):
        raise SpecError(f"skip={skip!r}: pass a tuple of names, ({skip!r},)")
    # All layers are quantized before the first is replaced, so that a spec that doesn't fit leaves the model whole. A layer
    # that the model holds under several names is quantized once.
    made: dict[tuple[nn.Linear, Spec], Linear] = {}
    replaced: dict[str, Linear] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if type(module) is not nn.Linear or any(fnmatch.fnmatchcase(name, pattern) for pattern in skip):
            continue
        chosen = spec(name, module) if callable(spec) and not isinstance(spec, Spec) else spec
        if chosen is None:
            continue
        key = module, Spec.parse(chosen)  # type: ignore[arg-type]
        if key not in made:
            made[key] = Linear.from_linear(module, key[1], options=options)
        replaced[name] = made[key]
    if not replaced:
        raise SpecError(f"replace_linear found no nn.Linear to replace in {type(model).__name__} (skip={list(skip)})")
    for name, layer in replaced.items():
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, layer)
    return list(replaced)
