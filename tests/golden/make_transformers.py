"""Golden checkpoints in the formats that Transformers writes or reads itself: FP8 blocks, BitNet, gpt-oss MXFP4.

pip install torch==2.13.0 transformers==5.24.0 accelerate; python tests/golden/make_transformers.py
"""

from types import SimpleNamespace

import tiny
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.bitnet import AutoBitLinear, BitLinear, pack_weights
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
from transformers.models.gpt_oss.configuration_gpt_oss import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.utils.quantization_config import BitNetQuantConfig, FineGrainedFP8Config, Mxfp4Config


def fp8(name, **settings):
    """Two linears through Transformers' own quantizer; blocks of 32 x 32 keep the file small."""
    config = FineGrainedFP8Config(weight_block_size=(32, 32), **settings)
    ops = SimpleNamespace(quantization_config=config)
    quantize, dequantize = Fp8Quantize(ops), Fp8Dequantize(ops)
    tensors, expected = {}, {}
    for i, (layer, shape) in enumerate({"layers.0.mlp.up_proj": (64, 32), "layers.0.mlp.down_proj": (32, 64)}.items()):
        weight = torch.randn(shape, generator=torch.Generator().manual_seed(i)) * 0.1
        tensors |= quantize.convert({f"{layer}.weight": weight})
        scale = tensors[f"{layer}.weight_scale_inv"]
        expected[layer] = dequantize._dequantize_one(tensors[f"{layer}.weight"], scale, output_dtype=torch.float32)
    tensors["layers.0.mlp.gate.weight"] = torch.zeros(4, 32, dtype=torch.bfloat16)
    written = config.to_dict() | {"modules_to_not_convert": ["layers.0.mlp.gate"]}
    tiny.write(name, expected, tensors=tensors, config={"dtype": "bfloat16", "quantization_config": written})


def bitnet(name, linear_class):
    """Ternary weights packed by pack_weights; expected is what the layer's own forward multiplies by, from one-hot inputs."""
    n, k = 32, 48
    ternary = torch.randint(-1, 2, (n, k), generator=torch.Generator().manual_seed(0)).float()
    scale = torch.tensor([1.28125])
    packed = pack_weights(ternary.clone())
    with torch.compiler.set_stance("force_eager"):
        if linear_class == "bitlinear":
            layer = BitLinear(k, n, bias=False, dtype=torch.float32)
            layer.weight = packed
        else:
            layer = AutoBitLinear(k, n, bias=False, dtype=torch.float32)
            layer.weight.data = ternary
        layer.weight_scale = scale
        # Each row is one-hot, so an int8 quantization of it is exact and y is a row of W.T.
        expected = layer(torch.eye(k)).detach().T
    tensors = {"layers.0.mlp.up_proj.weight": packed, "layers.0.mlp.up_proj.weight_scale": scale.bfloat16()}
    tensors["lm_head.weight"] = torch.zeros(4, k, dtype=torch.bfloat16)
    config = BitNetQuantConfig(linear_class=linear_class, modules_to_not_convert=["lm_head"]).to_dict()
    tiny.write(
        name, {"layers.0.mlp.up_proj": expected}, tensors=tensors,
        config={"dtype": "bfloat16", "quantization_config": config},
    )  # fmt: skip


def gpt_oss():
    """Two experts, hidden 64, intermediate 32; blocks and scales random, biases too; decoded by Transformers' own function."""
    generator = torch.Generator().manual_seed(0)
    experts, hidden, inner = 2, 64, 32
    tensors, expected = {}, {}
    for proj, n, k in (("gate_up_proj", 2 * inner, hidden), ("down_proj", hidden, inner)):
        name = f"model.layers.0.mlp.experts.{proj}"
        blocks = torch.randint(0, 256, (experts, n, k // 32, 16), dtype=torch.uint8, generator=generator)
        scales = torch.randint(118, 128, (experts, n, k // 32), dtype=torch.uint8, generator=generator)
        tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = blocks, scales
        tensors[f"{name}_bias"] = torch.randn(experts, n, generator=generator).bfloat16()
        rows = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).transpose(1, 2)
        expected[name] = torch.cat([rows[:, 0::2], rows[:, 1::2]], 1) if proj == "gate_up_proj" else rows
    tensors["model.layers.0.mlp.router.weight"] = torch.zeros(experts, hidden, dtype=torch.bfloat16)
    skip = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    config = {
        "model_type": "gpt_oss", "dtype": "bfloat16", "swiglu_limit": 7.0, "num_local_experts": experts, "hidden_size": hidden,
        "intermediate_size": inner, "quantization_config": Mxfp4Config(modules_to_not_convert=skip).to_dict(),
    }  # fmt: skip
    tiny.write(
        "transformers-gpt-oss", expected, tensors=tensors, config=config,
    )  # fmt: skip


def gpt_oss_product():
    """What GptOssExperts computes of the golden experts, in float64: x, topk_ids, topk_weights and y beside the checkpoint."""
    folder, generator = tiny.GOLDEN / "transformers-gpt-oss", torch.Generator().manual_seed(1)
    stored, layer = load_file(folder / "model.safetensors"), "model.layers.0.mlp.experts"
    experts = GptOssExperts(GptOssConfig(num_local_experts=2, hidden_size=64, intermediate_size=32)).double()
    for proj in ("gate_up_proj", "down_proj"):
        blocks, scales = (stored[f"{layer}.{proj}_{part}"] for part in ("blocks", "scales"))
        getattr(experts, proj).data = convert_moe_packed_tensors(blocks, scales, dtype=torch.float64)
        getattr(experts, f"{proj}_bias").data = stored[f"{layer}.{proj}_bias"].double()
    x = torch.randn(5, 64, generator=generator).double()
    ids, weights = torch.tensor([[0, 1], [1, 0], [0, 1], [1, 0], [0, 1]]), torch.rand(5, 2, generator=generator).double()
    y = experts(x, ids, weights).detach()
    save_file({"x": x, "topk_ids": ids, "topk_weights": weights, "y": y}, folder / "product.safetensors")


if __name__ == "__main__":
    fp8("transformers-fp8-block", activation_scheme="dynamic")
    fp8("transformers-fp8-ue8m0", activation_scheme="dynamic", scale_fmt="ue8m0")
    bitnet("transformers-bitlinear", "bitlinear")
    bitnet("transformers-autobitlinear", "autobitlinear")
    gpt_oss()
    gpt_oss_product()
