"""What multiplies in place of an activation format that a GPU can't: one table for every family.

A substitute holds every value of the format exactly, except that bf16 on a GPU without bf16 tensor cores
is multiplied by fp32 FMA. The first substitute that the device multiplies is the one used.

Where that is an 8-bit format, as for 4-bit activations on Hopper, kernels for it serve: they are given the stand-in spec, and x
with the values of the narrow grid stored in the wider format (`stand_in`).
"""

from __future__ import annotations

import dataclasses

from hybrid_humming import env
from hybrid_humming.device import DeviceInfo
from hybrid_humming.dtypes import parse_format
from hybrid_humming.spec import Spec

HIDDEN = ("e3m4", "e0m3")

SUBSTITUTES: dict[str, tuple[str, ...]] = {
    "fp16": ("fp32",),
    "bf16": ("fp32",),
    "e4m3": ("bf16", "fp16"),
    "e5m2": ("bf16", "fp16"),
    "e3m4": ("bf16", "fp16"),
    "e2m3": ("e4m3", "bf16", "fp16"),
    "e3m2": ("e4m3", "bf16", "fp16"),
    "e2m1": ("e4m3", "bf16", "fp16"),
    "e0m3": ("int8", "e4m3", "bf16", "fp16"),
    "int8": ("bf16", "fp16"),
    "int4": ("int8", "bf16", "fp16"),
}


def operand_format(activation: str, device: DeviceInfo) -> str:
    """Return the format in which `device` multiplies `activation`: itself, or the first substitute that it can."""
    if device.multiplies(activation) and not _turned_off(activation, device):
        return activation
    return next((f for f in SUBSTITUTES[activation] if device.multiplies(f)), "fp32")


def stand_in(spec: Spec, device: DeviceInfo) -> Spec:
    """Return the spec of kernels that can run `spec`: itself, or with the 8-bit format that holds its activations' values."""
    if not spec.quantizes_activation:
        return spec
    operand = operand_format(spec.activation, device)
    return spec if operand == spec.activation or parse_format(operand).is_wide else dataclasses.replace(spec, activation=operand)


def fallback_reason(activation: str, multiplies: str, device: DeviceInfo) -> str:
    """Return why `multiplies` stands in for `activation`, or an empty string when nothing does.

    A CPU multiplies 16-bit floats as fp32: nothing is given up, so that is no fallback.
    """
    if activation == multiplies or (device.kind == "cpu" and activation in ("fp16", "bf16")):
        return ""
    if _turned_off(activation, device):
        return f"{activation} activations are multiplied as {multiplies}: HYBRID_HUMMING_HIDDEN_FORMATS=0 turns hidden types off"
    if device.multiplies(activation):
        return f"{activation} activations are multiplied as {multiplies}: no kernel for {activation} operands fits this problem"
    return (
        f"{activation} activations are multiplied as {multiplies}: {device.name} (sm_{device.sm}) has no {activation} tensor cores"
    )


def _turned_off(fmt: str, device: DeviceInfo) -> bool:
    return fmt in HIDDEN and device.kind == "cuda" and device.multiplies(fmt) and not env.hidden_formats()


def fallback_table(devices: list[DeviceInfo]) -> list[tuple[str, list[str]]]:
    """Return rows (activation format, operand format on each device), for the docs and `doctor`."""
    return [(fmt, [operand_format(fmt, d) for d in devices]) for fmt in SUBSTITUTES]
