"""compressed-tensors: schemes and targets, every layout's edges, and what is said of files that contradict themselves."""

import pytest
import torch

from hybrid_humming.checkpoint import load_canonical
from hybrid_humming.errors import CheckpointMismatch, MissingTensor, ShapeError, UnknownQuantMethod
from hybrid_humming.reference import dequantize
from tests.checkpoint.build import GOLDEN, LAYER, changed, golden, write

SYM, ASYM = "ct-pack-w4-group-sym", "ct-pack-w4-group-asym"
ACT_ORDER = "ct09-pack-w4-asym-g-idx"


def scheme(folder: str, **weights) -> dict:
    """The one config group of a golden checkpoint, with fields of its weights replaced."""
    group = golden(folder)[0]["quantization_config"]["config_groups"]["group_0"]
    return {**group, "weights": {**group["weights"], **weights}}


# ---- schemes and targets ----
def mixed(tmp_path, groups: dict, ignore=(), layers=(SYM, "ct-pack-w8-group-sym", "ct-pack-w3-channel-asym")):
    """A checkpoint whose layer i is the one layer of layers[i]."""
    config, tensors = golden(SYM)[0], {}
    for i, folder in enumerate(layers):
        tensors |= {name.replace("layers.0", f"layers.{i}"): tensor for name, tensor in golden(folder)[1].items()}
    config["quantization_config"] |= {"config_groups": groups, "ignore": list(ignore)}
    return write(tmp_path, config, tensors)


def test_several_groups_by_name_regex_and_class(tmp_path):
    groups = {
        "group_0": {**scheme(SYM), "targets": ["Linear"]},
        "group_1": {**scheme("ct-pack-w8-group-sym"), "targets": [LAYER.replace("layers.0", "layers.1")]},
        "group_2": {**scheme("ct-pack-w3-channel-asym"), "targets": [r"re:.*layers\.2\..*"]},
    }
    checkpoint = load_canonical(mixed(tmp_path, groups))
    specs = [str(checkpoint.spec(LAYER.replace("layers.0", f"layers.{i}"))) for i in range(3)]
    assert specs == ["int4 g32 x bf16", "int8 g32 x bf16", "uint3 channel zp x bf16"]


def test_a_group_without_weights_is_no_business_of_the_product(tmp_path):
    attention = {"targets": ["re:.*self_attn$"], "weights": None, "input_activations": {"num_bits": 8, "strategy": "attn_head"}}
    groups = {"attention": attention, "group_0": scheme(SYM)}
    assert LAYER in load_canonical(mixed(tmp_path, groups, layers=(SYM,)))
    with pytest.raises(CheckpointMismatch, match="the targets with weights are none"):
        load_canonical(mixed(tmp_path / "only", {"attention": attention}, layers=(SYM,)))


def test_a_target_hits_whole_names_only(tmp_path):
    groups = {"group_0": {**scheme(SYM), "targets": ["model.layers.0.mlp", "down_proj", "re:down_proj"]}}
    with pytest.raises(
        CheckpointMismatch, match=r"no target of config.json: quantization_config hits it; the targets with weights are 'model"
    ):
        load_canonical(mixed(tmp_path, groups, layers=(SYM,)))


@pytest.mark.parametrize("entry", [LAYER, r"re:.*down_proj$"])
def test_an_ignored_layer_with_quantized_tensors_contradicts_itself(tmp_path, entry):
    with pytest.raises(CheckpointMismatch, match="`ignore` lists .* but the files hold quantized tensors for it"):
        load_canonical(mixed(tmp_path, {"group_0": scheme(SYM)}, ignore=[entry], layers=(SYM,)))


@pytest.mark.parametrize("entry", ["down_proj", "layers.0", "re:down_proj", "lm_head", "model.layers.0.mlp"])
def test_ignore_never_hits_a_part_of_a_name(tmp_path, entry):
    assert LAYER in load_canonical(mixed(tmp_path, {"group_0": scheme(SYM)}, ignore=[entry], layers=(SYM,)))


def test_a_group_may_have_its_own_format(tmp_path):
    groups = {
        "group_0": {**scheme(SYM), "targets": ["Linear"]},
        "group_1": {**scheme("llmcompressor-mxfp4a16"), "targets": [r"re:.*layers\.1\..*"], "format": "mxfp4-pack-quantized"},
    }
    config, tensors = golden(SYM)
    float4 = {k.replace("layers.0", "layers.1"): v for k, v in golden("llmcompressor-mxfp4a16")[1].items()}
    config["quantization_config"] |= {"config_groups": groups, "format": "mixed-precision"}
    groups["group_0"]["format"] = "pack-quantized"
    checkpoint = load_canonical(write(tmp_path, config, tensors | float4))
    assert {str(layer.spec) for layer in checkpoint.layers.values()} == {"int4 g32 x bf16", "mxfp4 x bf16"}


