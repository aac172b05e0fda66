"""ModelOpt: both config files, each algorithm, one a layer, pre_quant_scale, and what is refused."""

import json

import pytest
import torch

from hybrid_humming.checkpoint import load_canonical
from hybrid_humming.errors import CheckpointMismatch, MissingTensor, UnknownQuantMethod
from hybrid_humming.reference import dequantize, gemm
from tests.checkpoint.build import GOLDEN, changed, golden, write

Q_PROJ, O_PROJ = "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.o_proj"
SPECS = {
    "nvfp4": "nvfp4 x nvfp4",
    "nvfp4-weight-only": "nvfp4 x bf16",
    "fp8": "e4m3 tensor x e4m3 tensor",
    "fp8-channel-token": "e4m3 channel x e4m3 token",
    "mxfp8": "mxfp8 x mxfp8",
    "w4a16-awq": "int4 g32:fp32 x bf16",
    "w4a8-awq": "int4 g32 x e4m3 tensor",
    "int8-smoothquant": "int8 channel x int8 tensor",
    "int8-weight-only": "int8 channel:fp32 x bf16",
}


@pytest.mark.parametrize("name", SPECS)
def test_spec_of_each_algorithm(name):
    checkpoint = load_canonical(GOLDEN / f"modelopt-{name}")
    assert {str(layer.spec) for layer in checkpoint.layers.values()} == {SPECS[name]}


@pytest.mark.parametrize(
    "name,spec",
    [
        ("w4a8-nvfp4", "nvfp4 x e4m3 tensor"),
        ("mxfp4", "mxfp4 x mxfp4"),
        ("w4a8-mxfp4", "mxfp4 x e4m3 tensor"),
        ("nvfp4-experts", "nvfp4 x nvfp4"),
        ("fp8-block", "e4m3 b128x128:fp32 x bf16"),
    ],
)
def test_spec_of_algorithms_that_no_exporter_writes_on_a_cpu(name, spec):
    checkpoint = load_canonical(GOLDEN / f"handmade-modelopt-{name}")
    ((layer, stored),) = checkpoint.layers.items()
    weight = checkpoint[layer]
    assert str(stored.spec) == str(weight.spec) == spec
    static = spec.endswith("tensor") or "nvfp4 x nvfp4" in spec
    assert (None if weight.input_scale is None else float(weight.input_scale)) == (0.5 if static else None)
    assert weight.experts == (3 if name == "nvfp4-experts" else 0)


@pytest.mark.parametrize("name", SPECS)
def test_hf_quant_config_alone_says_the_same(tmp_path, name):
    config, tensors = golden(f"modelopt-{name}")
    del config["quantization_config"]
    path = write(tmp_path, config, tensors)
    (path / "hf_quant_config.json").write_text((GOLDEN / f"modelopt-{name}" / "hf_quant_config.json").read_text())
    assert {str(layer.spec) for layer in load_canonical(path).layers.values()} == {SPECS[name]}


def test_golden_byte_of_two_rows():
    # Row 0 is 1 and row 1 is -2: low nibble 1, high nibble 14.
    from hybrid_humming.checkpoint.modelopt import ALGORITHMS, _codes

    codes = _codes("layer", torch.tensor([[0xE1, 0x80]], dtype=torch.uint8), ALGORITHMS["W4A16_AWQ"], 2)
    assert codes.tolist() == [[9, 8], [6, 0]]  # values 1 0 / -2 -8, plus 8


def test_pre_quant_scale_multiplies_x():
    weight = load_canonical(GOLDEN / "modelopt-w4a16-awq")[O_PROJ]
    scale = weight.transform.pre_quant_scale
    assert scale.shape == (64,)
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)).double()
    want = (x * scale.double()) @ dequantize(weight, torch.float64).T
    torch.testing.assert_close(gemm(x, weight, dtype=torch.float64), want)


def test_weight_scale_2_is_a_factor_of_nvfp4_and_none_of_w4a8():
    nvfp4, w4a8 = (load_canonical(GOLDEN / f"modelopt-{name}")[Q_PROJ] for name in ("nvfp4", "w4a8-awq"))
    stored = golden("modelopt-nvfp4")[1]
    assert nvfp4.secondary_scale.item() == stored[f"{Q_PROJ}.weight_scale_2"].item()
    assert nvfp4.input_scale.item() == stored[f"{Q_PROJ}.input_scale"].item()
    assert w4a8.secondary_scale is None


