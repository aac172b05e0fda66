"""Golden checkpoints of AutoAWQ's packers: gemm, and the gemv layouts that we refuse.

    pip install torch==2.13.0 transformers==5.24.0 && pip install --no-deps --no-build-isolation autoawq==0.2.9
    python tests/golden/make_autoawq.py

AutoAWQ's package does not import beside a current Transformers, so its modules are loaded without its `awq/__init__.py`.
"""

import importlib.util
import sys
import types

import tiny
import torch

ROOT = importlib.util.find_spec("awq").submodule_search_locations[0]
for package in ("awq", "awq.modules", "awq.modules.linear", "awq.utils"):
    module = types.ModuleType(package)
    module.__path__ = [ROOT + package[3:].replace(".", "/")]
    sys.modules[package] = module

from awq.modules.linear.gemm import WQLinear_GEMM  # noqa: E402
from awq.modules.linear.gemv import WQLinear_GEMV  # noqa: E402
from awq.modules.linear.gemv_fast import WQLinear_GEMVFast  # noqa: E402
from awq.utils.packing_utils import dequantize_gemm  # noqa: E402


def pack(kind, codes, scale, zero, bias=False):
    """A packed linear from logical codes [N, K], scale and zero point [N, K/g]."""
    n, k = codes.shape
    group = k // scale.shape[1]
    linear = torch.nn.Linear(k, n, bias=bias)
    linear.weight.data = (codes.float() - zero.float().repeat_interleave(group, 1)) * scale.repeat_interleave(group, 1)
    if bias:
        linear.bias.data = torch.arange(n) / 8.0
    if kind is WQLinear_GEMM:
        scale, zero = scale.T.contiguous(), zero.T.contiguous()
    return kind.from_linear(linear, 4, group, scales=scale, zeros=zero.float())


def write(name, layers, group, version="gemm", zero_point=True, keys=("bits", "group_size"), **config):
    """Save packed linears with the config that AutoAWQ writes; `keys` are its names for bits and group size."""
    tensors, expected = {}, {}
    for layer, packed in layers.items():
        tensors |= {f"{layer}.{k}": v for k, v in packed.state_dict().items()}
        if version == "gemm":
            size = packed.in_features if group == -1 else group
            expected[layer] = dequantize_gemm(packed.qweight, packed.qzeros, packed.scales.float(), 4, size).T
    fields = {"quant_method": "awq", keys[0]: 4, keys[1]: group, "zero_point": zero_point, "version": version, **config}
    tiny.write(name, expected or None, tensors=tensors, config={"torch_dtype": "float16", "quantization_config": fields})


if __name__ == "__main__":
    codes, scale, zero = tiny.one_weight()
    gemm = pack(WQLinear_GEMM, codes, scale, zero)
    write("autoawq-one-weight", {"proj": gemm}, 32)
    write("autoawq-gemm-bias", {"model.layers.0.fc1": pack(WQLinear_GEMM, codes, scale, zero, bias=True)}, 32)
    write("autoawq-gemm-aliases", {"model.layers.0.fc1": gemm}, 32, keys=("w_bit", "q_group_size"))
    write("autoawq-gemm-channel", {"model.layers.0.fc1": pack(WQLinear_GEMM, codes, scale[:, :1], zero[:, :1])}, -1)
    symmetric = pack(WQLinear_GEMM, codes, scale, torch.full_like(zero, 8))
    write("autoawq-gemm-symmetric", {"model.layers.0.fc1": symmetric}, 32, zero_point=False)

    wide = codes.repeat(1, 4), scale.repeat(1, 4), zero.repeat(1, 4)
    write("refused/autoawq-gemv", {"model.layers.0.fc1": pack(WQLinear_GEMV, *wide)}, 32, version="gemv")
    write("refused/autoawq-gemv-fast", {"model.layers.0.fc1": pack(WQLinear_GEMVFast, *wide)}, 32, version="gemv_fast")
