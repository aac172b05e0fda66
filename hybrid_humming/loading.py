"""A checkpoint on disk -> packed weights: `hh.load`."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch

from hybrid_humming import env
from hybrid_humming import pack as packing
from hybrid_humming.api import Device, is_torch, pack_weight, place
from hybrid_humming.checkpoint import Checkpoint, ReadOptions
from hybrid_humming.checkpoint.experts import stack_experts
from hybrid_humming.checkpoint.registry import StoredLayer
from hybrid_humming.device import DeviceInfo
from hybrid_humming.errors import (
    CheckpointError,
    CheckpointMismatch,
    HybridHummingError,
    LayoutError,
    MissingDependency,
    ShapeError,
    SpecError,
)
from hybrid_humming.spec import Spec
from hybrid_humming.weight import CanonicalWeight, QWeight, check_codes

Codes = Callable[[], Iterator[tuple[int, torch.Tensor]]]


class Loaded(Mapping[str, tuple[QWeight, Spec]]):
    """Layer name -> (packed weight, its spec). Lazy: a layer is read and packed each time it is asked for; nothing is kept.

    checkpoint  the opened files: `layers`, `plain`, `rest` (names of the unquantized tensors), `tensor(name)`
    """

    def __init__(self, checkpoint: Checkpoint, *, device: Device | None, activation: str | None) -> None:
        self.checkpoint = checkpoint
        self._device = device
        self._activation = activation
        self._specs = {name: self._served(name, layer.spec) for name, layer in checkpoint.layers.items()}
        if activation is not None:
            for name, layer in checkpoint.layers.items():
                _check_groups(name, self._specs[name], layer.n, layer.k)

    def __getitem__(self, name: str) -> tuple[QWeight, Spec]:
        layer = self.checkpoint.layer(name)
        if layer.packed is None and layer.pieces is not None and self._on_cpu():
            return self._packed(name, *self._frame(layer))
        if layer.packed is None or self.spec(name) != layer.spec:
            return self._packed(name, self.checkpoint[name])
        qweight = read_packed(layer, validate=self.checkpoint.validate)
        # Without a device the bytes stay as they were saved; with one, they are what is best there.
        qweight = qweight if self._device is None else place(qweight, self._device)
        return qweight, qweight.spec

    def __contains__(self, name: object) -> bool:
        return name in self._specs

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} x '{spec}'" for spec, count in Counter(map(str, self._specs.values())).items())
        plain = f", {len(self.checkpoint.plain)} plain" if self.checkpoint.plain else ""
        layers = f"{len(self)} layer{'' if len(self) == 1 else 's'}{': ' if counts else ''}{counts}"
        return f"Loaded({self.checkpoint.path}: {layers}{plain})"

    def stream(self, *, readers: int = 2, progress: bool | None = None) -> Iterator[tuple[str, QWeight, Spec]]:
        """Yield (name, qweight, spec) of every layer in the order of the files, while `readers` threads read and pack ahead.

        At most `readers` layers are in memory beside the one handed out.
        progress  show layer, bytes, speed and time left on stderr; None: only where that is a terminal
        """
        if not isinstance(readers, int) or readers < 1:
            raise CheckpointError(f"readers={readers!r}: a number of threads, at least one")
        waiting, ahead = deque(self._in_file_order()), deque[tuple[str, Future[tuple[QWeight, Spec]]]]()
        sizes = {name: self.checkpoint.layer(name).stored_bytes for name in waiting}
        pool = ThreadPoolExecutor(readers, thread_name_prefix="hybrid_humming_load")
        try:
            with _bar(sum(sizes.values()), progress) as advance:
                while waiting or ahead:
                    while waiting and len(ahead) < readers:
                        name = waiting.popleft()
                        ahead.append((name, pool.submit(self.__getitem__, name)))
                    name, future = ahead.popleft()
                    layer: tuple[QWeight, Spec] | None = future.result()
                    del future
                    advance(name, sizes[name])
                    assert layer is not None
                    yield name, *layer
                    layer = None  # so that one that the caller dropped is gone before the next is read
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def experts(self, group: str) -> tuple[QWeight, Spec]:
        """Return experts that are stored one by one as one weight [E, N, K]: `model.layers.0.mlp.experts.gate_proj`."""
        layers = [self.checkpoint.layer(name) for name in self.checkpoint.expert_names(group)]
        if not self._on_cpu() or any(layer.pieces is None for layer in layers):
            return self._packed(group, self.checkpoint.experts(group))
        frame = stack_experts(group, (self._frame(layer)[0] for layer in layers), len(layers))

        def pieces() -> Iterator[tuple[int, torch.Tensor]]:
            for i, layer in enumerate(layers):
                yield i, torch.cat([codes for _, codes in self._frame(layer)[1]()])[None]

        return self._packed(group, frame, pieces)

    def canonical(self, name: str) -> CanonicalWeight:
        """Return a layer in the clear, with the activation half that it is served with."""
        weight = self.checkpoint[name]
        return weight.replace(spec=self._served(name, weight.spec))

    def spec(self, name: str) -> Spec:
        """Return a layer's spec without reading its weight; raises MissingTensor (a KeyError) for an unknown name."""
        return self._specs[self.checkpoint.layer(name).name]

    def bias(self, name: str) -> torch.Tensor | None:
        """Return a layer's bias [N] in the order of its rows, or None: what `hh.gemm` takes as `bias`."""
        bias = self.checkpoint.layer(name).read_bias()
        return bias if bias is None or self.checkpoint.device is None else bias.to(self.checkpoint.device)

    def notes(self, name: str) -> Mapping[str, object]:
        """Return what the model does with a layer and no spec says: gpt-oss's expert activation, its clamp and alpha."""
        return self.checkpoint.layer(name).notes

    def plain(self, name: str) -> torch.Tensor:
        """Return the 16-bit weight [N, K] of a layer that no spec can hold (`checkpoint.plain` lists them)."""
        return self.checkpoint.plain_weight(name)

    def tensor(self, name: str) -> torch.Tensor:
        """Return any stored tensor by its full name, such as a norm."""
        return self.checkpoint.tensor(name)

    def _in_file_order(self) -> list[str]:
        def place(name: str) -> tuple[str, int]:
            first = min(self.checkpoint.layer(name).parts.values(), key=lambda info: (str(info.file), info.start))
            return str(first.file), first.start

        return sorted(self, key=place)

    def _packed(self, name: str, weight: CanonicalWeight, pieces: Codes | None = None) -> tuple[QWeight, Spec]:
        # The act-order of a layer may have refined its groups: the data's own spec counts.
        spec = self._served(name, weight.spec)
        qweight = pack_weight(weight.replace(spec=spec), device=self._device, pieces=pieces)
        return qweight, qweight.spec

    def _on_cpu(self) -> bool:
        return self.checkpoint.device is None or torch.device(self.checkpoint.device).type == "cpu"

    def _frame(self, layer: StoredLayer) -> tuple[CanonicalWeight, Codes]:
        """The weight with its codes on the meta device, and what yields them in pieces, checked like the whole."""
        weight, pieces = layer.read_frame(validate=self.checkpoint.validate)
        if not self.checkpoint.validate:
            return weight, pieces
        with named(layer.name):
            weight.validate()

        def checked() -> Iterator[tuple[int, torch.Tensor]]:
            for begin, codes in pieces():
                with named(layer.name):
                    check_codes(codes, weight.spec)
                yield begin, codes

        return weight, checked

    def _served(self, name: str, spec: Spec) -> Spec:
        return spec if self._activation is None else with_activation(name, spec, self._activation)


