"""Remake tests/golden/*-one-weight of four more exporters: tiny.one_weight, packed and decoded by each one's own code.

With the environment of its make_<exporter>.py:

    python tests/golden/make_one_weight.py gptqmodel | compressed-tensors | quark | auto-round
"""

import sys

import tiny
import torch

K, G = 64, 32


def gptqmodel(codes, scale, zero):
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear

    linear = torch.nn.Linear(K, codes.shape[0], bias=False)
    linear.weight.data = tiny.one_weight_values(symmetric=False)
    layer = TorchLinear(
        bits=4, group_size=G, sym=False, desc_act=False, in_features=K, out_features=codes.shape[0], bias=False,
        register_buffers=True,
    )  # fmt: skip
    layer.pack_original(linear, scale, zero.float(), torch.arange(K, dtype=torch.int32) // G)
    layer.post_init()
    tensors = {part: getattr(layer, part).clone() for part in ("qweight", "qzeros", "scales", "g_idx")}
    layer.scales = layer.scales.float()
    config = {"quant_method": "gptq", "bits": 4, "group_size": G, "sym": False, "desc_act": False}
    return tensors, layer.dequantize_weight().T, config | {"checkpoint_format": "gptq_v2"}


def auto_round(codes, scale, zero):
    from auto_round_extension.torch.qlinear_torch_zp import QuantLinear

    linear = torch.nn.Linear(K, codes.shape[0], bias=False)
    linear.weight.data = tiny.one_weight_values(symmetric=False)
    layer = QuantLinear(4, G, K, codes.shape[0], False)
    layer.pack(linear, scale.clone(), zero.float(), None, device="cpu")
    tensors = {part: getattr(layer, part).clone() for part in ("qweight", "qzeros", "scales")}
    layer.scales = layer.scales.float()
    config = {"quant_method": "auto-round", "bits": 4, "group_size": G, "sym": False, "data_type": "int"}
    return tensors, layer(torch.eye(K)).T, config | {"packing_format": "auto_round:auto_gptq"}


def compressed_tensors(codes, scale, zero):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    args = QuantizationArgs(num_bits=4, type="int", symmetric=False, strategy="group", group_size=G)
    scheme = QuantizationScheme(targets=["Linear"], weights=args, format="pack-quantized")
    packer = BaseCompressor.get_value_from_registry("pack-quantized")
    weight = tiny.one_weight_values(symmetric=False)
    stored = {"weight": weight, "weight_scale": scale.half(), "weight_zero_point": (zero.int() - 8).to(torch.int8)}
    tensors = packer.compress(stored, scheme)
    wide = tensors | {"weight_scale": tensors["weight_scale"].float()}
    config = {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": []}
    return (
        tensors,
        packer.decompress(wide, scheme)["weight"],
        config | {"config_groups": {"group_0": scheme.model_dump(mode="json")}},
    )


def quark(codes, scale, zero):
    from quark.torch.quantization.config.config import Uint4PerGroupSpec
    from quark.torch.utils.pack import create_pack_method

    packer = create_pack_method("per_group", "uint4")
    spec = Uint4PerGroupSpec(ch_axis=-1, group_size=G).to_quantization_spec()
    tensors = {
        "weight": packer.pack(codes.int(), reorder=True),
        "weight_zero_point": packer.pack(zero.int(), reorder=True),
        "weight_scale": scale.T.half(),
    }
    wide = [packer.unpack(tensors[part], reorder=True).int() & 15 for part in ("weight", "weight_zero_point")]
    values = (wide[0] - wide[1].repeat_interleave(G, 1)) * tensors["weight_scale"].T.float().repeat_interleave(G, 1)
    weight = {"dtype": "uint4", "qscheme": "per_group", "ch_axis": spec.ch_axis, "group_size": G, "symmetric": False}
    config = {"quant_method": "quark", "global_quant_config": {"weight": weight}, "exclude": []}
    return tensors, values, config | {"export": {"pack_method": "reorder", "weight_format": "real_quantized"}}


if __name__ == "__main__":
    tool = sys.argv[1]
    parts, values, fields = globals()[tool.replace("-", "_")](*tiny.one_weight())
    tensors = {f"proj.{part}": tensor for part, tensor in parts.items()}
    folder = {"compressed-tensors": "ct", "auto-round": "autoround"}.get(tool, tool)
    config = {"dtype": "float16", "quantization_config": fields}
    tiny.write(f"{folder}-one-weight", {"proj": values}, tensors=tensors, config=config)
