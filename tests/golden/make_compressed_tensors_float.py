"""Remake tests/golden/ct-* of compressed-tensors' unpacked and float formats, by its own functions.

python -m venv ct && ct/bin/pip install torch==2.13.0 llmcompressor==0.14.0.1 compressed-tensors==0.19.0
ct/bin/python tests/golden/make_compressed_tensors_float.py
"""

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme, preset_name_to_scheme
from make_compressed_tensors import HERE, LAYER, decompressed, write

N, K = 40, 64
INT8 = {"num_bits": 8, "type": "int"}
FP8 = {"num_bits": 8, "type": "float"}
STATIC = {"strategy": "tensor", "dynamic": False, "symmetric": True}
TOKEN = {"strategy": "token", "dynamic": True, "symmetric": True}
# name -> (format, weights, input activations, tensors of the activations)
CASES = {
    "ct-int-static": ("int-quantized", {**INT8, "strategy": "channel"}, {**INT8, **STATIC}, {"input_scale": torch.tensor([0.5])}),
    "ct-int-tensor": ("int-quantized", {**INT8, "strategy": "tensor"}, {**INT8, **TOKEN, "group_size": None}, {}),
    "ct-int-asym": ("int-quantized", {**INT8, "strategy": "channel", "symmetric": False}, {**INT8, **TOKEN}, {}),
    "ct-naive-int8-group": ("naive-quantized", {**INT8, "strategy": "group", "group_size": 32}, None, {}),
    "ct-naive-fp8-group": ("naive-quantized", {**FP8, "strategy": "group", "group_size": 32}, None, {}),
    "ct-float-static": ("float-quantized", {**FP8, "strategy": "tensor"}, {**FP8, **STATIC}, {"input_scale": torch.tensor([0.5])}),
    "ct-float-block": (
        "float-quantized",
        {**FP8, "strategy": "block", "block_structure": [32, 32]},
        {**FP8, "strategy": "group", "group_size": 32, "dynamic": True},
        {},
    ),
}
PRESETS = {
    "ct-mxfp4": ("mxfp4-pack-quantized", "MXFP4", {}),
    "ct-mxfp8": ("mxfp8-quantized", "MXFP8", {}),
}


def scales(weight, args):
    """Scale (and zero point) tensors of a weight [N, K], as an observer would leave them."""
    if args.strategy == "block":
        pad = [(-s) % b for s, b in zip(weight.shape, args.block_structure, strict=True)]
        padded = torch.nn.functional.pad(weight, (0, pad[1], 0, pad[0]))
        blocks = padded.unflatten(0, (-1, args.block_structure[0])).unflatten(-1, (-1, args.block_structure[1]))
        return {"weight_scale": blocks.abs().amax((1, 3)) / 448}
    rows = {"tensor": weight.reshape(1, 1, -1), "channel": weight[:, None]}.get(args.strategy)
    groups = weight.unflatten(-1, (-1, args.group_size)) if rows is None else rows
    top = {("int", 8): 127.5, ("float", 8): 448.0, ("float", 4): 6.0}[args.type, args.num_bits]
    if args.group_size == 32 and args.scale_dtype is torch.uint8:
        return {"weight_scale": torch.exp2(torch.floor(torch.log2(groups.abs().amax(-1))) - (2 if top == 6 else 8))}
    if not args.symmetric:
        low, high = groups.amin(-1), groups.amax(-1)
        scale = ((high - low) / 255).bfloat16()
        zero = (-128 - low / scale.float()).round().clamp(-128, 127)
        return {"weight_scale": scale, "weight_zero_point": zero.to(torch.int8)}
    scale = groups.abs().amax(-1) / top
    return {"weight_scale": (scale.reshape(1) if args.strategy == "tensor" else scale).bfloat16()}


def compress(scheme, extra, seed, shape=(N, K)):
    """Stored tensors of one layer and the values that they stand for."""
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    state = {"weight": weight, **scales(weight, scheme.weights)}
    parts = BaseCompressor.get_value_from_registry(scheme.format).compress(state, scheme)
    return parts | extra, decompressed(parts, scheme)


def config(groups, form, ignore=("lm_head",)):
    """A config.json with these config groups."""
    fields = {"config_groups": groups, "format": form, "ignore": list(ignore), "quant_method": "compressed-tensors"}
    return {"model_type": "llama", "dtype": "bfloat16", "quantization_config": fields | {"quantization_status": "compressed"}}


def make(name, scheme, extra):
    parts, expected = compress(scheme, extra, seed=len(name))
    tensors = {f"{LAYER}.{part}": tensor for part, tensor in parts.items()}
    write(HERE / name, config({"group_0": scheme.model_dump(mode="json")}, scheme.format), tensors, {LAYER: expected})


def make_mixed():
    """Three groups, each with a format of its own: by name, by regular expression, and all other Linears."""
    cases = {
        "model.layers.0.mlp.down_proj": ("ct-float-static", ["model.layers.0.mlp.down_proj"]),
        "model.layers.0.self_attn.q_proj": ("ct-mxfp4", ["re:.*self_attn.*"]),
        "model.layers.0.mlp.up_proj": ("ct-int-tensor", ["Linear"]),
    }
    groups, tensors, expected = {}, {}, {}
    for i, (layer, (case, targets)) in enumerate(cases.items()):
        made, extra = scheme_of(case)
        made.targets = targets
        parts, expected[layer] = compress(made, extra, seed=i)
        tensors |= {f"{layer}.{part}": tensor for part, tensor in parts.items()}
        groups[f"group_{i}"] = made.model_dump(mode="json")
    write(HERE / "ct-mixed-precision", config(groups, "mixed-precision"), tensors, expected)


def scheme_of(name):
    if name in PRESETS:
        form, preset, extra = PRESETS[name]
        scheme = preset_name_to_scheme(preset, ["Linear"])
    else:
        form, weights, inputs, extra = CASES[name]
        scheme = QuantizationScheme(targets=["Linear"], weights=weights, input_activations=inputs)
    scheme.format = form
    return scheme, extra


if __name__ == "__main__":
    for name in (*CASES, *PRESETS):
        make(name, *scheme_of(name))
    make_mixed()
