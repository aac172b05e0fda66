"""GPTQ: v1 and v2 zero points, act-order, and what is said of files that contradict themselves."""

import logging

import pytest
import torch

import hybrid_humming as hh
from hybrid_humming.checkpoint import ReadOptions, load_canonical
from hybrid_humming.checkpoint.act_order import group_order
from hybrid_humming.errors import AmbiguousCheckpoint, CheckpointMismatch, MissingTensor, ShapeError, UnknownQuantMethod
from hybrid_humming.reference import apply_transform, dequantize, gemm
from tests.checkpoint.build import GOLDEN, LAYER, changed, golden, write
from tests.checkpoint.test_golden import in_order

V1, V2 = "gptqmodel-w4-g16-sym-v1", "gptqmodel-w4-g16-sym-v2"
ASYM, ACT_ORDER = "gptqmodel-w4-g16-asym-v2", "gptqmodel-w4-g16-asym-desc-act"


def pack4(codes: torch.Tensor, dim: int) -> torch.Tensor:
    """int32 words of eight 4-bit codes along `dim`, low nibble first; written here on its own, apart from the reader."""
    lanes = codes.to(torch.int64).movedim(dim, -1).unflatten(-1, (-1, 8))
    words = (lanes << (torch.arange(8) * 4)).sum(-1)
    return words.to(torch.int32).movedim(-1, dim).contiguous()


