"""BitNet: which linear class divides by its scale and which multiplies, both storages, and what is refused."""

import pytest
import torch

from hybrid_humming.checkpoint import load_canonical
from hybrid_humming.errors import CheckpointMismatch, MissingTensor, UnknownQuantMethod
from hybrid_humming.reference import dequantize
from tests.checkpoint.build import GOLDEN, changed, golden

LAYER = "layers.0.mlp.up_proj"
DIVIDES, MULTIPLIES = "transformers-bitlinear", "transformers-autobitlinear"


def test_bitlinear_divides_and_autobitlinear_multiplies():
    scale = golden(DIVIDES)[1][f"{LAYER}.weight_scale"].float()
    divided, multiplied = (dequantize(load_canonical(GOLDEN / f)[LAYER]) for f in (DIVIDES, MULTIPLIES))
    assert divided.unique().tolist() == [-1 / scale.item(), 0, 1 / scale.item()] or torch.allclose(divided.abs().max(), 1 / scale)
    assert multiplied.unique().tolist() == [-scale.item(), 0, scale.item()]


def test_rows_lie_in_bit_pairs(tmp_path):
    # The byte 0b10_01_00_10 holds rows 0..3 of N/4 = 1 as 2 - 1, 0 - 1, 1 - 1, 2 - 1.
    packed = torch.full((1, 48), 0b10010010, dtype=torch.uint8)
    path = changed(tmp_path, MULTIPLIES, layer=LAYER, weight=packed, weight_scale=torch.ones(1))
    assert dequantize(load_canonical(path)[LAYER])[:, 0].tolist() == [1, -1, 0, 1]


def test_activations_are_int8_by_token():
    assert str(load_canonical(GOLDEN / DIVIDES).spec(LAYER)) == "e0m1 tensor x int8 token"


def test_unpacked_ternary_weights_are_the_same(tmp_path):
    packed = load_canonical(GOLDEN / MULTIPLIES)[LAYER]
    plain = torch.tensor([0.0, 1.0, 0.0, -1.0])[packed.codes.long()].bfloat16()
    assert load_canonical(changed(tmp_path, MULTIPLIES, layer=LAYER, weight=plain))[LAYER].codes.equal(packed.codes)


def test_values_that_are_not_ternary_are_named(tmp_path):
    plain = torch.zeros(32, 48).bfloat16()
    plain[3, 5] = 0.5
    with pytest.raises(CheckpointMismatch, match=r"weight\[3, 5\] is 0.5; ternary weights are -1, 0 or 1"):
        load_canonical(changed(tmp_path / "plain", MULTIPLIES, layer=LAYER, weight=plain))[LAYER]
    packed = torch.full((8, 48), 0b11, dtype=torch.uint8)
    with pytest.raises(CheckpointMismatch, match=r"weight\[0, 0\] is 2"):
        load_canonical(changed(tmp_path / "packed", MULTIPLIES, layer=LAYER, weight=packed))[LAYER]


@pytest.mark.parametrize(
    "fields,error,text",
    [
        ({"linear_class": "bitlinear2"}, UnknownQuantMethod, "linear_class 'bitlinear2'; readable are bitlinear and autobitlinear"),
        (
            {"quantization_mode": "online"},
            UnknownQuantMethod,
            "'online' stores unquantized weights; .* hh.quantize",
        ),
        ({"use_rms_norm": True}, UnknownQuantMethod, "use_rms_norm puts a norm inside each linear layer"),
        ({"modules_to_not_convert": [LAYER]}, CheckpointMismatch, "lists 'layers.0.mlp.up_proj' as not quantized"),
    ],
)
def test_what_is_not_read_says_so(tmp_path, fields, error, text):
    with pytest.raises(error, match=text):
        load_canonical(changed(tmp_path, DIVIDES, quantization=fields))


def test_a_missing_scale_is_named(tmp_path):
    with pytest.raises(MissingTensor, match="BitNet needs weight, weight_scale; missing are weight_scale"):
        load_canonical(changed(tmp_path, DIVIDES, layer=LAYER, weight_scale=None))
