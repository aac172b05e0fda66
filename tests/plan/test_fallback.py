"""One table says what multiplies where the GPU can't; each substitute is exact."""

import numpy as np
import pytest

from hybrid_humming.device import SMS, DeviceInfo, device_names
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


# SM -> the format that multiplies, in the order of ACTIVATION_FORMATS.
ANSWERS = {
    75: "fp16 fp32 fp16 fp16 fp16 fp16 fp16 fp16 int8 int8 int4",
    80: "fp16 bf16 bf16 bf16 bf16 bf16 bf16 bf16 int8 int8 int4",
    86: "fp16 bf16 bf16 bf16 bf16 bf16 bf16 bf16 int8 int8 int4",
    87: "fp16 bf16 bf16 bf16 bf16 bf16 bf16 bf16 int8 int8 int4",
    89: "fp16 bf16 e4m3 e5m2 bf16 e4m3 e4m3 e4m3 int8 int8 int4",
    90: "fp16 bf16 e4m3 e5m2 bf16 e4m3 e4m3 e4m3 int8 int8 int8",
    100: "fp16 bf16 e4m3 e5m2 e3m4 e2m3 e3m2 e2m1 e0m3 int8 int8",
    103: "fp16 bf16 e4m3 e5m2 e3m4 e2m3 e3m2 e2m1 e0m3 int8 int8",
    107: "fp16 bf16 e4m3 e5m2 bf16 e2m3 e3m2 e2m1 int8 int8 int8",
    110: "fp16 bf16 e4m3 e5m2 bf16 e2m3 e3m2 e2m1 int8 int8 int8",
    120: "fp16 bf16 e4m3 e5m2 e3m4 e2m3 e3m2 e2m1 e0m3 int8 int8",
    121: "fp16 bf16 e4m3 e5m2 e3m4 e2m3 e3m2 e2m1 e0m3 int8 int8",
}  # fmt: skip
CELLS = [(sm, fmt, answer) for sm, row in ANSWERS.items() for fmt, answer in zip(ACTIVATION_FORMATS, row.split(), strict=True)]
VENDOR = [DeviceInfo.named(name) for name in device_names() if DeviceInfo.named(name).kind == "cuda"]


@pytest.mark.parametrize(("sm", "activation", "answer"), CELLS)
def test_every_cell_of_sm_and_activation_has_one_answer(sm, activation, answer):
    devices = [device for device in VENDOR if device.sm == sm and not device.families]
    assert devices and {operand_format(activation, device) for device in devices} == {answer}
    for device in devices:
        reason = fallback_reason(activation, answer, device)
        assert bool(reason) == (answer != activation)
        assert not reason or (f"as {answer}" in reason and f"sm_{sm}" in reason)


def test_every_sm_has_a_row():
    assert {device.sm for device in VENDOR} == set(ANSWERS) == set(SMS)


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
