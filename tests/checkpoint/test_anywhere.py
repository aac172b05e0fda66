"""Tensors are taken apart where they lie: no importer makes one on another device, so that a GPU can do the work."""

import pytest
import torch

from hybrid_humming.checkpoint import load_canonical
from tests.checkpoint.build import GOLDEN
from tests.checkpoint.test_golden import FOLDERS, OPTIONS


@pytest.mark.parametrize("folder", FOLDERS)
def test_conversion_stays_on_the_device_of_its_tensors(folder):
    checkpoint = load_canonical(GOLDEN / folder, options=OPTIONS.get(folder))
    for name, stored in checkpoint.layers.items():
        tensors = {part: info.read() for part, info in stored.parts.items()}
        # A tensor made without a device would be a meta tensor here, and the conversion would fail on its first use.
        with torch.device("meta"):
            weight = stored.convert(tensors)
        found = [weight.codes, weight.scale, weight.zero_point, weight.secondary_scale, weight.input_scale]
        if weight.transform is not None:
            found += [weight.transform.permutation, weight.transform.pre_quant_scale]
        assert {tensor.device.type for tensor in found if tensor is not None} == {"cpu"}
        assert torch.equal(weight.codes, checkpoint[name].codes)
