"""AWQ gemm: aliases, lane orders, zero points, and the layouts of the same name that are refused."""

import pytest
import torch

from hybrid_humming.checkpoint import load_canonical
from hybrid_humming.checkpoint.awq import unpack_awq
from hybrid_humming.checkpoint.bits import unpack_stream
from hybrid_humming.errors import CheckpointMismatch, MissingTensor, SpecError, UnknownQuantMethod
from tests.checkpoint.build import GOLDEN, changed, golden

FOLDER, LAYER = "autoawq-gemm-bias", "model.layers.0.fc1"


def test_golden_words_of_each_lane_order():
    word = torch.tensor([[0x75316420]], dtype=torch.int32)
    assert unpack_awq(word, 4, 8).flatten().tolist() == list(range(8))
    eight = torch.tensor([[0x03010200, 0x07050604]], dtype=torch.int32)
    assert unpack_awq(eight, 8, 8).flatten().tolist() == list(range(8))


def test_five_bits_are_one_stream_in_the_same_order():
    words = torch.randint(-(2**31), 2**31 - 1, (3, 5), dtype=torch.int32)
    stream = unpack_stream(words, 5, 32)
    assert torch.equal(unpack_awq(words, 5, 32).T[:, :8], stream[:, [0, 4, 1, 5, 2, 6, 3, 7]])


def test_aliases_of_bits_and_group_size_mean_the_same():
    plain, alias = load_canonical(GOLDEN / FOLDER)[LAYER], load_canonical(GOLDEN / "autoawq-gemm-aliases")[LAYER]
    assert plain.spec == alias.spec
    assert torch.equal(plain.codes, alias.codes)


def test_the_twin_file_alone_is_enough(tmp_path):
    config, tensors = golden(FOLDER)
    path = changed(tmp_path, FOLDER)
    (path / "config.json").unlink()
    fields = config["quantization_config"] | {"w_bit": 4, "q_group_size": 32}
    for name in ("bits", "group_size", "quant_method"):
        fields.pop(name)
    import json

    (path / "quantize_config.json").write_text(json.dumps(fields))
    assert str(load_canonical(path).spec(LAYER)) == "uint4 g32 zp x fp16"
    assert tensors


@pytest.mark.parametrize("version", ["gemv", "gemv-fast"])
def test_gemv_layouts_are_refused_by_name(version):
    with pytest.raises(UnknownQuantMethod, match=f"AWQ version '{version.replace('-', '_')}' is not read: .*convert with AutoAWQ"):
        load_canonical(GOLDEN / "refused" / f"autoawq-{version}")


@pytest.mark.parametrize("version", ["llm-awq", "exllama", "marlin", "ipex", "GEMV"])
def test_other_versions_are_refused_by_name(tmp_path, version):
    with pytest.raises(UnknownQuantMethod, match=f"AWQ version '{version.lower()}' is not read: "):
        load_canonical(changed(tmp_path, FOLDER, quantization={"version": version}))


def test_an_unknown_version_gets_the_nearest_name(tmp_path):
    with pytest.raises(UnknownQuantMethod, match=r"AWQ version 'gemm1' is not read; readable is gemm\. Did you mean 'gemm'"):
        load_canonical(changed(tmp_path, FOLDER, quantization={"version": "gemm1"}))


def test_a_gemv_file_labelled_gemm_is_seen_by_its_shape(tmp_path):
    _, tensors = golden("refused/autoawq-gemv")
    parts = {part: tensors[f"{LAYER}.{part}"] for part in ("qweight", "qzeros", "scales")}
    with pytest.raises(CheckpointMismatch, match="qweight is I32"):
        load_canonical(changed(tmp_path, FOLDER, bias=None, layer=LAYER, **parts))


def test_zero_point_false_takes_the_middle(tmp_path):
    weight = load_canonical(GOLDEN / "autoawq-gemm-symmetric")[LAYER]
    assert weight.zero_point is None
    assert weight.spec.weight == "int4"
    # Files without any stored zero points are the same weight.
    bare = load_canonical(changed(tmp_path, "autoawq-gemm-symmetric", qzeros=None, layer=LAYER))[LAYER]
    assert torch.equal(bare.codes, weight.codes)


def test_zero_point_false_refuses_other_stored_zero_points(tmp_path):
    path = changed(tmp_path, FOLDER, quantization={"zero_point": False})
    with pytest.raises(CheckpointMismatch, match=r"zero_point false, so every stored zero point must be 8, but they span 1..15"):
        load_canonical(path)[LAYER]


def test_a_layer_without_its_zero_points_is_named(tmp_path):
    with pytest.raises(MissingTensor, match=r"AWQ gemm needs qweight, scales, qzeros; missing are qzeros"):
        load_canonical(changed(tmp_path, FOLDER, qzeros=None, layer=LAYER))


@pytest.mark.parametrize(
    "fields,error,text",
    [
        ({"bits": 3}, UnknownQuantMethod, "AWQ with 3 bits is not read, only 4, 5, 6, 7, 8"),
        ({"bits": "4"}, CheckpointMismatch, "'bits' is '4'; an integer is expected"),
        ({"group_size": 0}, CheckpointMismatch, "group_size 0; allowed are -1 and sizes > 0"),
        ({"group_size": 64}, CheckpointMismatch, r"scales is F16 \[2, 32\], expected .* \[1, 32\]"),
        ({"group_size": 20}, SpecError, "group_size=20"),
        ({"bits": 8}, CheckpointMismatch, r"N=32 \(scales\) at 8 bits takes 8 words a row"),
        ({"zero_point": "yes"}, CheckpointMismatch, "'zero_point' is 'yes'; true or false is expected"),
    ],
)
def test_config_and_tensors_that_contradict_each_other(tmp_path, fields, error, text):
    with pytest.raises(error, match=text):
        load_canonical(changed(tmp_path, FOLDER, quantization=fields))
