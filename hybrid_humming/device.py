"""DeviceInfo: what planning needs to know of a GPU, from `devices.json` by name or read off the card when asked for.

`HYBRID_HUMMING_DEVICES` names a file of the same form whose devices are added to ours, or stand in their place; `docs/devices.md`.

Nothing here runs at import. Rates are dense peaks in units of 10**12 operations per second, by operand format;
bandwidth is in 10**9 bytes per second; sizes are in bytes. A format missing from `tera_ops` can't be multiplied.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from hybrid_humming import env
from hybrid_humming.dtypes import format_names
from hybrid_humming.errors import DeviceError, did_you_mean


@dataclass(frozen=True, kw_only=True)
class DeviceInfo:
    """One device. `kind` is "cuda" or "cpu"; `sm` is 90 for compute capability 9.0 and 0 for a CPU.

    families  pack layouts, and with them kernels, that may be planned for; empty: any
    """

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
    families: tuple[str, ...] = ()

    def rate(self, fmt: str) -> float:
        """Return the dense peak of operand format `fmt` in 10**12 op/s; 0.0 when the device can't multiply it."""
        return dict(self.tera_ops).get(fmt, 0.0)

    def multiplies(self, fmt: str) -> bool:
        """Return whether the tensor cores (or the CPU) take operands of `fmt`."""
        return self.rate(fmt) > 0

    @classmethod
    def named(cls, name: str) -> DeviceInfo:
        """Return the GPU called `name` ("h200", "NVIDIA H200", "cpu", ...); raises DeviceError with the nearest name."""
        table, key = _devices(), _key(name)
        if key not in table:
            raise DeviceError(f"unknown device {name!r}; known are {', '.join(device_names())}.{did_you_mean(key, table)}")
        return table[key]

    @classmethod
    def of(cls, device: torch.device | str | DeviceInfo) -> DeviceInfo:
        """Return the info of a torch device, a named GPU, or the info itself."""
        if isinstance(device, DeviceInfo):
            return device
        if isinstance(device, str) and _key(device) in _devices():
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
    """Return the names that `DeviceInfo.named` knows, without their aliases."""
    return tuple(sorted({info.name for info in _devices().values()}))


def load(path: str | Path) -> dict[str, DeviceInfo]:
    """Return the devices that the file at `path` describes, by name; raises DeviceError for what is missing or wrong in it.

        {"devices": {"ppu-810e": {"base": "a100", "dram_gbps": 1800.0, "families": ["portable"]},
                     "my-gpu": {"sm": 89, "sm_count": 40, ... "tera_ops": {"bf16": 90.0}}}}

    base  a device of ours whose fields stand for those left out; without it sm, sm_count, both sizes of shared memory, l2_bytes,
          dram_gbps and tera_ops are needed
    """
    return {name: row.info for name, row in _read(Path(path), _shipped()).items()}


# ---- the tables ----
SMS = (75, 80, 86, 87, 89, 90, 100, 103, 107, 110, 120, 121)
NEEDED = ("sm", "sm_count", "shared_per_block_bytes", "shared_per_sm_bytes", "l2_bytes", "dram_gbps", "tera_ops")
NUMBERS = {"launch_us", "dram_gbps"}  # may have a fraction; other numbers count something
TEXTS = {"families", "aliases", "sources"}  # lists of strings


@dataclass(frozen=True, kw_only=True)
class _Row:
    """A device as a file gives it. `given` are the fields that the file names: on the card itself they win over what it reports."""

    info: DeviceInfo
    aliases: tuple[str, ...]
    given: tuple[tuple[str, Any], ...]


def _key(name: str) -> str:
    return name.lower().removeprefix("nvidia ").removeprefix("geforce ").replace("_", "-").replace(" ", "-")


@functools.cache
def _shipped() -> dict[str, _Row]:
    return _read(resources.files("hybrid_humming").joinpath("devices.json"), {})


@functools.cache
def _overrides(path: Path) -> dict[str, _Row]:
    return _read(path, _shipped())


def _devices() -> dict[str, DeviceInfo]:
    """Name or alias -> device."""
    return _devices_with(env.devices_file())


@functools.cache
def _devices_with(path: Path | None) -> dict[str, DeviceInfo]:
    rows = _shipped() if path is None else _shipped() | _overrides(path)
    return {key: row.info for name, row in rows.items() for key in (*row.aliases, name)}


