"""hh.save and hh.load: what was saved comes back bit-equal, or is refused with what to do."""

import dataclasses
import json
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import hybrid_humming as hh
from hybrid_humming import pack as packing
from hybrid_humming.checkpoint.ours import READABLE
from hybrid_humming.errors import (
    CheckpointError,
    CheckpointMismatch,
    CorruptFile,
    DtypeError,
    LayoutError,
    MissingTensor,
    SpecError,
    UnknownQuantMethod,
    ValueRangeError,
)
from hybrid_humming.tag import Tag
from hybrid_humming.weight import scan
from tests.checkpoint.build import LAYER

SPECS = [
    *("int4 g16 x bf16", "uint3 g32 zp x fp16", "uint4 g16 zp:bf16 x bf16", "int8 channel x int8 token", "int1 tensor x bf16"),
    *("nvfp4 x nvfp4", "mxfp4 x bf16", "e4m3 b16x16 x e4m3 g16", "e4m3 channel+tensor x e4m3 tensor", "e0m3 g16:e5m3 x bf16"),
]


def weight_of(line, n=24, k=64, experts=0, seed=0, **changes):
    gen = torch.Generator().manual_seed(seed)
    shape = (experts, n, k) if experts else (n, k)
    quantized = hh.unpack_weight(hh.quantize(torch.randn(shape, generator=gen), line))
    return quantized.replace(**changes)


def raw(tensor):
    return tensor.reshape(-1).view(torch.uint8)


def same(one, other):
    """Whether two weights are equal in every field and bit."""
    for field in dataclasses.fields(one):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if field.name == "transform" and a is not None and b is not None:
            if not same(a, b):
                return False
        elif isinstance(a, torch.Tensor):
            if b is None or a.dtype != b.dtype or a.shape != b.shape or not torch.equal(raw(a), raw(b)):
                return False
        elif a != b:
            return False
    return True


