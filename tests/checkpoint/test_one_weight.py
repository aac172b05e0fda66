"""One logical weight, packed by many exporters' own code, is one weight: the same codes, scales, zero points and values."""

import sys

import pytest
import torch
from safetensors.torch import load_file

from hybrid_humming.checkpoint import load_canonical
from hybrid_humming.reference import dequantize
from tests.checkpoint.build import GOLDEN, golden, write

sys.path.insert(0, str(GOLDEN))
import tiny

ASYMMETRIC = ("autoawq", "autoround", "ct", "gptqmodel", "hqq", "quark")


@pytest.mark.parametrize("exporter", ASYMMETRIC)
def test_each_exporter_packs_the_same_weight(exporter):
    codes, scale, zero = tiny.one_weight()
    weight = load_canonical(GOLDEN / f"{exporter}-one-weight")["proj"]
    assert torch.equal(weight.codes, codes)
    assert torch.equal(weight.scale.float(), scale)
    assert torch.equal(weight.zero_point.float(), zero.float())
    assert torch.equal(dequantize(weight), tiny.one_weight_values(symmetric=False))


def test_its_symmetric_form_too():
    weight = load_canonical(GOLDEN / "modelopt-one-weight")["proj"]
    assert torch.equal(weight.codes, tiny.one_weight()[0])
    assert torch.equal(dequantize(weight), tiny.one_weight_values(symmetric=True))


def test_the_exporters_say_so_themselves():
    for exporter in ASYMMETRIC:
        expected = load_file(GOLDEN / f"{exporter}-one-weight" / "expected.safetensors")["proj"]
        assert torch.equal(expected, tiny.one_weight_values(symmetric=False)), exporter


def test_nvfp4_divisor_and_multiplier_are_one_weight(tmp_path):
    """compressed-tensors divides by its global scale, ModelOpt multiplies by it."""
    stored, name = golden("modelopt-nvfp4")[1], "model.layers.0.self_attn.q_proj"
    factor = torch.tensor(2.0**-13)
    one = {f"{name}.{part}": stored[f"{name}.{part}"] for part in ("weight", "weight_scale", "input_scale")}
    other = {f"{name}.weight_packed": one[f"{name}.weight"], f"{name}.weight_scale": one[f"{name}.weight_scale"]}
    one |= {f"{name}.weight_scale_2": factor, f"{name}.input_scale": factor.clone()}
    other |= {f"{name}.weight_global_scale": 1 / factor.reshape(1), f"{name}.input_global_scale": 1 / factor.reshape(1)}
    first = load_canonical(write(tmp_path / "modelopt", golden("modelopt-nvfp4")[0], one))[name]
    second = load_canonical(write(tmp_path / "ct", golden("ct-nvfp4-w4a4")[0], other))[name]
    assert first.spec == second.spec
    assert torch.equal(dequantize(first), dequantize(second))
    assert first.input_scale.item() == second.input_scale.item() == factor.item()
