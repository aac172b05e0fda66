"""Remake tests/golden/gptqmodel-*: layers packed by GPTQModel's own TorchLinear, dequantized by it.

python -m venv gm && gm/bin/pip install torch==2.13.0 setuptools wheel numpy packaging ninja
BUILD_CUDA_EXT=0 gm/bin/pip install --no-build-isolation gptqmodel==7.7.0
gm/bin/python tests/golden/make_gptqmodel.py
"""

import json
from pathlib import Path

import torch
from gptqmodel import __version__
from gptqmodel.nn_modules.qlinear.torch import TorchLinear
from gptqmodel.quantization import QuantizeConfig
from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module
from safetensors.torch import save_file

HERE = Path(__file__).parent
N, K, G = 32, 64, 16
LAYER = "model.layers.0.mlp.down_proj"
# name: bits, group_size, sym, act-order ("" | "desc" | "equal"), version, lowest zero point, label (None: as the version says)
VARIANTS = {
    "w4-g16-sym-v1": (4, G, True, "", 1, 1, "gptq"),
    "w4-g16-sym-v2": (4, G, True, "", 2, 1, "gptq_v2"),
    "w4-g16-sym-mislabelled": (4, G, True, "", 2, 1, "gptq"),
    "w4-g16-asym-v1": (4, G, False, "", 1, 1, "gptq"),
    "w4-g16-asym-v2": (4, G, False, "", 2, 0, "gptq_v2"),
    "w4-g16-asym-v1-zero0": (4, G, False, "", 1, 0, "gptq"),
    "w4-g16-asym-unlabelled": (4, G, False, "", 1, 1, ""),
    "w4-channel-sym-v1": (4, -1, True, "", 1, 1, "gptq"),
    "w4-channel-asym-v2": (4, -1, False, "", 2, 0, "gptq_v2"),
    "w4-g16-sym-desc-act": (4, G, True, "desc", 1, 1, "gptq"),
    "w4-g16-asym-desc-act": (4, G, False, "desc", 2, 0, "gptq_v2"),
    "w4-g16-asym-g-idx-equal": (4, G, False, "equal", 2, 0, "gptq_v2"),
    "w2-g16-sym-v1": (2, G, True, "", 1, 1, "gptq"),
    "w2-g16-asym-v1-zero0": (2, G, False, "", 1, 0, "gptq"),
    "w3-g16-sym-v1": (3, G, True, "", 1, 1, "gptq"),
    "w3-g16-asym-v1-zero0": (3, G, False, "", 1, 0, "gptq"),
    "w3-g16-asym-v2": (3, G, False, "", 2, 0, "gptq_v2"),
    "w8-g16-sym-v1": (8, G, True, "", 1, 1, "gptq"),
    "w8-g16-asym-v2-desc-act": (8, G, False, "desc", 2, 0, "gptq_v2"),
    "w8-g16-asym-v1-zero0": (8, G, False, "", 1, 0, "gptq"),
}


def make(name: str, variant: tuple, planar: bool = False) -> None:
    bits, group_size, sym, order, version, lowest, label = variant
    generator = torch.Generator().manual_seed(len(name) * 1000 + bits)
    groups = 1 if group_size == -1 else K // group_size
    g_idx = torch.arange(K, dtype=torch.int32) // (K // groups)
    if order == "desc":
        g_idx = g_idx[torch.randperm(K, generator=generator)].contiguous()
    elif order == "equal":
        g_idx = torch.full((K,), groups - 1, dtype=torch.int32)
    scale = (torch.rand(N, groups, generator=generator) * 0.02 + 0.002).half().float()
    if sym:
        zero = torch.full((N, groups), float(2 ** (bits - 1)))
    else:
        zero = torch.randint(lowest, 2**bits, (N, groups), generator=generator).float()
        zero.view(-1)[0], zero.view(-1)[1] = lowest, 2**bits - 1
    codes = torch.randint(0, 2**bits, (N, K), generator=generator).float()
    group = g_idx.long()
    linear = torch.nn.Linear(K, N, bias=order == "desc")
    linear.weight.data = (codes - zero[:, group]) * scale[:, group]
    if linear.bias is not None:
        linear.bias.data = torch.randn(N, generator=generator)
    layer = TorchLinear(
        bits=bits, group_size=group_size, sym=sym, desc_act=order == "desc", in_features=K, out_features=N,
        bias=linear.bias is not None, register_buffers=True, **({"format": "gptq_p"} if planar else {}),
    )  # fmt: skip
    layer.pack_original(linear, scale, zero, g_idx)
    layer.post_init()
    stored = {part: getattr(layer, part).clone().contiguous() for part in ("qweight", "qzeros", "scales", "g_idx")}
    layer.scales = layer.scales.float()
    expected = layer.dequantize_weight().T.contiguous().float()
    if not planar:
        assert torch.equal(expected, (codes - zero[:, group]) * scale[:, group]), name
    if version == 1:
        convert_gptq_v2_to_v1_format_module(layer, QuantizeConfig(bits=bits, group_size=group_size))
        stored["qzeros"] = layer.qzeros.clone().contiguous()
    if layer.bias is not None:
        stored["bias"] = layer.bias.clone()
    config = {
        "bits": bits, "group_size": group_size, "desc_act": order == "desc", "sym": sym, "quant_method": "gptq",
        "lm_head": False, "pack_dtype": "int32", "meta": {"quantizer": [f"gptqmodel:{__version__}"]},
    }  # fmt: skip
    if label:
        config["checkpoint_format"] = label
    folder = HERE / ("refused" if planar else ".") / f"gptqmodel-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"model_type": "llama", "dtype": "float16", "quantization_config": config}, indent=2)
    (folder / "config.json").write_text(text + "\n")
    save_file({f"{LAYER}.{part}": tensor for part, tensor in stored.items()}, folder / "model.safetensors", {"format": "pt"})
    if not planar:
        save_file({LAYER: expected}, folder / "expected.safetensors")


if __name__ == "__main__":
    for name, variant in VARIANTS.items():
        make(name, variant)
    for bits in (5, 6, 7):
        make(f"w{bits}-planar", (bits, G, True, "", 2, 1, "gptq_p"), planar=True)
