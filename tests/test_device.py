"""DeviceInfo: named GPUs without a GPU, and a clear refusal of the unknown."""

import pytest
import torch

from hybrid_humming.device import DeviceInfo, device_names
from hybrid_humming.errors import DeviceError


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