def load(
    path: str | Path,
    *,
    device: Device | None = None,
    activation: str | None = None,
    strict: bool = True,
    validate: bool = True,
    gptq_zero_points: str | None = None,
    plain: bool = False,
) -> Loaded:
    """Return the quantized layers of the checkpoint at `path`: name -> (QWeight, Spec), packed for `device`, lazily.

        qweight, spec = hh.load(path)["model.layers.0.mlp.down_proj"]

    device            a torch device: layers are moved there as stored, then taken apart and packed there; or the name of a GPU to
                      pack for, on the CPU
    activation        the activation half to serve every layer with in place of the checkpoint's own: "mxfp8", "e4m3 token"
    strict            refuse at once if a layer lacks a tensor or anything quantized would stay unread; lists them all
    validate          refuse a layer with NaN or infinite scales, or whose stored hash is another, when it is read
    gptq_zero_points  v1 or v2, for asymmetric GPTQ files that don't say which they are
    plain             decode layers that no spec can hold (HQQ's axis 0) to 16-bit weights, for `loaded.plain(name)`
    """
    options = ReadOptions(gptq_zero_points=gptq_zero_points, plain=plain)
    if device is not None:
        DeviceInfo.of(device)  # one that is not there is refused before anything is read
    work = device if device is not None and not isinstance(device, DeviceInfo) and is_torch(device) else None
    checkpoint = _Unpacking(path, strict=strict, validate=validate, options=options, device=work)
    return Loaded(checkpoint, device=device, activation=activation)


