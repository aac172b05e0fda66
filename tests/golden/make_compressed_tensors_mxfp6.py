"""Remake tests/golden/ct-mxfp6*: MXFP6 by compressed-tensors' own functions, which version 0.20 brought.

python -m venv ct20 && ct20/bin/pip install torch==2.13.0 compressed-tensors==0.20.1
ct20/bin/python tests/golden/make_compressed_tensors_mxfp6.py
"""

import tiny
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import preset_name_to_scheme

LAYER = "model.layers.0.mlp.down_proj"
FORMAT = "mxfp6-pack-quantized"

if __name__ == "__main__":
    for name, preset in {"ct-mxfp6": "MXFP6A8", "ct-mxfp6a16": "MXFP6A16"}.items():
        scheme = preset_name_to_scheme(preset, ["Linear"])
        scheme.format = FORMAT
        weight = torch.randn(40, 64, generator=torch.Generator().manual_seed(0))
        largest = weight.unflatten(-1, (-1, 32)).abs().amax(-1)
        stored = {"weight": weight, "weight_scale": torch.exp2(torch.floor(torch.log2(largest)) - 2)}
        packer = BaseCompressor.get_value_from_registry(FORMAT)
        parts = packer.compress(stored, scheme)
        groups = {"group_0": scheme.model_dump(mode="json")}
        quantization = {"quant_method": "compressed-tensors", "format": FORMAT, "config_groups": groups, "ignore": ["lm_head"]}
        tiny.write(
            name, {LAYER: packer.decompress(parts, scheme)["weight"]}, tensors={f"{LAYER}.{k}": v for k, v in parts.items()},
            config={"model_type": "llama", "dtype": "bfloat16", "quantization_config": quantization},
        )  # fmt: skip
