"""The oracle, in torch: slow, obvious, on any device. Every kernel is compared with it."""

from hybrid_humming.reference.activation import QuantizedInput, dequantize_input, quantize_input, widen_input
from hybrid_humming.reference.dequantize import dequantize
from hybrid_humming.reference.gemm import gemm
from hybrid_humming.reference.moe import fused_moe
from hybrid_humming.reference.prologue import prepare_input
from hybrid_humming.reference.quantize import quantize
from hybrid_humming.reference.transform import apply_transform

__all__ = [
    "QuantizedInput",
    "apply_transform",
    "dequantize",
    "dequantize_input",
    "fused_moe",
    "gemm",
    "prepare_input",
    "quantize",
    "quantize_input",
    "widen_input",
]
