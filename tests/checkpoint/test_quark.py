"""Quark: each dtype and scheme, both orders of packing, settings per layer, two stages, and what is refused."""

import copy

import pytest
import torch

from hybrid_humming.checkpoint import load_canonical
from hybrid_humming.errors import CheckpointMismatch, MissingTensor, UnknownQuantMethod
from tests.checkpoint.build import GOLDEN, changed, golden, write

Q_PROJ, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"
SPECS = {
    "uint4-reorder": "uint4 g32 zp x bf16",
    "uint4-order": "uint4 g32 zp x bf16",
    "int4-reorder": "int4 g32 x bf16",
    "int4-channel": "int4 channel x bf16",
    "int8-channel": "int8 channel:bf16 x int8 tensor",
    "int8-group": "int8 g32 x bf16",
    "fp8-tensor": "e4m3 tensor:bf16 x e4m3 tensor",
    "fp8-channel": "e4m3 channel:bf16 x e4m3 token",
    "mxfp4": "mxfp4 x mxfp4",
    "mxfp6-e2m3": "mxfp6 x bf16",
    "mxfp6-e3m2": "e3m2 g32:e8m0 x bf16",
    "fp4-two-stage": "nvfp4 x bf16",
}


def weight_of(folder: str, **changes):
    """The global weight settings of a golden checkpoint with fields changed, as fields of the quantization config."""
    table = copy.deepcopy(golden(f"quark-{folder}")[0]["quantization_config"]["global_quant_config"])
    table["weight"] |= changes
    return {"global_quant_config": table}


def inputs(folder: str, tensors):
    table = copy.deepcopy(golden(f"quark-{folder}")[0]["quantization_config"]["global_quant_config"])
    return {"global_quant_config": {**table, "input_tensors": tensors}}


@pytest.mark.parametrize("name", SPECS)
def test_spec_of_each_scheme(name):
    checkpoint = load_canonical(GOLDEN / f"quark-{name}")
    assert {str(layer.spec) for layer in checkpoint.layers.values()} == {SPECS[name]}


def test_both_pack_methods_hold_the_same_weight():
    one, other = (load_canonical(GOLDEN / f"quark-uint4-{method}") for method in ("reorder", "order"))
    for name in one:
        assert one[name].codes.equal(other[name].codes)
        assert one[name].zero_point.equal(other[name].zero_point)


def test_settings_per_layer_by_pattern():
    checkpoint = load_canonical(GOLDEN / "quark-per-layer")
    found = {name.rpartition(".")[2]: str(layer.spec) for name, layer in checkpoint.layers.items()}
    assert found["down_proj"] == "e4m3 tensor:bf16 x bf16".replace(":bf16", "")
    assert found["o_proj"] == "int4 g32 x bf16"
    assert found["q_proj"] == "uint4 g32 zp x bf16"


def test_settings_per_layer_type(tmp_path):
    config, tensors = golden("quark-int4-reorder")
    quantization = config["quantization_config"]
    quantization["layer_type_quant_config"] = {"Linear": quantization["global_quant_config"]}
    quantization["global_quant_config"] = golden("quark-fp8-tensor")[0]["quantization_config"]["global_quant_config"]
    assert str(load_canonical(write(tmp_path, config, tensors)).spec(Q_PROJ)) == "int4 g32 x bf16"


