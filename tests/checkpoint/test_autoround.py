"""AutoRound's own format: each packing, settings per layer, and what is refused."""

import pytest

from hybrid_humming.checkpoint import load_canonical
from hybrid_humming.errors import CheckpointMismatch, UnknownQuantMethod, UnreadTensor
from tests.checkpoint.build import GOLDEN, changed, golden, write

Q_PROJ, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"
SPECS = {
    "native-gptq-sym": {"int4 channel x fp16", "int4 g32 x fp16"},
    "native-gptqmodel-asym": {"uint4 channel zp x fp16", "uint4 g32 zp x fp16"},
    "native-awq-asym": {"uint4 channel zp x fp16", "uint4 g32 zp x fp16"},
    "native-w5-awq": {"uint5 channel zp x fp16", "uint5 g32 zp x fp16"},
    "native-per-layer": {"int4 g16 x fp16", "int8 g32 x fp16"},
    "native-mxfp4": {"mxfp4 x mxfp4"},
    "native-mxfp8": {"mxfp8 x mxfp8"},
    "native-nvfp4": {"nvfp4 x nvfp4"},
    "native-fp8-static": {"e4m3 channel:bf16 x e4m3 tensor"},
}


@pytest.mark.parametrize("name", SPECS)
def test_specs_of_each_packing(name):
    found = {str(layer.spec) for layer in load_canonical(GOLDEN / f"autoround-{name}").layers.values()}
    # The exporter says bf16 or fp16 for the model; that is not the point here.
    assert {spec.replace("bf16", "fp16") for spec in found} == {spec.replace("bf16", "fp16") for spec in SPECS[name]}


def test_v1_and_v2_zero_points_are_told_apart_by_the_packing(tmp_path):
    true = load_canonical(GOLDEN / "autoround-native-gptqmodel-asym")[DOWN].zero_point
    path = changed(tmp_path, "autoround-native-gptqmodel-asym", quantization={"packing_format": "auto_round:auto_gptq"})
    assert ((load_canonical(path)[DOWN].zero_point.int() - true.int()) % 16 == 1).all()


def test_the_same_weight_in_awq_and_gptq_packing_decodes_alike():
    awq, gptq = (load_canonical(GOLDEN / f"autoround-native-{p}-asym")[DOWN] for p in ("awq", "gptqmodel"))
    assert awq.codes.equal(gptq.codes)
    assert awq.zero_point.equal(gptq.zero_point)
    assert awq.scale.equal(gptq.scale)


@pytest.mark.parametrize("rule", [r".*down_proj", DOWN, "mlp.(up|down)_proj"])
def test_extra_config_takes_names_and_regular_expressions(tmp_path, rule):
    extra = {rule: {"bits": 8}, Q_PROJ: {"group_size": 16}}
    checkpoint = load_canonical(changed(tmp_path, "autoround-native-per-layer", quantization={"extra_config": extra}))
    assert checkpoint.spec(DOWN).weight == "int8"
    assert checkpoint.spec(Q_PROJ).group_size == 16


def test_a_rule_never_hits_a_part_of_a_name(tmp_path):
    with pytest.raises(CheckpointMismatch, match=r"expected .* \[2, 64\]|scales is F16"):
        load_canonical(changed(tmp_path, "autoround-native-per-layer", quantization={"extra_config": {"down_proj": {"bits": 8}}}))


def test_a_layer_said_to_stay_unquantized_contradicts_its_tensors(tmp_path):
    extra = {DOWN: {"bits": 16}, Q_PROJ: {"group_size": 16}}
    with pytest.raises(CheckpointMismatch, match="extra_config says 16 bits, that is not quantized, but"):
        load_canonical(changed(tmp_path, "autoround-native-per-layer", quantization={"extra_config": extra}))


@pytest.mark.parametrize(
    "fields,error,text",
    [
        ({"packing_format": "auto_round:auto_gguf"}, UnknownQuantMethod, "packing_format 'auto_round:auto_gguf' is not read"),
        ({"data_type": "mx_fp"}, UnknownQuantMethod, "packing auto_gptq with data_type 'mx_fp' is not read; it holds integers"),
        ({"act_bits": 8}, UnknownQuantMethod, "act_bits 8 with packing auto_gptq is not read"),
        ({"extra_config": ["down_proj"]}, CheckpointMismatch, "'extra_config' is .*; an object is expected"),
        ({"extra_config": {"down_proj(": {"bits": 8}}}, CheckpointMismatch, r"rule 'down_proj\(' is no regular expression"),
        ({"packing_format": "auto_round:llm_compressor"}, UnknownQuantMethod, "data_type int of 4 bits in packing llm_compressor"),
    ],
)
def test_what_is_not_read_says_so(tmp_path, fields, error, text):
    with pytest.raises(error, match=text):
        load_canonical(changed(tmp_path, "autoround-native-gptq-sym", quantization=fields))


def test_foreign_tensors_beside_a_layer_are_listed(tmp_path):
    config, tensors = golden("autoround-native-gptq-sym")
    tensors[f"{DOWN}.lora_a"] = tensors[f"{DOWN}.scales"].clone()
    with pytest.raises(UnreadTensor, match="lora_a F16"):
        load_canonical(write(tmp_path, config, tensors))
