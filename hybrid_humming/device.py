"""DeviceInfo: what planning needs to know of a GPU, from `devices.json` by name or read off the card when asked for.

Nothing here runs at import. Rates are dense peaks in units of 10**12 operations per second, by operand format;
bandwidth is in 10**9 bytes per second; sizes are in bytes. A format missing from `tera_ops` can't be multiplied.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import torch

from hybrid_humming.errors import DeviceError, did_you_mean


@dataclass(frozen=True, kw_only=True)
class DeviceInfo:
    """One device. `kind` is "cuda" or "cpu"; `sm` is 90 for compute capability 9.0 and 0 for a CPU."""

    name: str
    kind: str = "cuda"
    sm: int = 0
    sm_count: int = 1
    shared_per_block_bytes: int = 0
    shared_per_sm_bytes: int = 0
    registers_per_sm: int = 65536
    l2_bytes: int = 0
    dram_gbps: float = 20.0
    launch_us: float = 2.5
    tera_ops: tuple[tuple[str, float], ...] = field(default=())

    def rate(self, fmt: str) -> float:
        """Return the dense peak of operand format `fmt` in 10**12 op/s; 0.0 when the device can't multiply it."""
        return dict(self.tera_ops).get(fmt, 0.0)

    def multiplies(self, fmt: str) -> bool:
        """Return whether the tensor cores (or the CPU) take operands of `fmt`."""
        return self.rate(fmt) > 0

    @classmethod
    def named(cls, name: str) -> DeviceInfo:
        """Return the GPU called `name` ("h200", "NVIDIA H200", "cpu", ...); raises DeviceError with the nearest name."""
        table = _table()
        key = _key(name)
        if key not in table:
            raise DeviceError(f"unknown device {name!r}; known are {', '.join(sorted(table))}.{did_you_mean(key, table)}")
        return table[key]

    @classmethod
    def of(cls, device: torch.device | str | DeviceInfo) -> DeviceInfo:
        """Return the info of a torch device, a named GPU, or the info itself."""
        if isinstance(device, DeviceInfo):
            return device
        if isinstance(device, str) and _key(device) in _table():
            return cls.named(device)
        try:
            device = torch.device(device)
        except (RuntimeError, TypeError):
            return cls.named(str(device))
        if device.type == "cpu":
            return cls.named("cpu")
        if device.type != "cuda":
            raise DeviceError(f"device {device}: only cuda and cpu run here")
        if not torch.cuda.is_available():
            raise DeviceError(
                f"device {device} was asked for, but torch sees no CUDA device; name a GPU to plan for ('h200'), or 'cpu'"
            )
        index = torch.cuda.current_device() if device.index is None else device.index
        if index >= (count := torch.cuda.device_count()):
            raise DeviceError(f"device cuda:{index} was asked for, but torch sees {count}: cuda:0 to cuda:{count - 1}")
        return _probe(index)

    @classmethod
    def default(cls) -> DeviceInfo:
        """Return the current GPU if there is one, else the CPU."""
        return cls.of("cuda") if torch.cuda.is_available() else cls.named("cpu")

    def replace(self, **changes: Any) -> DeviceInfo:
        """Return an info with the named fields changed."""
        return dataclasses.replace(self, **changes)


def device_names() -> tuple[str, ...]:
    """Return the names that `DeviceInfo.named` knows."""
    return tuple(sorted(_table()))


def _key(name: str) -> str:
    return name.lower().removeprefix("nvidia ").removeprefix("geforce ").replace("_", "-").replace(" ", "-")


@functools.cache
def _table() -> dict[str, DeviceInfo]:
    text = resources.files("hybrid_humming").joinpath("devices.json").read_text()
    table = {}
    for name, row in json.loads(text)["devices"].items():
        rates = tuple(sorted(row.pop("tera_ops").items()))
        table[name] = DeviceInfo(name=name, tera_ops=rates, **row)
    return table


@functools.cache
def _probe(index: int) -> DeviceInfo:
    """Read the card; rates and bandwidth come from the table's entry of that name, or the nearest of the same SM."""
    # torch's annotations lack fields that the object has since 2.5.
    props: Any = torch.cuda.get_device_properties(index)
    sm = props.major * 10 + props.minor
    table = _table()
    key = _key(props.name)
    # The longest known name inside the card's wins: "h200-nvl" is an H200, "h20" is not.
    inside = [n for n in table if key == n or key.startswith(f"{n}-")]
    if inside:
        base = table[max(inside, key=len)]
    else:
        same = [d for d in table.values() if d.sm == sm] or [d for d in table.values() if d.sm and d.sm // 10 == sm // 10]
        if not same:
            raise DeviceError(f"{props.name} has SM {sm}; none of its kind is in devices.json: pass a DeviceInfo")
        base = min(same, key=lambda d: abs(d.sm_count - props.multi_processor_count))
    return base.replace(
        name=key,
        sm=sm,
        sm_count=props.multi_processor_count,
        shared_per_block_bytes=props.shared_memory_per_block_optin,
        shared_per_sm_bytes=props.shared_memory_per_multiprocessor,
        registers_per_sm=props.regs_per_multiprocessor,
        l2_bytes=props.L2_cache_size,
    )
