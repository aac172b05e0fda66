"""Golden checkpoints of AMD Quark: a tiny Llama quantized and exported to safetensors, decoded by its own QParamsLinear.

pip install torch==2.13.0 amd-quark==0.13 transformers==5.24.0 accelerate; python tests/golden/make_quark.py
"""

import sys
import tempfile

import tiny
import torch
from quark.torch import ModelQuantizer, export_safetensors
from quark.torch.export.nn.modules.qparamslinear import QParamsLinear
from quark.torch.export.nn.modules.realquantizer import SequentialRealQuantizer
from quark.torch.quantization.config import config as quark

# Scales and zero points are per group of 16 or 32 along K; input activations where the scheme has them.
ROUND = {"symmetric": True, "scale_type": "float", "round_method": "half_even", "is_dynamic": False}
INT4 = quark.Int4PerGroupSpec(ch_axis=-1, group_size=32)
UINT4 = quark.Uint4PerGroupSpec(ch_axis=-1, group_size=32)
FP8 = quark.FP8E4M3PerTensorSpec(observer_method="min_max", is_dynamic=False)
MXFP4 = quark.OCP_MXFP4Spec(ch_axis=-1, is_dynamic=False)
CASES = {
    "uint4-reorder": {"weight": UINT4},
    "uint4-order": {"weight": UINT4, "pack_method": "order"},
    "int4-reorder": {"weight": INT4},
    "int4-channel": {"weight": quark.Int4PerChannelSpec(ch_axis=0, **ROUND)},
    "int8-channel": {
        "weight": quark.Int8PerChannelSpec(ch_axis=0, **ROUND),
        "input_tensors": quark.Int8PerTensorSpec(observer_method="min_max", **ROUND),
    },
    "int8-group": {"weight": quark.Int8PerGroupSpec(ch_axis=-1, group_size=32, **ROUND)},
    "fp8-tensor": {"weight": FP8, "input_tensors": FP8},
    "fp8-channel": {
        "weight": quark.FP8E4M3PerChannelSpec(ch_axis=0, is_dynamic=False),
        "input_tensors": quark.FP8E4M3PerChannelSpec(ch_axis=1, is_dynamic=True),
    },
    "mxfp4": {"weight": MXFP4, "input_tensors": quark.OCP_MXFP4Spec(ch_axis=-1, is_dynamic=True)},
    "mxfp6-e2m3": {"weight": quark.OCP_MXFP6E2M3Spec(ch_axis=-1, is_dynamic=False)},
    "mxfp6-e3m2": {"weight": quark.OCP_MXFP6E3M2Spec(ch_axis=-1, is_dynamic=False)},
    "fp4-two-stage": {
        "weight": quark.ScaleQuantSpec(
            first_stage=quark.FP4PerGroupSpec(ch_axis=-1, group_size=16, is_dynamic=False),
            second_stage=quark.FP8E4M3PerTensorSpec(observer_method="min_max", is_dynamic=False),
        )
    },
    "per-layer": {"weight": UINT4, "layers": {"*down_proj": {"weight": FP8}, "*o_proj": {"weight": INT4}}},
}  # fmt: skip


def config(weight, input_tensors=None):
    """A QLayerConfig of one or two DataTypeSpecs."""
    inputs = None if input_tensors is None else input_tensors.to_quantization_spec()
    return quark.QLayerConfig(weight=weight.to_quantization_spec(), input_tensors=inputs)


def make(name, weight, input_tensors=None, pack_method="reorder", layers=None):
    """Quantize, freeze and export; then decode what was exported."""
    model = tiny.model(hidden=32, intermediate=64)
    layer_configs = {pattern: config(**settings) for pattern, settings in (layers or {}).items()}
    whole = quark.QConfig(global_quant_config=config(weight, input_tensors), layer_quant_config=layer_configs, exclude=["lm_head"])
    quantizer = ModelQuantizer(whole)
    model = quantizer.freeze(quantizer.quantize_model(model, [{"input_ids": torch.arange(8)[None]}]))
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        export_safetensors(model, folder, custom_mode="quark", weight_format="real_quantized", pack_method=pack_method)
        expected = {n: decode(m) for n, m in model.named_modules() if isinstance(m, QParamsLinear)}
        tiny.write(f"quark-{name}", expected, source=folder, drop="lm_head|embed")


def decode(module):
    """The exported weight through Quark's own unpack and dequantize, scales widened to fp32 first."""
    whole = module.weight_quantizer
    for quantizer in whole if isinstance(whole, SequentialRealQuantizer) else [whole]:
        quantizer.float_dtype = torch.float32
        if quantizer.scale.dtype == torch.bfloat16:
            quantizer.scale = quantizer.scale.float()
    return whole(module.weight).float()


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        make(case, **CASES[case])
