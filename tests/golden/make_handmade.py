"""Golden checkpoints of variants that no exporter writes here: laid out by hand from the documented layout, from values to bytes.

python tests/golden/make_handmade.py
"""

import tiny
import torch

LAYER = "model.layers.0.mlp.down_proj"
N, K = 40, 64
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def normal(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def write(name, tensors, expected, quantization, **model):
    config = {"model_type": "llama", "dtype": "bfloat16", **model, "quantization_config": quantization}
    tiny.write(f"handmade-{name}", expected, tensors=tensors, config=config)


def fp8(name, scale, static=False, dtype=torch.float8_e4m3fn, **fields):
    """One FP8 linear; `scale` is its stored scale tensor, one a tensor or a row or a block of 32 x 32."""
    weight = normal((N, K)).to(dtype)
    if scale.dim() == 2 and scale.shape[1] > 1:
        wide = scale.repeat_interleave(32, 0)[:N].repeat_interleave(32, 1)[:, :K]
    else:
        wide = scale.reshape(-1, 1)
    part = "weight_scale_inv" if "weight_block_size" in fields else "weight_scale"
    tensors = {f"{LAYER}.weight": weight, f"{LAYER}.{part}": scale}
    if static:
        tensors[f"{LAYER}.input_scale"] = torch.tensor(0.125)
    config = {"quant_method": "fp8", "activation_scheme": "static" if static else "dynamic", **fields}
    write(name, tensors, {LAYER: weight.float() * wide.float()}, config)


def awq_8bit():
    """Four columns a word, in the order 0 2 1 3."""
    codes = torch.randint(0, 256, (N, K), generator=torch.Generator().manual_seed(0))
    zero = torch.randint(0, 256, (N, K // 32), generator=torch.Generator().manual_seed(1))
    scale = (normal((N, K // 32)).abs() / 128).half()

    def pack(values):  # [N, columns] -> [columns, N / 4]
        lanes = values.T.reshape(values.shape[1], -1, 4)[..., [0, 2, 1, 3]]
        return (lanes << torch.arange(0, 32, 8)).sum(-1).to(torch.int32)

    tensors = {"qweight": pack(codes), "qzeros": pack(zero), "scales": scale.T}
    values = (codes - zero.repeat_interleave(32, 1)).float() * scale.float().repeat_interleave(32, 1)
    config = {"quant_method": "awq", "bits": 8, "group_size": 32, "zero_point": True, "version": "gemm"}
    write("awq-8bit", {f"{LAYER}.{k}": v for k, v in tensors.items()}, {LAYER: values}, config, dtype="float16")


def quark_fp8_block():
    weight, scale = normal((64, 64)).to(torch.float8_e4m3fn), normal((2, 2), 1).abs()
    values = weight.float() * scale.repeat_interleave(32, 0).repeat_interleave(32, 1)
    spec = {"dtype": "fp8_e4m3", "qscheme": "per_block", "block_size": [32, 32], "is_dynamic": False, "symmetric": True}
    inputs = {"dtype": "fp8_e4m3", "qscheme": "per_group", "ch_axis": -1, "group_size": 32, "is_dynamic": True, "symmetric": True}
    config = {
        "quant_method": "quark", "global_quant_config": {"weight": spec, "input_tensors": inputs}, "layer_quant_config": {},
        "exclude": [], "export": {"pack_method": "reorder", "weight_format": "real_quantized"},
    }  # fmt: skip
    write("quark-fp8-block", {f"{LAYER}.weight": weight, f"{LAYER}.weight_scale": scale}, {LAYER: values}, config)


def fp4_experts():
    """DeepSeek-V4's experts: two e2m1 codes a byte beside exponents, in a checkpoint of FP8 blocks."""
    codes = torch.arange(N * K).reshape(N, K) * 7 % 16
    exponent = torch.arange(N * K // 32).reshape(N, -1) % 9 + 120
    name = "model.layers.0.ffn.experts.0.w1"
    tensors = {
        f"{name}.weight": (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8).view(torch.int8),
        f"{name}.scale": exponent.to(torch.uint8).view(torch.float8_e8m0fnu),
    }
    values = E2M1[codes] * torch.exp2(exponent.float() - 127).repeat_interleave(32, 1)
    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32], "scale_fmt": "ue8m0"}
    write("fp8-fp4-experts", tensors, {name: values}, config | {"expert_dtype": "fp4"})


def awq_stream(bits):
    """6 and 7 bits as AutoRound packs 5: each eight columns in the order 0 2 4 6 1 3 5 7, then one bit stream along N."""
    codes = torch.randint(0, 2**bits, (N, K), generator=torch.Generator().manual_seed(bits))
    zero = torch.randint(0, 2**bits, (N, K // 32), generator=torch.Generator().manual_seed(bits + 1))
    codes[:3, 0], codes[3:6, 0] = 2**bits - 1, 0
    scale = (normal((N, K // 32)).abs() / 128).half()

    def pack(values):  # [N, columns] -> [columns, N * bits / 32], the stream padded to whole words
        order = values.T.reshape(values.shape[1], -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]].flatten(-2)
        stream = (order[..., None] >> torch.arange(bits) & 1).flatten(-2)
        stream = torch.nn.functional.pad(stream, (0, -stream.shape[1] % 32)).unflatten(-1, (-1, 32))
        return (stream << torch.arange(32)).sum(-1).to(torch.int32)

    tensors = {"qweight": pack(codes), "qzeros": pack(zero), "scales": scale.T}
    values = (codes - zero.repeat_interleave(32, 1)).float() * scale.float().repeat_interleave(32, 1)
    config = {"quant_method": "awq", "bits": bits, "group_size": 32, "zero_point": True, "version": "gemm"}
    write(f"awq-{bits}bit", {f"{LAYER}.{k}": v for k, v in tensors.items()}, {LAYER: values}, config, dtype="float16")


def modelopt(name, tensors, expected, algo, layer=LAYER, **fields):
    config = {"quant_method": "modelopt", "quant_algo": algo, "ignore": ["lm_head"], "producer": {"name": "modelopt"}, **fields}
    write(f"modelopt-{name}", {f"{layer}.{k}": v for k, v in tensors.items()}, {layer: expected}, config)


def modelopt_fp4(name, algo, group, shape=(N, K), static=True, **where):
    """Two e2m1 codes a byte; scales e4m3 beside a second one (16 a group), or exponents (32). The second scale: a power of two."""
    codes = torch.randint(0, 16, shape, generator=torch.Generator().manual_seed(group))
    grid = (*shape[:-1], shape[-1] // group)
    tensors = {"weight": (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)}
    if group == 16:
        tensors["weight_scale"] = normal(grid, 1).abs().to(torch.float8_e4m3fn)
        tensors["weight_scale_2"] = torch.full(shape[:-2], 0.25) if len(shape) == 3 else torch.tensor(0.25)
        scale = tensors["weight_scale"].float() * 0.25
    else:
        tensors["weight_scale"] = torch.randint(120, 130, grid, generator=torch.Generator().manual_seed(2)).to(torch.uint8)
        scale = torch.exp2(tensors["weight_scale"].float() - 127)
    if static:
        tensors["input_scale"] = torch.tensor(0.5)
    modelopt(name, tensors, E2M1[codes] * scale.repeat_interleave(group, -1), algo, **where)


def modelopt_fp8_block():
    """Blocks of 128 x 128, the last one partial both ways."""
    weight, scale = normal((N, 144)).to(torch.float8_e4m3fn), normal((1, 2), 1).abs()
    values = weight.float() * scale.repeat_interleave(128, 1)[:, :144]
    modelopt("fp8-block", {"weight": weight, "weight_scale": scale}, values, "FP8_PB_WO")


def fp8_stacked_experts():
    """Experts as one 3-D parameter, as Transformers 5 names them."""
    name = "model.layers.0.mlp.experts"
    tensors, expected = {}, {}
    for part, shape in (("gate_up_proj", (3, 48, 64)), ("down_proj", (3, 64, 24))):
        weight = normal(shape).to(torch.float8_e4m3fn)
        blocks = (3, -(-shape[1] // 32), -(-shape[2] // 32))
        scale = normal(blocks, 1).abs()
        wide = scale.repeat_interleave(32, 1)[:, : shape[1]].repeat_interleave(32, 2)[..., : shape[2]]
        tensors |= {f"{name}.{part}": weight, f"{name}.{part}_scale_inv": scale}
        expected[f"{name}.{part}"] = weight.float() * wide
    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32], "fmt": "e4m3"}
    write("fp8-stacked-experts", tensors, expected, config)


if __name__ == "__main__":
    for bits in (6, 7):
        awq_stream(bits)
    modelopt_fp4("w4a8-nvfp4", "W4A8_NVFP4_FP8", 16)
    modelopt_fp4("mxfp4", "MXFP4", 32, static=False)
    modelopt_fp4("w4a8-mxfp4", "W4A8_MXFP4_FP8", 32)
    modelopt_fp4("nvfp4-experts", "NVFP4", 16, (3, 24, 32), layer="model.layers.0.mlp.experts.gate_up_proj")
    modelopt_fp8_block()
    fp8_stacked_experts()
    fp8("fp8-tensor-dynamic", torch.tensor(0.01))
    fp8("fp8-tensor-static", torch.tensor([0.01]), static=True)
    fp8("fp8-channel", normal((N, 1), 1).abs())
    fp8("fp8-e5m2", torch.tensor(0.01), dtype=torch.float8_e5m2, fmt="e5m2")
    fp8("fp8-partial-block", normal((2, 2), 1).abs(), weight_block_size=[32, 32], fmt="e4m3")
    awq_8bit()
    quark_fp8_block()
    fp4_experts()
