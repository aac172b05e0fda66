"""humming-kernels beside ours: a spec in its words, its layer from our float weight, its tuned launch on each weight copy."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Sequence
from typing import Any

import torch

from bench.ours import Calls
from bench.peers import Job, PeerWeight, _import_error
from bench.timer import copies_for
from hybrid_humming.dtypes import ElementFormat, parse_format
from hybrid_humming.spec import Spec

Tensor = torch.Tensor

TENSORS = ("weight", "weight_scale", "zero_point", "weight_scale_2")


class Humming:
    """humming-kernels. Its kernels compile at first use, 10 to 40 for one layer over all M: run `jobs` first."""

    name, package = "humming", "humming-kernels"

    def missing(self) -> str:
        return _import_error(self.package, _load)

    def covers(self, spec: Spec, n: int, k: int) -> str:
        if spec.activation_scale not in (None, "fp32") or spec.activation_secondary:
            return "no MX or NVFP4 activations on this GPU"
        if spec.activation_granularity == "tensor":
            return "no static activation scale in this adapter"
        return ""

    def build(self, spec: Spec, weight: Tensor) -> PeerWeight:
        return _HummingWeight(spec, weight)

    def first_result(self, spec: Spec, x: Tensor, weight: Tensor) -> Tensor:
        """Return y from the plain way of its README: a layer, the float weight, transform, call."""
        layer = _layer(spec, weight)
        layer.load_from_unquantized(weight)
        layer.transform()
        y: Tensor = layer(x)
        return y


def weight_config(spec: Spec) -> dict[str, Any]:
    """Return the weight half of `spec` as humming's HummingWeightSchema takes it."""
    config: dict[str, Any] = {"dtype": dtype_name(spec.weight_format)}
    if spec.granularity == "tensor":
        config["scale_type"] = "tensor"
    elif spec.granularity == "group":
        config["group_size"] = spec.group_size
    elif spec.block:
        config["group_size_n"], config["group_size"] = spec.block
    if spec.scale_format.kind == "scale" or spec.scale_format.bits == 8:
        config["scale_dtype"] = dtype_name(spec.scale_format)
    if spec.secondary:
        config["scale_2_type"] = spec.secondary
    if spec.zero_point:
        config["has_zero_point"] = True
        if spec.zero_point != "int":
            config["is_fp_zero_point"] = True
    return config


def input_config(spec: Spec) -> dict[str, Any] | None:
    """Return the activation half, or None for 16-bit activations."""
    if not spec.quantizes_activation:
        return None
    config: dict[str, Any] = {"dtype": dtype_name(spec.activation_format)}
    if spec.activation_group_size:
        config["group_size"] = spec.activation_group_size
    return config


def dtype_name(fmt: ElementFormat) -> str:
    """Return humming's name of a format: int4, float4e2m1, float8e8m0."""
    if fmt.kind in ("int", "uint"):
        return f"int{fmt.bits}"
    return f"float{fmt.bits}{fmt.name}"


class _HummingWeight:
    def __init__(self, spec: Spec, weight: Tensor) -> None:
        self.dtype = parse_format(str(spec.out_dtype)).torch_storage
        layer = _layer(spec, weight)
        layer.load_from_unquantized(weight.to(self.dtype))
        layer.transform()
        self.n, self.config, self.locks = weight.shape[0], layer.humming_config, layer.locks
        self.compiled: set[str] = set()
        first = {name: getattr(layer, name).data for name in TENSORS if getattr(layer, name, None) is not None}
        nbytes = sum(t.numel() * t.element_size() for t in first.values())
        self.copies = [first] + [{name: t.clone() for name, t in first.items()} for _ in range(copies_for(nbytes) - 1)]

    def tuning(self, m: int, setting: str) -> dict[str, Any]:
        """Return its heuristics' choice; in plain without dependent launch."""
        from humming.tune import get_heuristics_config

        chosen = dict(get_heuristics_config(self.config, shape_m=m, gemm_type="dense"))
        return chosen | {"use_pdl": False} if setting == "plain" else chosen

    def jobs(self, ms: Sequence[int], settings: Sequence[str]) -> list[Job]:
        texts = {json.dumps(self.tuning(m, s)) for m in ms for s in settings}
        return [functools.partial(self._prepare, text) for text in sorted(texts)]

    def ready(self, m: int, setting: str) -> bool:
        return json.dumps(self.tuning(m, setting)) in self.compiled

    def calls(self, x: Tensor, setting: str) -> Calls:
        from humming import ops
        from humming.forward import may_process_input

        values, group_scales, token_scales = may_process_input(self.config, x)
        scale = group_scales if self.config.input_quant_mode.has_group_scale else token_scales
        kernels = self._prepare(json.dumps(self.tuning(x.shape[0], setting)))
        out = torch.empty(x.shape[0], self.n, dtype=self.dtype, device=x.device)

        def call(copy: dict[str, Tensor]) -> None:
            ops.launch_kernel(
                configs=kernels, inputs=values, weight=copy["weight"], weight_scale=copy.get("weight_scale"),
                weight_scale_2=copy.get("weight_scale_2"), zero_point=copy.get("zero_point"),
                input_scale=scale, outputs=out, locks=self.locks,
            )  # fmt: skip

        return Calls(calls=[functools.partial(call, copy) for copy in self.copies], out=out, x=values)

    def _prepare(self, tuning: str) -> Tensor:
        from humming.kernel.humming import HummingKernel

        with torch.cuda.device(self.copies[0]["weight"].device):
            kernels: Tensor = HummingKernel.prepare_kernels(self.config.to_str(), "{}", tuning, 0)
        self.compiled.add(tuning)
        return kernels


def _layer(spec: Spec, weight: Tensor) -> Any:
    """Return its layer for a weight [N, K], still without values."""
    _load()
    from humming.layer import HummingLayer

    n, k = weight.shape
    dtype = parse_format(str(spec.out_dtype)).torch_storage
    with torch.device(weight.device):
        return HummingLayer(
            shape_n=n, shape_k=k, weight_config=weight_config(spec), input_config=input_config(spec), torch_dtype=dtype
        )


@functools.cache
def _load() -> Any:
    """The package, with NVRTC as its compiler if library and headers are found, else nvcc."""
    import humming

    if "HUMMING_COMPILER" not in os.environ:
        try:
            from humming.jit.compiler import NVRTCCompiler

            NVRTCCompiler.signature()
            NVRTCCompiler._get_include_dirs()
        except Exception:
            os.environ["HUMMING_COMPILER"] = "nvcc"
    return humming
