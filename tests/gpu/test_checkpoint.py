"""Checkpoints taken apart and packed on the GPU have the bytes that the CPU gives."""

import pytest
import torch

import hybrid_humming as hh
from hybrid_humming.checkpoint import load_canonical
from tests.checkpoint.build import GOLDEN
from tests.checkpoint.test_golden import FOLDERS, OPTIONS


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().reshape(-1).clone().view(torch.uint8)


@pytest.mark.parametrize("folder", FOLDERS)
def test_conversion_and_packing_on_the_gpu_give_the_same_bytes(folder):
    checkpoint = load_canonical(GOLDEN / folder, options=OPTIONS.get(folder))
    for name, stored in checkpoint.layers.items():
        there = stored.convert({part: info.read().cuda() for part, info in stored.parts.items()})
        here = checkpoint[name]
        assert there.codes.is_cuda
        one, other = hh.pack_weight(there), hh.pack_weight(here, device=hh.DeviceInfo.of("cuda"))
        assert (one.spec, one.layout) == (other.spec, other.layout)
        for part, tensor in other.tensors().items():
            assert torch.equal(raw(one.tensors()[part]), raw(tensor)), f"{name}.{part}"


def test_a_layer_loaded_for_the_gpu_is_taken_apart_there(monkeypatch):
    from hybrid_humming.checkpoint.registry import StoredLayer

    folder, name = GOLDEN / "gptqmodel-w4-g16-asym-desc-act", "model.layers.0.mlp.down_proj"
    seen, convert = [], StoredLayer.read
    monkeypatch.setattr(StoredLayer, "read", lambda self, **k: seen.append(k["device"]) or convert(self, **k))
    loaded = hh.load(folder, device="cuda")
    qweight, _ = loaded[name]
    assert seen == ["cuda"] and qweight.device.type == "cuda" and loaded.bias(name).is_cuda
    want, _ = hh.load(folder, device=hh.DeviceInfo.of("cuda"))[name]
    assert all(torch.equal(raw(tensor), raw(want.tensors()[part])) for part, tensor in qweight.tensors().items())


@pytest.mark.parametrize("folder", ["gptqmodel-w4-g16-asym-desc-act", "ct-nvfp4-w4a4", "transformers-gpt-oss"])
def test_a_checkpoint_converted_on_the_gpu_is_the_same_file(folder, tmp_path):
    from hybrid_humming.cli import main

    for on in ("cpu", "cuda"):
        assert main(["convert", str(GOLDEN / folder), str(tmp_path / on), "--arch", "h200", "--on", on]) == 0
    one, other = ((tmp_path / on / "model.safetensors").read_bytes() for on in ("cpu", "cuda"))
    assert one == other
