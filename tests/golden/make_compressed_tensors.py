"""Remake tests/golden/ct-* (packed by compressed-tensors' own functions) and llmcompressor-* (llm-compressor's oneshot).

ct-experts-*: experts stacked in one tensor, [E, N, K] given to the same functions (compressed-tensors 0.20.1; nvfp4 expert by
expert, since its function takes two dimensions), under the names that llm-compressor and the models of Transformers 5 give them.

python -m venv ct && ct/bin/pip install torch==2.13.0 llmcompressor==0.14.0.1 compressed-tensors==0.19.0
HF_HUB_OFFLINE=1 ct/bin/python tests/golden/make_compressed_tensors.py [folder names]
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent
N, K, G = 20, 64, 32  # N no multiple of 32: zero points packed along N end in a partial word
LAYER = "model.layers.0.mlp.down_proj"
SMALL = {
    f"ct-pack-w{bits}-{strategy}-{'sym' if sym else 'asym'}": (bits, strategy, sym)
    for bits in (1, 2, 3, 4, 5, 6, 7, 8)
    for strategy in ("group", "channel")
    for sym in (True, False)
    if strategy == "group" or bits in (3, 4, 8)
}
STATIC = {
    "ct-int-w8-group-asym": (
        "int-quantized",
        {"num_bits": 8, "type": "int", "symmetric": False, "strategy": "group", "group_size": G},
        None,
    ),
    "ct-float-w8-tensor-static": (
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "tensor"},
        {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False},
    ),
    "ct-nvfp4-w4a4": (
        "nvfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "scale_dtype": torch.float8_e4m3fn},
        {
            "num_bits": 4,
            "type": "float",
            "strategy": "tensor_group",
            "group_size": 16,
            "scale_dtype": torch.float8_e4m3fn,
            "dynamic": "local",
        },
    ),
}
SCHEMES = {
    "llmcompressor-w4a16": ("W4A16", "k_proj"),
    "llmcompressor-w4a16-asym": ("W4A16_ASYM", "k_proj"),
    "llmcompressor-w4a8": ("W4A8", "k_proj"),
    "llmcompressor-w8a8": ("W8A8", "k_proj"),
    "llmcompressor-fp8-dynamic": ("FP8_DYNAMIC", "k_proj"),
    "llmcompressor-fp8-block": ("FP8_BLOCK", "gate_proj"),
    "llmcompressor-nvfp4a16": ("NVFP4A16", "k_proj"),
    "llmcompressor-mxfp4a16": ("MXFP4A16", "k_proj"),
    "llmcompressor-mxfp8a16": ("MXFP8A16", "k_proj"),
}

INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": G}
EXPERTS = "model.layers.0.mlp.experts"
# folder -> format, weights, name of a projection, what joins it and its parts (flat names drop "weight_")
STACKED = {
    "ct-experts-w4-sym": ("pack-quantized", INT4 | {"symmetric": True}, "gate_up_proj", "."),
    "ct-experts-w4-asym": ("pack-quantized", INT4 | {"symmetric": False}, "down_proj", "."),
    "ct-experts-w4-flat": ("pack-quantized", INT4 | {"symmetric": False}, "gate_up_proj", "_"),
    "ct-experts-w3-channel": (
        "pack-quantized",
        {"num_bits": 3, "type": "int", "strategy": "channel", "symmetric": True},
        "down_proj",
        "_",
    ),
    "ct-experts-fp8-channel": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}, "w2_weight", "_"),
    "ct-experts-nvfp4": ("nvfp4-pack-quantized", STATIC["ct-nvfp4-w4a4"][1], "w13_weight", "."),
    "ct-experts-nvfp4-gate-up": ("nvfp4-pack-quantized", STATIC["ct-nvfp4-w4a4"][1], "gate_up_proj", "_"),
}


def in_fp32(parts: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Scales widened, so that the exporter's own arithmetic does not round to 16 bits."""
    return {k: v.float() if k == "weight_scale" and v.dtype in (torch.bfloat16, torch.float16) else v for k, v in parts.items()}


