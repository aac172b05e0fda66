"""Opening: unknown methods, and every trouble of a checkpoint reported at once before a weight is read."""

import json
import time
from importlib import import_module

import pytest
import torch

from hybrid_humming.checkpoint import inspect, load_canonical
from hybrid_humming.checkpoint.config import read_config
from hybrid_humming.checkpoint.registry import IMPORTERS, OUTSIDE, importer
from hybrid_humming.errors import (
    CheckpointError,
    CheckpointMismatch,
    MissingTensor,
    UnknownQuantMethod,
    UnreadTensor,
    ValueRangeError,
)
from hybrid_humming.reference import dequantize
from tests.checkpoint.build import LAYER, changed, golden, stack, write

GPTQ = "gptqmodel-w4-g16-sym-v1"
CT = "ct-pack-w4-group-sym"


def renamed(i: int) -> str:
    return LAYER.replace("layers.0", f"layers.{i}")


@pytest.mark.parametrize("method", IMPORTERS)
def test_each_importer_is_where_the_table_says(method):
    module, _, name = IMPORTERS[method].partition(":")
    assert hasattr(import_module(f"hybrid_humming.checkpoint.{module}"), name)


def test_an_unknown_method_gets_the_nearest_name(tmp_path):
    path = changed(tmp_path, GPTQ, quantization={"quant_method": "gptqq"})
    with pytest.raises(UnknownQuantMethod, match=r"quant_method 'gptqq' is not read; readable are .*gptq.* Did you mean 'gptq'"):
        load_canonical(path)


@pytest.mark.parametrize("method", OUTSIDE)
def test_formats_that_stay_outside_say_why(tmp_path, method):
    with pytest.raises(UnknownQuantMethod, match=f"quant_method '{method}' is not read: "):
        load_canonical(changed(tmp_path, GPTQ, quantization={"quant_method": method}))


def test_an_unquantized_checkpoint_is_pointed_to_quantize(tmp_path):
    config, tensors = golden(GPTQ)
    del config["quantization_config"]
    with pytest.raises(CheckpointError, match=r"has no quantization config: .* Use hh.quantize"):
        load_canonical(write(tmp_path, config, tensors))


def test_a_path_that_is_not_there_is_said(tmp_path):
    with pytest.raises(CheckpointError, match="nowhere does not exist; pass a folder"):
        load_canonical(tmp_path / "nowhere")


@pytest.mark.parametrize("place", ["text_config", "quantize_config.json", "compression_config"])
def test_the_quantization_config_is_found_where_exporters_put_it(tmp_path, place):
    folder = CT if place == "compression_config" else GPTQ
    config, tensors = golden(folder)
    quantization = config.pop("quantization_config")
    if place == "text_config":
        config["text_config"] = {"quantization_config": quantization, "dtype": "float16"}
    elif place == "compression_config":
        config["compression_config"] = quantization
    path = write(tmp_path, config, tensors)
    if place == "quantize_config.json":
        del quantization["quant_method"]  # AutoGPTQ's twin file has none
        (path / place).write_text(json.dumps(quantization))
    assert set(load_canonical(path)) == {LAYER}


def test_the_activation_type_is_the_models_own(tmp_path):
    for dtype, line in (("bfloat16", "int4 g16:fp16 x bf16"), ("float16", "int4 g16 x fp16"), (None, "int4 g16 x fp16")):
        config, tensors = golden(GPTQ)
        config["dtype"] = dtype
        assert str(load_canonical(write(tmp_path / str(dtype), config, tensors)).spec(LAYER)) == line


# ---- strict ----
def broken(tmp_path):
    """Four layers: one whole, one without scales, one with a stranger beside it, one half removed."""
    config, tensors = golden(GPTQ)
    tensors = stack(tensors, 4)
    del tensors[f"{renamed(1)}.scales"]
    tensors[f"{renamed(2)}.mystery"] = torch.zeros(3)
    del tensors[f"{renamed(3)}.qweight"]
    tensors["model.norm.weight"] = torch.ones(64)
    return write(tmp_path, config, tensors)


def test_all_troubles_are_reported_at_once(tmp_path):
    with pytest.raises(CheckpointError) as caught:
        load_canonical(broken(tmp_path))
    text = str(caught.value)
    assert "3 modules can't be read completely, 2 layers can; strict=False reads those" in text
    assert f"{renamed(1)}: GPTQ needs qweight, scales; missing are scales" in text
    assert f"{renamed(2)}: not understood beside its weight: mystery F32 [3]" in text
    assert f"{renamed(3)}: quantized tensors that the config gives no reader for: g_idx I32 [64], qzeros" in text


