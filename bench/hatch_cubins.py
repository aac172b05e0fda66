"""Compile CUDA C++ here, or take what another machine compiled: `compile_cuda` with a store of results beside it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from hybrid_humming.jit import nvrtc

STORE: dict[Any, Any] = {}


def compile_cuda(path: Path, entry: str, *, sm: int, defines: Any = None, **rest: Any) -> Any:
    """`nvrtc.compile_cuda`, or the stored result of the same call."""
    key = (path.name, entry, sm, tuple(sorted((defines or {}).items())))
    if key not in STORE:
        STORE[key] = nvrtc.compile_cuda(path, entry, sm=sm, defines=defines, **rest)
    return STORE[key]


def use(path: Path | None) -> None:
    """Let the launchers compile through the store, filled from `path` if there is one."""
    from hybrid_humming.cuda_kernels.sm100 import launch

    launch.compile_cuda = compile_cuda
    if path is not None:
        STORE.update(pickle.loads(path.read_bytes()))  # our own file, written by `--build`


def write(path: Path) -> None:
    """Write the store."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(STORE))
    print(f"{len(STORE)} cubins, {path.stat().st_size} bytes: {path}")
