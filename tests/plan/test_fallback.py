"""One table says what multiplies where the GPU can't; each substitute is exact."""

import numpy as np
import pytest

from hybrid_humming.device import DeviceInfo, device_names
from hybrid_humming.dtypes import parse_format
from hybrid_humming.plan import fallback_table, operand_format
from hybrid_humming.plan.fallback import SUBSTITUTES, fallback_reason
from hybrid_humming.spec import ACTIVATION_FORMATS


def test_every_activation_format_has_a_row():
    assert set(SUBSTITUTES) == set(ACTIVATION_FORMATS)


@pytest.mark.parametrize(("activation", "device", "operand"), [
    ("e2m1", "h200", "e4m3"), ("e2m1", "b200", "e2m1"), ("e0m3", "h200", "int8"), ("int4", "h200", "int8"),
    ("int4", "a100", "int4"), ("e4m3", "a100", "bf16"), ("e4m3", "t4", "fp16"), ("bf16", "t4", "fp32"),
    ("e3m4", "h200", "bf16"), ("e4m3", "h20", "e4m3"), ("int8", "rtx-4090", "int8"),
])  # fmt: skip
def test_known_substitutes(activation, device, operand):
    assert operand_format(activation, DeviceInfo.named(device)) == operand


def representable(value: float, fmt: str) -> bool:
    if fmt == "fp32":
        return True
    table = parse_format(fmt).values
    return bool(np.any(table == value))


def test_each_substitute_holds_every_value():
    for activation, substitutes in SUBSTITUTES.items():
        if parse_format(activation).is_wide:
            continue
        values = parse_format(activation).values
        for substitute in substitutes:
            for value in values[np.isfinite(values)]:
                assert representable(value, substitute), f"{activation} {value} is not in {substitute}"


def test_the_table_covers_every_named_device():
    devices = [DeviceInfo.named(name) for name in device_names()]
    rows = dict(fallback_table(devices))
    assert set(rows) == set(ACTIVATION_FORMATS)
    for fmt, operands in rows.items():
        for device, operand in zip(devices, operands, strict=True):
            assert operand == "fp32" or device.multiplies(operand), (fmt, device.name)


def test_hidden_types_can_be_turned_off_and_the_reason_says_so(monkeypatch):
    device = DeviceInfo.named("rtx-pro-6000")
    assert operand_format("e3m4", device) == "e3m4" and not fallback_reason("e3m4", "e3m4", device)
    monkeypatch.setenv("HYBRID_HUMMING_HIDDEN_FORMATS", "0")
    operand = operand_format("e3m4", device)
    assert operand == "bf16" and "HYBRID_HUMMING_HIDDEN_FORMATS=0" in fallback_reason("e3m4", operand, device)
