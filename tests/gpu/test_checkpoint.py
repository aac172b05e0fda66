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