def decompressed(parts: dict[str, torch.Tensor], scheme: QuantizationScheme) -> torch.Tensor:
    if scheme.format == "nvfp4-pack-quantized":  # its decompress works in bf16: the same two functions, in fp32
        n, half = parts["weight_packed"].shape
        values = unpack_fp4_from_uint8(parts["weight_packed"], n, half * 2, torch.float32)
        scale, divisor = parts["weight_scale"].float(), parts["weight_global_scale"]
        return dequantize(values, scale, args=scheme.weights, global_scale=divisor, dtype=torch.float32).contiguous()
    compressor = BaseCompressor.get_value_from_registry(scheme.format)
    return compressor.decompress(in_fp32(parts), scheme)["weight"].float().contiguous()


def write(folder: Path, config: dict, tensors: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    save_file(expected, folder / "expected.safetensors")


def make_small(name: str, bits: int, strategy: str, sym: bool) -> None:
    """One layer, quantized from minimum and maximum and packed by compressed-tensors' functions."""
    args = QuantizationArgs(
        num_bits=bits, type="int", symmetric=sym, strategy=strategy, group_size=G if strategy == "group" else None
    )
    scheme = QuantizationScheme(targets=["Linear"], weights=args, format="pack-quantized")
    weight = torch.randn(N, K, generator=torch.Generator().manual_seed(bits))
    # One row all positive and one all negative: zero points at both ends of their range.
    weight[0], weight[1] = weight[0].abs(), -weight[1].abs()
    groups = weight.reshape(N, -1, G) if strategy == "group" else weight.reshape(N, 1, K)
    scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), args)
    state = {"weight": weight, "weight_scale": scale.bfloat16(), "weight_zero_point": zero}
    parts = BaseCompressor.get_value_from_registry("pack-quantized").compress(state, scheme)
    config = {"config_groups": {"group_0": scheme.model_dump(mode="json")}, "format": "pack-quantized", "ignore": ["lm_head"]}
    config |= {"quant_method": "compressed-tensors", "quantization_status": "compressed"}
    write(
        HERE / name,
        {"model_type": "llama", "dtype": "bfloat16", "quantization_config": config},
        {f"{LAYER}.{part}": tensor for part, tensor in parts.items()},
        {LAYER: decompressed(parts, scheme)},
    )


def make_static(name: str, layout: str, weights: dict, inputs: dict | None) -> None:
    """One layer with scales that calibration would give, compressed by compressed-tensors' functions."""
    args = QuantizationArgs(**weights)
    given = QuantizationArgs(**inputs) if inputs else None
    scheme = QuantizationScheme(targets=["Linear"], weights=args, input_activations=given, format=layout)
    weight = torch.randn(N, K, generator=torch.Generator().manual_seed(len(name)))
    size = args.group_size or K
    groups = weight.reshape(1, 1, -1) if args.strategy == "tensor" else weight.reshape(N, -1, size)
    state = {"weight": weight}
    if args.num_bits == 4:
        state["weight_global_scale"] = 448 * 6 / weight.abs().amax().reshape(1)
        scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), args, global_scale=state["weight_global_scale"])
        state["input_global_scale"] = torch.tensor([123.0])
    else:
        scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), args)
        scale, zero = (scale.reshape(1), zero.reshape(1)) if args.strategy == "tensor" else (scale, zero)
        if inputs:
            state["input_scale"] = torch.tensor([0.0375])
    state |= {"weight_scale": scale, "weight_zero_point": zero}
    parts = BaseCompressor.get_value_from_registry(layout).compress(state, scheme)
    config = {"config_groups": {"group_0": scheme.model_dump(mode="json")}, "format": layout, "ignore": ["lm_head"]}
    config |= {"quant_method": "compressed-tensors", "quantization_status": "compressed"}
    write(
        HERE / name,
        {"model_type": "llama", "dtype": "bfloat16", "quantization_config": config},
        {f"{LAYER}.{part}": tensor for part, tensor in parts.items()},
        {LAYER: decompressed(parts, scheme)},
    )


