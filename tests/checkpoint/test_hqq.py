"""HQQ: words of each width, float zero points, float views, and what is refused."""

import pytest
import torch
from safetensors.torch import load_file

import hybrid_humming as hh
from hybrid_humming.checkpoint import ReadOptions, inspect, load_canonical
from hybrid_humming.checkpoint.hqq import WORDS, Packed, unpack_rows
from hybrid_humming.cli import main
from hybrid_humming.errors import CheckpointMismatch, MissingTensor, UnknownQuantMethod
from tests.checkpoint.build import GOLDEN, changed, golden, write

LAYER = "model.layers.0.self_attn.q_proj"


def scalar(value: int) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.int32)


@pytest.mark.parametrize("bits", WORDS)
def test_fields_of_a_word_from_the_highest(bits):
    count, width = WORDS[bits]
    sizes = Packed(n=count + 3, k=8, bits=bits, group_size=8)
    codes = torch.randint(0, 2**bits, (sizes.rows, 8), generator=torch.Generator().manual_seed(bits))
    padded = torch.nn.functional.pad(codes, (0, 0, 0, count * sizes.stored_rows - sizes.rows)).reshape(count, -1, 8)
    shifts = torch.tensor([bits * (count - 1 - i) for i in range(count)]).reshape(-1, 1, 1)
    words = (padded << shifts).sum(0).to(torch.uint8 if width == 8 else torch.int32)
    assert torch.equal(unpack_rows(words, sizes).long(), codes)


def test_float_zero_points_keep_their_fraction():
    weight = load_canonical(GOLDEN / "hqq-2bit")[LAYER]
    assert str(weight.spec) == "uint2 g32 zp:fp16 x fp16"
    assert (weight.zero_point != weight.zero_point.round()).any()


def test_settings_come_with_each_layer():
    checkpoint = load_canonical(GOLDEN / "hqq-per-layer")
    assert str(checkpoint.spec(LAYER)) == "uint4 g32 zp:fp16 x fp16"
    assert str(checkpoint.spec("model.layers.0.mlp.down_proj")) == "uint2 g16 zp:fp16 x fp16"


AXIS_0 = GOLDEN / "refused" / "hqq-axis0"


def test_axis_0_is_refused_with_the_way_out():
    text = r"HQQ with axis=0 groups along N: .* 64 scales in all, .* Quantize with axis=1; or load with plain=True \(--plain\)"
    with pytest.raises(UnknownQuantMethod, match=text):
        load_canonical(AXIS_0)


def test_axis_0_decodes_to_the_16_bit_weight_where_asked():
    loaded = hh.load(AXIS_0, plain=True)
    expected = load_file(AXIS_0 / "expected.safetensors")
    assert set(loaded.checkpoint.plain) == set(expected) and not loaded
    for name, want in expected.items():
        assert torch.equal(loaded.plain(name), want.half()) and want.half().unique().numel() > 100
    with pytest.raises(MissingTensor, match=r"no plain layer .*q_prj.*; it has 2\..*q_proj"):
        loaded.plain("model.layers.0.self_attn.q_prj")


@pytest.mark.parametrize("bits", WORDS)
@pytest.mark.parametrize("group_size", [16, 32, 96])
def test_axis_0_of_every_width_and_group(tmp_path, bits, group_size):
    """A group is every (N/G)-th row of a column, packed from the highest field down; 96 = 3 N runs over three columns' rows."""
    n, k, gen = 32, 48, torch.Generator().manual_seed(bits)
    codes = torch.randint(0, 2**bits, (group_size, n * k // group_size), generator=gen)
    scale, zero = (torch.rand(1, codes.shape[1], generator=gen).half() for _ in range(2))
    count, width = WORDS[bits]
    padded = torch.nn.functional.pad(codes, (0, 0, 0, -group_size % count)).reshape(count, -1, codes.shape[1])
    shifts = torch.tensor([bits * (count - 1 - i) for i in range(count)]).reshape(-1, 1, 1)
    words = (padded << shifts).sum(0).to(torch.uint8 if width == 8 else torch.int32)
    parts = {"W_q": words, "scale": scale, "zero": zero, "shape": torch.tensor([n, k]), "bias": torch.ones(n).half()}
    parts |= {name: scalar(value) for name, value in (("nbits", bits), ("axis", 0), ("group_size", group_size))}
    config, _ = golden("hqq-4bit")
    path = write(tmp_path, config, {f"proj.{part}": tensor for part, tensor in parts.items()})
    loaded = hh.load(path, plain=True)
    flat = ((codes.double() - zero.double()) * scale.double()).flatten()
    assert torch.equal(loaded.plain("proj"), flat.reshape(n, k).half())
    assert loaded.checkpoint.rest == ["proj.bias"]


def test_axis_0_is_listed_and_converted_as_plain_weights(tmp_path):
    report = inspect(AXIS_0, options=ReadOptions(plain=True))[0]
    assert (report.spec, report.plain, report.reason, report.shape, report.packed_bytes) == (None, "fp16", None, (64, 64), 8192)
    assert main(["convert", str(AXIS_0), str(tmp_path / "out"), "--plain"]) == 0
    written = load_file(tmp_path / "out" / "model.safetensors")
    for name, want in load_file(AXIS_0 / "expected.safetensors").items():
        assert torch.equal(written[f"{name}.weight"], want.half())


def test_quantized_scales_are_refused(tmp_path):
    path = changed(tmp_path, "hqq-4bit", layer=LAYER, zero_q=torch.zeros(4), scale_q=torch.zeros(4))
    with pytest.raises(UnknownQuantMethod, match=r"quantized themselves \(scale_q, zero_q\)"):
        load_canonical(path)


@pytest.mark.parametrize("part", ["scale", "zero", "shape", "nbits", "axis"])
def test_a_missing_tensor_is_named(tmp_path, part):
    with pytest.raises(MissingTensor, match=f"missing are {part}"):
        load_canonical(changed(tmp_path, "hqq-4bit", layer=LAYER, **{part: None}))


@pytest.mark.parametrize(
    "parts,error,text",
    [
        ({"nbits": scalar(5)}, UnknownQuantMethod, "HQQ with 5 bits is not read, only 1, 2, 3, 4, 8"),
        ({"nbits": scalar(2)}, CheckpointMismatch, r"W_q is U8 \[64, 32\], expected U8 \[32, 32\]"),
        ({"group_size": scalar(128)}, CheckpointMismatch, "groups of 128 straddle rows of K=64"),
        ({"group_size": scalar(16)}, CheckpointMismatch, r"scale is F16 \[128, 1\], expected .* \[256, 1\]"),
        ({"shape": torch.tensor([64])}, CheckpointMismatch, r"shape is I64 \[1\], expected \(N, K\)"),
        ({"zero": torch.zeros(128, 1, dtype=torch.int32)}, CheckpointMismatch, "zero is I32 .*, expected one of F16, BF16, F32"),
    ],
)
def test_tensors_that_contradict_each_other(tmp_path, parts, error, text):
    with pytest.raises(error, match=text):
        load_canonical(changed(tmp_path, "hqq-4bit", layer=LAYER, **parts))


def test_golden_has_the_layer_the_tests_change():
    assert f"{LAYER}.W_q" in golden("hqq-4bit")[1]
