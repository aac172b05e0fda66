"""DeviceInfo: named GPUs without a GPU, and a clear refusal of the unknown."""

import json
from importlib import resources
from types import SimpleNamespace

import pytest
import torch

import hybrid_humming as hh
from hybrid_humming import device
from hybrid_humming.device import DeviceInfo, device_names, load
from hybrid_humming.errors import DeviceError, LayoutError


@pytest.mark.parametrize("name", device_names())
def test_every_named_device_is_whole(name):
    info = DeviceInfo.named(name)
    assert info.name == name
    assert info.dram_gbps > 0
    if name != "cpu":
        assert info.kind == "cuda"
        assert info.sm >= 75
        assert info.sm_count > 0
        assert info.shared_per_sm_bytes >= info.shared_per_block_bytes >= 48 * 1024
        assert info.multiplies("fp16")


@pytest.mark.parametrize("spelling", ["h200", "H200", "NVIDIA H200"])
def test_names_are_read_as_the_driver_spells_them(spelling):
    info = DeviceInfo.named(spelling)
    assert (info.sm, info.sm_count) == (90, 132)
    assert DeviceInfo.of(spelling) is info
    assert DeviceInfo.of(info) is info


@pytest.mark.parametrize(("name", "sm"), [("t4", 75), ("a100", 80), ("l40s", 89), ("h100", 90), ("b200", 100), ("b300", 103)])
def test_generation_of_a_name(name, sm):
    assert DeviceInfo.named(name).sm == sm


def test_unknown_device_is_refused_with_the_nearest_name():
    with pytest.raises(DeviceError, match=r"unknown device 'h20O'; known are .*Did you mean 'h200?'"):
        DeviceInfo.named("h20O")
    with pytest.raises(DeviceError, match="device meta: only cuda and cpu run here"):
        DeviceInfo.of("meta")


def test_cpu_is_a_device():
    assert DeviceInfo.of(torch.device("cpu")).kind == "cpu"
    assert DeviceInfo.of("cpu").sm == 0


def test_replace_changes_only_what_is_named():
    h200 = DeviceInfo.named("h200")
    assert h200.replace(sm_count=66) == h200.replace(sm_count=66)
    assert h200.replace(sm_count=66) != h200
    assert h200.rate("no such format") == 0.0


# ---- tables of devices ----
WHOLE = {
    "sm": 89, "sm_count": 40, "shared_per_block_bytes": 101376, "shared_per_sm_bytes": 102400, "l2_bytes": 33554432,
    "dram_gbps": 280.0, "tera_ops": {"bf16": 90.0, "fp16": 90.0},
}  # fmt: skip


def table(folder, **devices):
    path = folder / "devices.json"
    path.write_text(json.dumps({"devices": devices}))
    return path


def test_every_device_names_its_sources():
    rows = json.loads(resources.files("hybrid_humming").joinpath("devices.json").read_text())["devices"]
    assert all(row["sources"] and all(len(source) > 10 for source in row["sources"]) for row in rows.values())


def test_a_file_adds_devices_and_changes_ours(tmp_path, monkeypatch):
    path = table(tmp_path, **{"My GPU": WHOLE, "l4": {"base": "l4", "dram_gbps": 270.5}})
    assert set(load(path)) == {"my-gpu", "l4"} and DeviceInfo.named("l4").dram_gbps == 300.0
    monkeypatch.setenv("HYBRID_HUMMING_DEVICES", str(path))
    assert DeviceInfo.named("l4") == DeviceInfo.named("l4").replace(dram_gbps=270.5, sm_count=58)
    assert "my-gpu" in device_names()
    said = hh.explain("e4m3 channel x e4m3 token", m=16, n=4096, k=4096, device="my-gpu")
    assert said.plan.multiplies == "bf16" and "my-gpu (sm_89) has no e4m3 tensor cores" in said.plan.fallback


