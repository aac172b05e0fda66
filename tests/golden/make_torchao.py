"""Golden checkpoints of torchao: a tiny Llama quantized on load by Transformers and saved to safetensors.

pip install torch==2.13.0 torchao==0.18.0 transformers==5.24.0 accelerate; python tests/golden/make_torchao.py
"""

import tempfile

import tiny
import torch
from torchao.quantization import (
    Float8DynamicActivationFloat8WeightConfig,
    Float8WeightOnlyConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    PerGroup,
    PerRow,
    quant_api,
)
from transformers import AutoModelForCausalLM, TorchAoConfig


def make(name, config, refused=False):
    """Quantize, save, and decode by the tensor subclass's own dequantize; keep two linears."""
    with tempfile.TemporaryDirectory() as source, tempfile.TemporaryDirectory() as saved:
        tiny.model(hidden=64, intermediate=32).save_pretrained(source)
        tiny.save_tokenizer(source)
        model = AutoModelForCausalLM.from_pretrained(source, quantization_config=TorchAoConfig(config), dtype=torch.bfloat16)
        model.save_pretrained(saved)
        kept = ("q_proj", "o_proj")
        expected = {n: decode(m.weight) for n, m in model.named_modules() if n.endswith(kept)}
        tiny.write(
            name, None if refused else expected, source=saved, drop=r"(k|v|gate|up|down)_proj|lm_head|embed",
        )  # fmt: skip


def decode(weight):
    """The subclass's values in fp32: its codes times its scale, as its dequantize does before it rounds to the model's dtype."""
    scale = weight.scale.float()
    groups = weight.qdata.shape[-1] // scale.shape[-1]
    wide = weight.qdata.float() * scale.repeat_interleave(groups, -1)
    assert torch.equal(wide.to(torch.bfloat16), weight.dequantize().to(torch.bfloat16))
    return wide


if __name__ == "__main__":
    # Asks for a GPU that multiplies FP8; quantizing the weight needs none.
    quant_api._check_hardware_support = lambda granularity: None
    make("torchao-int8", Int8WeightOnlyConfig())
    make("torchao-int8-dynamic", Int8DynamicActivationInt8WeightConfig())
    make("torchao-float8", Float8WeightOnlyConfig())
    make("torchao-float8-dynamic", Float8DynamicActivationFloat8WeightConfig(granularity=PerRow()))
    make("refused/torchao-intx", IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)), refused=True)
