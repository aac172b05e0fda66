"""Inputs that are wrong in one place: each is refused with what is wrong, and none is read as something else."""

import pytest
import torch

import hybrid_humming as hh
from hybrid_humming.checkpoint import load_canonical
from hybrid_humming.errors import (
    CheckpointMismatch,
    DtypeError,
    MissingTensor,
    ShapeError,
    SpecError,
    UnreadTensor,
    ValueRangeError,
)
from tests.checkpoint.build import GOLDEN, changed, golden, write

DOWN, O_PROJ, Q_PROJ = (f"model.layers.0.{name}" for name in ("mlp.down_proj", "self_attn.o_proj", "self_attn.q_proj"))


def cut(tensor, dim=0, by=1):
    return tensor.narrow(dim, 0, tensor.shape[dim] - by).clone()


def halves(tensor):
    return tensor.T.contiguous() if tensor.dim() == 2 else tensor


# (golden folder, layer or "" for its only one, part, what it becomes, error, message)
CASES = [
    # a tensor that is missing beside others of its layer
    ("hqq-4bit", DOWN, "W_q", lambda t: None, MissingTensor, "HQQ needs W_q, scale, zero, .*; missing are W_q"),
    ("torchao-int8", Q_PROJ, "_weight_qdata", lambda t: None, MissingTensor, "needs qdata, scale; missing are qdata"),
    ("ct-float-block", "", "weight_scale", lambda t: None, UnreadTensor, "no reader for: weight F8_E4M3"),
    ("ct-int-static", "", "weight_scale", lambda t: None, UnreadTensor, "input_scale .*, weight I8"),
    ("ct-pack-w4-group-asym", "", "weight_packed", lambda t: None, MissingTensor, "missing are weight_packed"),
    ("gptqmodel-w4-g16-asym-v2", "", "qweight", lambda t: None, UnreadTensor, "g_idx .*, qzeros .*, scales"),
    # a number in a format that holds none like it
    (
        "modelopt-fp8",
        Q_PROJ,
        "input_scale",
        lambda t: t.to(torch.int32),
        CheckpointMismatch,
        "input_scale is I32 .*expected one number",
    ),
    ("modelopt-nvfp4", Q_PROJ, "weight_scale_2", lambda t: t.to(torch.int8), CheckpointMismatch, "weight_scale_2 is I8"),
    ("handmade-fp8-tensor-static", "", "input_scale", lambda t: t.to(torch.uint8), CheckpointMismatch, "input_scale is U8"),
    ("hqq-4bit", DOWN, "W_q", lambda t: t.bool(), CheckpointMismatch, r"W_q is BOOL .* expected U8 \[64, 32\]"),
    ("hqq-3bit", DOWN, "W_q", lambda t: t.view(torch.uint8), CheckpointMismatch, r"W_q is U8 .* expected I32"),
    # tensors cut, turned or doubled apart from the others
    ("autoawq-one-weight", "", "scales", lambda t: cut(t, 1), CheckpointMismatch, "so N=31; AWQ packs N in whole runs of 8"),
    ("hqq-4bit", DOWN, "W_q", halves, CheckpointMismatch, r"W_q is U8 \[32, 64\], expected U8 \[64, 32\]"),
    (
        "quark-uint4-reorder",
        DOWN,
        "weight_zero_point",
        halves,
        CheckpointMismatch,
        "weight_zero_point is I32 .* words or .* numbers",
    ),
    (
        "modelopt-w4a8-awq",
        Q_PROJ,
        "weight_scale",
        lambda t: cut(t, 1),
        CheckpointMismatch,
        "group_size is 32 in .* means groups of",
    ),
    (
        "torchao-int8",
        Q_PROJ,
        "_weight_scale",
        lambda t: torch.cat([t, t], 1),
        CheckpointMismatch,
        "groups of 32 .* with group_size None",
    ),
    ("ct-pack-w4-group-asym", "", "weight_packed", cut, CheckpointMismatch, "weight_packed has 19 rows, but weight_shape says"),
    ("ct-pack-w4-group-asym", "", "weight_zero_point", cut, CheckpointMismatch, r"expected packed I32 \[3, 2\]"),
    ("handmade-fp8-partial-block", "", "weight_scale_inv", cut, CheckpointMismatch, r"weight_scale_inv is F32 \[1, 2\], but"),
    ("gptqmodel-w4-g16-sym-v1", "", "g_idx", cut, ShapeError, "K=63 is not a multiple of group_size=16"),
    (
        "ct-experts-w4-sym",
        "",
        "weight_shape",
        lambda t: t[:0],
        CheckpointMismatch,
        r"weight_shape is I64 \[0\], expected \(E, N, K\)",
    ),
    # nothing in it
    ("gptqmodel-w4-g16-sym-v1", "", "qweight", lambda t: t[:, :0], ShapeError, r"weight \[0, 64\]: N and K must be at least 1"),
    ("ct-nvfp4-w4a4", "", "weight_packed", lambda t: t[:0], ShapeError, r"weight \[0, 64\]"),
    ("llmcompressor-fp8-dynamic", "", "weight", lambda t: t[:, :0], ShapeError, r", 0\]: N and K must be at least 1"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[2]}-{CASES.index(c)}")
def test_what_is_wrong_in_one_place_is_refused(tmp_path, case):
    folder, layer, part, change, error, message = case
    tensors = golden(folder)[1]
    layer = layer or next(iter(tensors)).rpartition(".")[0]
    quantization = {"group_size": 32} if folder == "modelopt-w4a8-awq" else None
    tensor = change(tensors[f"{layer}.{part}"])
    path = changed(tmp_path, folder, quantization=quantization, layer=layer, **{part: tensor})
    with pytest.raises(error, match=message) as caught:
        hh.load(path)
    assert layer in str(caught.value), "the message names the layer"


def test_the_group_size_of_modelopts_awq_is_read_and_never_counted(tmp_path):
    config, tensors = golden("modelopt-w4a8-awq")
    with pytest.raises(CheckpointMismatch, match="neither config.json.* nor hf_quant_config.json says the group_size of W4A8_AWQ"):
        load_canonical(write(tmp_path, config, tensors))
    assert (
        str(load_canonical(GOLDEN / "modelopt-w4a8-awq").spec(Q_PROJ)) == "int4 g32 x e4m3 tensor"
    )  # from its hf_quant_config.json


@pytest.mark.parametrize("value", [0.0, -0.5, float("nan"), float("inf")])
def test_a_static_scale_that_x_cant_be_divided_by_is_refused(tmp_path, value):
    path = changed(tmp_path, "modelopt-fp8", layer=Q_PROJ, input_scale=torch.tensor(value))
    with pytest.raises(ValueRangeError, match=f"{Q_PROJ}: input_scale"):
        hh.load(path)[Q_PROJ]
    with pytest.raises(ValueRangeError, match=f"{Q_PROJ}: input_scale"):
        load_canonical(path)[Q_PROJ]
    assert hh.load(path, validate=False)[Q_PROJ]


def test_a_tensor_in_two_files_without_an_index_is_refused(tmp_path):
    from safetensors.torch import save_file

    config, tensors = golden("gptqmodel-w4-g16-sym-v1")
    path = write(tmp_path, config, tensors)
    (path / "model.safetensors").rename(path / "a.safetensors")
    save_file(dict(list(tensors.items())[:1]), path / "b.safetensors")
    with pytest.raises(CheckpointMismatch, match="is in both a.safetensors and b.safetensors, and no model.safetensors.index.json"):
        hh.load(path)


def test_a_static_scale_without_a_scheme_is_refused_and_one_beside_dynamic_is_named(tmp_path, caplog):
    folder = "handmade-fp8-tensor-static"
    with pytest.raises(CheckpointMismatch, match="input_scale is stored, but .* has no activation_scheme; add it: static"):
        hh.load(changed(tmp_path / "none", folder, quantization={"activation_scheme": None}))
    assert str(hh.load(changed(tmp_path / "dynamic", folder, quantization={"activation_scheme": "dynamic"})).spec(DOWN)).endswith(
        "token"
    )
    assert "activation_scheme is dynamic, so the stored input_scale is not used" in caplog.text


@pytest.mark.parametrize("activation", ["junk", "", 5, "e4m3 token x bf16", "int8 channel"])
def test_an_activation_that_is_none_is_refused_in_its_own_words(activation):
    with pytest.raises(SpecError, match="It takes the right half of a spec line: 'mxfp8'") as caught:
        hh.load(GOLDEN / "gptqmodel-w4-g16-sym-v1", activation=activation)
    assert "int8 channel x" not in str(caught.value) and f"activation={activation!r}" in str(caught.value)


def test_a_weight_alone_is_no_stack():
    qweight = hh.load(GOLDEN / "gptqmodel-w4-g16-sym-v1")[DOWN][0]
    with pytest.raises(DtypeError, match=r"stack takes a sequence of weights, not QWeight: hh.stack\(\[q, k, v\]\)"):
        hh.stack(qweight)
