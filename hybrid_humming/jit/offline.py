"""Compile what a launch would launch, for a GPU that need not be present.

    with compiling_for(sm=90) as compiled:      # list[Compiled]
        launch(args, plan)                      # a kernel's launcher, given CPU tensors: nothing runs

Triton specialises a kernel on its arguments (dtypes, alignment, integers that are 1 or multiples of 16) and asks its driver
which GPU to compile for. Inside the block that driver names the GPU asked for and can load nothing, so the cubin is the
very one that the same launch would make there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hybrid_humming.jit import launch
from hybrid_humming.jit.compile import Compiled


class _NamesGpu:
    """The part of a Triton driver that compiling needs."""

    def __init__(self, sm: int) -> None:
        self.sm = sm

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.sm, 32)

    def get_current_device(self) -> str:
        return f"offline sm_{self.sm}"  # the key of Triton's per-device cache: no real GPU shares it

    def get_current_stream(self, device: str) -> int:
        return 0


@contextmanager
def compiling_for(sm: int) -> Iterator[list[Compiled]]:
    """Inside the block, `launch_triton` compiles for `sm` and appends to the list in place of launching. Not for threads."""
    from triton.runtime.driver import driver

    before = driver._active
    compiled: list[Compiled] = []
    driver.set_active(_NamesGpu(sm))
    launch.offline = (sm, compiled)
    try:
        yield compiled
    finally:
        launch.offline = None
        driver._active = before
