"""compressed-tensors' config: which scheme a module falls under, the Spec that it means, and what all its layouts share.

    config_groups: {group: {targets, weights, input_activations, format}}, ignore, format

A scheme's weights and activations are {num_bits, type: int | float, strategy, group_size, block_structure, symmetric, dynamic}.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hybrid_humming.checkpoint.config import Fields, QuantConfig
from hybrid_humming.checkpoint.registry import Parts, expect, require
from hybrid_humming.checkpoint.rules import best_target, names
from hybrid_humming.dtypes import from_torch
from hybrid_humming.errors import CheckpointMismatch, UnknownQuantMethod
from hybrid_humming.lazy import torch
from hybrid_humming.spec import Spec

FORMATS = {("int", b): f"int{b}" for b in range(1, 9)} | {("float", 8): "e4m3", ("float", 6): "e2m3", ("float", 4): "e2m1"}
SCALES = ("F16", "BF16", "F32")
STRATEGIES = ("tensor", "channel", "token", "group", "block", "tensor_group")


@dataclass(frozen=True, kw_only=True)
class Args:
    """Quantization arguments of a weight or of an activation, with compressed-tensors' own defaults filled in."""

    where: str
    bits: int
    kind: str
    strategy: str
    group_size: int | None
    block: tuple[int, int] | None
    symmetric: bool
    dynamic: bool | str
    actorder: str | None
    scale_dtype: str | None

    @property
    def element(self) -> str:
        """Name of the element format; raises UnknownQuantMethod for a type and width that are not read."""
        if (self.kind, self.bits) not in FORMATS:
            raise UnknownQuantMethod(
                f"{self.where}: {self.kind} of {self.bits} bits is not read; int 1 to 8 and float 4, 6 or 8 are"
            )
        return FORMATS[self.kind, self.bits]


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """One config group. `inputs` is None where activations are not quantized."""

    group: str
    format: str
    weights: Args
    inputs: Args | None


class Schemes:
    """The config groups of a checkpoint; `of(name)` finds the one that a module falls under."""

    def __init__(self, config: QuantConfig) -> None:
        self.config = config
        self.ignore = config.strings("ignore")
        self.targets: dict[str, Scheme] = {}
        groups = config.sub("config_groups")
        for group in groups.fields if groups else ():
            table = groups.sub(group) if groups else None
            # A group without weights quantizes attention or activations only.
            weights = table.sub("weights") if table else None
            if table is not None and weights is not None:
                scheme = _scheme(config, group, table, weights)
                for target in table.strings("targets"):
                    self.targets.setdefault(target, scheme)

    def of(self, name: str) -> Scheme:
        """Return the scheme of module `name`; raises CheckpointMismatch if it is ignored or under no target."""
        ignored = next((entry for entry in self.ignore if names(name, entry)), None)
        if ignored is not None:
            raise CheckpointMismatch(f"{name}: `ignore` lists {ignored!r}, but the files hold quantized tensors for it")
        target = best_target(name, self.targets)
        if target is None:
            raise CheckpointMismatch(
                f"{name}: it has quantized tensors, but no target of {self.config.source} hits it; "
                f"the targets with weights are {', '.join(map(repr, self.targets)) or 'none'}"
            )
        return self.targets[target]


def activation_fields(scheme: Scheme, default: str) -> dict[str, Any]:
    """Return the Spec fields of the activation half; `default` is the 16-bit type where activations are not quantized."""
    args = scheme.inputs
    if args is None:
        return {"activation": default}
    if not args.symmetric:
        raise UnknownQuantMethod(f"{args.where}: asymmetric activations are not read; only symmetric ones are")
    element, out = args.element, {"out_dtype": default}
    if args.strategy == "tensor_group" or (element == "e2m1" and args.group_size == 16):
        return {"activation": "nvfp4", **out}
    if args.strategy == "group" and args.scale_dtype in ("uint8", "float8_e8m0fnu"):
        return {"activation": {"e2m1": "mxfp4", "e2m3": "mxfp6", "e4m3": "mxfp8"}.get(element, element), **out}
    if args.strategy == "group":
        return {"activation": element, "activation_group_size": args.group_size, **out}
    if args.strategy == "token" or (args.strategy == "tensor" and not args.dynamic):
        return {"activation": element, "activation_granularity": args.strategy, **out}
    kind = "dynamic" if args.dynamic else "static"
    raise UnknownQuantMethod(
        f"{args.where}: {kind} activations of strategy {args.strategy!r} are not read; allowed are dynamic token, static tensor, "
        "group and tensor_group"
    )