def make_stacked(name: str, layout: str, weights: dict, projection: str, join: str) -> None:
    """Three experts as one tensor each part; expected is what each expert alone decodes to."""
    args = QuantizationArgs(**weights)
    inputs = QuantizationArgs(**STATIC["ct-nvfp4-w4a4"][2]) if args.num_bits == 4 and args.type == "float" else None
    scheme = QuantizationScheme(targets=["Linear"], weights=args, input_activations=inputs, format=layout)
    weight = torch.randn(3, N, K, generator=torch.Generator().manual_seed(len(name)))
    weight[:, 0] = weight[:, 0].abs()
    groups = weight.reshape(3, N, -1, args.group_size or K)
    compressor = BaseCompressor.get_value_from_registry(layout)
    if inputs is None:
        scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), args)
        parts = compressor.compress({"weight": weight, "weight_scale": scale.bfloat16(), "weight_zero_point": zero}, scheme)
        each = [{k: v[i] if v.dim() > 1 else v[1:] for k, v in parts.items()} for i in range(3)]
    else:
        each = []
        for one, group in zip(weight, groups, strict=True):
            divisor = 448 * 6 / one.abs().amax().reshape(1)
            scale, _ = calculate_qparams(group.amin(-1), group.amax(-1), args, global_scale=divisor)
            state = {"weight": one, "weight_scale": scale, "weight_global_scale": divisor}
            each.append(compressor.compress(state | {"input_global_scale": torch.tensor([123.0])}, scheme))
        parts = {part: torch.stack([expert[part] for expert in each]) for part in each[0]}
        if projection == "gate_up_proj":  # as llm-compressor stacks scalars: one for the gate, one for the up projection
            parts |= {part: parts[part].repeat(1, 2) for part in ("weight_global_scale", "input_global_scale")}
    config = {"config_groups": {"group_0": scheme.model_dump(mode="json")}, "format": layout, "ignore": ["lm_head"]}
    config |= {"quant_method": "compressed-tensors", "quantization_status": "compressed"}

    def named(part: str) -> str:
        short = part.removeprefix("weight") if join == "_" and part.startswith("weight") else join + part
        return f"{EXPERTS}.{projection}{short}"

    write(
        HERE / name,
        {"model_type": "qwen3_moe", "dtype": "bfloat16", "quantization_config": config},
        {named(part): tensor for part, tensor in parts.items()},
        {f"{EXPERTS}.{projection}": torch.stack([decompressed(expert, scheme) for expert in each])},
    )


def make_oneshot(name: str, preset: str, keep: str) -> None:
    """A tiny Llama through llm-compressor's data-free oneshot; one of its layers is kept."""
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    inner = 144 if "BLOCK" in preset else 128  # the last of its blocks is partial
    llama = LlamaConfig(
        hidden_size=128, intermediate_size=inner, num_hidden_layers=1, num_attention_heads=8, num_key_value_heads=1, head_dim=16,
        vocab_size=64, max_position_embeddings=64, architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
    with tempfile.TemporaryDirectory() as scratch:
        source, target = Path(scratch) / "in", Path(scratch) / "out"
        LlamaForCausalLM(llama).bfloat16().save_pretrained(source)
        PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[UNK]").save_pretrained(source)
        recipe = QuantizationModifier(targets="Linear", scheme=preset, ignore=["lm_head"])
        oneshot(model=str(source), output_dir=str(target), recipe=recipe)
        config = json.loads((target / "config.json").read_text())
        tensors = {k: v for file in target.glob("*.safetensors") for k, v in load_file(file).items()}
    quantization = config["quantization_config"]
    kept = {k: v for k, v in tensors.items() if f".{keep}." in k}
    table = {k: v for k, v in quantization["config_groups"]["group_0"].items() if v is not None}
    scheme = QuantizationScheme.model_validate(table)
    scheme.format = table.get("format") or quantization["format"]
    expected = {}
    for layer in sorted({k.rpartition(".")[0] for k in kept}):
        parts = {k.rpartition(".")[2]: v for k, v in kept.items() if k.startswith(f"{layer}.")}
        expected[layer] = decompressed(parts, scheme)
    shown = {"model_type": "llama", "dtype": config.get("dtype", config.get("torch_dtype")), "quantization_config": quantization}
    write(HERE / name, shown, kept, expected)


if __name__ == "__main__":
    for name in sys.argv[1:] or [*SMALL, *STATIC, *STACKED, *SCHEMES]:
        if name in SMALL:
            make_small(name, *SMALL[name])
        elif name in STATIC:
            make_static(name, *STATIC[name])
        elif name in STACKED:
            make_stacked(name, *STACKED[name])
        else:
            make_oneshot(name, *SCHEMES[name])