@st.composite
def weights(draw):
    line, experts = draw(st.sampled_from(SPECS)), draw(st.sampled_from([0, 0, 3]))
    n, k = draw(st.integers(1, 5)) * 8, draw(st.integers(1, 3)) * 32
    changes = {}
    if draw(st.booleans()):
        changes["transform"] = hh.InputTransform(
            permutation=draw(st.sampled_from([None, torch.arange(k).flip(0).int()])),
            pre_quant_scale=draw(st.sampled_from([None, torch.linspace(0.5, 2, k).bfloat16()])),
            hadamard=draw(st.sampled_from([None, 32])),
        )
    if changes.get("transform") and all(value is None for value in vars(changes["transform"]).values()):
        del changes["transform"]
    if draw(st.booleans()):
        changes["input_scale"] = torch.full((1,), 0.37)
    found = weight_of(line, n, k, experts, draw(st.integers(0, 99)), **changes)
    if " b16x16 " in line and draw(st.booleans()):  # a shard that starts inside a block
        scale = torch.cat([found.scale, found.scale[..., :1, :]], -2) if (n + 8) % 16 == 8 else found.scale
        if scale.shape[-2] == -(-(n + 8) // 16):
            found = found.replace(block_offset=(8, 0), scale=scale)
    return found


@settings(max_examples=60, deadline=None)
@given(weight=weights(), packed=st.booleans(), folder=st.booleans(), canonical=st.booleans())
def test_a_weight_comes_back_bit_equal(weight, packed, folder, canonical):
    saved = hh.pack_weight(weight) if packed else weight
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / ("out" if folder else "out.safetensors")
        hh.save(path, {"a.b": saved}, canonical=canonical)
        assert same(hh.load_canonical(path)["a.b"], weight)
        qweight, spec = hh.load(path)["a.b"]
        assert spec == weight.spec and same(qweight, hh.pack_weight(weight))


@pytest.mark.parametrize("line", ["int4 g16 x fp16", "uint3 g32 zp x bf16", "mxfp4 x bf16"])
def test_packed_bytes_are_stored_as_they_are_in_any_layout(tmp_path, line):
    weight = weight_of(line)
    for family in ("portable", "hopper", "ampere"):  # hopper_a8 and umma hold no weight for 16-bit activations
        layout = packing.make_layout(family, weight.spec, weight.n, weight.k, facts=scan(weight))
        qweight = packing.pack(weight, layout)
        hh.save(tmp_path / f"{family}.safetensors", {"x": qweight})
        back = hh.load(tmp_path / f"{family}.safetensors")["x"][0]
        assert back.layout.family == family and same(back, qweight)
        on_cpu = hh.load(tmp_path / f"{family}.safetensors", device="cpu")["x"][0]
        assert on_cpu.layout.family == "portable", "asked for a device, the weight is packed as is best there"
        assert same(hh.unpack_weight(on_cpu), weight)


def test_biases_and_other_tensors_come_along(tmp_path):
    bias, norm = torch.randn(24).bfloat16(), torch.randn(7)
    hh.save(tmp_path / "m", {LAYER: weight_of(SPECS[0])}, rest={f"{LAYER}.bias": bias, "model.norm.weight": norm})
    loaded = hh.load(tmp_path / "m")
    assert torch.equal(loaded.bias(LAYER), bias) and torch.equal(loaded.tensor("model.norm.weight"), norm)
    assert loaded.checkpoint.rest == ["model.norm.weight"]


def test_the_files_are_plain_safetensors(tmp_path):
    hh.save(tmp_path / "m", {f"l{i}": weight_of(line, 8, 96) for i, line in enumerate(SPECS)}, rest={"é": torch.ones(3).half()})
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    codes = weight_of(SPECS[0], 8, 96).codes
    assert torch.equal(tensors["l0.codes"], codes[:, ::2] | codes[:, 1::2] << 4) and len(tensors["é"]) == 3
    assert bytes(tensors["l5.quantization"].numpy()).startswith(b"nvfp4 x nvfp4|canonical|k=96|sha256=")


@pytest.mark.parametrize("line", ["int3 g32 x bf16", "int4 g32 x bf16", "e3m2 g32 x bf16", "int8 channel x bf16"])
def test_canonical_codes_take_their_own_bits(tmp_path, line):
    weight = weight_of(line, 8, 96)
    hh.save(tmp_path / "x.safetensors", {"x": weight})
    stored = load_file(tmp_path / "x.safetensors")["x.codes"]
    assert tuple(stored.shape) == (8, 96 * weight.spec.bits // 8)
    assert same(hh.load_canonical(tmp_path / "x.safetensors")["x"], weight)


def test_canonical_codes_of_one_byte_each_are_read_too(tmp_path):
    weight = weight_of("uint4 g32 zp x bf16", 8, 96)
    tensors = {"x.codes": weight.codes, "x.scale": weight.scale, "x.zero_point": weight.zero_point}
    save_file({**tensors, "x.quantization": Tag.of(weight).to_tensor()}, tmp_path / "x.safetensors")
    assert same(hh.load_canonical(tmp_path / "x.safetensors")["x"], weight)


def test_codes_that_the_format_lacks_are_not_saved(tmp_path):
    weight = weight_of("int4 g32 x bf16", 8, 96)
    with pytest.raises(ValueRangeError, match="x: codes reach 16, but int4 has codes 0..15"):
        hh.save(tmp_path / "x.safetensors", {"x": weight.replace(codes=weight.codes.clone().fill_(16))})
    assert not list(tmp_path.iterdir())


def test_a_k_that_the_codes_contradict_is_refused(tmp_path):
    weight = weight_of("int4 g32 x bf16", 8, 96)
    tag = dataclasses.replace(Tag.of(weight), k=128).to_tensor()
    save_file({"x.codes": weight.codes, "x.scale": weight.scale, "x.quantization": tag}, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointMismatch, match=r"x: codes are U8 \[8, 96\], but K=128 at 4 bits takes 64 bytes a row"):
        hh.load(tmp_path / "x.safetensors")


def test_shards_hold_whole_layers_and_load_alike(tmp_path):
    packed = {f"l{i}": hh.pack_weight(weight_of(SPECS[0], 64, 256, seed=i)) for i in range(5)}
    hh.save(tmp_path / "m", packed, rest={"norm": torch.ones(3)}, max_shard_bytes=2 * packed["l0"].nbytes + 1000)
    assert sorted(f.name for f in (tmp_path / "m").iterdir()) == [
        "config.json",
        *(f"model-{i:05}-of-00003.safetensors" for i in (1, 2, 3)),
        "model.safetensors.index.json",
    ]
    loaded = hh.load(tmp_path / "m")
    assert set(loaded) == set(packed) and all(same(loaded[name][0], packed[name]) for name in packed)
    for name in packed:
        assert len({info.file for info in loaded.checkpoint.layer(name).parts.values()}) == 1


def test_weights_are_asked_for_once_and_one_by_one(tmp_path):
    asked = []

    class Lazy(dict):
        def items(self):
            for name in self:
                asked.append(name)
                yield name, weight_of(SPECS[0])

    hh.save(tmp_path / "m", Lazy(a=None, b=None))
    assert asked == ["a", "b"] and set(hh.load(tmp_path / "m")) == {"a", "b"}


# ---- damage, versions, existing files ----
def test_a_changed_byte_is_found(tmp_path):
    file = tmp_path / "w.safetensors"
    hh.save(file, {LAYER: hh.pack_weight(weight_of(SPECS[0]))})
    raw = bytearray(file.read_bytes())
    info = hh.load(file).checkpoint.files[f"{LAYER}.qweight"]
    raw[info.start + 5] ^= 1
    file.write_bytes(raw)
    for read in (hh.load(file).__getitem__, hh.load_canonical(file).__getitem__):
        with pytest.raises(CorruptFile, match=f"{LAYER}: its bytes have the hash .* damaged or changed; copy it again"):
            read(LAYER)
    changed = hh.load(file, validate=False)[LAYER][0]
    assert int((changed.qweight != hh.pack_weight(weight_of(SPECS[0])).qweight).sum()) == 1


def retagged(path, change):
    """Rewrite the tag of the only layer of a file."""
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("quantization"))
    text = change(bytes(tensors[name].numpy()).decode().strip())
    save_file({**tensors, name: torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)}, path)