def logical(version: str, k: int = 64, n: int = 32, g: int = 16, seed: int = 0, zeros: torch.Tensor | None = None):
    """One logical asymmetric weight as (config changes, parts), its zero points stored as `version` does."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (n, k), generator=generator)
    zero = torch.randint(0, 16, (n, k // g), generator=generator) if zeros is None else zeros
    scale = (torch.rand(n, k // g, generator=generator) + 0.5).half()
    stored = (zero - 1) % 16 if version == "v1" else zero
    parts = {"qweight": pack4(codes.T, 0), "qzeros": pack4(stored.T, 1), "scales": scale.T, "g_idx": None}
    config = {"sym": False, "checkpoint_format": {"v1": "gptq", "v2": "gptq_v2"}[version], "group_size": g, "meta": None}
    exact = (codes - zero.repeat_interleave(g, 1)).double() * scale.double().repeat_interleave(g, 1)
    return config, parts, exact


# ---- zero points ----
@pytest.mark.parametrize("low", [0, 1, 8, 15])
def test_v1_and_v2_of_one_weight_decode_to_the_same_bits(tmp_path, low):  # cases 27, 30, 32
    zeros = torch.full((32, 4), low)
    weights = []
    for version in ("v1", "v2"):
        config, parts, exact = logical(version, zeros=zeros)
        weights.append(load_canonical(changed(tmp_path / version, ASYM, quantization=config, **parts))[LAYER])
        assert torch.equal(dequantize(weights[-1], torch.float64), exact)
    assert torch.equal(weights[0].zero_point, weights[1].zero_point)
    assert int(weights[0].zero_point[0, 0]) == low


def test_a_stored_minus_one_is_zero_not_sixteen(tmp_path):  # case 32
    config, parts, _ = logical("v1", zeros=torch.zeros(32, 4, dtype=torch.int64))
    assert int(parts["qzeros"][0, 0]) == -1
    weight = load_canonical(changed(tmp_path, ASYM, quantization=config, **parts))[LAYER]
    assert not weight.zero_point.any()


def test_codes_and_zero_points_span_their_whole_range(tmp_path):  # case 30
    zeros = torch.tensor([0, 1, 8, 15]).repeat(32, 1)
    config, parts, exact = logical("v2", zeros=zeros)
    weight = load_canonical(changed(tmp_path, ASYM, quantization=config, **parts))[LAYER]
    assert sorted(weight.codes.unique().tolist()) == list(range(16))
    assert torch.equal(weight.zero_point, zeros.to(torch.uint8))
    assert torch.equal(dequantize(weight, torch.float64), exact)


@pytest.mark.parametrize("label", ["gptq", "gptq_v2", None])
@pytest.mark.parametrize("folder", [V1, V2])
def test_a_symmetric_layer_is_told_by_its_values_whatever_the_label(tmp_path, folder, label):  # case 28
    weight = load_canonical(changed(tmp_path, folder, quantization={"checkpoint_format": label}))[LAYER]
    assert str(weight.spec) == "int4 g16 x fp16"
    assert torch.equal(dequantize(weight), dequantize(load_canonical(changed(tmp_path / "as_is", folder))[LAYER]))


def test_a_symmetric_layer_with_other_zero_points_is_refused(tmp_path):
    path = changed(tmp_path, V1, qzeros=torch.full((4, 4), 0x33333333, dtype=torch.int32))
    with pytest.raises(CheckpointMismatch, match=r"must be 7 \(v1\) or 8 \(v2\), but they span 3..3; .* set sym to false"):
        load_canonical(path)[LAYER]


def test_an_asymmetric_layer_without_a_label_asks_for_the_flag(tmp_path):  # case 28
    path = changed(tmp_path, ASYM, quantization={"checkpoint_format": None})
    with pytest.raises(AmbiguousCheckpoint, match=r"say which with gptq_zero_points='v1' or 'v2'"):
        load_canonical(path)
    read = {v: load_canonical(path, options=ReadOptions(gptq_zero_points=v))[LAYER] for v in ("v1", "v2")}
    assert torch.equal(read["v2"].zero_point, load_canonical(changed(tmp_path / "as_is", ASYM))[LAYER].zero_point)
    assert not torch.equal(read["v1"].zero_point, read["v2"].zero_point)


def test_the_flag_overrules_a_label_that_lies(tmp_path):  # case 28
    config, parts, exact = logical("v2")
    path = changed(tmp_path, ASYM, quantization={**config, "checkpoint_format": "gptq"}, **parts)
    weight = load_canonical(path, options=ReadOptions(gptq_zero_points="v2"))[LAYER]
    assert torch.equal(dequantize(weight, torch.float64), exact)


def test_the_flag_takes_two_values(tmp_path):
    with pytest.raises(CheckpointMismatch, match="gptq_zero_points='v3': allowed are 'v1'"):
        load_canonical(changed(tmp_path, ASYM), options=ReadOptions(gptq_zero_points="v3"))


def test_gptqmodel_asymmetric_v1_is_warned_about(tmp_path, caplog):  # case 28
    with caplog.at_level(logging.WARNING, logger="hybrid_humming"):
        load_canonical(changed(tmp_path, "gptqmodel-w4-g16-asym-v1"))
    assert [r for r in caplog.records if "gptq_zero_points='v2'" in r.getMessage()]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_unpacked_zero_points_are_read(tmp_path, dtype):  # case 21
    config, parts, exact = logical("v2")
    zeros = load_canonical(changed(tmp_path / "packed", ASYM, quantization=config, **parts))[LAYER].zero_point
    path = changed(tmp_path / "plain", ASYM, quantization=config, **(parts | {"qzeros": zeros.T.to(dtype)}))
    assert torch.equal(dequantize(load_canonical(path)[LAYER], torch.float64), exact)


def test_zero_points_of_another_shape_name_both_that_are_allowed(tmp_path):  # case 21
    path = changed(tmp_path, ASYM, qzeros=torch.zeros(4, 16, dtype=torch.int32))
    with pytest.raises(
        CheckpointMismatch, match=r"qzeros is I32 \[4, 16\], expected packed I32 \[4, 4\] or unpacked I8 or U8 \[4, 32\]"
    ):
        load_canonical(path)


# ---- act-order ----
def test_act_order_gives_the_product_of_the_scattered_weight(tmp_path):  # case 34
    weight = load_canonical(changed(tmp_path, ACT_ORDER))[LAYER]
    assert weight.transform is not None and weight.transform.permutation.dtype == torch.int32
    x = torch.randn(3, weight.k, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scattered = in_order(weight).double()
    plain = apply_transform(x, weight.transform) @ dequantize(weight, torch.float64).T
    torch.testing.assert_close(plain, x @ scattered.T, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(gemm(x, weight.replace(bias=None)), plain, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("order", ["identity", "shuffled", "equal", "reversed"])
def test_any_g_idx_is_read(tmp_path, order):  # case 34
    k, g = 64, 16
    g_idx = torch.arange(k, dtype=torch.int32) // g
    if order == "shuffled":
        g_idx = g_idx[torch.randperm(k, generator=torch.Generator().manual_seed(1))]
    elif order == "equal":
        g_idx = torch.full((k,), 2, dtype=torch.int32)
    elif order == "reversed":
        g_idx = g_idx.flip(0)
    config, parts, _ = logical("v2")
    path = changed(tmp_path, ASYM, quantization={**config, "desc_act": True}, **(parts | {"g_idx": g_idx}))
    weight = load_canonical(path)[LAYER]
    group = g_idx.long()
    plain = load_canonical(changed(tmp_path / "plain", ASYM, quantization=config, **parts))[LAYER]
    want = (plain.codes.double() - plain.zero_point.double()[:, group]) * plain.scale.double()[:, group]
    assert torch.equal(in_order(weight).double(), want)
    assert (weight.transform is None) == (order in ("identity", "equal"))
    assert weight.spec.granularity == ("channel" if order == "equal" else "group")


def test_groups_of_uneven_sizes_that_share_a_divisor_become_finer_groups():
    counts = (8, 24, 16, 16)
    g_idx = torch.repeat_interleave(torch.arange(4), torch.tensor(counts))
    order = group_order("layer", g_idx, 16, 4)
    assert order.group_size == 8 and order.permutation is None
    assert order.columns.tolist() == [0, 1, 1, 1, 2, 2, 3, 3]


def test_groups_that_share_no_multiple_of_8_are_refused_with_the_count():
    g_idx = torch.repeat_interleave(torch.arange(2), torch.tensor([13, 51]))
    with pytest.raises(CheckpointMismatch, match=r"group 0 13 columns; .* multiple of 8 \(config group_size=32, K=64\)"):
        group_order("layer", g_idx, 32, 2)


@pytest.mark.parametrize("bad", [-1, 4])
def test_a_group_outside_the_scales_is_refused(tmp_path, bad):
    g_idx = golden(ACT_ORDER)[1][f"{LAYER}.g_idx"].clone()
    g_idx[5] = bad
    with pytest.raises(CheckpointMismatch, match=r"g_idx spans -?\d+..\d+, but the scales have the groups 0..3"):
        load_canonical(changed(tmp_path, ACT_ORDER, g_idx=g_idx))[LAYER]


def test_a_g_idx_left_at_zero_without_desc_act_is_a_placeholder(tmp_path):
    path = changed(tmp_path, V1, g_idx=torch.zeros(64, dtype=torch.int32))
    assert torch.equal(dequantize(load_canonical(path)[LAYER]), dequantize(load_canonical(changed(tmp_path / "b", V1))[LAYER]))


def test_desc_act_needs_g_idx(tmp_path):
    with pytest.raises(MissingTensor, match="GPTQ with desc_act needs g_idx; missing are g_idx"):
        load_canonical(changed(tmp_path, ACT_ORDER, g_idx=None))


# ---- sizes ----
def test_channel_scales_are_one_column(tmp_path):  # case 19
    weight = load_canonical(changed(tmp_path, "gptqmodel-w4-channel-sym-v1"))[LAYER]
    assert weight.spec.granularity == "channel" and tuple(weight.scale.shape) == (32, 1)
    whole = changed(tmp_path / "k", "gptqmodel-w4-channel-sym-v1", quantization={"group_size": 64})
    assert load_canonical(whole)[LAYER].spec == weight.spec


def test_scales_without_rows_are_refused(tmp_path):  # case 19
    path = changed(tmp_path, "gptqmodel-w4-channel-sym-v1", scales=torch.empty(0, 32, dtype=torch.float16))
    with pytest.raises(CheckpointMismatch, match=r"scales is F16 \[0, 32\], expected .* \[1, 32\] \(one group over K=64\)"):
        load_canonical(path)


def test_a_group_count_is_never_inferred(tmp_path):  # cases 15, 17
    scales = golden(V1)[1][f"{LAYER}.scales"]
    with pytest.raises(CheckpointMismatch, match=r"scales is F16 \[8, 32\], expected .* \[4, 32\] \(K=64 in groups of 16\)"):
        load_canonical(changed(tmp_path, V1, scales=scales.repeat(2, 1)))


def test_k_that_is_no_multiple_of_the_group_says_how_many_groups(tmp_path):  # case 8
    config, parts, _ = logical("v2", k=10944, n=8, g=64)
    load_canonical(changed(tmp_path / "ok", ASYM, quantization=config, **parts))
    path = changed(tmp_path / "bad", ASYM, quantization={**config, "group_size": 128}, **parts)
    with pytest.raises(ShapeError, match=r"K=10944 is not a multiple of group_size=128 \(85.5 groups\)"):
        load_canonical(path)


@pytest.mark.parametrize(
    "n,k,g", [(8, 128, 32), (128, 64, 16), (64, 64, 16), (16, 128, 16), (24, 1848, 8), (40, 96, 32), (128, 4096, 128)]
)
def test_n_below_k_above_k_and_equal_to_the_group(tmp_path, n, k, g):  # cases 9, 17
    config, parts, exact = logical("v2", n=n, k=k, g=g)
    checkpoint = load_canonical(changed(tmp_path, ASYM, quantization=config, **parts))
    assert checkpoint.layer(LAYER).shape == (n, k)
    assert torch.equal(dequantize(checkpoint[LAYER], torch.float64), exact)


@pytest.mark.parametrize("g", [16, 32, 64, 128, 256])
def test_each_group_size_is_used_as_it_is(tmp_path, g):  # case 16
    config, parts, exact = logical("v2", k=256, n=16, g=g)
    qweight, spec = hh.load(changed(tmp_path, ASYM, quantization=config, **parts))[LAYER]
    x = torch.randint(-4, 5, (3, 256), generator=torch.Generator().manual_seed(g)).half() / 8
    y = hh.gemm(x, qweight, spec)
    torch.testing.assert_close(y.double(), x.double() @ exact.T, rtol=2**-9, atol=2**-6)
    # The same codes read in groups of 128: another weight for smaller groups, the same one for larger ones.
    coarse = {part: parts[part][:: max(1, 128 // g)].repeat_interleave(max(1, g // 128), 0) for part in ("scales", "qzeros")}
    path = changed(tmp_path / "coarse", ASYM, quantization={**config, "group_size": 128}, **{**parts, **coarse})
    assert torch.equal(hh.dequantize(hh.load(path)[LAYER][0]).double(), exact) == (g >= 128)


def test_qweight_and_g_idx_must_agree_on_k(tmp_path):
    path = changed(tmp_path, V1, g_idx=torch.zeros(128, dtype=torch.int32))
    with pytest.raises(CheckpointMismatch, match=r"qweight has 8 rows, but K=128 \(from g_idx\) at 4 bits takes 16"):
        load_canonical(path)


# ---- what is refused ----
@pytest.mark.parametrize("bits", [5, 6, 7])
def test_the_planar_layout_is_refused_by_name(bits):
    with pytest.raises(UnknownQuantMethod, match="checkpoint_format 'gptq_p' is not read: the planar layout"):
        load_canonical(GOLDEN / "refused" / f"gptqmodel-w{bits}-planar")


@pytest.mark.parametrize("bits", [1, 5, 6, 7, 16])
def test_widths_that_are_not_read_are_named(tmp_path, bits):
    with pytest.raises(UnknownQuantMethod, match=rf"GPTQ with {bits} bits is not read, only 2, 3, 4, 8"):
        load_canonical(changed(tmp_path, V1, quantization={"bits": bits}))


@pytest.mark.parametrize("label", ["marlin", "bitblas", "qqq"])
def test_repacked_layouts_are_refused_by_name(tmp_path, label):
    with pytest.raises(UnknownQuantMethod, match=f"checkpoint_format '{label}' is not read: "):
        load_canonical(changed(tmp_path, V1, quantization={"checkpoint_format": label}))


def test_an_unknown_label_gets_the_nearest_name(tmp_path):
    with pytest.raises(UnknownQuantMethod, match="'gptqv2' is unknown; readable are gptq, gptq_v2. Did you mean 'gptq_v2'"):
        load_canonical(changed(tmp_path, V1, quantization={"checkpoint_format": "gptqv2"}))


def test_words_other_than_int32_are_refused(tmp_path):
    with pytest.raises(UnknownQuantMethod, match="pack_dtype 'int8' is not read; only int32"):
        load_canonical(changed(tmp_path, V1, quantization={"pack_dtype": "int8"}))


def test_bits_must_be_there_and_a_number(tmp_path):
    with pytest.raises(CheckpointMismatch, match=r"config.json: quantization_config lacks 'bits', an integer"):
        load_canonical(changed(tmp_path / "a", V1, quantization={"bits": None}))
    with pytest.raises(CheckpointMismatch, match=r"'bits' is '4'; an integer is expected"):
        load_canonical(changed(tmp_path / "b", V1, quantization={"bits": "4"}))


# ---- dynamic rules ----
def test_dynamic_rules_change_single_layers(tmp_path):
    config, tensors = golden(V1)
    other = {k.replace("layers.0", "layers.11"): v for k, v in golden("gptqmodel-w8-g16-sym-v1")[1].items()}
    config["quantization_config"]["dynamic"] = {r"-:.*lm_head": {}, r"+:model\.layers\.11\..*": {"bits": 8}}
    checkpoint = load_canonical(write(tmp_path, config, tensors | other))
    assert str(checkpoint.spec(LAYER)) == "int4 g16 x fp16"
    assert str(checkpoint.spec(LAYER.replace("layers.0", "layers.11"))) == "int8 g16 x fp16"


def test_a_rule_that_excludes_a_quantized_layer_contradicts_it(tmp_path):
    with pytest.raises(CheckpointMismatch, match="a '-:' rule of `dynamic` says it is not quantized, but it has a qweight"):
        load_canonical(changed(tmp_path, V1, quantization={"dynamic": {r"-:.*down_proj": {}}}))
