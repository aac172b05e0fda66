"""hh.Linear and replace_linear."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import hybrid_humming as hh
from hybrid_humming.errors import LayoutError, ShapeError, SpecError


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(128, 96)
        self.gate = nn.Linear(128, 96, bias=False)
        self.inner = nn.Sequential(nn.Linear(96, 64))
        self.lm_head = nn.Linear(64, 10)

    def forward(self, x):
        return self.lm_head(self.inner(self.up(x) * self.gate(x)))


def test_replaces_what_is_asked_and_nothing_else():
    model = Model()
    names = hh.replace_linear(model, lambda name, layer: None if name == "gate" else "int8 g32 x bf16", skip=("lm_*",))
    assert names == ["up", "inner.0"]
    assert type(model.gate) is nn.Linear and type(model.lm_head) is nn.Linear and isinstance(model.up, hh.Linear)
    assert "'int8 g32 x bf16'" in repr(model.up) and "bias=True" in repr(model.up)


def test_output_stays_close_and_keeps_the_dtype():
    torch.manual_seed(0)
    model = Model()
    x = torch.randn(4, 7, 128)
    want = model(x)
    hh.replace_linear(model, "int8 channel x bf16")
    got = model(x)
    assert got.dtype == torch.float32 and got.shape == want.shape
    assert (got - want).norm() < 0.02 * want.norm()


@pytest.mark.parametrize("line", ["int4 g32 x bf16", "uint3 g32 zp x fp16", "nvfp4 x bf16", "e4m3 channel x e4m3 token"])
def test_state_dict_survives_safetensors(line, tmp_path):
    torch.manual_seed(0)
    source, target = nn.Linear(64, 48), nn.Linear(64, 48)
    first, second = hh.Linear.from_linear(source, line), hh.Linear.from_linear(target, line)
    x = torch.randn(3, 64)
    assert not torch.equal(first(x), second(x))
    save_file(first.state_dict(), tmp_path / "layer.safetensors")
    second.load_state_dict(load_file(tmp_path / "layer.safetensors"))
    assert torch.equal(first(x), second(x))


def test_a_state_dict_of_another_spec_is_refused():
    linear = nn.Linear(64, 48)
    other = hh.Linear.from_linear(linear, "int4 g64 x bf16").state_dict()
    with pytest.raises(LayoutError, match=r"holds 'int4 g64 x bf16\|.*the module 'int4 g32 x bf16\|"):
        hh.Linear.from_linear(linear, "int4 g32 x bf16").load_state_dict(other)


def test_nothing_to_replace_is_an_error():
    with pytest.raises(SpecError, match=r"found no nn.Linear to replace in Sequential \(skip=\['0'\]\)"):
        hh.replace_linear(nn.Sequential(nn.Linear(8, 8)), "int8 channel x bf16", skip=("0",))


def test_a_group_that_does_not_divide_k_names_the_numbers():
    with pytest.raises(ShapeError, match=r"K=100 is not a multiple of group_size=64 \(1.562 groups\)"):
        hh.replace_linear(nn.Sequential(nn.Linear(100, 8)), "int4 g64 x bf16")


def test_moving_the_module_moves_the_weight():
    layer = hh.Linear.from_linear(nn.Linear(64, 48), "int4 g32 x bf16")
    layer(torch.randn(1, 64))
    assert layer.to("meta").qweight_value.device.type == "meta"
