"""hh.reload_: new values behind the same pointers."""

import pytest
import torch

import hybrid_humming as hh
from hybrid_humming import pack as packing
from hybrid_humming.errors import CheckpointError, LayoutError, MissingTensor, ValueRangeError
from hybrid_humming.weight import Facts, scan
from tests.checkpoint.build import GOLDEN, LAYER
from tests.test_saving import SPECS, same, weight_of


def pointers(qweight):
    return {name: tensor.data_ptr() for name, tensor in qweight.tensors().items()}


@pytest.mark.parametrize("line", SPECS)
def test_values_change_and_pointers_stay(tmp_path, line):
    transform = hh.InputTransform(permutation=torch.arange(64).flip(0).int())
    old, new = weight_of(line, seed=1), weight_of(line, seed=2, transform=transform, input_scale=torch.full((1,), 0.5))
    old = old.replace(transform=hh.InputTransform(permutation=torch.arange(64).int()), input_scale=torch.ones(1))
    assert not same(old, new)
    hh.save(tmp_path / "packed", {"a": hh.pack_weight(new), "b": hh.pack_weight(old)})
    hh.save(tmp_path / "one.safetensors", {"a": new})
    for source, name in (
        *((new, None), (hh.pack_weight(new), None), (tmp_path / "packed", "a")),
        *((str(tmp_path / "one.safetensors"), None), (hh.load(tmp_path / "packed"), "a")),
    ):
        qweight = hh.pack_weight(old)
        before = pointers(qweight)
        assert hh.reload_(qweight, source, name) is qweight
        assert pointers(qweight) == before and same(hh.unpack_weight(qweight), new)


def test_a_checkpoint_of_another_format_is_packed_as_the_weight_is():
    source = GOLDEN / "gptqmodel-w4-g16-asym-desc-act"
    want = hh.load(source)[LAYER][0]
    weight = hh.unpack_weight(want)
    qweight = packing.pack(weight, packing.make_layout("hopper", weight.spec, weight.n, weight.k, facts=scan(weight)))
    for tensor in qweight.tensors().values():
        tensor.zero_()
    hh.reload_(qweight, source)
    assert qweight.layout.family == "hopper" and same(hh.unpack_weight(qweight), weight)


def test_a_layer_of_a_module_is_reloaded_in_place():
    model = torch.nn.Sequential(torch.nn.Linear(64, 32))
    hh.replace_linear(model, "int4 g16 x bf16")
    new = hh.quantize(torch.randn(32, 64), "int4 g16 x bf16")
    x = torch.randn(2, 64).bfloat16()
    model(x)
    hh.reload_(model[0].qweight_value, new)
    assert torch.equal(model(x), hh.gemm(x, new, bias=model[0].bias))


@pytest.mark.parametrize(
    "new,match",
    [
        (
            weight_of("int4 g32 x bf16"),
            r"the new weight is 'int4 g32 x bf16' \[24, 64\], the one in memory 'int4 g16 x bf16' \[24, 64\]",
        ),
        (weight_of("int4 g16 x bf16", n=32), r"\[32, 64\], the one in memory .* \[24, 64\]"),
        (weight_of("int4 g16 x bf16", experts=2), r"\[2, 24, 64\]"),
        (weight_of("int4 g16 x bf16", transform=hh.InputTransform(hadamard=64)), r"Hadamard block 64 .* the one in memory None"),
        (
            weight_of("int4 g16 x bf16", transform=hh.InputTransform(permutation=torch.arange(64).int())),
            r"permutation: new torch.int32 \[64\], in memory none\)",
        ),
    ],
)
def test_a_weight_of_another_kind_is_refused_untouched(new, match):
    qweight = hh.pack_weight(weight_of("int4 g16 x bf16", seed=3))
    with pytest.raises(LayoutError, match=match):
        hh.reload_(qweight, new)
    assert same(hh.unpack_weight(qweight), weight_of("int4 g16 x bf16", seed=3))


def test_codes_that_the_encoding_lacks_are_refused_untouched():
    old = weight_of("int4 g16 x fp16")
    old = old.replace(codes=old.codes.clamp(min=1))
    qweight = packing.pack(old, packing.make_layout("hopper", old.spec, 24, 64, facts=Facts(lowest_code_unused=True)))
    with pytest.raises(ValueRangeError, match="int4 codes can't be stored as e0m3"):
        hh.reload_(qweight, old.replace(codes=old.codes * 0))
    assert same(hh.unpack_weight(qweight), old)


def test_the_layer_has_to_be_named_where_there_are_several(tmp_path):
    hh.save(tmp_path / "m", {"a": weight_of(SPECS[0]), "b": weight_of(SPECS[0])})
    qweight = hh.pack_weight(weight_of(SPECS[0]))
    with pytest.raises(CheckpointError, match="holds 2 layers; say with `name` which one to reload"):
        hh.reload_(qweight, tmp_path / "m")
    with pytest.raises(MissingTensor, match="no quantized layer 'c'"):
        hh.reload_(qweight, tmp_path / "m", "c")
