"""An opened checkpoint: every quantized layer by name, described from headers, read when it is asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

from hybrid_humming.checkpoint.config import QuantConfig, read_config
from hybrid_humming.checkpoint.experts import expert_groups, stack_experts
from hybrid_humming.checkpoint.files import Files, TensorInfo, as_path
from hybrid_humming.checkpoint.registry import KV_CACHE, Importer, PlainLayer, ReadOptions, StoredLayer, importer, quantized_parts
from hybrid_humming.errors import CheckpointError, HybridHummingError, MissingTensor, UnreadTensor, did_you_mean
from hybrid_humming.lazy import torch
from hybrid_humming.spec import Spec
from hybrid_humming.tag import PART
from hybrid_humming.weight import CanonicalWeight

OURS = "hybrid-humming"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trouble:
    """Why one module of a checkpoint can't be read, or not completely."""

    name: str
    error: HybridHummingError
    stored_bytes: int = 0

    @property
    def reason(self) -> str:
        """The message, without the module's name in front."""
        return str(self.error.args[0]).removeprefix(f"{self.name}: ")


class Checkpoint(Mapping[str, CanonicalWeight]):
    """Layer name -> CanonicalWeight; a layer's bytes are read each time it is asked for, and nothing is kept.

    layers    name -> StoredLayer of every layer that can be read
    troubles  the modules that can't; with strict=True opening raises one error that lists them all
    plain     name -> PlainLayer of those that were decoded to 16-bit weights because no spec holds them; not among the layers
    device    where a layer's tensors are taken apart; None: on the CPU
    rest      names of the tensors that no quantized layer takes (norms, embeddings, KV cache scales), for `tensor`
    """

    def __init__(
        self,
        path: str | Path,
        *,
        strict: bool = True,
        validate: bool = True,
        options: ReadOptions | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        self.path, self.device = as_path(path), device
        self.config, self.files = _open(self.path)
        self.validate = validate
        self.layers: dict[str, StoredLayer] = {}
        self.plain: dict[str, PlainLayer] = {}
        self.troubles: list[Trouble] = []
        self.rest: list[str] = []
        self._describe(importer(self.config, options))
        if strict:
            self._refuse()

    def __getitem__(self, name: str) -> CanonicalWeight:
        weight = self.layer(name).read(validate=self.validate, device=self.device)
        try:
            return weight.validate() if self.validate else weight
        except HybridHummingError as error:
            raise type(error)(f"{name}: {error.args[0]}") from None

    def __contains__(self, name: object) -> bool:
        return name in self.layers

    def __iter__(self) -> Iterator[str]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def layer(self, name: str) -> StoredLayer:
        """Return what is known of a layer without reading it; raises MissingTensor (a KeyError) with the nearest name."""
        if name not in self.layers:
            broken = next((t for t in self.troubles if t.name == name), None)
            if broken is not None:
                raise broken.error
            raise MissingTensor(
                f"{self.path} has no quantized layer {name!r}; it has {len(self.layers)}.{did_you_mean(name, self.layers)}"
            )
        return self.layers[name]

    def spec(self, name: str) -> Spec:
        """Return a layer's spec, from config and headers."""
        return self.layer(name).spec

    def plain_weight(self, name: str) -> torch.Tensor:
        """Return the 16-bit weight [N, K] of a layer of `plain`; raises MissingTensor (a KeyError) with the nearest name."""
        if name not in self.plain:
            raise MissingTensor(
                f"{self.path} has no plain layer {name!r}; it has {len(self.plain)}.{did_you_mean(name, self.plain)}"
            )
        return self.plain[name].read()

    def expert_groups(self) -> dict[str, tuple[str, ...]]:
        """Return group -> names of its experts' layers in order: `experts.gate_proj` -> (`experts.0.gate_proj`, ...)."""
        return expert_groups(self.layers)

    def expert_names(self, group: str) -> tuple[str, ...]:
        """Return the names of a group's layers in order; raises MissingTensor for an unknown group."""
        groups = self.expert_groups()
        if group not in groups:
            raise MissingTensor(f"{self.path} has no experts {group!r}; it has {len(groups)} groups.{did_you_mean(group, groups)}")
        return groups[group]

    def experts(self, group: str) -> CanonicalWeight:
        """Return the experts of a group, stored one by one, as one weight [E, N, K]; raises MissingTensor for an unknown group."""
        names = self.expert_names(group)
        return stack_experts(group, (self[name] for name in names), len(names))

    def tensor(self, name: str) -> torch.Tensor:
        """Return any stored tensor as it is, such as a norm of `rest`."""
        return self.files.read(name)

    def _describe(self, reader: Importer) -> None:
        modules: dict[str, dict[str, TensorInfo]] = {}
        for tensor in self.files:
            module, part = reader.split(tensor)
            modules.setdefault(module, {})[part] = self.files[tensor]
        for name, parts in modules.items():
            try:
                stored = reader.describe(name, parts)
            except HybridHummingError as error:
                named = name in str(error.args[0])
                self._trouble(name, parts, error if named else type(error)(f"{name}: {error.args[0]}"))
                continue
            if stored is None:
                self._skip(name, parts)
            else:
                if isinstance(stored, PlainLayer):
                    self.plain[name] = stored
                    self.rest += [parts[part].name for part in sorted(set(parts) & set(reader.bias_parts))]
                else:
                    self.layers[name] = stored
                beside = set(parts) - set(stored.parts)
                if isinstance(stored, PlainLayer):
                    beside -= set(reader.bias_parts)
                self.rest += [parts[part].name for part in sorted(beside & KV_CACHE)]
                unknown = sorted(beside - KV_CACHE)
                if unknown:
                    listed = ", ".join(f"{part} {parts[part]}" for part in unknown)
                    self._trouble(name, parts, UnreadTensor(f"{name}: not understood beside its weight: {listed}"))

    def _skip(self, name: str, parts: dict[str, TensorInfo]) -> None:
        unread = quantized_parts(parts)
        if unread:
            listed = ", ".join(f"{part} {parts[part]}" for part in unread)
            error = UnreadTensor(f"{name}: quantized tensors that the config gives no reader for: {listed}")
            self._trouble(name, parts, error)
        else:
            self.rest += [info.name for info in parts.values()]

    def _trouble(self, name: str, parts: dict[str, TensorInfo], error: HybridHummingError) -> None:
        stored = sum(info.nbytes for info in parts.values())
        self.troubles.append(Trouble(name=name, error=error, stored_bytes=stored))

    def _refuse(self) -> None:
        if not self.troubles:
            if not self.layers and not self.plain:
                raise CheckpointError(
                    f"{self.path}: {self.config.source} says {self.config.method!r}, but none of its {len(self.files)} tensors "
                    "belongs to a quantized layer; are these the right files?"
                )
            return
        first = self.troubles[0].error
        if len(self.troubles) == 1:
            raise first
        lines = "".join(f"\n  {trouble.name}: {trouble.reason}" for trouble in self.troubles)
        kinds = {type(trouble.error) for trouble in self.troubles}
        kind = type(first) if len(kinds) == 1 else CheckpointError
        raise kind(
            f"{self.path}: {len(self.troubles)} modules can't be read completely, {len(self.layers)} layers can; "
            f"strict=False reads those.{lines}"
        )


def _open(path: Path) -> tuple[QuantConfig, Files]:
    """Config and headers. Files of our own say by their tags what they are and need no config beside them."""
    if not path.exists():
        raise CheckpointError(f"{path} does not exist; pass a folder with config.json and safetensors, or one such file")
    if path.is_file() and path.suffix != ".safetensors":
        raise CheckpointError(f"{path} is no .safetensors file; pass a folder with config.json and safetensors, or one such file")
    try:
        config, trouble = read_config(path), None
    except CheckpointError as error:
        config, trouble = None, error
    try:
        files = Files(path)
    except CheckpointError as error:
        raise trouble or error from None
    if config is not None and config.method.replace("_", "-") == OURS:
        return config, files
    if any(name.rpartition(".")[2] == PART for name in files):
        model, activation = (config.model, config.activation) if config else ({}, None)
        return QuantConfig(path=path, where="the tags", method=OURS, fields={}, activation=activation, model=model), files
    if config is None:
        assert trouble is not None
        raise trouble
    return config, files