@pytest.mark.parametrize("found,said", [("portable.v1", "portable.v9"), ("portable.v1", "later.v1")])
def test_another_layout_version_is_refused_and_says_how_to_convert(tmp_path, found, said):
    file = tmp_path / "w.safetensors"
    hh.save(file, {LAYER: hh.pack_weight(weight_of(SPECS[0]))})
    retagged(file, lambda text: text.replace(found, said))
    want = f"{LAYER}: packed in layout {said}; hybrid_humming .* reads portable.v1, .*`hybrid-humming convert` .* --canonical"
    with pytest.raises(LayoutError, match=want):
        hh.load(file)
    assert [report.supported for report in hh.inspect(file)] == [False]


def test_the_readable_versions_are_those_of_the_packers():
    import importlib

    assert {name: importlib.import_module(f"hybrid_humming.pack.{name}").VERSION for name in packing.FAMILIES} == READABLE


def test_a_later_format_version_is_refused(tmp_path):
    hh.save(tmp_path / "m", {LAYER: weight_of(SPECS[0])})
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    config["quantization_config"]["format_version"] = 2
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        UnknownQuantMethod, match=r"format_version 2 of hybrid_humming; .* reads version 1: use the version that wrote"
    ):
        hh.load(tmp_path / "m")


def test_a_layer_without_one_of_its_tensors_is_refused(tmp_path):
    file = tmp_path / "w.safetensors"
    hh.save(file, {LAYER: hh.pack_weight(weight_of(SPECS[1]))})
    tensors = load_file(file)
    save_file({name: t for name, t in tensors.items() if not name.endswith("zero_point")}, file)
    with pytest.raises(MissingTensor, match=r"needs qweight, scale, zero_point; missing are zero_point"):
        hh.load(file)


def test_existing_files_are_kept_unless_told(tmp_path):
    hh.save(tmp_path / "m", {f"l{i}": weight_of(SPECS[0]) for i in range(3)}, max_shard_bytes=1)
    with pytest.raises(CheckpointError, match=r"already holds model-00001-of-00003.safetensors and 3 more; choose another place"):
        hh.save(tmp_path / "m", {"x": weight_of(SPECS[0])})
    hh.save(tmp_path / "m", {"x": weight_of(SPECS[0])}, overwrite=True)
    assert set(hh.load(tmp_path / "m")) == {"x"}
    assert sorted(f.name for f in (tmp_path / "m").iterdir()) == ["config.json", "model.safetensors"]


