"""hybrid-humming inspect PATH."""

import json

import pytest
import torch

import hybrid_humming as hh
from hybrid_humming.cli import main
from hybrid_humming.cli.inspect import short
from tests.checkpoint.build import GOLDEN, LAYER, changed


def test_a_line_for_each_layer_and_the_totals(capsys):
    assert main(["inspect", str(GOLDEN / "autoround-gptq-w4-asym")]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["layer", "spec", "shape", "stored", "packed"]
    assert [line for line in out if LAYER in line and "uint4 g32 zp x fp16" in line and "32x64" in line and line.endswith("ok")]
    assert out[-1].startswith("2 quantized layers, 0 can't be read: 1 x 'uint4 g32 zp x fp16'")


def test_json_holds_what_the_table_shows(capsys):
    assert main(["inspect", str(GOLDEN / "gptqmodel-w4-g16-sym-v1"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["layers"] == [
        {
            "name": LAYER,
            "spec": "int4 g16 x fp16",
            "shape": [32, 64],
            "stored_bytes": 32 * 64 // 2 + 4 * 32 * 2 + 4 * 32 // 2 + 64 * 4,
            "packed_bytes": 32 * 64 // 2 + 4 * 32 * 2,
            "reason": None,
            "plain": None,
            "supported": True,
        }
    ]
    assert report["summary"]["bytes_in_16_bits"] == 2 * 32 * 64
    assert report["summary"]["specs"] == {"int4 g16 x fp16": 1}


def test_a_path_that_is_not_there_is_said_to_be_missing(tmp_path, capsys):
    assert main(["inspect", str(tmp_path / "nothing")]) == 1
    assert f"{tmp_path / 'nothing'} does not exist; pass a folder" in capsys.readouterr().err


def test_one_layer_is_one_layer(capsys):
    assert main(["inspect", str(GOLDEN / "gptqmodel-w4-g16-sym-v1")]) == 0
    assert "\n1 quantized layer, 0 can't be read" in capsys.readouterr().out


def test_what_cannot_be_read_says_why_and_sets_the_exit_code(tmp_path, capsys):
    path = changed(tmp_path, "gptqmodel-w4-g16-asym-v2", quantization={"checkpoint_format": None})
    assert main(["inspect", str(path)]) == 1
    assert "say which with gptq_zero_points='v1' or 'v2'" in capsys.readouterr().out
    assert main(["inspect", str(path), "--gptq-zero-points", "v2"]) == 0


def test_a_method_that_is_not_read_is_one_line(capsys):
    assert main(["inspect", str(GOLDEN / "refused" / "gptqmodel-w5-planar")]) == 1
    assert capsys.readouterr().err.startswith("error: [HH031] config.json: quantization_config: checkpoint_format 'gptq_p'")


def test_arch_says_what_would_run_and_what_falls_back(capsys):
    assert main(["inspect", str(GOLDEN / "llmcompressor-w8a8"), "--arch", "sm103"]) == 0
    out = capsys.readouterr().out
    assert "On b300" in out and "N=16 K=128 M=1 (1 layer): " in out and "M=1024" in out
    assert main(["inspect", str(GOLDEN / "ct-nvfp4-w4a4"), "--arch", "h200", "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [run["m"] for run in runs] == [1, 1024]
    assert all(run["kernel"] and "e2m1" in run["fallback"] for run in runs)


@pytest.mark.parametrize("arch", ["sm103", "h200", "sm120"])
def test_arch_says_for_each_layer_what_multiplies_it(capsys, arch):
    assert main(["inspect", str(GOLDEN / "ct-mixed-precision"), "--arch", arch, "--json"]) == 0
    layers = json.loads(capsys.readouterr().out)["layers"]
    assert main(["inspect", str(GOLDEN / "ct-mixed-precision"), "--arch", arch]) == 0
    table = capsys.readouterr().out
    for layer in layers:
        assert [run["m"] for run in layer["runs"]] == [1, 1024]
        asked = layer["spec"].partition(" x ")[2].split()[0]
        for run in layer["runs"]:
            assert (run["fallback"] is None) == (run["multiplies"] == asked.replace("mxfp4", "e2m1"))
        line = next(line for line in table.splitlines() if line.startswith(layer["name"]))
        assert f"  {short(layer['runs'])} " in line and line.endswith(" ok")


# Activations that some GPUs multiply and others don't, and what each GPU is said to lack.
ASKED = {
    "e3m4": "e3m4 channel x e3m4 token",
    "e0m3": "e0m3 g128 x e0m3 token",
    "int8": "int8 channel x int8 token",
    "e2m1": "nvfp4 x nvfp4",
}
LACKS = {
    "sm90": {"e3m4", "e0m3", "e2m1"},
    "sm103": set(),
    "sm107": {"e3m4", "e0m3"},
    "sm120": set(),
    "sm80": {"e3m4", "e0m3", "e2m1"},
}


@pytest.fixture(scope="module")
def hidden(tmp_path_factory):
    """A checkpoint of ours with a layer of each format of ASKED, named after it; and a hidden format that is only stored."""
    weight = torch.randn(64, 256)
    specs = ASKED | {"stored": "e0m3 g128 x bf16"}
    folder = tmp_path_factory.mktemp("hidden") / "model"
    hh.save(folder, {name: hh.quantize(weight, spec, device="cpu") for name, spec in specs.items()}, canonical=True)
    return folder


def of_layer(path, arch, capsys):
    """Layer -> (its runs, its line of the table); the text of the whole output."""
    assert main(["inspect", str(path), "--arch", arch, "--json"]) == 0
    runs = {layer["name"]: layer["runs"] for layer in json.loads(capsys.readouterr().out)["layers"]}
    assert main(["inspect", str(path), "--arch", arch]) == 0
    text = capsys.readouterr().out
    return {name: (found, next(line for line in text.splitlines() if line.startswith(name))) for name, found in runs.items()}, text


@pytest.mark.parametrize("arch", LACKS)
def test_arch_says_what_each_format_becomes(hidden, arch, capsys):
    layers, text = of_layer(hidden, arch, capsys)
    for fmt in ASKED:
        runs, line = layers[fmt]
        short_name = "nvfp4" if fmt == "e2m1" else fmt
        for run in runs:
            assert run["kernel"], run["reason"]
            if fmt in LACKS[arch]:
                assert run["multiplies"] not in (fmt, None)
                assert run["fallback"].endswith(f"({arch.replace('sm', 'sm_')}) has no {fmt} tensor cores")
            elif run["multiplies"] != fmt:
                assert run["fallback"].endswith(f"no kernel for {fmt} operands fits this problem")
            else:
                assert run["fallback"] is None
            if run["fallback"]:
                assert run["fallback"].startswith(f"{fmt} activations are multiplied as {run['multiplies']}: ")
                assert f"{run['multiplies']} for {short_name}" in line and f"falls back: {run['fallback']}" in text
    runs, line = layers["stored"]
    assert all(run["multiplies"] == "bf16" and run["fallback"] is None for run in runs), "a format only stored needs no tensor core"
    assert " bf16 " in line and " for " not in line


def test_arch_says_when_hidden_types_are_turned_off(hidden, capsys, monkeypatch):
    monkeypatch.setenv("HYBRID_HUMMING_HIDDEN_FORMATS", "0")
    layers, _ = of_layer(hidden, "sm103", capsys)
    for fmt in ("e3m4", "e0m3"):
        assert {run["fallback"].partition(": ")[2] for run in layers[fmt][0]} == {
            "HYBRID_HUMMING_HIDDEN_FORMATS=0 turns hidden types off"
        }


def test_a_layer_in_few_words():
    run = {"spec": "int4 g128 x int8 token", "kernel": "k", "multiplies": "int8", "fallback": None}
    assert short([run, run]) == "int8"
    assert short([{**run, "multiplies": "bf16", "fallback": "why"}, run]) == "bf16 for int8 / int8"
    assert short([{**run, "kernel": None}]) == "nothing"


def test_an_arch_that_is_not_known_names_those_that_are(capsys):
    assert main(["inspect", str(GOLDEN / "llmcompressor-w8a8"), "--arch", "sm60"]) == 1
    assert "no GPU of sm60 is in the table; it has sm75, sm80" in capsys.readouterr().err
