"""Experts stored one by one become one weight with an expert axis."""

import pytest
import torch

import hybrid_humming as hh
from hybrid_humming.checkpoint import load_canonical
from hybrid_humming.errors import CheckpointMismatch, LayoutError, MissingTensor, UnknownQuantMethod, UnreadTensor
from hybrid_humming.reference import dequantize
from tests.checkpoint.build import GOLDEN, changed, golden, write

EXPERTS = "model.layers.0.mlp.experts"
# Golden checkpoints of one layer, of every kind of scale and zero point.
SINGLE = (
    *("gptqmodel-w4-g16-asym-v2", "ct-pack-w3-group-asym", "llmcompressor-mxfp4a16", "ct-nvfp4-w4a4", "ct-mxfp6"),
    *("autoawq-one-weight", "autoround-one-weight", "hqq-one-weight", "quark-one-weight", "modelopt-one-weight"),
    *("handmade-fp8-partial-block", "handmade-fp8-tensor-static", "handmade-fp8-channel", "handmade-quark-fp8-block"),
)
NAMES = ("model.layers.0.mlp.experts.{}.gate_proj", "model.layers.3.block_sparse_moe.experts.{}.w1")


def moe(tmp_path, folder: str, name: str, experts, change=None):
    """A checkpoint whose experts are the golden layer, each with a scale of its own."""
    config, tensors = golden(folder)
    layer = next(iter(tensors)).rpartition(".")[0]
    written = {}
    for i in experts:
        for key, tensor in tensors.items():
            part = key.removeprefix(f"{layer}.")
            if part in ("scales", "weight_scale") and tensor.dtype.is_floating_point and tensor.dtype.itemsize > 1:
                tensor = tensor * (i + 1)
            written[f"{name.format(i)}.{part}"] = change(i, part, tensor) if change else tensor.clone()
    return write(tmp_path, config, written)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("folder", SINGLE)
def test_experts_become_one_weight(tmp_path, folder, name):
    path = moe(tmp_path, folder, name, range(11))
    checkpoint, group = load_canonical(path), name.replace(".{}", "")
    assert list(checkpoint.expert_groups()) == [group]
    assert checkpoint.expert_groups()[group] == tuple(name.format(i) for i in range(11)), "by number, not by text"
    weight = checkpoint.experts(group)
    assert weight.experts == 11
    for i in range(11):
        assert torch.equal(dequantize(weight)[i], dequantize(checkpoint[name.format(i)]))
    qweight, spec = hh.load(path).experts(group)
    assert qweight.shape == (11, weight.n, weight.k) and spec == weight.spec
    assert torch.equal(hh.dequantize(qweight), dequantize(weight))
    at_once = hh.pack_weight(weight, device="cpu")
    assert qweight.layout == at_once.layout and torch.equal(qweight.qweight, at_once.qweight)


def test_missing_experts_are_listed(tmp_path):
    checkpoint = load_canonical(moe(tmp_path, "gptqmodel-w4-g16-sym-v1", NAMES[0], [0, 1, 4]))
    with pytest.raises(CheckpointMismatch, match=r"experts up to 4 are there, but 2 of them are missing: 2, 3"):
        checkpoint.experts(NAMES[0].replace(".{}", ""))


def test_experts_with_an_act_order_of_their_own_are_refused(tmp_path):
    folder = "gptqmodel-w4-g16-asym-desc-act"
    alike = load_canonical(moe(tmp_path / "alike", folder, NAMES[0], range(2)))
    assert alike.experts(NAMES[0].replace(".{}", "")).transform.permutation.shape == (64,)
    apart = moe(tmp_path / "apart", folder, NAMES[0], range(2), lambda i, p, t: t.flip(0) if (i, p) == (1, "g_idx") else t.clone())
    with pytest.raises(LayoutError, match="expert 1 transforms x in another way than expert 0"):
        load_canonical(apart).experts(NAMES[0].replace(".{}", ""))


def test_experts_of_different_sizes_are_refused(tmp_path):
    def cut(i, part, tensor):
        keep = {"qweight": 16, "scales": 16, "qzeros": 2}
        return tensor[:, : keep[part]].clone() if i == 1 and part in keep else tensor.clone()

    checkpoint = load_canonical(moe(tmp_path, "gptqmodel-w4-g16-sym-v1", NAMES[0], range(2), cut))
    with pytest.raises(LayoutError, match=r"expert 1 is 'int4 g16 x fp16' \[16, 64\], expert 0 is 'int4 g16 x fp16' \[32, 64\]"):
        checkpoint.experts(NAMES[0].replace(".{}", ""))


