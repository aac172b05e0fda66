"""hh.load: from a folder to packed weights that multiply."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import hybrid_humming as hh
from hybrid_humming.checkpoint import pieces
from hybrid_humming.checkpoint.registry import StoredLayer
from hybrid_humming.errors import (
    CheckpointError,
    CheckpointMismatch,
    CorruptFile,
    HybridHummingError,
    MissingTensor,
    ShapeError,
)
from hybrid_humming.loading import Loaded
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
    seen, read, frame = [], StoredLayer.read, StoredLayer.read_frame
    monkeypatch.setattr(StoredLayer, "read", lambda self, **k: seen.append(k["device"]) or read(self, **k))
    monkeypatch.setattr(StoredLayer, "read_frame", lambda self, **k: seen.append("in pieces") or frame(self, **k))
    folder = GOLDEN / "gptqmodel-w4-g16-sym-v1"
    hh.load(folder, device="cpu")[LAYER]
    hh.load(folder, device="h200")[LAYER]  # packed for it, here
    hh.load(folder)[LAYER]
    monkeypatch.setattr(Loaded, "_on_cpu", lambda self: False)  # as on a GPU, where a layer is taken apart whole
    hh.load(folder, device="cpu")[LAYER]
    assert seen == ["in pieces"] * 3 + ["cpu"]


FITS = ("cpu", "h200", "b200")


def raw_bytes(tensor):
    return tensor.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)


@pytest.mark.parametrize("device", FITS)
def test_packing_in_pieces_gives_the_bytes_of_packing_at_once(device, monkeypatch):
    """Every golden checkpoint, cut into the smallest pieces that can be cut."""
    monkeypatch.setattr(pieces, "CODES", 1)
    monkeypatch.setattr(pieces, "ROWS", 8 if device == "cpu" else 64)
    where = device if device == "cpu" else hh.DeviceInfo.named(device)
    cut = 0
    for folder in sorted(path.parent for path in GOLDEN.glob("*/expected.safetensors")):
        loaded = hh.load(folder, device=where, gptq_zero_points="v1" if folder.name.endswith("unlabelled") else None)
        for name in loaded:
            layer, (qweight, spec) = loaded.checkpoint.layer(name), loaded[name]
            whole = hh.pack_weight(loaded.canonical(name), device=where)
            assert (qweight.layout, spec) == (whole.layout, whole.spec), name
            got, want = qweight.tensors(), whole.tensors()
            assert set(got) == set(want)
            for part, tensor in want.items():
                assert torch.equal(raw_bytes(got[part]), raw_bytes(tensor)), (folder, part)
            if layer.pieces is not None:
                cut += len(list(layer.pieces.spans(layer.shape))) > 1
    assert cut > (100 if device == "cpu" else 10)


def test_an_unused_lowest_code_is_seen_in_pieces(tmp_path, monkeypatch):
    """fp16 and int4 on Hopper: the faster encoding where no code is 0, wherever the one that is lies."""
    monkeypatch.setattr(pieces, "CODES", 1)
    config = golden("gptqmodel-w4-g16-sym-v1")[0]
    config["quantization_config"]["group_size"] = 128
    for lowest, encoding in ((None, "e0m3"), (0, "int4"), (191, "int4")):
        codes = torch.randint(1, 16, (192, 256))
        if lowest is not None:
            codes[lowest, 77] = 0
        words = sum(codes.T.reshape(32, 8, 192)[:, i].to(torch.int64) << (4 * i) for i in range(8))
        one = {
            f"{LAYER}.qweight": torch.where(words >= 2**31, words - 2**32, words).to(torch.int32),
            f"{LAYER}.scales": torch.full((2, 192), 0.5, dtype=torch.float16),
            f"{LAYER}.qzeros": torch.full((2, 24), 0x77777777, dtype=torch.int32),
        }
        qweight, _ = hh.load(write(tmp_path / str(lowest), config, one), device="h200")[LAYER]
        assert qweight.layout.encoding == encoding
        assert torch.equal(hh.dequantize(qweight), (codes - 8).float() * 0.5)


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
print(count, peak() - before, layer.stored_bytes, qweight.nbytes)
"""


def large_layer(kind):
    """The config and tensors of a layer [8192, 8192]: 35 MB of GPTQ's int4, or 67 MB of FP8 in blocks."""
    n = k = 8192
    if kind == "gptq":
        config = golden("gptqmodel-w4-g16-sym-v1")[0]
        config["quantization_config"] |= {"group_size": 128}
        return config, {
            "qweight": torch.randint(0, 2**31, (k // 8, n), dtype=torch.int32),
            "scales": torch.full((k // 128, n), 0.01, dtype=torch.float16),
            "qzeros": torch.full((k // 128, n // 8), 0x77777777, dtype=torch.int32),
        }
    weight = torch.randint(0, 127, (n, k), dtype=torch.uint8).view(torch.float8_e4m3fn)
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    return config, {"weight": weight, "weight_scale_inv": torch.full((n // 128, k // 128), 0.01)}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("kind", ["gptq", "fp8"])
def test_peak_memory_is_200_mb_and_a_layer_for_each_reader(tmp_path, kind):
    """Everything counts: the layer handed out, those in work and those that wait, stored and packed, and all temporaries."""
    count, (config, one) = 4, large_layer(kind)
    path = write(tmp_path, config, {f"layers.{i}.{part}": tensor.clone() for i in range(count) for part, tensor in one.items()})
    for readers in (1, 2):
        script = [sys.executable, "-c", PEAK, str(path), str(readers), str(GOLDEN / "gptqmodel-w4-g16-sym-v1")]
        done = subprocess.run(
            script, capture_output=True, text=True, cwd=ROOT, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        layers, grown, stored, packed = map(int, done.stdout.split())
        assert layers == count and stored > 30e6
        assert packed < grown <= 200e6 + readers * stored, f"{grown / 1e6:.0f} MB for layers of {stored / 1e6:.0f} MB"
