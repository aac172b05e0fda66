"""Checkpoints on disk -> CanonicalWeight: one file a format, `registry` picks it. See docs/checkpoints.md."""

from __future__ import annotations

from pathlib import Path

from hybrid_humming.checkpoint.listing import LayerReport, inspect
from hybrid_humming.checkpoint.opened import Checkpoint, Trouble
from hybrid_humming.checkpoint.registry import ReadOptions

__all__ = ["Checkpoint", "LayerReport", "ReadOptions", "Trouble", "inspect", "load_canonical"]


def load_canonical(
    path: str | Path, *, strict: bool = True, validate: bool = True, options: ReadOptions | None = None
) -> Checkpoint:
    """Return the quantized layers at `path` by name, as CanonicalWeight; lazy: a layer is read when it is asked for.

    strict    refuse, before reading any weight, if a layer lacks a tensor or anything quantized would stay unread
    validate  refuse a layer whose scales or zero points are not finite, or whose codes lie outside the format
    """
    return Checkpoint(path, strict=strict, validate=validate, options=options)
