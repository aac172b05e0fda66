"""compressed-tensors' config: which scheme a module falls under, and the Spec fields that it means.

    config_groups: {group: {targets, weights, input_activations, format}}, ignore, format

A scheme's weights and activations are {num_bits, type: int | float, strategy, group_size, block_structure, symmetric, dynamic}.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hybrid_humming.checkpoint.config import QuantConfig
from hybrid_humming.checkpoint.rules import best_target, names
from hybrid_humming.errors import CheckpointMismatch, UnknownQuantMethod

FORMATS = {("int", b): f"int{b}" for b in range(1, 9)} | {("float", 8): "e4m3", ("float", 4): "e2m1"}
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
            raise UnknownQuantMethod(f"{self.where}: {self.kind} of {self.bits} bits is not read; int 1 to 8 and float 4 or 8 are")
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
        self.ignore = tuple(str(entry) for entry in config.get("ignore", default=()))
        self.targets: dict[str, Scheme] = {}
        groups = config.get("config_groups", default={})
        if not isinstance(groups, Mapping):
            raise CheckpointMismatch(f"{config.source}: config_groups is {type(groups).__name__}; an object is expected")
        for group, table in groups.items():
            for target in table.get("targets", ()):
                self.targets.setdefault(str(target), _scheme(config, group, table))

    def of(self, name: str) -> Scheme:
        """Return the scheme of module `name`; raises CheckpointMismatch if it is ignored or under no target."""
        ignored = next((entry for entry in self.ignore if names(name, entry)), None)
        if ignored is not None:
            raise CheckpointMismatch(f"{name}: `ignore` lists {ignored!r}, but the files hold quantized tensors for it")
        target = best_target(name, self.targets)
        if target is None:
            raise CheckpointMismatch(
                f"{name}: it has quantized tensors, but no target of {self.config.source} hits it; "
                f"the targets are {', '.join(map(repr, self.targets)) or 'none'}"
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
        return {"activation": {"e2m1": "mxfp4", "e4m3": "mxfp8"}.get(element, element), **out}
    if args.strategy == "group":
        return {"activation": element, "activation_group_size": args.group_size, **out}
    if args.strategy == "token" or (args.strategy == "tensor" and not args.dynamic):
        return {"activation": element, "activation_granularity": args.strategy, **out}
    kind = "dynamic" if args.dynamic else "static"
    raise UnknownQuantMethod(
        f"{args.where}: {kind} activations of strategy {args.strategy!r} are not read; allowed are dynamic token, static tensor, "
        "group and tensor_group"
    )


def _scheme(config: QuantConfig, group: str, table: Mapping[str, Any]) -> Scheme:
    where = f"{config.source}: {group}"
    weights = table.get("weights")
    if not isinstance(weights, Mapping):
        raise CheckpointMismatch(f"{where} has no 'weights'; a group without quantized weights can't be loaded")
    inputs = table.get("input_activations")
    return Scheme(
        group=group,
        format=str(table.get("format") or config.get("format", default="")),
        weights=_args(f"{where}.weights", weights),
        inputs=_args(f"{where}.input_activations", inputs) if isinstance(inputs, Mapping) else None,
    )


def _args(where: str, table: Mapping[str, Any]) -> Args:
    group_size, block = table.get("group_size"), table.get("block_structure")
    strategy = table.get("strategy")
    if strategy is None:
        strategy = "tensor" if group_size is None else "channel" if group_size == -1 else "group"
    if strategy not in STRATEGIES:
        raise UnknownQuantMethod(f"{where}: strategy {strategy!r} is not read; allowed are {', '.join(STRATEGIES)}")
    if isinstance(block, str):
        block = [int(size) for size in block.split("x")]
    dtype = table.get("scale_dtype")
    actorder = table.get("actorder")
    return Args(
        where=where,
        bits=int(table.get("num_bits", 8)),
        kind=str(table.get("type", "int")).lower(),
        strategy=strategy,
        group_size=group_size if group_size not in (None, -1) else None,
        block=(int(block[0]), int(block[1])) if block else None,
        symmetric=bool(table.get("symmetric", True)),
        dynamic=table.get("dynamic", False),
        actorder="group" if actorder is True else (actorder or None),
        scale_dtype=str(dtype).removeprefix("torch.") if dtype else None,
    )
