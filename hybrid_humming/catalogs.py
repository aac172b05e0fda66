"""load_catalogs: tell the planner of every kernel, layout and input quantizer there is."""

from __future__ import annotations

import functools
import importlib

from hybrid_humming import cpu
from hybrid_humming.plan.registry import register_kernel, register_layout, register_quantizer


@functools.cache
def load_catalogs() -> None:
    """Register the kernels, layouts and input quantizers of every kernel package; imports no compiler."""
    register_kernel(cpu.ENTRY)
    register_quantizer(cpu.QUANTIZER)
    for package in ("triton_kernels", "cuda_kernels"):
        catalog = importlib.import_module(f"hybrid_humming.{package}.catalog")
        for layout in catalog.LAYOUTS:
            register_layout(layout)
        for entry in catalog.KERNELS:
            register_kernel(entry)
        for quantizer in catalog.QUANTIZERS:
            register_quantizer(quantizer)