def stored_scale(name: str, parts: Parts) -> str:
    """Return the format (fp16, bf16, fp32) in which weight_scale is stored."""
    scale = parts["weight_scale"]
    if scale.dtype not in SCALES:
        raise CheckpointMismatch(f"{name}: weight_scale is {scale}, expected one of {', '.join(SCALES)}")
    return from_torch(scale.torch_name).name


def integer_spec(name: str, parts: Parts, scheme: Scheme, activation: str | None) -> Spec:
    """Return the spec of a weight with float scales, integer or e4m3, that `scheme` and the stored scale's dtype mean."""
    args, scale = scheme.weights, stored_scale(name, parts)
    default = activation or (scale if scale in ("fp16", "bf16") else "bf16")
    return Spec(
        weight=args.element if args.symmetric else f"u{args.element}",
        granularity=args.strategy,
        group_size=args.group_size if args.strategy == "group" else None,
        block=args.block if args.strategy == "block" else None,
        scale=scale,
        zero_point=not args.symmetric,
        **activation_fields(scheme, default),
    )


def check_scale(name: str, parts: Parts, spec: Spec, n: int, k: int, dtypes: tuple[str, ...]) -> None:
    """Raise CheckpointMismatch, with both shapes, unless weight_scale and bias are those of a weight [n, k] of `spec`."""
    shape, scale = spec.scale_shape(n, k), parts["weight_scale"]
    why = f"K={k} in groups of {spec.group_size}" if spec.group_size else f"{spec.granularity} scale of [{n}, {k}]"
    if spec.granularity != "tensor" or scale.numel != 1:
        expect(name, scale, dtypes, shape, why)
    if "bias" in parts:
        expect(name, parts["bias"], SCALES, (n,))


def static_parts(name: str, parts: Parts, spec: Spec) -> tuple[str, ...]:
    """Return the parts that static activation scales take; raises MissingTensor if the spec needs one that is not there."""
    if spec.activation_granularity != "tensor" and not spec.activation_secondary:
        return ()
    needed = "input_global_scale" if spec.activation_secondary else "input_scale"
    require(name, parts, (needed,), f"'{spec}'")
    if parts[needed].numel != 1 or parts[needed].dtype not in SCALES:
        raise CheckpointMismatch(f"{name}: {needed} is {parts[needed]}, expected one number, {' or '.join(SCALES)}")
    return (needed, "input_zero_point")


def static_input(name: str, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """Return the static scale of the activations, fp32 [1], or None; input_global_scale is stored as a divisor."""
    zero = tensors.get("input_zero_point")
    if zero is not None and bool(zero.float().any()):
        raise UnknownQuantMethod(f"{name}: input_zero_point is {zero.flatten()[0].item()}; asymmetric activations are not read")
    part = next((part for part in ("input_global_scale", "input_scale") if part in tensors), None)
    if part is None:
        return None
    value = tensors[part].float().reshape(1)
    return 1 / value if part == "input_global_scale" else value


def _scheme(config: QuantConfig, group: str, table: Fields, weights: Fields) -> Scheme:
    inputs = table.sub("input_activations")
    return Scheme(
        group=group,
        format=table.text("format") or config.text("format") or "",
        weights=_args(weights),
        inputs=None if inputs is None else _args(inputs),
    )


def _args(table: Fields) -> Args:
    group_size = table.integer("group_size", default=-1)
    strategy = table.text("strategy")
    if strategy is None:
        unset = table.get("group_size") is None
        strategy = "tensor" if unset else "channel" if group_size == -1 else "group"
    if strategy not in STRATEGIES:
        raise UnknownQuantMethod(f"{table.where}: strategy {strategy!r} is not read; allowed are {', '.join(STRATEGIES)}")
    if strategy in ("group", "tensor_group") and group_size < 1:
        raise CheckpointMismatch(f"{table.where}: strategy {strategy!r} needs a group_size > 0, not {table.get('group_size')}")
    actorder = table.get("actorder")
    return Args(
        where=table.where,
        bits=table.integer("num_bits", default=8),
        kind=(table.text("type") or "int").lower(),
        strategy=strategy,
        group_size=None if group_size == -1 else group_size,
        block=_block(table) if strategy == "block" else None,
        symmetric=table.flag("symmetric", default=True),
        dynamic=table.get("dynamic", default=False),
        actorder="group" if actorder is True else (actorder or None),
        scale_dtype=(table.text("scale_dtype") or "").removeprefix("torch.") or None,
    )


def _block(table: Fields) -> tuple[int, int]:
    block = table.get("block_structure")
    sizes = block.split("x") if isinstance(block, str) else block
    try:
        rows, columns = (int(size) for size in sizes)
    except (TypeError, ValueError):
        raise CheckpointMismatch(
            f"{table.where}: block_structure is {block!r}; two sizes such as [128, 128] are expected"
        ) from None
    return rows, columns
