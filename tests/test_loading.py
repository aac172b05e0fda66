"""hh.load: from a folder to packed weights that multiply."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import hybrid_humming as hh
from hybrid_humming.checkpoint.registry import StoredLayer
from hybrid_humming.errors import (
    CheckpointError,
    CheckpointMismatch,
    CorruptFile,
    HybridHummingError,
    MissingTensor,
    ShapeError,
)
from tests.checkpoint.build import GOLDEN, LAYER, changed, golden, stack, write
from tests.checkpoint.test_golden import FOLDERS, OPTIONS, ROUNDED

ROOT = Path(__file__).resolve().parents[1]
ACT_ORDER = "gptqmodel-w4-g16-asym-desc-act"
PACKED = [f for f in FOLDERS if not f.startswith(ROUNDED)]


@pytest.mark.parametrize("folder", PACKED)
def test_a_loaded_layer_multiplies_as_its_exporter_says(folder):
    flag = OPTIONS[folder].gptq_zero_points if folder in OPTIONS else None
    loaded = hh.load(GOLDEN / folder, gptq_zero_points=flag)
    for name, weight in load_file(GOLDEN / folder / "expected.safetensors").items():
        qweight, spec = loaded[name]
        assert spec == qweight.spec and qweight.shape == tuple(weight.shape)
        if spec.quantizes_activation or qweight.experts:
            continue  # the product rounds x, or takes a routing: both have tests of their own
        x = torch.randn(3, weight.shape[1], generator=torch.Generator().manual_seed(0)).to(getattr(torch, WIDE[spec.activation]))
        y = hh.gemm(x, qweight, spec, bias=loaded.bias(name), out_dtype=torch.float32)
        bias = 0 if loaded.bias(name) is None else loaded.bias(name).double()
        pre = qweight.transform.pre_quant_scale if qweight.transform else None
        exact = x.double() if pre is None else (x * pre).double()
        want = exact @ weight.double().T + bias
        scale = exact.abs() @ weight.double().abs().T
        assert ((y.double() - want).abs() <= 1e-5 * scale + 1e-6).all()


WIDE = {"fp16": "float16", "bf16": "bfloat16"}


def test_loading_is_lazy(tmp_path, monkeypatch):
    config, tensors = golden("gptqmodel-w4-g16-sym-v1")
    loaded = hh.load(write(tmp_path, config, stack(tensors, 3), shards=2))
    read = []
    original = type(loaded.checkpoint.files[f"{LAYER}.qweight"]).read
    monkeypatch.setattr("hybrid_humming.checkpoint.files.TensorInfo.read", lambda self: read.append(self.name) or original(self))
    assert len(loaded) == 3 and str(loaded.spec(LAYER)) == "int4 g16 x fp16" and LAYER in loaded
    assert not read
    loaded[LAYER]
    assert {name.rpartition(".")[0] for name in read} == {LAYER}


def test_act_order_and_bias_come_along():
    loaded = hh.load(GOLDEN / ACT_ORDER)
    qweight, _ = loaded[LAYER]
    assert qweight.transform.permutation.shape == (64,)
    assert torch.equal(loaded.bias(LAYER), golden(ACT_ORDER)[1][f"{LAYER}.bias"])
    assert hh.load(GOLDEN / "ct-pack-w4-group-sym").bias(LAYER) is None


@pytest.mark.parametrize(
    "folder,activation,line",
    [
        ("gptqmodel-w4-g16-sym-v1", "mxfp8", "int4 g16:fp16 x mxfp8 -> fp16"),
        ("gptqmodel-w4-g16-sym-v1", "e4m3 token -> bf16", "int4 g16:fp16 x e4m3 token"),
        ("gptqmodel-w4-g16-sym-v1", "bf16", "int4 g16:fp16 x bf16"),
        ("ct-pack-w4-group-asym", "int8 token", "uint4 g32:bf16 zp x int8 token"),
        ("llmcompressor-w8a8", "bf16", "int8 channel x bf16"),
        ("ct-float-w8-tensor-static", "e4m3 tensor", "e4m3 tensor x e4m3 tensor"),
    ],
)
def test_the_activation_half_can_be_overruled(folder, activation, line):
    loaded = hh.load(GOLDEN / folder, activation=activation)
    (name,) = loaded
    qweight, spec = loaded[name]
    plain, _ = hh.load(GOLDEN / folder)[name]
    assert str(spec) == str(loaded.spec(name)) == line
    assert torch.equal(hh.dequantize(qweight), hh.dequantize(plain)), "the weight's own values may not change"


@pytest.mark.parametrize("folder", ["ct-float-w8-tensor-static", "ct-nvfp4-w4a4"])
def test_an_overruling_that_static_scales_contradict_is_refused(folder):
    with pytest.raises(CheckpointMismatch, match="activation='mxfp8' was asked for, but the checkpoint has static input scales"):
        hh.load(GOLDEN / folder, activation="mxfp8")


def test_an_overruling_that_does_not_fit_a_layer_names_it():
    with pytest.raises(ShapeError, match=rf"{LAYER} \[32, 64\] as 'int4 g16:fp16 x e4m3 g128 -> fp16': K=64 is not a multiple of"):
        hh.load(GOLDEN / "gptqmodel-w4-g16-sym-v1", activation="e4m3 g128")


def test_weights_stored_packed_can_be_overruled_too(tmp_path):
    hh.save(tmp_path / "m", hh.load(GOLDEN / "gptqmodel-w4-g16-sym-v1"))
    qweight, spec = hh.load(tmp_path / "m", activation="mxfp8")[LAYER]
    assert str(spec) == "int4 g16:fp16 x mxfp8 -> fp16" and qweight.spec == spec
    assert torch.equal(hh.dequantize(qweight), hh.dequantize(hh.load(GOLDEN / "gptqmodel-w4-g16-sym-v1")[LAYER][0]))


def test_an_unknown_layer_is_a_key_error():
    loaded = hh.load(GOLDEN / ACT_ORDER)
    for ask in (loaded.__getitem__, loaded.spec, loaded.bias):
        with pytest.raises(MissingTensor, match="no quantized layer 'nope'"):
            ask("nope")
    assert loaded.get("nope") is None


def test_the_flag_for_unlabelled_gptq_reaches_the_reader(tmp_path):
    path = changed(tmp_path, "gptqmodel-w4-g16-asym-v2", quantization={"checkpoint_format": None})
    v1, v2 = (hh.dequantize(hh.load(path, gptq_zero_points=v)[LAYER][0]) for v in ("v1", "v2"))
    assert not torch.equal(v1, v2)


# ---- streaming ----
def many(tmp_path, layers=9):
    config, tensors = golden("gptqmodel-w4-g16-asym-v2")
    return hh.load(write(tmp_path, config, stack(tensors, layers), shards=3))


@pytest.mark.parametrize("readers", [1, 2, 5, 20])
def test_streaming_gives_every_layer_once(tmp_path, readers):
    loaded = many(tmp_path)
    seen = {}
    for name, qweight, spec in loaded.stream(readers=readers):
        assert name not in seen
        seen[name] = qweight
        assert spec == loaded.spec(name)
    assert set(seen) == set(loaded)
    for name, qweight in seen.items():
        assert torch.equal(qweight.qweight, loaded[name][0].qweight)


def test_streaming_reads_no_further_ahead_than_asked(tmp_path, monkeypatch):
    loaded = many(tmp_path)
    read = []
    original = type(loaded).__getitem__
    monkeypatch.setattr(type(loaded), "__getitem__", lambda self, name: read.append(name) or original(self, name))
    stream = loaded.stream(readers=2)
    next(stream)
    assert len(read) <= 2
    stream.close()
    assert len(read) <= 2, "a stream that is closed reads no more"


def test_a_layer_that_fails_in_a_stream_fails_there(tmp_path):
    loaded = many(tmp_path)
    for file in tmp_path.glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(CorruptFile, match="the file gave"):
        list(loaded.stream())


def test_streaming_needs_a_reader(tmp_path):
    with pytest.raises(CheckpointError, match="readers=0: a number of threads, at least one"):
        next(many(tmp_path).stream(readers=0))


def test_progress_is_shown_when_asked_and_quiet_otherwise(tmp_path, capsys):
    loaded = many(tmp_path)
    list(loaded.stream())
    assert capsys.readouterr().err == ""
    list(loaded.stream(progress=True))
    shown = capsys.readouterr().err
    assert "down_proj" in shown and "kB" in shown and "/s" in shown


def test_what_was_loaded_prints_as_one_line():
    folder = GOLDEN / "hqq-per-layer"
    assert repr(hh.load(folder)) == f"Loaded({folder}: 2 layers: 1 x 'uint2 g16 zp:fp16 x fp16', 1 x 'uint4 g32 zp:fp16 x fp16')"
    axis_0 = GOLDEN / "refused" / "hqq-axis0"
    assert repr(hh.load(axis_0, plain=True)) == f"Loaded({axis_0}: 0 layers, 2 plain)"


def test_a_layer_is_taken_apart_on_the_device_asked_for(monkeypatch):
    seen, read = [], StoredLayer.read
    monkeypatch.setattr(StoredLayer, "read", lambda self, **k: seen.append(k["device"]) or read(self, **k))
    folder = GOLDEN / "gptqmodel-w4-g16-sym-v1"
    hh.load(folder, device="cpu")[LAYER]
    hh.load(folder, device="h200")[LAYER]  # packed for it, here
    hh.load(folder)[LAYER]
    assert seen == ["cpu", None, None]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_a_gpu_that_is_not_there_is_refused_before_anything_is_read():
    with pytest.raises(HybridHummingError, match="cuda"):
        hh.load(GOLDEN / "gptqmodel-w4-g16-sym-v1", device="cuda")


PEAK = """
import sys
import hybrid_humming as hh

