"""Every checkpoint in tests/golden decodes to the numbers that its exporter's own code gives."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hybrid_humming.checkpoint import load_canonical
from hybrid_humming.checkpoint.registry import ReadOptions
from hybrid_humming.reference import dequantize
from hybrid_humming.weight import CanonicalWeight

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
FOLDERS = sorted(folder.name for folder in GOLDEN.iterdir() if (folder / "expected.safetensors").exists())
# What the files alone don't say.
OPTIONS = {"gptqmodel-w4-g16-asym-unlabelled": ReadOptions(gptq_zero_points="v1")}
# Their arithmetic can't be had bit for bit: the exporter divides by a global scale where a spec multiplies, or multiplies the
# two scales with each other first.
ROUNDED = ("llmcompressor-nvfp4", "ct-nvfp4", "ct-experts-nvfp4", "modelopt-nvfp4", "autoround-native-nvfp4")


def in_order(weight: CanonicalWeight) -> torch.Tensor:
    """The float weight [N, K] with its columns where the unpermuted x expects them."""
    values = dequantize(weight)
    if weight.transform is None or weight.transform.permutation is None:
        return values
    out = torch.full_like(values, float("nan"))
    out[:, weight.transform.permutation.long()] = values
    return out


def test_there_are_goldens():
    assert len(FOLDERS) > 100


@pytest.mark.parametrize("folder", FOLDERS)
def test_golden_decodes_as_its_exporter_does(folder):
    expected = load_file(GOLDEN / folder / "expected.safetensors")
    checkpoint = load_canonical(GOLDEN / folder, options=OPTIONS.get(folder))
    assert set(checkpoint) == set(expected)
    for name, want in expected.items():
        weight = checkpoint[name]
        got = in_order(weight)
        assert got.shape == want.shape == checkpoint.layer(name).shape
        if folder.startswith(ROUNDED):
            torch.testing.assert_close(got, want, rtol=2**-22, atol=0)
        else:
            assert torch.equal(got, want), f"{name}: largest difference {(got - want).abs().max()}"
