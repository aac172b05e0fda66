"""Golden checkpoints of HQQ: HQQLinear's own state dict, as AutoHQQHFModel.save_to_safetensors writes it.

pip install torch==2.13.0 hqq==0.2.8.post1 transformers==5.24.0; python tests/golden/make_hqq.py
"""

import tempfile

import tiny
import torch
from hqq.core.quantize import BaseQuantizeConfig, HQQLinear, Quantizer
from hqq.models.hf.base import AutoHQQHFModel

LAYERS = ("q_proj", "down_proj")


def both(settings):
    """The same settings for each layer that is quantized."""
    return {layer: dict(settings) for layer in LAYERS}


def dequantized(layer):
    """Quantizer.dequantize in fp32 on the stored scales; in the model's own dtype each step would round."""
    meta = dict(layer.meta, compute_dtype=torch.float32, scale=layer.meta["scale"].float(), zero=layer.meta["zero"].float())
    return Quantizer.dequantize(layer.W_q, meta)


def make(name, per_layer, dtype=torch.float16):
    """Quantize two linears of a tiny Llama; `per_layer` maps their names to BaseQuantizeConfig arguments."""
    model = tiny.model(hidden=64, intermediate=64, dtype=dtype)
    for prefix, module in list(model.named_modules()):
        kind = prefix.rpartition(".")[2]
        if kind in per_layer:
            quantized = HQQLinear(module, BaseQuantizeConfig(**per_layer[kind]), compute_dtype=dtype, device="cpu")
            model.set_submodule(prefix, quantized)
    configs = {kind: BaseQuantizeConfig(**settings) for kind, settings in per_layer.items()}
    same = all(c == next(iter(configs.values())) for c in configs.values())
    model.config.quantization_config = {
        "quant_method": "hqq",
        "quant_config": next(iter(configs.values())) if same else configs,
        "skip_modules": ["lm_head"],
    }
    expected = {n: dequantized(m) for n, m in model.named_modules() if isinstance(m, HQQLinear)}
    with tempfile.TemporaryDirectory() as folder:
        AutoHQQHFModel.save_to_safetensors(model, folder + "/saved")
        tiny.write(name, expected, source=folder + "/saved", drop=r"(k|v|o|gate|up)_proj|lm_head|embed")


def make_one_weight():
    """The logical weight that other exporters pack too, with HQQ's own packer and dequantizer."""
    codes, scale, zero = tiny.one_weight()
    linear = torch.nn.Linear(64, 32, bias=False)
    layer = HQQLinear(linear, BaseQuantizeConfig(nbits=4, group_size=32, axis=1), compute_dtype=torch.float16, device="cpu")
    layer.W_q = torch.nn.Parameter(Quantizer.pack["4bit_u8"](codes.reshape(-1, 32)), requires_grad=False)
    layer.meta |= {"scale": scale.reshape(-1, 1).half(), "zero": zero.reshape(-1, 1).half()}
    config = {"quant_method": "hqq", "quant_config": BaseQuantizeConfig(nbits=4, group_size=32, axis=1), "skip_modules": []}
    tensors = {f"proj.{k}": v for k, v in layer.state_dict().items() if v is not None}
    config = {"torch_dtype": "float16", "quantization_config": config}
    tiny.write("hqq-one-weight", {"proj": dequantized(layer)}, tensors=tensors, config=config)


if __name__ == "__main__":
    for bits in (1, 2, 3, 4, 8):
        make(f"hqq-{bits}bit", both({"nbits": bits, "group_size": 32, "axis": 1}))
    make("hqq-channel", both({"nbits": 4, "group_size": None, "axis": 1}), dtype=torch.bfloat16)
    make("hqq-float-view", both({"nbits": 4, "group_size": 64, "axis": 1, "view_as_float": True}))
    make("refused/hqq-axis0", both({"nbits": 4, "group_size": 64, "axis": 0}))
    make(
        "hqq-per-layer",
        {"q_proj": {"nbits": 4, "group_size": 32, "axis": 1}, "down_proj": {"nbits": 2, "group_size": 16, "axis": 1}},
    )
    make_one_weight()