def peak():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024

path, readers = sys.argv[1], int(sys.argv[2])
loaded = hh.load(path, device="h200")
layer = next(iter(loaded.checkpoint.layers.values()))
hh.load(sys.argv[3], device="h200")[next(iter(hh.load(sys.argv[3])))]  # imports, thread pools and first-use allocations
before, count = peak(), 0
for _, qweight, _ in loaded.stream(readers=readers, progress=False):
    count += 1
tensors = layer.stored_bytes + layer.n * layer.k + qweight.nbytes
print(count, peak() - before, tensors)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("readers", [1, 2])
def test_peak_memory_is_a_layer_for_each_reader(tmp_path, readers):
    """Eight layers of 25 MB stored, 50 MB of codes and 25 MB packed: 800 MB pass through."""
    n, k, count = 6144, 8192, 8
    config = golden("gptqmodel-w4-g16-sym-v1")[0]
    config["quantization_config"] |= {"group_size": 128}
    one = {
        "qweight": torch.randint(0, 2**31, (k // 8, n), dtype=torch.int32),
        "scales": torch.full((k // 128, n), 0.01, dtype=torch.float16),
        "qzeros": torch.full((k // 128, n // 8), 0x77777777, dtype=torch.int32),
    }
    tensors = {f"layers.{i}.{part}": tensor for i in range(count) for part, tensor in one.items()}
    path = write(tmp_path, config, {name: tensor.clone() for name, tensor in tensors.items()})
    script = [sys.executable, "-c", PEAK, str(path), str(readers), str(GOLDEN / "gptqmodel-w4-g16-sym-v1")]
    found = subprocess.run(script, capture_output=True, text=True, cwd=ROOT, check=True).stdout.split()
    layers, grown, layer = map(int, found)
    assert layers == count
    assert grown <= 200e6 + readers * layer, f"{grown / 1e6:.0f} MB for layers of {layer / 1e6:.0f} MB"
