"""hh.gemm: the public call, its checks, and the way around the dispatcher when nobody watches."""

from __future__ import annotations

import torch

from hybrid_humming.errors import DeviceError, DtypeError, ShapeError, SpecError
from hybrid_humming.ops import Options, check_width, empty_out, run_guarded
from hybrid_humming.plan import Plan
from hybrid_humming.spec import Spec
from hybrid_humming.weight import QWeight

Tensor = torch.Tensor


def gemm(
    x: Tensor,
    qweight: QWeight,
    spec: Spec | str | None = None,
    *,
    bias: Tensor | None = None,
    x_scale: Tensor | None = None,
    x_global_scale: Tensor | None = None,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    plan: Plan | None = None,
    options: Options | None = None,
) -> Tensor:
    """Return y [..., N] = x [..., K] @ dequantize(qweight).T (+ bias), accumulated in fp32 and rounded once.

    x          float in the spec's activation type (any float when the spec quantizes activations), or codes with `x_scale`
    spec       may be given as a check; it must equal the weight's own
    x_scale    [M, 1] | [M, K/G] | [1], any strides;  x_global_scale [1] fp32
    out        [..., N] to write into;  out_dtype: instead of the spec's
    plan       a plan to run in place of the planner's own, such as `choose_plan(...).replace(block_m=16)`

    Raises ShapeError, DtypeError, DeviceError, SpecError, PlanError, FallbackRefused or UnsupportedProblem.
    """
    if not isinstance(qweight, QWeight):
        raise DtypeError(f"qweight is {type(qweight).__name__}; pass the QWeight that hh.quantize or hh.load returned")
    if not torch.compiler.is_compiling():  # there, the fake kernel checks shapes
        _check_call(x, qweight, spec, bias, x_scale, out, out_dtype)
    transform = qweight.transform
    arguments = (
        x, qweight.qweight, qweight.scale, qweight.zero_point, qweight.secondary_scale, x_scale, x_global_scale, bias,
        transform.permutation if transform else None, transform.pre_quant_scale if transform else None,
        qweight.input_scale, qweight.spec_line, qweight.layout_line, plan.to_json() if plan else "",
        str(options) if options else "", (transform.hadamard or 0) if transform else 0, qweight.block_offset,
    )  # fmt: skip
    if _needs_dispatcher(x, bias):
        if out is None:
            return torch.ops.hybrid_humming.gemm(*arguments, out_dtype)
        torch.ops.hybrid_humming.gemm_out(*arguments, out)
        return out
    if out is None:
        out = empty_out(x, qweight.spec_line, qweight.layout_line, out_dtype)
    run_guarded(*arguments, out, qweight.prepared)
    return out


def _needs_dispatcher(x: Tensor, bias: Tensor | None) -> bool:
    """True while someone watches ops (compile, export, fake tensors, modes, subclasses) or a gradient is wanted.

    Everyone else calls the implementation directly: the dispatcher and the autograd wrapper cost some 40 us a call in Python.
    """
    return (
        torch.compiler.is_compiling()
        or type(x) is not Tensor
        or (torch.is_grad_enabled() and (x.requires_grad or (bias is not None and bias.requires_grad)))
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._len_torch_function_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


def _check_call(
    x: Tensor,
    qweight: QWeight,
    spec: Spec | str | None,
    bias: Tensor | None,
    x_scale: Tensor | None,
    out: Tensor | None,
    out_dtype: torch.dtype | None,
) -> None:
    own, n, k = qweight.spec, qweight.n, qweight.k
    # The usual call, settled with a few comparisons; whatever fails one of them is named below.
    plain = (spec is None or spec is own) and bias is None and out is None and out_dtype is None and x_scale is None
    fits = x.dtype is qweight.x_dtype and x.device == qweight.device and x.dim() > 0 and x.shape[-1] == k
    if plain and fits and not qweight.experts:
        return
    if spec is not None and spec is not own and Spec.parse(spec) != own:  # type: ignore[arg-type]
        raise SpecError(f"spec '{spec}' was given, but the weight is packed as '{own}'; pass the weight's own spec, or none")
    if qweight.experts:
        raise ShapeError(f"the weight has {qweight.experts} experts; hh.gemm takes one dense weight [N, K]")
    if x.dim() < 1:
        raise ShapeError(f"x is a scalar; it must be [..., {k}]")
    if x.device != qweight.device:
        raise DeviceError(f"x is on {x.device}, the weight on {qweight.device}; move one of them")
    check_width(x, own, qweight.layout, own.quantizes_activation and x_scale is not None)
    _check_x_dtype(x, own, x_scale)
    if bias is not None and (tuple(bias.shape) != (n,) or bias.device != x.device):
        raise ShapeError(f"bias is {list(bias.shape)} on {bias.device}; it must be [{n}] on {x.device}")
    wide = (torch.float16, torch.bfloat16, torch.float32)
    if out_dtype is not None and out_dtype not in wide:
        raise DtypeError(f"out_dtype {out_dtype}: allowed are float16, bfloat16 and float32")
    if out is not None:
        if tuple(out.shape) != (*x.shape[:-1], n) or out.device != x.device or out.dtype not in wide:
            raise ShapeError(
                f"out is {out.dtype} {list(out.shape)} on {out.device}; "
                f"it must be float16, bfloat16 or float32 {[*x.shape[:-1], n]} on {x.device}"
            )
        if out_dtype is not None and out.dtype != out_dtype:
            raise DtypeError(f"out is {out.dtype}, but out_dtype={out_dtype}; give one of them")


def _check_x_dtype(x: Tensor, spec: Spec, x_scale: Tensor | None) -> None:
    if not spec.quantizes_activation:
        if x_scale is not None:
            raise SpecError(f"x_scale was given, but '{spec}' has {spec.activation} activations, which carry no scale")
        if x.dtype != spec.activation_format.torch_storage:
            raise DtypeError(
                f"x is {x.dtype}, but '{spec}' multiplies {spec.activation_format.torch_storage}; "
                f"cast x, or quantize the weight with another activation type (spec.replace(activation=...))"
            )
        return
    if x_scale is None:
        if not x.is_floating_point() or x.element_size() < 2:
            raise DtypeError(f"x is {x.dtype} without x_scale; pass a float x to have it quantized, or x_scale beside the codes")
    elif x.dtype != (want := spec.activation_format.torch_storage):
        raise DtypeError(f"x is {x.dtype} with x_scale; '{spec}' reads {spec.activation} codes stored as {want}")
