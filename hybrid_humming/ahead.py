"""Compile ahead of time: the kernels that a GEMM would launch on a GPU that need not be here, its input quantizer's among them.

No weight is needed: a kernel is specialised on shapes, dtypes and alignment, so its own launcher runs on meta tensors.
"""

from __future__ import annotations

import torch

from hybrid_humming import api
from hybrid_humming import pack as packing
from hybrid_humming.api import Device
from hybrid_humming.device import DeviceInfo
from hybrid_humming.dtypes import parse_format
from hybrid_humming.errors import DeviceError
from hybrid_humming.inputs import empty_input, spans_tensor
from hybrid_humming.jit.args import GemmArgs, InputArgs
from hybrid_humming.jit.compile import Compiled
from hybrid_humming.jit.launch import load_launcher
from hybrid_humming.jit.offline import compiling_for
from hybrid_humming.plan import Plan, check_plan, fitting
from hybrid_humming.plan.registry import kernel, quantizer
from hybrid_humming.spec import PackLayout, Problem, Spec
from hybrid_humming.weight import CanonicalWeight, QWeight

Tensor = torch.Tensor


def compile_gemm(
    problem: Problem, device: Device, *, layout: PackLayout | None = None, plan: Plan | None = None
) -> tuple[Plan, tuple[Compiled, ...]]:
    """Return the plan of `problem` on `device` ("h200", "cuda" ...) and the kernels that it launches, compiled.

    Those that quantize a bf16 x come last: with the tensor's own scale and, where there can be one, with a static scale.

    layout, plan  to use in place of the planner's own

    Raises CompileError, DeviceError for a CPU, and what `choose_plan` raises.
    """
    info = DeviceInfo.of(device)
    if info.kind != "cuda":
        raise DeviceError(f"{info.name} runs torch's own kernels, which need no compiling; name a GPU, such as h200")
    layout = layout or api.choose_layout(problem.spec, problem.n, problem.k, info, experts=problem.experts)
    chosen = api.choose_plan(problem, layout, info) if plan is None else check_plan(plan, problem, layout, info)
    launch = load_launcher(kernel(chosen.kernel).launcher)
    given, _ = fitting(kernel(chosen.kernel), problem, layout, info)
    with compiling_for(info.sm) as compiled:
        launch(meta_arguments(given, layout, chosen), chosen)
        if problem.spec.quantizes_activation:
            quantize = load_launcher(quantizer(info.kind).launcher)
            for arguments in meta_inputs(problem, given.spec.activation):
                quantize(arguments)
    return chosen, tuple(compiled)


def meta_inputs(problem: Problem, stored: str) -> list[InputArgs]:
    """Return the meta tensors of an input quantization: with a dynamic scale, and with a static one where there can be one.

    stored  the format that the values are stored in
    """
    spec, (m, k) = problem.spec, (problem.m, problem.k)
    values, scale, second = empty_input((m,), k, spec, "row_major", torch.device("meta"), stored)
    permutation = _meta(k, dtype=torch.int32) if problem.act_order else None
    given = (None, _meta(1, dtype=torch.float32)) if spans_tensor(spec) else (None,)
    return [
        InputArgs(
            x=_meta(m, k, dtype=_x_dtype(spec)), values=values, scale=scale, global_scale=second, input_scale=static, rows=None,
            pre_quant_scale=None, permutation=permutation, hadamard=0, activation="", limit=0.0, packed=False, spec=spec,
            stored=stored,
        )
        for static in given
    ]  # fmt: skip


def meta_arguments(problem: Problem, layout: PackLayout, plan: Plan) -> GemmArgs:
    """Return the arguments of a launch, as meta tensors of the right shapes and types."""
    spec, (m, n, k) = problem.spec, (problem.m, problem.n, problem.k)
    out_dtype = parse_format(spec.out_dtype or "bf16").torch_storage
    x, x_scale, x_global_scale = _meta(m, k, dtype=_x_dtype(spec)), None, None
    if spec.quantizes_activation:
        x, x_scale, x_global_scale = empty_input((m,), k, spec, "row_major", torch.device("meta"))
    weight = meta_weight(spec, layout)
    return GemmArgs(
        x=x,
        qweight=weight.qweight,
        scale=weight.scale,
        zero_point=weight.zero_point,
        secondary_scale=weight.secondary_scale,
        x_scale=x_scale,
        x_global_scale=x_global_scale,
        bias=_meta(n, dtype=out_dtype) if problem.bias else None,
        out=_meta(m, n, dtype=out_dtype),
        workspace=_meta(plan.workspace_bytes, dtype=torch.uint8) if plan.workspace_bytes else None,
        problem=problem,
        layout=layout,
        memo={},
    )


def meta_weight(spec: Spec, layout: PackLayout) -> QWeight:
    """Return a packed weight of meta tensors."""
    lead = (layout.experts,) if layout.experts else ()
    scale_shape = (*lead, *spec.scale_shape(layout.n, layout.k))
    zero_point = secondary_scale = None
    if spec.zero_point is not None:
        dtype = torch.uint8 if spec.zero_point == "int" else parse_format(str(spec.zero_point)).torch_storage
        zero_point = _meta(*scale_shape, dtype=dtype)
    if spec.secondary is not None:
        secondary_scale = _meta(*lead, 1 if spec.secondary == "tensor" else layout.n, dtype=torch.float32)
    weight = CanonicalWeight(
        spec=spec,
        codes=_meta(*lead, layout.n, layout.k, dtype=torch.uint8),
        scale=_meta(*scale_shape, dtype=spec.scale_format.torch_storage),
        zero_point=zero_point,
        secondary_scale=secondary_scale,
    )
    return packing.pack(weight, layout)


def _x_dtype(spec: Spec) -> torch.dtype:
    return torch.bfloat16 if spec.quantizes_activation else spec.activation_format.torch_storage


def _meta(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
