"""hybrid-humming convert PATH OUT."""

import json

import pytest
import torch

import hybrid_humming as hh
from hybrid_humming.cli import main
from tests.checkpoint.build import GOLDEN, LAYER, golden, stack, write

FOLDERS = (
    *("gptqmodel-w4-g16-asym-desc-act", "ct-pack-w3-group-asym", "llmcompressor-fp8-block", "llmcompressor-mxfp4a16"),
    *("ct-float-w8-tensor-static", "hqq-4bit", "modelopt-w4a8-awq", "transformers-gpt-oss", "autoawq-gemm-bias"),
)


@pytest.mark.parametrize("flags", [[], ["--canonical"], ["--arch", "h200"]], ids=["packed", "canonical", "h200"])
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_converted_checkpoint_holds_the_same_weights(folder, flags, tmp_path, capsys):
    assert main(["convert", str(GOLDEN / folder), str(tmp_path / "out"), *flags]) == 0
    count = len(hh.load(tmp_path / "out"))
    printed = capsys.readouterr().out
    assert printed.startswith(f"{count} layer{'s' if count > 1 else ''} written to {tmp_path / 'out'}, ") and " kB" in printed
    before, after = hh.load(GOLDEN / folder), hh.load(tmp_path / "out")
    assert set(before) == set(after) and sorted(before.checkpoint.rest) == sorted(after.checkpoint.rest)
    for name in before:
        assert torch.equal(hh.dequantize(before[name][0]), hh.dequantize(after[name][0]))
        one, other = before.bias(name), after.bias(name)
        assert (one is None and other is None) or torch.equal(one, other)
        assert before.notes(name) == after.notes(name) and before.spec(name) == after.spec(name)
        transforms = before[name][0].transform, after[name][0].transform
        assert [t is None for t in transforms] in ([True, True], [False, False])
    for name in before.checkpoint.rest:
        assert torch.equal(before.tensor(name), after.tensor(name))


def test_what_lies_beside_comes_along_and_other_quantization_configs_do_not(tmp_path):
    config, tensors = golden("gptqmodel-w4-g16-sym-v1")
    config["text_config"] = {"hidden_size": 64, "quantization_config": {"quant_method": "gptq"}}
    source = write(tmp_path / "in", config, stack(tensors, 3), shards=2)
    (source / "tokenizer.json").write_text("{}")
    (source / "quantize_config.json").write_text("{}")
    assert main(["convert", str(source), str(tmp_path / "out"), "--shard-gb", "0.000001"]) == 0
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"tokenizer.json", "config.json", "model.safetensors.index.json"} <= names and "quantize_config.json" not in names
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["quantization_config"]["quant_method"] == "hybrid_humming" and written["text_config"] == {"hidden_size": 64}
    assert len(hh.load(tmp_path / "out")) == 3
    assert main(["inspect", str(tmp_path / "out")]) == 0


def test_a_converted_checkpoint_converts_again(tmp_path):
    source = GOLDEN / "gptqmodel-w4-g16-sym-v1"
    assert main(["convert", str(source), str(tmp_path / "a"), "--arch", "sm90"]) == 0
    assert main(["convert", str(tmp_path / "a"), str(tmp_path / "b.safetensors"), "--canonical", "--activation", "e4m3 token"]) == 0
    assert str(hh.load(tmp_path / "b.safetensors").spec(LAYER)) == "int4 g16:fp16 x e4m3 token -> fp16"


def test_the_source_is_not_written_over(tmp_path, capsys):
    config, tensors = golden("gptqmodel-w4-g16-sym-v1")
    source = write(tmp_path / "in", config, tensors)
    assert main(["convert", str(source), str(source / "x.safetensors"), "--overwrite"]) == 1
    assert main(["convert", str(source), str(source), "--overwrite"]) == 1
    assert "is where the checkpoint itself lies; choose another place" in capsys.readouterr().err
    assert len(hh.load(source)) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_a_gpu_that_is_not_there_is_refused_before_anything_is_written(tmp_path, capsys):
    assert main(["convert", str(GOLDEN / "gptqmodel-w4-g16-sym-v1"), str(tmp_path / "out"), "--on", "cuda"]) == 1
    assert "device cuda was asked for, but torch sees no CUDA device" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
