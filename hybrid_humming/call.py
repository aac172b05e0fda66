"""hh.gemm: the public call, its checks, and the way around the dispatcher when nobody watches."""

from __future__ import annotations

import torch

from hybrid_humming.dispatch import needs_dispatcher
from hybrid_humming.errors import DeviceError, DtypeError, PlanError, ShapeError, SpecError
from hybrid_humming.ops import Options, check_bias_dtype, check_width, check_x_dtype, check_x_scale, empty_out, run_guarded
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

    x          float in the spec's activation type. When the spec quantizes activations: any float, transformed and quantized inside
               by one kernel; or codes with `x_scale`, as `hh.quantize_input(x, qweight)` returns them, transformed already
    spec       may be given as a check; it must equal the weight's own
    x_scale    [M, 1] | [M, K/G] | [1], any strides, or packed int32 [M, K/4G];  x_global_scale [1] fp32
    out        [..., N] to write into;  out_dtype: instead of the spec's
    plan       a plan to run in place of the planner's own, such as `choose_plan(...).replace(block_m=16)`

    Raises ShapeError, DtypeError, DeviceError, SpecError, PlanError, FallbackRefused or UnsupportedProblem.
    """
    if not isinstance(qweight, QWeight):
        raise DtypeError(f"qweight is {type(qweight).__name__}; pass the QWeight that hh.quantize or hh.load returned")
    if not torch.compiler.is_compiling():
        _check_call(x, qweight, spec, bias, x_scale, x_global_scale, out, out_dtype, plan, options)
    else:  # the fake kernel checks shapes and dtypes
        _check_traced(qweight.spec, spec, plan, options)
    transform = qweight.transform
    arguments = (
        x, qweight.qweight, qweight.scale, qweight.zero_point, qweight.secondary_scale, x_scale, x_global_scale, bias,
        transform.permutation if transform else None, transform.pre_quant_scale if transform else None,
        qweight.input_scale, qweight.spec_line, qweight.layout_line, plan.line if plan else "",
        str(options) if options else "", (transform.hadamard or 0) if transform else 0, qweight.block_offset,
    )  # fmt: skip
    if needs_dispatcher(x, bias):
        if out is None:
            return torch.ops.hybrid_humming.gemm(*arguments, out_dtype)
        torch.ops.hybrid_humming.gemm_out(*arguments, out)
        return out
    if out is None:
        out = empty_out(x, qweight.spec_line, qweight.layout_line, out_dtype)
    run_guarded(*arguments, out, qweight.prepared)
    return out


@torch.compiler.assume_constant_result
def _check_traced(own: Spec, spec: Spec | str | None, plan: Plan | None, options: Options | None) -> bool:
    """Raise for what is no tensor and can't be right in a traced call."""
    _check_settings(own, spec, plan, options)
    return True


def _check_settings(own: Spec, spec: Spec | str | None, plan: Plan | None, options: Options | None) -> None:
    if plan is not None and not isinstance(plan, Plan):
        raise PlanError(f"plan is {type(plan).__name__}; pass a Plan, such as hh.choose_plan(...).replace(block_m=16)")
    if options is not None and not isinstance(options, Options):
        raise SpecError(f"options is {type(options).__name__}; pass hh.Options(...)")
    if spec is not None and spec is not own and Spec.parse(spec) != own:  # type: ignore[arg-type]
        raise SpecError(f"spec '{spec}' was given, but the weight is packed as '{own}'; pass the weight's own spec, or none")


def _check_call(
    x: Tensor,
    qweight: QWeight,
    spec: Spec | str | None,
    bias: Tensor | None,
    x_scale: Tensor | None,
    x_global_scale: Tensor | None,
    out: Tensor | None,
    out_dtype: torch.dtype | None,
    plan: Plan | None,
    options: Options | None,
) -> None:
    own, n, k = qweight.spec, qweight.n, qweight.k
    # The usual call, settled with a few comparisons; whatever fails one of them is named below.
    plain = (spec is None or spec is own) and bias is None and out is None and out_dtype is None and x_scale is None
    plain = plain and x_global_scale is None and plan is None and options is None
    plain = plain and type(x) is Tensor and x.dtype is qweight.x_dtype and x.device == qweight.device
    if plain and x.dim() > 0 and x.shape[-1] == k and x.layout is torch.strided and not qweight.experts:
        return
    _check_settings(own, spec, plan, options)
    tensors = {"x": x, "bias": bias, "x_scale": x_scale, "x_global_scale": x_global_scale, "out": out}
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) and (tensor is not None or name == "x"):
            raise DtypeError(f"{name} is {type(tensor).__name__}; it must be a torch tensor")
    if qweight.experts:
        raise ShapeError(f"the weight has {qweight.experts} experts; hh.gemm takes one dense weight [N, K]")
    if x.layout != torch.strided:
        raise DtypeError(f"x is {x.layout}; it must be a dense tensor: x.to_dense()")
    if x.dim() < 1:
        raise ShapeError(f"x is a scalar; it must be [..., {k}]")
    if x.device != qweight.device:
        raise DeviceError(f"x is on {x.device}, the weight on {qweight.device}; move one of them")
    check_width(x, own, qweight.layout, own.quantizes_activation and x_scale is not None)
    check_x_dtype(x, own, x_scale)
    if own.quantizes_activation:
        check_x_scale(x, own, qweight.k, x_scale, x_global_scale)
    elif x_global_scale is not None:
        raise SpecError(f"x_global_scale was given, but '{own}' has {own.activation} activations, which carry no scale")
    check_bias_dtype(bias)
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
        if any(size > 1 and step == 0 for size, step in zip(out.shape, out.stride(), strict=True)):
            raise ShapeError(
                f"out {list(out.shape)} has strides {list(out.stride())}: several elements share memory; pass a real tensor"
            )
        wanted = [t for t in (x, bias, out) if t is not None and t.requires_grad]
        if wanted and torch.is_grad_enabled():
            raise SpecError("out= has no gradient, but x, bias or out requires one; leave out= away, or call under torch.no_grad()")