def test_an_unknown_group_gets_the_nearest_name(tmp_path):
    checkpoint = load_canonical(moe(tmp_path, "gptqmodel-w4-g16-sym-v1", NAMES[0], range(2)))
    with pytest.raises(MissingTensor, match=r"no experts 'model.layers.0.mlp.experts.gate'; it has 1 groups. Did you mean"):
        checkpoint.experts("model.layers.0.mlp.experts.gate")


STACKED = sorted(folder.name for folder in GOLDEN.glob("ct-experts-*"))


@pytest.mark.parametrize("folder", STACKED)
def test_stacked_experts_are_one_weight_that_multiplies(folder):
    loaded = hh.load(GOLDEN / folder)
    ((name, (qweight, spec)),) = loaded.items()
    assert name.startswith(EXPERTS) and qweight.shape == loaded.checkpoint.layer(name).shape == (3, 20, 64)
    assert torch.equal(hh.dequantize(qweight), dequantize(loaded.canonical(name)))
    assert spec == loaded.spec(name)


def test_stacked_experts_have_a_bias_each(tmp_path):
    config, tensors = golden("ct-experts-w4-flat")
    bias = torch.randn(3, 20).bfloat16()
    loaded = hh.load(write(tmp_path, config, {**tensors, f"{EXPERTS}.gate_up_proj_bias": bias}))
    assert torch.equal(loaded.bias(f"{EXPERTS}.gate_up_proj"), bias)
    assert torch.equal(loaded.canonical(f"{EXPERTS}.gate_up_proj").bias, bias)


SIZES = {
    "weight_scale": (torch.ones(2, 20, 2).bfloat16(), r"weight_scale is BF16 \[2, 20, 2\], but the weight has 3 experts"),
    "weight_shape": (torch.tensor([4, 20, 64]), r"weight_shape says \[4, 20, 64\], but the weight has 3 experts"),
    "weight_zero_point": (None, "missing are weight_zero_point"),
    "weight_packed": (torch.zeros(0, 20, 8, dtype=torch.int32), "no expert in it"),
}


@pytest.mark.parametrize("part", SIZES)
def test_stacked_experts_whose_parts_disagree_are_refused(tmp_path, part):
    tensor, message = SIZES[part]
    with pytest.raises((CheckpointMismatch, MissingTensor), match=message):
        hh.load(changed(tmp_path, "ct-experts-w4-asym", layer=f"{EXPERTS}.down_proj", **{part: tensor}))


def test_a_gate_with_a_scalar_of_its_own_is_refused(tmp_path):
    folder, part = "ct-experts-nvfp4-gate-up", f"{EXPERTS}.gate_up_proj_global_scale"
    config, tensors = golden(folder)
    tensors[part][1, 1] *= 2
    with pytest.raises(CheckpointMismatch, match="weight_global_scale of expert 1 is .* for its gate and .* for its up projection"):
        hh.load(write(tmp_path, config, tensors))[f"{EXPERTS}.gate_up_proj"]


ONE_BY_ONE = {"gptqmodel-w4-g16-asym-v2": "AutoGPTQ, GPTQModel and AutoRound", "autoawq-one-weight": "AutoAWQ and AutoRound"}


@pytest.mark.parametrize("folder", ONE_BY_ONE)
def test_stacked_gptq_and_awq_experts_are_refused(tmp_path, folder):
    config, tensors = golden(folder)
    layer = next(iter(tensors)).rpartition(".")[0]
    both = {name.replace(layer, f"{EXPERTS}.down_proj"): torch.stack([t, t]) for name, t in tensors.items()}
    with pytest.raises(UnknownQuantMethod, match=f"experts stacked in one tensor are not read .*: {ONE_BY_ONE[folder]} store each"):
        hh.load(write(tmp_path / "nested", config, both))
    flat = {name.replace("proj.", "proj_"): t for name, t in both.items()}
    with pytest.raises(UnreadTensor, match=r"experts: quantized tensors .* down_proj_qweight I32 \[2, "):
        hh.load(write(tmp_path / "flat", config, flat | {n.replace(EXPERTS, "x"): t[0].clone() for n, t in both.items()}))