class _Unpacking(Checkpoint):
    """A Checkpoint that gives layers stored packed as canonical weights too."""

    def __getitem__(self, name: str) -> CanonicalWeight:
        layer = self.layer(name)
        if layer.packed is None:
            return super().__getitem__(name)
        weight = packing.unpack(read_packed(layer, validate=self.validate))
        return weight.replace(bias=layer.read_bias())


def load_canonical(
    path: str | Path, *, strict: bool = True, validate: bool = True, options: ReadOptions | None = None
) -> Checkpoint:
    """Return the quantized layers at `path` by name, as CanonicalWeight; lazy: a layer is read when it is asked for.

    strict    refuse, before reading any weight, if a layer lacks a tensor or anything quantized would stay unread
    validate  refuse a layer whose scales are not finite, whose codes lie outside the format, or whose stored hash is another
    """
    return _Unpacking(path, strict=strict, validate=validate, options=options)


def read_packed(layer: StoredLayer, *, validate: bool) -> QWeight:
    """Return a layer that is stored packed; raises LayoutError, with its name, where its tensors are not what the layout says."""
    try:
        return packing.check(layer.read_packed(validate=validate))
    except LayoutError as error:
        raise LayoutError(f"{layer.name}: {error.args[0]}") from None


@contextmanager
def named(name: str) -> Iterator[None]:
    """Put the layer's name in front of an error's message."""
    try:
        yield
    except HybridHummingError as error:
        raise type(error)(f"{name}: {error.args[0]}") from None


def _check_groups(name: str, spec: Spec, n: int, k: int) -> None:
    try:
        spec.check_shape(n, k)
    except ShapeError as error:
        raise ShapeError(f"{name} [{n}, {k}] as '{spec}': {error.args[0]}") from None


def with_activation(name: str, spec: Spec, activation: str) -> Spec:
    """Return `spec` with another activation half, every stored scale as it is; raises where static scales contradict it."""
    try:
        half = Spec.parse(f"int8 channel x {activation}")
    except SpecError as error:
        reason = str(error.args[0]).replace("int8 channel x ", "", 1)
        raise SpecError(
            f"activation={activation!r}: {reason}. It takes the right half of a spec line: 'mxfp8', 'e4m3 token', 'int8 token', "
            "'bf16' ..."
        ) from None
    fields = {f.name: getattr(half, f.name) for f in dataclasses.fields(Spec) if f.name.startswith("activation")}
    if all(getattr(spec, field) == value for field, value in fields.items()):
        return spec
    if spec.activation_granularity == "tensor" or spec.activation_secondary:
        raise CheckpointMismatch(
            f"{name}: activation={activation!r} was asked for, but the checkpoint has static input scales for '{spec}'; "
            "leave activation out, or load a checkpoint without them"
        )
    out_dtype = half.out_dtype if "->" in activation or not half.quantizes_activation else spec.out_dtype
    return dataclasses.replace(spec, **fields, out_dtype=out_dtype)


@contextmanager
def _bar(total: int, wanted: bool | None) -> Iterator[Callable[[str, int], None]]:
    """A function to call with each layer's name and bytes; it draws a bar on stderr, or does nothing."""
    if not (sys.stderr.isatty() if wanted is None else wanted):
        yield lambda name, count: None
        return
    try:
        from rich import progress as bars
        from rich.console import Console
    except ImportError:
        if wanted:
            raise MissingDependency("a progress bar needs the package rich: pip install 'hybrid-humming[cli]'") from None
        yield lambda name, count: None
        return
    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.DownloadColumn(),
        bars.TransferSpeedColumn(),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=Console(stderr=True, no_color=env.no_color())) as bar:
        task = bar.add_task("loading", total=total)
        yield lambda name, count: bar.update(task, advance=count, description=name)
