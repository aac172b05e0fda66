"""The kernels, layouts and input quantizers that planning may choose from. Catalogs register theirs once; `catalogs` sees to it."""

from __future__ import annotations

from hybrid_humming.errors import PlanError, did_you_mean
from hybrid_humming.plan.types import KernelEntry, LayoutEntry, QuantizerEntry

_kernels: dict[str, KernelEntry] = {}
_layouts: dict[str, LayoutEntry] = {}
_quantizers: dict[str, QuantizerEntry] = {}


def register_kernel(entry: KernelEntry) -> None:
    """Add a kernel; a second one of the same name must be the same value."""
    if _kernels.setdefault(entry.name, entry) != entry:
        raise PlanError(f"a kernel called {entry.name!r} is registered already; give this one a name of its own")


def register_layout(entry: LayoutEntry) -> None:
    """Add a layout family; a second one of the same name must be the same value."""
    if _layouts.setdefault(entry.family, entry) != entry:
        raise PlanError(f"a layout family {entry.family!r} is registered already; give this one a name of its own")


def kernels() -> tuple[KernelEntry, ...]:
    """Return every registered kernel, in the order of registration."""
    return tuple(_kernels.values())


def layouts() -> tuple[LayoutEntry, ...]:
    """Return every registered layout family, the most preferred first."""
    return tuple(sorted(_layouts.values(), key=lambda e: (-e.preference, e.family)))


def kernel(name: str) -> KernelEntry:
    """Return the kernel called `name`; raises PlanError with the nearest name."""
    if name not in _kernels:
        raise PlanError(f"unknown kernel {name!r}; registered are {', '.join(_kernels)}.{did_you_mean(name, _kernels)}")
    return _kernels[name]


def register_quantizer(entry: QuantizerEntry) -> None:
    """Make `entry` the input quantizer of its kind of device; a second one must be the same value."""
    if _quantizers.setdefault(entry.device, entry) != entry:
        raise PlanError(f"{entry.device} has the input quantizer {_quantizers[entry.device].name!r} already")


def quantizer(device_kind: str) -> QuantizerEntry:
    """Return the input quantizer of "cuda" or "cpu"."""
    return _quantizers[device_kind]
