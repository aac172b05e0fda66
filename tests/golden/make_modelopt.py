"""Golden checkpoints of NVIDIA ModelOpt: mtq.quantize and export_hf_checkpoint on a tiny Llama, decoded by its own QTensor classes.

pip install torch==2.13.0 nvidia-modelopt==0.47.0 transformers==5.24.0 accelerate datasets requests
    python tests/golden/make_modelopt.py
"""

import copy
import sys
import tempfile
from pathlib import Path

import modelopt.torch.export.quant_utils as export
import modelopt.torch.quantization as mtq
import tiny
import torch
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization.qtensor import MXFP8QTensor, NVFP4QTensor
from safetensors.torch import load_file

INT4 = []  # what export.pack_int4_in_uint8 was given, in export order: the values that its packed bytes stand for


def record_int4(weight, scale, block_size, pack=export.pack_int4_in_uint8):
    """ModelOpt has no decoder for this packing, so expected is its own rounding formula, kept before packing."""
    packed = pack(weight, scale, block_size)
    spread = scale[..., :, torch.arange(weight.shape[-1]) // block_size]
    INT4.append((packed, (weight / spread).round().clamp(-8, 7).float() * spread.float()))
    return packed


def dequantized(layer, tensors):
    """The exported weight of one layer, fp32."""
    weight, scale = tensors[f"{layer}.weight"], tensors[f"{layer}.weight_scale"]
    second = tensors.get(f"{layer}.weight_scale_2")
    if weight.dtype == torch.uint8 and scale.dtype == torch.float8_e4m3fn:
        shape = torch.Size((weight.shape[0], weight.shape[1] * 2))
        coded = NVFP4QTensor(shape, torch.float32, weight)
        return coded.dequantize(torch.float32, scale=scale, double_scale=second, block_sizes={-1: 16})
    if scale.dtype == torch.uint8:
        return MXFP8QTensor(weight.shape, torch.float32, weight).dequantize(torch.float32, scale=scale)
    if weight.dtype == torch.uint8:
        return next(value for packed, value in INT4 if torch.equal(packed, weight))
    if scale.dim() == 1:
        return weight.float() * scale[:, None]
    return export.from_quantized_weight(weight, scale, export.QUANTIZATION_FP8, torch.float32)


def make(name, config, layers=("q_proj", "o_proj"), **changes):
    """Quantize two linears' worth of a tiny Llama and keep those tensors."""
    config = copy.deepcopy(config)
    for entry in config["quant_cfg"]:
        blocks = entry.get("cfg", {}) if isinstance(entry.get("cfg", {}), dict) else entry["cfg"][0]
        if changes.get("group") and "block_sizes" in blocks:
            blocks["block_sizes"][-1 if -1 in blocks["block_sizes"] else "-1"] = changes["group"]
    model = mtq.quantize(tiny.model(hidden=64, intermediate=32), config, lambda m: m(torch.arange(8)[None]))
    INT4.clear()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        export_hf_checkpoint(model, export_dir=folder)
        tensors = load_file(Path(folder) / "model.safetensors")
        quantized = [k.removesuffix(".weight_scale") for k in tensors if k.endswith(".weight_scale")]
        kept = {k: dequantized(k, tensors) for k in quantized if k.endswith(layers)}
        others = "|".join(k.replace(".", r"\.") for k in quantized if k not in kept)
        tiny.write(f"modelopt-{name}", kept, source=folder, drop=f"lm_head|embed|{others}")


def make_one_weight():
    """The symmetric form of the logical weight that other exporters pack too, with ModelOpt's own packer."""
    _, scale, _ = tiny.one_weight()
    weight = tiny.one_weight_values(symmetric=True)
    packed = export.pack_int4_in_uint8(weight, scale, 32)
    config = {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ", "group_size": 32, "has_zero_point": False, "ignore": []}
    tensors = {"proj.weight": packed, "proj.weight_scale": scale}
    config = {"torch_dtype": "float16", "quantization_config": config}
    tiny.write("modelopt-one-weight", {"proj": weight}, tensors=tensors, config=config)


if __name__ == "__main__":
    make_one_weight()
    export.pack_int4_in_uint8 = record_int4
    CASES = {
        "nvfp4": (mtq.NVFP4_DEFAULT_CFG, {}),
        "nvfp4-weight-only": (mtq.W4A16_NVFP4_CFG, {}),
        "fp8": (mtq.FP8_DEFAULT_CFG, {}),
        "fp8-channel-token": (mtq.FP8_PER_CHANNEL_PER_TOKEN_CFG, {}),
        "mxfp8": (mtq.MXFP8_DEFAULT_CFG, {}),
        "w4a16-awq": (mtq.INT4_AWQ_CFG, {"group": 32}),
        "w4a8-awq": (mtq.W4A8_AWQ_BETA_CFG, {"group": 32}),
        "int8-smoothquant": (mtq.INT8_SMOOTHQUANT_CFG, {}),
        "int8-weight-only": (mtq.INT8_WEIGHT_ONLY_CFG, {}),
    }
    for case in sys.argv[1:] or CASES:
        make(case, CASES[case][0], **CASES[case][1])