@pytest.mark.parametrize(("fields", "message"), [
    ({k: v for k, v in WHOLE.items() if k not in ("sm", "tera_ops")}, "device 'x' lacks sm, tera_ops"),
    (WHOLE | {"sm": 85}, "sm is 85; it must be one of 75, 80"), (WHOLE | {"sm": "89"}, "sm is '89'; it must be one of"),
    (WHOLE | {"sm_count": 40.0}, "sm_count is 40.0; it must be a positive integer"),
    (WHOLE | {"sm_count": True}, "sm_count is True; it must be a positive integer"),
    (WHOLE | {"dram_gbps": "fast"}, "dram_gbps is 'fast'; it must be a positive number"),
    (WHOLE | {"dram_gbps": 0}, "dram_gbps is 0; it must be a positive number"),
    (WHOLE | {"tera_ops": {"bf16": -1}}, "it must be an object of positive numbers"),
    (WHOLE | {"tera_ops": {"bf17": 1.0}}, "'bf17' is none"), (WHOLE | {"families": "portable"}, "it must be a list of strings"),
    (WHOLE | {"kind": "tpu"}, "kind is 'tpu'; it must be 'cuda' or 'cpu'"), (["sm", 89], "must be an object of fields"),
    (WHOLE | {"sm_cuont": 3}, "has a field 'sm_cuont'.*Did you mean 'sm_count'"),
    ({"base": "h2000"}, "base 'h2000' is no device of ours"),
])  # fmt: skip
def test_a_wrong_table_is_refused_with_device_and_field(fields, message, tmp_path, monkeypatch):
    path = table(tmp_path, x=fields)
    with pytest.raises(DeviceError, match=f"{path}.*{message}"):
        load(path)
    monkeypatch.setenv("HYBRID_HUMMING_DEVICES", str(path))
    with pytest.raises(DeviceError, match=message):
        hh.explain("int4 g128 x bf16", m=16, n=4096, k=4096, device="h200")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"devices": [1]}', "null"])
def test_a_file_that_is_no_table_is_refused(text, tmp_path):
    path = tmp_path / "devices.json"
    path.write_text(text)
    with pytest.raises(DeviceError, match="is no table of devices"):
        load(path)
    with pytest.raises(DeviceError, match=r"can't read the devices of .*missing.json: No such file"):
        load(tmp_path / "missing.json")


@pytest.mark.parametrize("name", ["ppu-810e", "PPU-ZW810E", "Zhenwu 810E"])
def test_a_cuda_compatible_accelerator_is_planned_with_plain_triton_alone(name):
    info = DeviceInfo.named(name)
    assert (info.name, info.sm, info.families) == ("ppu-810e", 80, ("portable",))
    for line in ("int4 g128 x bf16", "int8 channel x int8 token", "nvfp4 x nvfp4"):
        assert hh.choose_layout(line, 4096, 4096, info).family == "portable"
    with pytest.raises(LayoutError, match="ppu-810e may use the families portable only"):
        hh.choose_layout("int4 g128 x bf16", 4096, 4096, info, family="ampere")


def test_a_card_takes_its_names_entry_and_the_users_fields_win(tmp_path, monkeypatch):
    reported = SimpleNamespace(
        name="PPU-ZW810E", major=8, minor=0, multi_processor_count=96, shared_memory_per_block_optin=98304,
        shared_memory_per_multiprocessor=167936, regs_per_multiprocessor=65536, L2_cache_size=1 << 25,
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: reported)
    device._read_card.cache_clear()
    try:
        found = device._probe(0)
        assert (found.families, found.sm_count, found.shared_per_block_bytes) == (("portable",), 96, 98304)
        mine = {"base": "ppu-810e", "sm_count": 100, "dram_gbps": 2000.0, "families": ["ampere", "portable"]}
        monkeypatch.setenv("HYBRID_HUMMING_DEVICES", str(table(tmp_path, **{"ppu-810e": mine})))
        found = device._probe(0)
        assert (found.sm_count, found.dram_gbps, found.families) == (100, 2000.0, ("ampere", "portable"))
        assert found.shared_per_block_bytes == 98304
    finally:
        device._read_card.cache_clear()
