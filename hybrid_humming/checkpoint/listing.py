"""What a checkpoint holds, layer by layer, from its config and headers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hybrid_humming.checkpoint.opened import Checkpoint
from hybrid_humming.checkpoint.registry import ReadOptions


@dataclass(frozen=True, kw_only=True)
class LayerReport:
    """One quantized layer, or a module that can't be read.

    spec          its spec line; None if it can't be read, or is decoded to a plain weight
    plain         fp16 or bf16 where it is decoded (`ReadOptions.plain`), else None
    shape         [N, K], or [E, N, K]
    stored_bytes  its tensors in the files;  packed_bytes: codes, scales and zero points once packed
    reason        why it can't be read, or not completely; None if it can
    """

    name: str
    spec: str | None
    shape: tuple[int, ...]
    stored_bytes: int
    packed_bytes: int
    reason: str | None = None
    plain: str | None = None

    @property
    def supported(self) -> bool:
        """True when the layer is read completely."""
        return self.reason is None


def inspect(path: str | Path, *, options: ReadOptions | None = None) -> Sequence[LayerReport]:
    """Return a report of each quantized layer at `path`, in the order of the files; reads no weights.

    Raises CheckpointError where nothing at all can be said: no files, no quantization config, an unknown quant_method.
    """
    checkpoint = Checkpoint(path, strict=False, options=options)
    reasons = {trouble.name: trouble for trouble in checkpoint.troubles}
    reports = [
        LayerReport(
            name=name,
            spec=str(layer.spec),
            shape=layer.shape,
            stored_bytes=layer.stored_bytes,
            packed_bytes=layer.packed_bytes,
            reason=reasons[name].reason if name in reasons else None,
        )
        for name, layer in checkpoint.layers.items()
    ]
    reports += [
        LayerReport(
            name=name,
            spec=None,
            plain=layer.dtype,
            shape=(layer.n, layer.k),
            stored_bytes=layer.stored_bytes,
            packed_bytes=2 * layer.n * layer.k,
            reason=reasons[name].reason if name in reasons else None,
        )
        for name, layer in checkpoint.plain.items()
    ]
    reports += [
        LayerReport(name=name, spec=None, shape=(), stored_bytes=trouble.stored_bytes, packed_bytes=0, reason=trouble.reason)
        for name, trouble in reasons.items()
        if name not in checkpoint.layers and name not in checkpoint.plain
    ]
    return reports
