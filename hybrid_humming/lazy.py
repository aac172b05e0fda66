"""torch, imported when an attribute of it is first read.

    from hybrid_humming.lazy import Tensor, torch

Importing torch takes one to three seconds; what only reads headers and configs, such as `hybrid-humming inspect`, never needs it.
`Tensor` is for annotations; ask isinstance of `torch.Tensor`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch
    from torch import Tensor as Tensor
else:
    Tensor = Any

    class _Torch:
        def __getattr__(self, name: str) -> Any:
            value = getattr(import_module("torch"), name)
            setattr(self, name, value)
            return value

    torch = _Torch()