# ---- activations ----
ACTIVATIONS = {
    "null": (None, "int4 g32 x bf16"),
    "token": ({"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}, "int4 g32:bf16 x e4m3 token"),
    "null group_size": (
        {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "group_size": None},
        "int4 g32:bf16 x int8 token",
    ),
    "group": (
        {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32, "dynamic": True},
        "int4 g32:bf16 x e4m3 g32",
    ),
    "mx": (
        {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32, "dynamic": True, "scale_dtype": "torch.uint8"},
        "int4 g32:bf16 x mxfp8",
    ),
    "tensor_group": (
        {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "dynamic": "local"},
        "int4 g32:bf16 x nvfp4",
    ),
    "static": ({"num_bits": 8, "type": "int", "strategy": "tensor", "dynamic": False}, "int4 g32:bf16 x int8 tensor"),
}
STATIC = {"input_scale": torch.tensor([0.5]), "input_global_scale": torch.tensor([4.0])}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_input_activations_become_the_activation_half(tmp_path, name):
    inputs, line = ACTIVATIONS[name]
    groups = {"group_0": {**scheme(SYM), "input_activations": inputs}}
    needed = {"static": "input_scale", "tensor_group": "input_global_scale"}.get(name)
    parts = {needed: STATIC[needed]} if needed else {}
    weight = load_canonical(changed(tmp_path, SYM, quantization={"config_groups": groups}, **parts))[LAYER]
    assert str(weight.spec) == line
    # input_global_scale is a divisor: 1 / 4
    assert (weight.input_scale.item() if needed else weight.input_scale) == {"static": 0.5, "tensor_group": 0.25}.get(name)
    if needed:
        with pytest.raises(MissingTensor, match=f"needs {needed}"):
            load_canonical(changed(tmp_path / "missing", SYM, quantization={"config_groups": groups}))


@pytest.mark.parametrize(
    "inputs,text",
    [
        ({"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": False}, "asymmetric activations"),
        ({"num_bits": 8, "type": "int", "strategy": "tensor", "dynamic": True}, "dynamic activations of strategy 'tensor'"),
        ({"num_bits": 8, "type": "int", "strategy": "row"}, "strategy 'row' is not read"),
        ({"num_bits": 5, "type": "float", "strategy": "token", "dynamic": True}, "float of 5 bits is not read"),
    ],
)
def test_activations_that_are_not_read_say_so(tmp_path, inputs, text):
    groups = {"group_0": {**scheme(SYM), "input_activations": inputs}}
    with pytest.raises(UnknownQuantMethod, match=text):
        load_canonical(changed(tmp_path, SYM, quantization={"config_groups": groups}))


# ---- pack-quantized ----
def test_a_scale_left_whole_beside_a_cut_weight_is_refused(tmp_path):  # case 15
    config, tensors = golden(SYM)
    tensors[f"{LAYER}.weight_packed"] = torch.zeros(20, 32, dtype=torch.int32)  # K = 256, in groups of 128: 2 columns
    tensors[f"{LAYER}.weight_shape"] = torch.tensor([20, 256])
    tensors[f"{LAYER}.weight_scale"] = torch.ones(20, 16, dtype=torch.bfloat16)
    config["quantization_config"]["config_groups"] = {"group_0": scheme(SYM, group_size=128)}
    with pytest.raises(CheckpointMismatch, match=r"weight_scale is BF16 \[20, 16\], .* \[20, 2\] \(K=256 in groups of 128\)"):
        load_canonical(write(tmp_path, config, tensors))


def test_a_cut_weight_beside_its_whole_shape_is_refused(tmp_path):  # case 15
    packed = golden(SYM)[1][f"{LAYER}.weight_packed"][:, :4]
    with pytest.raises(CheckpointMismatch, match=r"has 4 words a row, but K=64 \(weight_shape\) at 4 bits takes 8"):
        load_canonical(changed(tmp_path, SYM, weight_packed=packed))


def test_rows_must_match_weight_shape(tmp_path):
    with pytest.raises(CheckpointMismatch, match=r"weight_packed has 20 rows, but weight_shape says \[40, 64\]"):
        load_canonical(changed(tmp_path, SYM, weight_shape=torch.tensor([40, 64])))


def test_k_that_is_no_multiple_of_the_group_is_refused(tmp_path):  # case 8
    groups = {"group_0": scheme(SYM, group_size=24)}
    with pytest.raises(ShapeError, match=r"K=64 is not a multiple of group_size=24"):
        load_canonical(changed(tmp_path, SYM, quantization={"config_groups": groups}))


def test_zero_points_packed_along_n_or_plain_give_the_same_weight(tmp_path):  # case 21
    packed = load_canonical(changed(tmp_path / "packed", ASYM))[LAYER]
    assert packed.zero_point.float().std() > 0
    plain = (packed.zero_point.to(torch.int16) - 8).to(torch.int8)
    weight = load_canonical(changed(tmp_path / "plain", ASYM, weight_zero_point=plain))[LAYER]
    assert torch.equal(weight.zero_point, packed.zero_point)


def test_zero_points_packed_along_k_are_refused(tmp_path):  # case 21
    zeros = torch.zeros(20, 1, dtype=torch.int32)
    with pytest.raises(
        CheckpointMismatch, match=r"weight_zero_point is I32 \[20, 1\], expected packed I32 \[3, 2\] or plain I8 \[20, 2\]"
    ):
        load_canonical(changed(tmp_path, ASYM, weight_zero_point=zeros))


def test_an_asymmetric_scheme_needs_its_zero_points(tmp_path):  # case 31
    with pytest.raises(MissingTensor, match="missing are weight_zero_point"):
        load_canonical(changed(tmp_path, ASYM, weight_zero_point=None))


@pytest.mark.parametrize("actorder", ["weight", "static", None])
def test_actorder_weight_needs_no_g_idx(tmp_path, actorder):
    groups = {"group_0": scheme(SYM, actorder=actorder)}
    assert load_canonical(changed(tmp_path, SYM, quantization={"config_groups": groups}))[LAYER].transform is None


@pytest.mark.parametrize("actorder", ["group", "dynamic", True])
def test_actorder_group_permutes_x(tmp_path, actorder):  # case 35
    groups = {"group_0": scheme(ACT_ORDER, actorder=actorder)}
    weight = load_canonical(changed(tmp_path, ACT_ORDER, quantization={"config_groups": groups}))[LAYER]
    assert sorted(weight.transform.permutation.tolist()) == list(range(64))
    with pytest.raises(MissingTensor, match="missing are weight_g_idx"):
        load_canonical(changed(tmp_path / "b", ACT_ORDER, quantization={"config_groups": groups}, weight_g_idx=None))


def test_a_g_idx_never_set_means_no_order(tmp_path):
    unset = torch.full((64,), -1, dtype=torch.int32)
    assert load_canonical(changed(tmp_path, ACT_ORDER, weight_g_idx=unset))[LAYER].transform is None


@pytest.mark.parametrize(
    "folder,zero_point,values", [("ct-pack-w1-group-sym", None, {-1, 0}), ("ct-pack-w1-group-asym", {0, 1}, {-1, 0, 1})]
)
def test_one_bit_weights_are_what_the_spec_says(folder, zero_point, values):  # case 50
    weight = load_canonical(GOLDEN / folder)[LAYER]
    assert weight.spec.weight == ("int1" if zero_point is None else "uint1")
    assert zero_point is None or set(weight.zero_point.unique().tolist()) == zero_point
    scaled = dequantize(weight) / weight.scale.float().repeat_interleave(32, 1)
    assert set(scaled.unique().tolist()) == values


# ---- the other layouts ----
def test_a_partial_last_block_has_its_own_scale():  # cases 12, 13
    checkpoint = load_canonical(GOLDEN / "llmcompressor-fp8-block")
    (name,) = checkpoint
    weight = checkpoint[name]
    assert (weight.n, weight.k) == (144, 128) and tuple(weight.scale.shape) == (2, 1)
    assert str(weight.spec) == "e4m3 b128x128:bf16 x e4m3 g128"
    last = weight.scale[1].float()
    assert torch.equal(dequantize(weight)[128:], weight.codes[128:].view(torch.float8_e4m3fn).float() * last)


@pytest.mark.parametrize("n,k,rows,columns", [(576, 7168, 5, 56), (192, 576, 2, 5), (224, 192, 2, 2), (4544, 192, 36, 2)])
def test_blocks_are_counted_up(tmp_path, n, k, rows, columns):  # cases 12, 13
    config, tensors = golden("llmcompressor-fp8-block")
    config["quantization_config"]["config_groups"]["group_0"]["input_activations"] = None
    layer = next(iter(tensors)).rpartition(".")[0]
    generator = torch.Generator().manual_seed(0)
    tensors[f"{layer}.weight"] = torch.randn(n, k, generator=generator).to(torch.float8_e4m3fn)
    tensors[f"{layer}.weight_scale"] = torch.rand(rows, columns, generator=generator) + 0.5
    weight = load_canonical(write(tmp_path / "up", config, tensors))[layer]
    scale = tensors[f"{layer}.weight_scale"].repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
    assert torch.equal(dequantize(weight), tensors[f"{layer}.weight"].float() * scale)
    tensors[f"{layer}.weight_scale"] = torch.ones(n // 128, k // 128)
    with pytest.raises(CheckpointMismatch, match=rf"expected .* \[{rows}, {columns}\]"):
        load_canonical(write(tmp_path / "down", config, tensors))


def test_integers_that_their_width_does_not_hold_are_refused(tmp_path):  # case 30
    weight = torch.full((16, 128), 9, dtype=torch.int8)
    checkpoint = load_canonical(changed(tmp_path, "llmcompressor-w4a8", weight=weight))
    with pytest.raises(CheckpointMismatch, match=r"integers span 9..9, but 4 bits hold -8..7"):
        checkpoint["model.layers.0.self_attn.k_proj"]


def test_zero_points_of_a_symmetric_scheme_must_be_zero(tmp_path):
    name = "model.layers.0.self_attn.k_proj"
    zeros = torch.zeros(16, 1, dtype=torch.int8)
    assert load_canonical(changed(tmp_path / "a", "llmcompressor-w8a8", weight_zero_point=zeros))[name].zero_point is None
    path = changed(tmp_path / "b", "llmcompressor-w8a8", weight_zero_point=zeros + 1)
    with pytest.raises(CheckpointMismatch, match="the scheme is symmetric, but weight_zero_point is not all zero"):
        load_canonical(path)[name]


def test_an_e8m0_255_is_nan_in_its_own_group_only(tmp_path):  # cases 38, 49
    scale = golden("llmcompressor-mxfp4a16")[1]["model.layers.0.self_attn.k_proj.weight_scale"].clone()
    scale[3, 1] = 255
    path = changed(tmp_path, "llmcompressor-mxfp4a16", weight_scale=scale)
    values = dequantize(load_canonical(path, validate=False)["model.layers.0.self_attn.k_proj"])
    want = torch.zeros_like(values, dtype=torch.bool)
    want[3, 32:64] = True
    assert torch.equal(values.isnan(), want)


@pytest.mark.parametrize("layout", ["marlin-24", "sparse-24-bitmask", "sparse-bitmask", "dense"])
def test_old_layouts_are_refused_by_name(tmp_path, layout):
    groups = {"group_0": {**scheme(SYM), "format": None}}
    with pytest.raises(UnknownQuantMethod, match=f"compressed-tensors format '{layout}' is not read: "):
        load_canonical(changed(tmp_path, SYM, quantization={"config_groups": groups, "format": layout}))


def test_an_unknown_layout_gets_the_nearest_name(tmp_path):
    groups = {"group_0": {**scheme(SYM), "format": "packed-quantized"}}
    with pytest.raises(UnknownQuantMethod, match="'packed-quantized' is not read; .* Did you mean 'pack-quantized'"):
        load_canonical(changed(tmp_path, SYM, quantization={"config_groups": groups}))


def test_sparse_and_rotated_checkpoints_are_refused(tmp_path):
    with pytest.raises(UnknownQuantMethod, match=r"sparse weights \('sparse-24-bitmask'\) are not read"):
        load_canonical(changed(tmp_path / "a", SYM, quantization={"sparsity_config": {"format": "sparse-24-bitmask"}}))
    with pytest.raises(UnknownQuantMethod, match=r"transform_config rotates weights and activations \(R1\)"):
        load_canonical(changed(tmp_path / "b", SYM, quantization={"transform_config": {"config_groups": {"R1": {}}}}))


def test_mxfp6_weights_beside_mxfp8_activations():
    assert str(load_canonical(GOLDEN / "ct-mxfp6").spec(LAYER)) == "mxfp6 x mxfp8"
    assert str(load_canonical(GOLDEN / "ct-mxfp6a16").spec(LAYER)) == "mxfp6 x bf16"


def test_mxfp6_rows_must_be_whole_codes(tmp_path):
    packed = golden("ct-mxfp6")[1][f"{LAYER}.weight_packed"][:, :-2]
    with pytest.raises(CheckpointMismatch, match=r"weight_packed is U8 \[40, 46\], expected U8 \[N, K\*6/8\]"):
        load_canonical(changed(tmp_path, "ct-mxfp6", weight_packed=packed))