def test_one_trouble_keeps_its_own_type(tmp_path):
    with pytest.raises(MissingTensor, match="missing are scales"):
        load_canonical(changed(tmp_path / "a", GPTQ, scales=None))
    with pytest.raises(UnreadTensor, match=r"not understood beside its weight: extra F32 \[2\]"):
        load_canonical(changed(tmp_path / "b", GPTQ, extra=torch.zeros(2)))
    with pytest.raises(UnreadTensor, match="gives no reader for"):
        load_canonical(changed(tmp_path / "c", GPTQ, qweight=None))


def test_without_strict_the_rest_is_read(tmp_path):
    checkpoint = load_canonical(broken(tmp_path), strict=False)
    assert set(checkpoint) == {renamed(0), renamed(2)}
    assert checkpoint[renamed(0)].n == 32
    assert checkpoint.rest == ["model.norm.weight"]
    assert torch.equal(checkpoint.tensor("model.norm.weight"), torch.ones(64))
    with pytest.raises(MissingTensor, match="missing are scales"):
        checkpoint[renamed(1)]


def test_kv_cache_scales_beside_a_projection_are_left_to_the_host(tmp_path):
    checkpoint = load_canonical(changed(tmp_path, CT, output_scale=torch.tensor([0.5]), k_scale=torch.tensor([0.25])))
    assert checkpoint.rest == [f"{LAYER}.k_scale", f"{LAYER}.output_scale"]
    assert float(checkpoint.tensor(f"{LAYER}.k_scale")) == 0.25


def test_a_checkpoint_without_quantized_layers_is_refused(tmp_path):
    config, _ = golden(GPTQ)
    with pytest.raises(CheckpointError, match="none of its 1 tensors belongs to a quantized layer"):
        load_canonical(write(tmp_path, config, {"model.norm.weight": torch.ones(4)}))


def test_an_unknown_layer_gets_the_nearest_name(tmp_path):
    checkpoint = load_canonical(changed(tmp_path, GPTQ))
    with pytest.raises(KeyError, match=rf"no quantized layer '{LAYER}x'; it has 1. Did you mean '{LAYER}'"):
        checkpoint[f"{LAYER}x"]
    assert f"{LAYER}x" not in checkpoint


# ---- NaN scales ----
def test_a_nan_scale_is_named_with_its_place(tmp_path):  # case 49
    scales = golden(GPTQ)[1][f"{LAYER}.scales"].clone()
    scales[2, 5] = float("nan")
    path = changed(tmp_path, GPTQ, scales=scales)
    with pytest.raises(ValueRangeError, match=rf"{LAYER}: scale\[5, 2\] is nan \(1 of 128"):
        load_canonical(path)[LAYER]


def test_without_validation_a_nan_stays_in_its_group(tmp_path):  # case 49
    scales = golden(GPTQ)[1][f"{LAYER}.scales"].clone()
    scales[2, 5] = float("nan")
    values = dequantize(load_canonical(changed(tmp_path, GPTQ, scales=scales), validate=False)[LAYER])
    want = torch.zeros(32, 64, dtype=torch.bool)
    want[5, 32:48] = True
    assert torch.equal(values.isnan(), want)


# ---- inspect ----
def test_inspect_reports_every_module_with_its_reason(tmp_path):
    reports = {report.name: report for report in inspect(broken(tmp_path))}
    assert reports[renamed(0)].supported and reports[renamed(0)].spec == "int4 g16 x fp16"
    assert reports[renamed(0)].shape == (32, 64) and reports[renamed(0)].packed_bytes == 32 * 64 // 2 + 32 * 4 * 2
    assert reports[renamed(1)].spec is None and "missing are scales" in reports[renamed(1)].reason
    assert not reports[renamed(2)].supported and reports[renamed(2)].spec


@pytest.mark.parametrize("folder", [GPTQ, CT])
def test_inspect_of_a_thousand_layers_takes_under_two_seconds(tmp_path, folder):
    config, tensors = golden(folder)
    path = write(tmp_path, config, stack(tensors, 1000), shards=8)
    start = time.process_time()  # the machine may be busy with other tests
    assert len(inspect(path)) == 1000
    assert time.process_time() - start < 2


def test_the_base_importer_promises_nothing(tmp_path):
    reader = importer(read_config(changed(tmp_path, GPTQ)))
    assert reader.split("model.layers.0.mlp.down_proj.qweight") == (LAYER, "qweight")
    assert reader.describe("model.norm", {}) is None


def test_a_field_of_another_type_is_a_mismatch(tmp_path):
    with pytest.raises(CheckpointMismatch, match="'sym' is 'yes'; true or false is expected"):
        load_canonical(changed(tmp_path, GPTQ, quantization={"sym": "yes"}))