def test_one_algorithm_a_layer(tmp_path):
    config, fp8 = golden("modelopt-fp8")
    layers = {Q_PROJ: {"quant_algo": "FP8"}, O_PROJ: {"quant_algo": "NVFP4", "group_size": 16}}
    config["quantization_config"] |= {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    tensors = {k: v for k, v in fp8.items() if not k.startswith(O_PROJ)}
    tensors |= {k: v for k, v in golden("modelopt-nvfp4")[1].items() if k.startswith(O_PROJ)}
    checkpoint = load_canonical(write(tmp_path, config, tensors))
    assert [str(checkpoint.spec(name)) for name in (Q_PROJ, O_PROJ)] == [SPECS["fp8"], SPECS["nvfp4"]]
    del layers[O_PROJ]
    with pytest.raises(CheckpointMismatch, match="but quantized_layers doesn't list it"):
        load_canonical(write(tmp_path, config, tensors))


@pytest.mark.parametrize("entry", [Q_PROJ, "model.layers.0*", "model.layers.0.self_attn"])
@pytest.mark.parametrize("key", ["ignore", "exclude_modules"])
def test_an_excluded_layer_with_quantized_tensors_contradicts_itself(tmp_path, key, entry):
    with pytest.raises(CheckpointMismatch, match="as not quantized, but the files hold quantized tensors"):
        load_canonical(changed(tmp_path, "modelopt-fp8", quantization={key: [entry]}))


@pytest.mark.parametrize("entry", ["lm_head", "q_proj", "model.layers.0.self_attn.q", "model.layers.00*"])
def test_exclusion_never_hits_a_part_of_a_name(tmp_path, entry):
    assert Q_PROJ in load_canonical(changed(tmp_path, "modelopt-fp8", quantization={"ignore": [entry]}))


@pytest.mark.parametrize(
    "fields,text",
    [
        ({"quant_algo": "NVFP4_SVD"}, "quant_algo 'NVFP4_SVD' is not read: its low-rank residual needs a second product"),
        ({"quant_algo": "NVFP5"}, r"quant_algo 'NVFP5' is not read; readable are NVFP4, .* Did you mean 'NVFP4'"),
    ],
)
def test_other_algorithms_are_refused_by_name(tmp_path, fields, text):
    with pytest.raises(UnknownQuantMethod, match=text):
        load_canonical(changed(tmp_path, "modelopt-fp8", quantization=fields))


def test_a_config_without_an_algorithm_is_refused(tmp_path):
    with pytest.raises(CheckpointMismatch, match="has no quant_algo"):
        load_canonical(changed(tmp_path, "modelopt-fp8", quantization={"quant_algo": None}))


@pytest.mark.parametrize("part", ["weight_scale_2", "input_scale"])
def test_a_missing_scale_is_named(tmp_path, part):
    with pytest.raises(MissingTensor, match=f"missing are {part}"):
        load_canonical(changed(tmp_path, "modelopt-nvfp4", layer=Q_PROJ, **{part: None}))


@pytest.mark.parametrize(
    "folder,part,tensor,text",
    [
        ("modelopt-fp8", "weight_scale", torch.ones(3), r"weight_scale is F32 \[3\], but 'e4m3 tensor"),
        ("modelopt-fp8", "input_scale", torch.ones(3), r"input_scale is F32 \[3\], expected one number, F16 or"),
        ("modelopt-fp8", "weight", torch.zeros(64, 64), "weight is F32 .*, expected F8_E4M3"),
        ("modelopt-w4a16-awq", "pre_quant_scale", torch.ones(32), r"pre_quant_scale is F32 \[32\], expected .* \[64\]"),
        ("modelopt-w4a16-awq", "weight_scale", torch.ones(64, 3), "K=64 is no multiple of its 3 groups"),
        ("modelopt-nvfp4", "weight_scale_2", torch.ones(3), "weight_scale_2 is F32 .*, expected one number"),
    ],
)
def test_tensors_of_a_wrong_shape_or_type_are_named(tmp_path, folder, part, tensor, text):
    with pytest.raises(CheckpointMismatch, match=text):
        load_canonical(
            changed(tmp_path, folder, quantization={"group_size": 32} if "awq" in folder else None, layer=Q_PROJ, **{part: tensor})
        )


def test_a_group_size_that_the_scales_contradict(tmp_path):
    config, tensors = golden("modelopt-w4a16-awq")
    config["quantization_config"]["group_size"] = 128
    with pytest.raises(CheckpointMismatch, match=r"group_size is 128 in .*, but weight_scale F32 \[64, 2\] .* groups of 32"):
        load_canonical(write(tmp_path, config, tensors))


def test_kv_cache_scales_are_no_part_of_a_layer(tmp_path):
    path = changed(tmp_path, "modelopt-fp8", layer=Q_PROJ, k_scale=torch.tensor(0.5), v_scale=torch.tensor(0.5))
    checkpoint = load_canonical(path)
    assert f"{Q_PROJ}.k_scale" in checkpoint.rest
    assert checkpoint.tensor(f"{Q_PROJ}.k_scale").item() == 0.5


def test_the_config_files_agree():
    for folder in GOLDEN.glob("modelopt-*/hf_quant_config.json"):
        ours = json.loads(folder.read_text())["quantization"]["quant_algo"]
        assert json.loads((folder.parent / "config.json").read_text())["quantization_config"]["quant_algo"] == ours
