"""Reading safetensors: headers without data, shards, and what is said of a damaged file."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hybrid_humming.checkpoint import load_canonical
from hybrid_humming.checkpoint.files import DTYPES, INDEX, Files
from hybrid_humming.errors import CheckpointError, CheckpointMismatch, CorruptFile, DtypeError, MissingTensor
from tests.checkpoint.build import LAYER, changed, golden, stack, write

GPTQ = "gptqmodel-w4-g16-sym-v1"


def test_every_dtype_reads_back_bit_equal(tmp_path):
    written = {}
    for name in set(DTYPES.values()) - {"uint16", "uint32", "uint64"}:
        dtype = getattr(torch, name)
        raw = torch.arange(24, dtype=torch.uint8).repeat(dtype.itemsize)
        written[name] = (raw % 2).bool()[:24].reshape(2, 3, 4) if dtype == torch.bool else raw.view(dtype).reshape(2, 3, 4)
    written["scalar"], written["empty"] = torch.tensor(2.5), torch.empty(0, 7)
    save_file(written, tmp_path / "model.safetensors")
    files = Files(tmp_path)
    assert set(files) == set(written)
    for name, tensor in written.items():
        got = files.read(name)
        assert got.dtype == tensor.dtype and got.shape == tensor.shape
        assert torch.equal(got.view(torch.uint8) if got.dim() else got, tensor.view(torch.uint8) if got.dim() else tensor)


def test_opening_reads_headers_only(tmp_path, monkeypatch):
    config, tensors = golden(GPTQ)
    write(tmp_path, config, tensors)

    def refuse(self):
        raise AssertionError(f"{self.name} was read while opening")

    monkeypatch.setattr("hybrid_humming.checkpoint.files.TensorInfo.read", refuse)
    assert len(load_canonical(tmp_path)) == 1


@pytest.mark.parametrize("shards", [2, 3])
def test_a_layer_spread_over_shards_is_one_layer(tmp_path, shards):
    config, tensors = golden(GPTQ)
    whole = load_canonical(write(tmp_path / "whole", config, tensors))[LAYER]
    parts = load_canonical(write(tmp_path / "shards", config, stack(tensors, 2), shards=shards))
    assert set(parts) == {LAYER, LAYER.replace("layers.0", "layers.1")}
    for name in parts:
        assert torch.equal(parts[name].codes, whole.codes) and torch.equal(parts[name].scale, whole.scale)


def test_one_file_is_a_checkpoint_too(tmp_path):
    write(tmp_path, *golden(GPTQ))
    assert set(load_canonical(tmp_path / "model.safetensors")) == {LAYER}


def test_a_truncated_file_is_named_with_its_numbers(tmp_path):
    file = write(tmp_path, *golden(GPTQ)) / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    with pytest.raises(CorruptFile, match=rf"has {len(whole) - 100} bytes.*truncated by at least 100 bytes; download it again"):
        load_canonical(tmp_path)


def test_a_file_cut_inside_its_header_is_named(tmp_path):
    file = write(tmp_path, *golden(GPTQ)) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(CorruptFile, match=r"has 40 bytes, but its header alone should take \d+: truncated"):
        load_canonical(tmp_path)


def test_a_file_that_shrinks_after_opening_is_noticed(tmp_path):
    file = write(tmp_path, *golden(GPTQ)) / "model.safetensors"
    checkpoint = load_canonical(tmp_path)
    file.write_bytes(file.read_bytes()[:-500])
    with pytest.raises(CorruptFile, match=r"needs \d+ bytes at \d+, the file gave \d+"):
        checkpoint[LAYER]


def test_a_git_lfs_pointer_is_recognised(tmp_path):
    file = write(tmp_path, *golden(GPTQ)) / "model.safetensors"
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    with pytest.raises(CorruptFile, match="Git LFS pointer of 63 bytes.*git lfs pull"):
        load_canonical(tmp_path)


def rewrite_header(file: Path, change) -> None:
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])


def test_a_shape_that_contradicts_its_bytes_is_named(tmp_path):
    file = write(tmp_path, *golden(GPTQ)) / "model.safetensors"
    rewrite_header(file, lambda header: header[f"{LAYER}.qweight"].update(shape=[8, 31]))
    with pytest.raises(CorruptFile, match=r"qweight I32 \[8, 31\] takes 992 bytes, but the header gives it 1024"):
        load_canonical(tmp_path)


def test_a_header_of_something_else_is_corrupt(tmp_path):
    file = write(tmp_path, *golden(GPTQ)) / "model.safetensors"
    rewrite_header(file, lambda header: header.update(x=[1]))
    with pytest.raises(CorruptFile, match="is not what safetensors writes"):
        load_canonical(tmp_path)


def test_a_dtype_that_torch_lacks_is_named_when_read(tmp_path):
    file = write(tmp_path, *golden(GPTQ)) / "model.safetensors"
    rewrite_header(file, lambda header: header[f"{LAYER}.qzeros"].update(dtype="F6_E3M2"))
    with pytest.raises(DtypeError, match=r"qzeros in model.safetensors is F6_E3M2; readable are BOOL"):
        Files(tmp_path).read(f"{LAYER}.qzeros")


def test_missing_shards_are_listed(tmp_path):
    config, tensors = golden(GPTQ)
    write(tmp_path, config, tensors, shards=3)
    for i in (1, 3):
        (tmp_path / f"model-{i:05}-of-00003.safetensors").unlink()
    missing = "model-00001-of-00003.safetensors, model-00003-of-00003.safetensors"
    with pytest.raises(CorruptFile, match=f"names 3 shards, 2 of them are missing: {missing}"):
        load_canonical(tmp_path)


def test_an_index_that_promises_too_much_is_named(tmp_path):
    config, tensors = golden(GPTQ)
    index = write(tmp_path, config, tensors, shards=2) / "model.safetensors.index.json"
    table = json.loads(index.read_text())
    table["weight_map"]["model.ghost"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(table))
    with pytest.raises(CorruptFile, match=r"1 tensors that their shards don't hold: model.ghost \(in model-00001"):
        load_canonical(tmp_path)


@pytest.mark.parametrize("shard", [5, None, ["model.safetensors"], "", "..", "../model.safetensors", "/etc/model.safetensors"])
def test_an_index_names_files_of_its_own_folder(tmp_path, shard):
    path = changed(tmp_path, "gptqmodel-w4-g16-sym-v1")
    (path / INDEX).write_text(json.dumps({"weight_map": {f"{LAYER}.scales": shard, f"{LAYER}.qweight": "model.safetensors"}}))
    with pytest.raises(CorruptFile, match=r"maps 1 tensors to what is no name of a file beside it: .*scales \(in "):
        Files(path)


def test_a_tensor_in_two_files_without_an_index_is_refused(tmp_path):
    config, tensors = golden(GPTQ)
    write(tmp_path, config, tensors)
    (tmp_path / "model.safetensors").rename(tmp_path / "a.safetensors")
    save_file(tensors, tmp_path / "b.safetensors")
    with pytest.raises(CheckpointMismatch, match=r"is in both a.safetensors and b.safetensors"):
        load_canonical(tmp_path)


def test_other_file_types_are_named(tmp_path):
    config, _ = golden(GPTQ)
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(CheckpointError, match="holds no .safetensors file; it holds pytorch_model.bin.*convert to safetensors"):
        load_canonical(tmp_path)


def test_an_unknown_tensor_gets_the_nearest_name(tmp_path):
    write(tmp_path, *golden(GPTQ))
    with pytest.raises(MissingTensor, match=rf"no tensor '{LAYER}.qzero'.* Did you mean '{LAYER}.qzeros'"):
        Files(tmp_path).read(f"{LAYER}.qzero")


def test_broken_json_names_its_place(tmp_path):
    write(tmp_path, *golden(GPTQ))
    (tmp_path / "config.json").write_text('{"quantization_config": {')
    with pytest.raises(CorruptFile, match=r"config.json is not valid JSON: .*line 1"):
        load_canonical(tmp_path)


def test_what_the_system_does_not_open_is_named(tmp_path):
    """A link into a cache whose blob is gone, a folder in a file's place, a file that went away after opening."""
    path = changed(tmp_path / "link", GPTQ)
    whole = path / "model.safetensors"
    blob = whole.rename(path / "blob")
    whole.symlink_to(blob)
    files = Files(path)
    blob.unlink()
    for read in (lambda: Files(path), lambda: files.read(f"{LAYER}.scales")):
        with pytest.raises(CorruptFile, match=r"links to .*blob\) can't be read: No such file"):
            read()
    whole.unlink()
    whole.mkdir()
    with pytest.raises(CorruptFile, match="can't be read: Is a directory"):
        Files(path)


@pytest.mark.parametrize("path", [5, None, [Path("x")]])
def test_a_path_is_text_or_a_path(path):
    with pytest.raises(CheckpointError, match="path is .*; pass a folder with config.json and safetensors"):
        load_canonical(path)


def test_a_file_of_another_kind_is_no_checkpoint(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"model.bin is no .safetensors file"):
        load_canonical(tmp_path / "model.bin")
