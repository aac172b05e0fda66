"""Quantized GEMM for LLM inference: ``y = x @ dequantize(W).T``, dense and mixture-of-experts.

    import hybrid_humming as hh

Names are loaded on first use, so importing this package imports neither torch's GPU side nor Triton, builds nothing and
touches no GPU.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Public name -> the module of hybrid_humming that defines it. The one place where the public interface is listed.
_PUBLIC: dict[str, str] = {
    "CanonicalWeight": "weight",
    "DeviceInfo": "device",
    "Explanation": "plan",
    "HybridHummingError": "errors",
    "InputTransform": "weight",
    "Linear": "nn",
    "Options": "ops",
    "PackLayout": "spec",
    "Plan": "plan",
    "Problem": "spec",
    "QuantizedInput": "reference",
    "QWeight": "weight",
    "Routing": "routing",
    "Spec": "spec",
    "Tile": "plan",
    "choose_layout": "api",
    "choose_plan": "api",
    "compile_gemm": "ahead",
    "dequantize": "api",
    "explain": "api",
    "gemm": "call",
    "inspect": "checkpoint",
    "load": "loading",
    "load_canonical": "loading",
    "pack_weight": "api",
    "quantize": "api",
    "quantize_input": "inputs",
    "reload_": "reloading",
    "repack": "api",
    "replace_linear": "nn",
    "report": "usage",
    "save": "saving",
    "shard": "parallel",
    "sorted_columns": "parallel",
    "stack": "parallel",
    "unpack_weight": "api",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    """Return the public object ``name``, importing its module the first time."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'hybrid_humming' has no attribute {name!r}")
    value = getattr(import_module(f"hybrid_humming.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
