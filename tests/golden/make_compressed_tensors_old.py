"""Remake tests/golden/ct09-*: layers packed by compressed-tensors 0.9.4, which fills words with whole codes and has g_idx.

python -m venv old && old/bin/pip install torch==2.13.0 transformers pydantic
old/bin/pip install --no-deps compressed-tensors==0.9.4
old/bin/python tests/golden/make_compressed_tensors_old.py
"""

import json
from pathlib import Path

import torch
from compressed_tensors.compressors.quantized_compressors.pack_quantized import PackedQuantizationCompressor, unpack_from_int32
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file

HERE = Path(__file__).parent
N, K, G = 24, 64, 16
LAYER = "model.layers.0.mlp.down_proj"
# name: bits, symmetric, actorder
VARIANTS = {f"ct09-pack-w{bits}-sym": (bits, True, None) for bits in (3, 5, 6, 7)} | {
    "ct09-pack-w4-asym": (4, False, None),
    "ct09-pack-w4-sym-g-idx": (4, True, "group"),
    "ct09-pack-w4-asym-g-idx": (4, False, "group"),
}


def make(name: str, bits: int, sym: bool, actorder: str | None) -> None:
    generator = torch.Generator().manual_seed(bits)
    args = QuantizationArgs(num_bits=bits, type="int", symmetric=sym, strategy="group", group_size=G, actorder=actorder)
    weight = torch.randn(N, K, generator=generator)
    g_idx = torch.arange(K) // G
    if actorder:
        g_idx = g_idx[torch.randperm(K, generator=generator)]
    order = torch.argsort(g_idx, stable=True)
    groups = weight[:, order].reshape(N, -1, G)
    scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), args)
    scale = scale.bfloat16()
    compressor = PackedQuantizationCompressor()
    given = g_idx.int() if actorder else None
    parts = compressor.compress_weight(weight=weight, scale=scale.float(), quantization_args=args, zero_point=zero, g_idx=given)
    parts["weight_scale"] = scale
    if actorder:
        parts["weight_g_idx"] = g_idx.int()
    # What its decompress_weight does, which refuses packed zero points: they are given unpacked here.
    codes = unpack_from_int32(parts["weight_packed"], bits, torch.Size((N, K)))
    expected = dequantize(x_q=codes, scale=scale.float(), zero_point=None if sym else zero, g_idx=given).float().contiguous()
    table = {"targets": ["Linear"], "weights": json.loads(args.model_dump_json()), "input_activations": None}
    config = {"config_groups": {"group_0": table}, "format": "pack-quantized", "ignore": ["lm_head"]}
    config |= {"quant_method": "compressed-tensors", "quantization_status": "compressed"}
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    text = {"model_type": "llama", "torch_dtype": "bfloat16", "quantization_config": config}
    (folder / "config.json").write_text(json.dumps(text, indent=2) + "\n")
    save_file({f"{LAYER}.{k}": v.contiguous() for k, v in parts.items()}, folder / "model.safetensors", {"format": "pt"})
    save_file({LAYER: expected}, folder / "expected.safetensors")


if __name__ == "__main__":
    for name, variant in VARIANTS.items():
        make(name, *variant)