def _read(path: Any, known: dict[str, _Row]) -> dict[str, _Row]:
    try:
        rows = json.loads(path.read_text())["devices"].items()
    except OSError as error:
        raise DeviceError(f"can't read the devices of {path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise DeviceError(f'{path} is no table of devices: expected JSON of the form {{"devices": {{name: fields}}}}') from None
    return {_key(name): _row(f"{path}: device {name!r}", _key(name), fields, known) for name, fields in rows}


def _row(where: str, name: str, fields: Any, known: dict[str, _Row]) -> _Row:
    if not isinstance(fields, dict):
        raise DeviceError(f"{where} is {fields!r}; it must be an object of fields")
    allowed = [f.name for f in dataclasses.fields(DeviceInfo) if f.name != "name"]
    for key, value in fields.items():
        if key not in (*allowed, "base", "aliases", "sources"):
            raise DeviceError(f"{where} has a field {key!r}; fields are {', '.join(allowed)}, base.{did_you_mean(key, allowed)}")
        _check(where, key, value)
    base = fields.get("base")
    if base is not None and base not in known:
        raise DeviceError(f"{where}: base {base!r} is no device of ours; ours are {', '.join(known)}")
    if base is None and fields.get("kind") != "cpu":
        missing = [key for key in NEEDED if key not in fields]
        if missing:
            raise DeviceError(f"{where} lacks {', '.join(missing)}; give them, or a base whose values stand for them")
    given: dict[str, Any] = {key: value for key, value in fields.items() if key in allowed}
    if "tera_ops" in given:
        given["tera_ops"] = tuple(sorted(given["tera_ops"].items()))
    if "families" in given:
        given["families"] = tuple(given["families"])
    info = known[base].info.replace(name=name, **given) if base is not None else DeviceInfo(name=name, **given)
    aliases = tuple(map(_key, fields["aliases"])) if "aliases" in fields else known[name].aliases if name in known else ()
    return _Row(info=info, aliases=aliases, given=tuple(given.items()))


def _check(where: str, key: str, value: Any) -> None:
    """Raise DeviceError unless `value` is of the field's type and makes sense."""
    expected = None
    if key in ("kind", "base"):
        if not isinstance(value, str) or (key == "kind" and value not in ("cuda", "cpu")):
            expected = "'cuda' or 'cpu'" if key == "kind" else "the name of a device"
    elif key in TEXTS:
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            expected = "a list of strings"
    elif key == "tera_ops":
        if not isinstance(value, dict) or not value or not all(_positive(rate) for rate in value.values()):
            expected = 'an object of positive numbers, such as {"bf16": 312.0}'
        elif unknown := [fmt for fmt in value if fmt not in format_names()]:
            expected = f"rates of formats; {unknown[0]!r} is none"
    elif key == "sm":
        if type(value) is not int or value not in (0, *SMS):
            expected = f"one of {', '.join(map(str, SMS))}, or 0 for a CPU; name the one whose instructions the device runs"
    elif not _positive(value) or (key not in NUMBERS and type(value) is not int):
        expected = "a positive number" if key in NUMBERS else "a positive integer"
    if expected is not None:
        raise DeviceError(f"{where}: {key} is {value!r}; it must be {expected}")


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def _probe(index: int) -> DeviceInfo:
    """Read the card; rates and bandwidth come from the table's entry of that name, or the nearest of the same SM."""
    return _read_card(index, env.devices_file())


@functools.cache
def _read_card(index: int, overrides: Path | None) -> DeviceInfo:
    # torch's annotations lack fields that the object has since 2.5.
    props: Any = torch.cuda.get_device_properties(index)
    sm = props.major * 10 + props.minor
    table = _devices()
    key = _key(props.name)
    # The longest known name inside the card's wins: "h200-nvl" is an H200, "h20" is not.
    inside = [n for n in table if key == n or key.startswith(f"{n}-")]
    if inside:
        base = table[max(inside, key=len)]
    else:
        same = [d for d in table.values() if d.sm == sm] or [d for d in table.values() if d.sm and d.sm // 10 == sm // 10]
        if not same:
            raise DeviceError(
                f"{props.name} has SM {sm}; none of its kind is in devices.json: describe it in a HYBRID_HUMMING_DEVICES file"
            )
        base = min(same, key=lambda d: (len(d.families), abs(d.sm_count - props.multi_processor_count)))
    reported = base.replace(
        name=key,
        sm=sm,
        sm_count=props.multi_processor_count,
        shared_per_block_bytes=props.shared_memory_per_block_optin,
        shared_per_sm_bytes=props.shared_memory_per_multiprocessor,
        registers_per_sm=props.regs_per_multiprocessor,
        l2_bytes=props.L2_cache_size,
    )
    chosen = _overrides(overrides).get(base.name) if overrides is not None else None
    return reported if chosen is None else reported.replace(**dict(chosen.given))