@pytest.mark.parametrize(
    "tensors,line",
    [
        (None, "mxfp4 x bf16"),
        ({"dtype": "bfloat16"}, "mxfp4 x bf16"),
        ({"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": True, "symmetric": True}, "mxfp4 x e4m3 token"),
        ({"dtype": "fp8_e4m3", "qscheme": "per_group", "group_size": 32, "is_dynamic": True}, "mxfp4 x e4m3 g32"),
        (
            {"dtype": "fp6_e2m3", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0", "is_dynamic": True},
            "mxfp4 x mxfp6",
        ),
        (
            [
                {"dtype": "fp4", "qscheme": "per_group", "group_size": 16, "is_dynamic": True},
                {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": True, "is_scale_quant": True},
            ],
            "mxfp4 x nvfp4",
        ),
    ],
)
def test_input_tensors_become_the_activation_half(tmp_path, tensors, line):
    path = changed(tmp_path, "quark-mxfp4", quantization=inputs("mxfp4", tensors))
    assert str(load_canonical(path).spec(Q_PROJ)) == line


def test_static_scales_of_the_activations():
    stored = golden("quark-int8-channel")[1][f"{Q_PROJ}.input_scale"]
    assert load_canonical(GOLDEN / "quark-int8-channel")[Q_PROJ].input_scale.item() == stored.item()


def test_e5m3_scales(tmp_path):
    weights = weight_of("mxfp4", scale_format="e5m3")
    path = changed(tmp_path, "quark-mxfp4", quantization=weights)
    weight = load_canonical(path)[Q_PROJ]
    assert weight.spec.scale == "e5m3"
    assert weight.scale.dtype == torch.uint8


@pytest.mark.parametrize(
    "folder,fields,text",
    [
        ("mxfp4", {"dtype": "mx"}, "Quark dtype 'mx' is not read: its exponents lie between the codes"),
        ("mxfp4", {"dtype": "int3"}, "Quark dtype 'int3' is not read: export another width"),
        ("mxfp4", {"dtype": "fp5"}, "Quark dtype 'fp5' is not read; readable are fp4.* Did you mean 'fp4'"),
        ("mxfp4", {"qscheme": "per_row"}, "qscheme 'per_row' is not read; readable are per_tensor"),
        ("mxfp4", {"is_dynamic": True}, "a dynamic weight is stored unquantized"),
        ("mxfp4", {"ch_axis": 0}, "per_group weights with ch_axis 0 are not read"),
        ("fp8-channel", {"ch_axis": 1}, "per_channel weights with ch_axis 1 are not read; only axis 0"),
    ],
)
def test_settings_that_are_not_read_say_so(tmp_path, folder, fields, text):
    with pytest.raises(UnknownQuantMethod, match=text):
        load_canonical(changed(tmp_path, f"quark-{folder}", quantization=weight_of(folder, **fields)))


@pytest.mark.parametrize(
    "fields,text",
    [
        ({"export": {"pack_method": "tile"}}, "pack_method 'tile' is not read; readable are reorder and order"),
        ({"export": {"weight_format": "fake_quantized"}}, "weight_format 'fake_quantized' holds unquantized weights"),
        ({"algo_config": [{"name": "rotation", "r1": True, "r4": True}]}, r"rotates activations at run time \(r4\)"),
        (inputs("mxfp4", {"dtype": "int8", "qscheme": "per_tensor", "symmetric": False}), "asymmetric input_tensors"),
        (inputs("mxfp4", {"dtype": "fp8_e4m3", "qscheme": "per_block"}), "per_block input_tensors are not read"),
        (
            {"global_quant_config": {"weight": [{"dtype": "fp8_e4m3"}, {"dtype": "int4"}]}},
            r"weight: quantization in 2 stages of values \(fp8_e4m3, int4\)",
        ),
        ({"global_quant_config": {"weight": {"dtype": "fp4"}, "output_tensors": {"dtype": "int8"}}}, "quantized output_tensors"),
    ],
)
def test_variants_that_are_not_read_say_so(tmp_path, fields, text):
    with pytest.raises(UnknownQuantMethod, match=text):
        load_canonical(changed(tmp_path, "quark-mxfp4", quantization=fields))


def test_rotations_folded_into_the_weights_need_nothing(tmp_path):
    path = changed(tmp_path, "quark-mxfp4", quantization={"algo_config": [{"name": "rotation", "r1": True, "r4": False}]})
    assert Q_PROJ in load_canonical(path)


def test_symmetric_weights_with_stored_zero_points_contradict_themselves(tmp_path):
    zero = torch.full((1, 4), 0x11111111, dtype=torch.int32)
    path = changed(tmp_path, "quark-int4-reorder", layer=Q_PROJ, weight_zero_point=zero)
    with pytest.raises(CheckpointMismatch, match="the config says symmetric, but weight_zero_point is not all zero"):
        load_canonical(path)[Q_PROJ]


def test_asymmetric_signed_integers_keep_their_zero_points(tmp_path):
    zero = torch.full((1, 4), 0x11111111, dtype=torch.int32)
    path = changed(
        tmp_path,
        "quark-int4-reorder",
        layer=Q_PROJ,
        weight_zero_point=zero,
        quantization=weight_of("int4-reorder", symmetric=False),
    )
    weight = load_canonical(path)[Q_PROJ]
    assert str(weight.spec) == "uint4 g32 zp x bf16"
    assert weight.zero_point.unique().tolist() == [9]  # 1 + 8


def test_an_excluded_layer_with_quantized_tensors_contradicts_itself(tmp_path):
    with pytest.raises(CheckpointMismatch, match="exclude lists '.*down_proj' as not quantized"):
        load_canonical(changed(tmp_path, "quark-mxfp4", quantization={"exclude": ["*down_proj"]}))


@pytest.mark.parametrize(
    "folder,part,error", [("fp8-tensor", "input_scale", MissingTensor), ("fp4-two-stage", "weight_scale_2", MissingTensor)]
)
def test_a_missing_scale_is_named(tmp_path, folder, part, error):
    with pytest.raises(error, match=f"missing are {part}"):
        load_canonical(changed(tmp_path, f"quark-{folder}", layer=Q_PROJ, **{part: None}))
