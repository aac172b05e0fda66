"""torchao: int8 and float8 subclasses in safetensors; others are refused by name."""

import copy

import pytest
import torch

from hybrid_humming.checkpoint import load_canonical
from hybrid_humming.errors import CheckpointMismatch, MissingTensor, UnknownQuantMethod
from tests.checkpoint.build import GOLDEN, changed, golden

LAYER = "model.layers.0.self_attn.q_proj"
SPECS = {
    "int8": "int8 channel:fp32 x bf16",
    "int8-dynamic": "int8 channel x int8 token",
    "float8": "e4m3 channel:fp32 x bf16",
    "float8-dynamic": "e4m3 channel x e4m3 token",
}


def kind(name: str, **data) -> dict:
    table = copy.deepcopy(golden("torchao-int8-dynamic")[0]["quantization_config"]["quant_type"])
    table["default"]["_type"] = name
    table["default"]["_data"] |= data
    return {"quant_type": table}


@pytest.mark.parametrize("name", SPECS)
def test_spec_of_each_subclass(name):
    checkpoint = load_canonical(GOLDEN / f"torchao-{name}")
    assert {str(layer.spec) for layer in checkpoint.layers.values()} == {SPECS[name]}
    assert "model.norm.weight" in checkpoint.rest


def test_group_and_tensor_scales(tmp_path):
    for i, data in enumerate(({"group_size": 32}, {"granularity": {"_type": "PerGroup", "_data": {"group_size": 32}}})):
        kinds = {"default": {"_type": "Int8WeightOnlyConfig", "_version": 2, "_data": data}}
        parts = {"_weight_scale": torch.rand(64, 2), "_weight_zero_point": None}
        group = changed(tmp_path / f"group{i}", "torchao-int8", quantization={"quant_type": kinds}, layer=LAYER, **parts)
        assert str(load_canonical(group, strict=False).spec(LAYER)) == "int8 g32:fp32 x bf16"
    tensor = changed(tmp_path / "tensor", "torchao-float8", layer=LAYER, _weight_scale=torch.rand(1, 1))
    assert str(load_canonical(tensor).spec(LAYER)) == "e4m3 tensor:fp32 x bf16"


def test_integer_groups_are_refused_by_name():
    with pytest.raises(UnknownQuantMethod, match="torchao's IntxWeightOnlyConfig is not read; readable are Int8WeightOnlyConfig"):
        load_canonical(GOLDEN / "refused" / "torchao-intx")


@pytest.mark.parametrize("name", ["Int4WeightOnlyConfig", "ModuleFqnToConfig", "NVFP4WeightOnlyConfig"])
def test_other_configs_are_refused_by_name(tmp_path, name):
    with pytest.raises(UnknownQuantMethod, match=f"torchao's {name} is not read"):
        load_canonical(changed(tmp_path, "torchao-int8", quantization=kind(name)))


def test_a_config_of_older_versions_is_refused(tmp_path):
    with pytest.raises(UnknownQuantMethod, match="quant_type is 'int8_weight_only'; expected one 'default' config object"):
        load_canonical(changed(tmp_path, "torchao-int8", quantization={"quant_type": "int8_weight_only"}))


@pytest.mark.parametrize(
    "parts,error,text",
    [
        ({"_weight_scale": None}, MissingTensor, "needs qdata, scale; missing are scale"),
        ({"_weight_scale": torch.ones(64, 3)}, CheckpointMismatch, "K=64 is no multiple of its 3 groups"),
        ({"_weight_scale": torch.ones(32, 1)}, CheckpointMismatch, r"_weight_scale is F32 \[32, 1\], but 'int8 channel"),
        ({"_weight_qdata": torch.zeros(64, 64)}, CheckpointMismatch, "_weight_qdata is F32 .*, expected I8"),
    ],
)
def test_tensors_that_contradict_the_config(tmp_path, parts, error, text):
    with pytest.raises(error, match=text):
        load_canonical(changed(tmp_path, "torchao-int8", layer=LAYER, **parts))


def test_zero_points_of_symmetric_weights_must_be_zero(tmp_path):
    path = changed(tmp_path, "torchao-int8", layer=LAYER, _weight_zero_point=torch.ones(64, 1, dtype=torch.int8))
    with pytest.raises(CheckpointMismatch, match="_weight_zero_point is not all zero"):
        load_canonical(path)[LAYER]