def test_a_save_that_fails_leaves_what_was_there(tmp_path):
    file = tmp_path / "w.safetensors"
    hh.save(file, {"x": weight_of(SPECS[0])})
    before = file.read_bytes()
    with pytest.raises(DtypeError, match="'y' is Tensor; hh.save writes QWeight and CanonicalWeight"):
        hh.save(file, {"x": weight_of(SPECS[0]), "y": torch.ones(3)}, overwrite=True)
    assert [f.name for f in tmp_path.iterdir()] == [file.name] and file.read_bytes() == before


# ---- the tag ----
def test_tags_that_cannot_be_read_say_so():
    with pytest.raises(LayoutError, match="not 'color=blue'; written by a newer version"):
        Tag.parse("int4 g16 x bf16|canonical|color=blue")
    with pytest.raises(LayoutError, match="can't read the tag 'int4 g16 x bf16'"):
        Tag.parse("int4 g16 x bf16")
    with pytest.raises(LayoutError, match="can't read the tag"):
        Tag.parse("int4 g16 x bf16|canonical|block_offset=1")
    with pytest.raises(SpecError):
        Tag.parse("nonsense|canonical")


def test_a_model_of_linears_is_read_from_its_state_dict_and_back(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Linear(32, 16))
    hh.replace_linear(model, "int4 g16 x bf16")
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    loaded = hh.load(tmp_path / "model.safetensors")
    assert set(loaded) == {"0", "1"} and torch.equal(loaded.bias("1"), model[1].bias)
    assert same(loaded["0"][0], model[0].qweight_value)
    # and what hh.save wrote loads into the module, though its tag has a hash
    hh.save(tmp_path / "saved.safetensors", loaded)
    for tensor in model.state_dict().values():
        tensor.zero_()
    model.load_state_dict(load_file(tmp_path / "saved.safetensors"))
    assert same(loaded["0"][0], model[0].qweight_value)


@pytest.mark.parametrize(
    "weights, options, error, text",
    [
        (["w"], {}, DtypeError, "weights is list; a mapping by name"),
        ({5: "w"}, {}, CheckpointError, "names are text, not 5"),
        ({}, {}, CheckpointError, "there is nothing to save"),
        ({"x": "w"}, {"rest": {"y": 5}}, DtypeError, "'y' of `rest` is int; a tensor is expected"),
        ({"x": "w"}, {"config": [1]}, DtypeError, "config is list; a mapping by name"),
        ({"x": "w"}, {"config": {"a": object()}}, CheckpointError, "config can't be written as JSON"),
    ],
)
def test_what_cannot_be_saved_is_refused_before_a_file_is_touched(tmp_path, weights, options, error, text):
    weights = {name: weight_of("int4 g16 x bf16") for name in weights} if isinstance(weights, dict) else weights
    with pytest.raises(error, match=text):
        hh.save(tmp_path / "m", weights, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_place_that_cannot_be_written_is_named(tmp_path, place):
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match=r"file\S* can't be written: (File exists|Not a directory)"):
        hh.save(tmp_path / place, {"x": weight_of("int4 g16 x bf16")})
    with pytest.raises(CheckpointError, match="path is int; pass a folder"):
        hh.save(5, {"x": weight_of("int4 g16 x bf16")})


@pytest.mark.parametrize("family", packing.FAMILIES)
@pytest.mark.parametrize("line", SPECS)
def test_packed_tensors_of_another_shape_are_refused(tmp_path, family, line):
    """Without a hash nothing else stands between a kernel and the end of a tensor."""
    weight = weight_of(line)
    try:
        layout = packing.make_layout(family, weight.spec, weight.n, weight.k, facts=scan(weight))
        qweight = packing.check(packing.pack(weight, layout))
    except LayoutError:
        pytest.skip("the family does not hold this spec")
    tensors = {f"x.{name}": tensor for name, tensor in qweight.tensors().items()}
    tensors["x.quantization"] = Tag.of(qweight).to_tensor()
    for name in ("qweight", "scale"):
        changed = {**tensors, f"x.{name}": tensors[f"x.{name}"][..., :-1].contiguous()}
        save_file(changed, tmp_path / "x.safetensors")
        for read in (hh.load, hh.load_canonical):
            with pytest.raises(LayoutError, match=rf"x: {name} is torch.* takes torch"):
                read(tmp_path / "x.safetensors")["x"]


def test_notes_that_are_no_json_object_say_so():
    with pytest.raises(LayoutError, match="can't read the tag .*notes"):
        Tag.parse("int4 g16 x bf16|canonical|notes=[1]")
