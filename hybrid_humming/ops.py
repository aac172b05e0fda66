"""torch.ops.hybrid_humming.gemm: the one GEMM op, its fake kernel, its gradient, and the dispatch of a plan.

The schema is fixed. Spec, layout, plan and options travel as canonical strings, so that a graph cached by one process
means the same in another. Registered through `Library.define` and `impl`, whose host cost is lower than `custom_op`'s.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch

from hybrid_humming.catalogs import load_catalogs
from hybrid_humming.device import DeviceInfo
from hybrid_humming.dtypes import parse_format
from hybrid_humming.errors import CompileError, DtypeError, ShapeError, SpecError, did_you_mean
from hybrid_humming.inputs import parse_spec, run_input, spans_tensor, unpack_scale
from hybrid_humming.jit.args import GemmArgs
from hybrid_humming.jit.launch import load_launcher
from hybrid_humming.pack import unpack
from hybrid_humming.plan import Plan, check_plan, choose_plan, fitting, m_bucket
from hybrid_humming.plan.registry import kernel
from hybrid_humming.reference import apply_transform, dequantize, widen_input
from hybrid_humming.spec import PackLayout, Problem, Spec
from hybrid_humming.usage import Counter
from hybrid_humming.weight import InputTransform, QWeight

Tensor = torch.Tensor

_WIDE = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
_ARGUMENTS = (
    "Tensor x, Tensor qweight, Tensor scale, Tensor? zero_point, Tensor? secondary_scale, Tensor? x_scale, "
    "Tensor? x_global_scale, Tensor? bias, Tensor? permutation, Tensor? pre_quant_scale, Tensor? input_scale, "
    "str spec, str layout, str plan, str options, int hadamard, int[2] block_offset"
)
SCHEMAS = (
    f"gemm({_ARGUMENTS}, ScalarType? out_dtype) -> Tensor",
    f"gemm_out({_ARGUMENTS}, Tensor(a!) out) -> ()",
)
_LIBRARY = torch.library.Library("hybrid_humming", "DEF")
for _schema in SCHEMAS:
    _LIBRARY.define(_schema)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a GEMM may run.

    batch_invariant    row i of y has the same bits whatever M is
    fallback           "allow": where the GPU can't multiply the activation format, the documented substitute runs;
                       "error": FallbackRefused instead
    fast_accumulation  8-bit products may accumulate at the tensor core's own precision
    dependent_launch   the kernel may begin to read the weight while the kernel before it on the stream still runs (programmatic
                       dependent launch, sm_90; a kernel without it starts as usual): promise that no kernel right before the call
                       writes this weight, as none does in inference
    """

    batch_invariant: bool = False
    fallback: str = "allow"
    fast_accumulation: bool = False
    dependent_launch: bool = False

    def __post_init__(self) -> None:
        if self.fallback not in ("allow", "error"):
            raise SpecError(f"fallback={self.fallback!r}: allowed are 'allow' and 'error'")

    def __str__(self) -> str:
        flags = [name for name in ("batch_invariant", "fast_accumulation", "dependent_launch") if getattr(self, name)]
        return ",".join(flags + (["fallback=error"] if self.fallback == "error" else []))

    @classmethod
    def parse(cls, text: str) -> Options:
        """Return the Options that `str(options)` printed."""
        fields: dict[str, Any] = {}
        for word in filter(None, text.split(",")):
            name, _, value = word.partition("=")
            if name not in cls.__dataclass_fields__:
                raise SpecError(f"unknown option {name!r}.{did_you_mean(name, cls.__dataclass_fields__)}")
            fields[name] = value or True
        return cls(**fields)


class _Prepared:
    """One planned problem on one device: made once, used by every call of its M bucket."""

    __slots__ = ("counter", "launch", "layout", "memos", "plan", "problem", "stored", "warm")

    def __init__(self, problem: Problem, layout: PackLayout, plan: Plan, device: DeviceInfo) -> None:
        self.layout, self.plan = layout, plan
        self.problem, _ = fitting(kernel(plan.kernel), problem, layout, device)
        given = self.problem.spec.activation
        self.stored = given if given != problem.spec.activation else ""  # another format that x is stored in for this kernel
        self.launch = load_launcher(kernel(plan.kernel).launcher)
        self.counter = Counter(problem, plan, device.name)
        self.warm = False
        self.memos: dict[Any, dict[str, Any]] = {}


@functools.lru_cache(maxsize=16384)
def _prepare(
    spec: str, layout: str, plan: str, options: str, m: int, bias: bool, act_order: bool, out: str, device: torch.device
) -> _Prepared:
    load_catalogs()
    info, parsed, opts = DeviceInfo.of(device), PackLayout.parse(layout), Options.parse(options)
    problem = Problem(
        spec=Spec.parse(spec).replace(out_dtype=out),
        m=m,
        n=parsed.n,
        k=parsed.k,
        bias=bias,
        act_order=act_order,
        batch_invariant=opts.batch_invariant,
        fast_accumulation=opts.fast_accumulation,
        dependent_launch=opts.dependent_launch,
        experts=parsed.experts,
    )
    if plan:
        chosen = check_plan(Plan.from_json(plan), problem, parsed, info)
    else:
        chosen = choose_plan(problem, parsed, info, fallback=opts.fallback)
    return _Prepared(problem, parsed, chosen, info)


_parse_layout = functools.lru_cache(maxsize=4096)(PackLayout.parse)


def _run(
    x: Tensor,
    qweight: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    secondary_scale: Tensor | None,
    x_scale: Tensor | None,
    x_global_scale: Tensor | None,
    bias: Tensor | None,
    permutation: Tensor | None,
    pre_quant_scale: Tensor | None,
    input_scale: Tensor | None,
    spec: str,
    layout: str,
    plan: str,
    options: str,
    hadamard: int,
    block_offset: tuple[int, int],
    out: Tensor,
    cache: dict[Any, Any] | None = None,
) -> None:
    """Write `out` [..., N]; every tensor is checked by the public `gemm` or by the fake kernel.

    cache  where this weight keeps its prepared problems; without it they are looked up by their strings
    """
    parsed = parse_spec(spec)
    if out.numel() == 0:
        return
    m = math.prod(x.shape[:-1])
    key = (m_bucket(m), bias is not None, out.dtype, plan, options)
    prepared: _Prepared | None = cache.get(key) if cache is not None else None
    if prepared is None:
        prepared = _prepare(spec, layout, plan, options, key[0], key[1], permutation is not None, _format_name(out.dtype), x.device)
        if cache is not None:
            cache[key] = prepared
    if parsed.quantizes_activation:
        if x_scale is None:
            _check_invariant(parsed, options, input_scale)
            x = x if x.dtype != torch.float64 else x.float()
            static = input_scale if spans_tensor(parsed) else None
            x, x_scale, x_global_scale = run_input(
                x, static, None, permutation, pre_quant_scale, spec, "", 0.0, hadamard, "row_major", prepared.stored
            )
        elif prepared.stored:
            x = widen_input(x, parsed.activation_format, parse_format(prepared.stored))
        if x_scale is not None and x_scale.dtype == torch.int32:
            x_scale = unpack_scale(x_scale, parsed, prepared.layout.k)
    elif permutation is not None or pre_quant_scale is not None or hadamard:
        transform = InputTransform(permutation=permutation, pre_quant_scale=pre_quant_scale, hadamard=hadamard or None)
        x = apply_transform(x, transform)
    x2 = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    if x2.stride(1) != 1:
        x2 = x2.contiguous()
    if x_scale is not None and x_scale.dim() > 2:
        x_scale = x_scale.reshape(m, -1)
    if x.is_cuda and not prepared.warm and torch.cuda.is_current_stream_capturing():
        raise CompileError(
            f"{prepared.problem} has not run yet and a CUDA graph is being captured; "
            "run the same call once before the capture, for each power of two of M"
        )
    need = prepared.plan.workspace_bytes
    workspace = torch.empty(need, dtype=torch.uint8, device=x.device) if need else None
    contiguous = out.is_contiguous()
    if contiguous:
        y = out if out.dim() == 2 else out.view(m, -1)
    else:
        y = torch.empty(m, out.shape[-1], dtype=out.dtype, device=out.device)
    # What a compiled kernel is specialised on and may change from call to call; the rest is fixed by the prepared problem.
    varying = (
        m == 1, m & 15 == 0, x2.data_ptr() & 15, x2.stride(0) & 15, m * x2.stride(0) >= 2**31, y.data_ptr() & 15,
        _specialised(bias), _specialised(x_scale),
    )  # fmt: skip
    memo = prepared.memos.get(varying)
    if memo is None:
        memo = prepared.memos[varying] = {}
    args = GemmArgs(
        x2, qweight, scale, zero_point, secondary_scale, x_scale, x_global_scale, bias, y, workspace,
        prepared.problem, prepared.layout, memo, (block_offset[0], block_offset[1]),
    )  # fmt: skip
    prepared.launch(args, prepared.plan)
    prepared.warm = True
    prepared.counter.calls += 1
    if not contiguous:
        out.copy_(y.view(out.shape))


def _check_invariant(spec: Spec, options: str, input_scale: Tensor | None) -> None:
    if input_scale is None and spans_tensor(spec) and "batch_invariant" in options:
        what = "scale" if spec.activation_granularity == "tensor" else "second scale"
        raise SpecError(
            f"batch_invariant with '{spec}': without a static input_scale the {what} of x depends on all its rows; load a weight "
            "that holds one, or quantize x yourself with hh.quantize_input(x, spec, input_scale=...)"
        )


def _specialised(tensor: Tensor | None) -> Any:
    return tensor if tensor is None else (tensor.dtype, tensor.data_ptr() & 15, tensor.stride())


def run_guarded(*args: Any) -> None:
    """Run with the device of x as the current one."""
    x = args[0]
    if x.is_cuda and x.device.index != torch.cuda.current_device():
        with torch.cuda.device(x.device):
            _run(*args)
    else:
        _run(*args)


def _gemm(x: Tensor, *args: Any) -> Tensor:
    *rest, out_dtype = args
    out = empty_out(x, rest[10], rest[11], out_dtype)
    run_guarded(x, *rest, out)
    return out


def _gemm_fake(x: Tensor, *args: Any) -> Tensor:
    _check_traced(x, args)
    return empty_out(x, args[10], args[11], args[-1])


def _gemm_out_fake(x: Tensor, *args: Any) -> None:
    _check_traced(x, args)
    out, want = args[-1], (*x.shape[:-1], _parse_layout(args[11]).n)
    if tuple(out.shape) != want:
        raise ShapeError(f"out is {list(out.shape)}; it must be {list(want)}")


def _check_traced(x: Tensor, args: tuple[Any, ...]) -> None:
    """What the public call checks of an eager call, for one that is being traced."""
    spec, layout, x_scale, bias = parse_spec(args[10]), _parse_layout(args[11]), args[4], args[6]
    if layout.experts:
        raise ShapeError(f"the weight has {layout.experts} experts; hh.gemm takes one dense weight [N, K]")
    check_width(x, spec, layout, spec.quantizes_activation and x_scale is not None)
    check_x_dtype(x, spec, x_scale)
    if spec.quantizes_activation:
        check_x_scale(x, spec, layout.k, x_scale, args[5])
    check_bias_dtype(bias)
    if bias is not None and tuple(bias.shape) != (layout.n,):
        raise ShapeError(f"bias is {list(bias.shape)}; it must be [{layout.n}]")


def empty_out(x: Tensor, spec: str, layout: str, out_dtype: torch.dtype | None) -> Tensor:
    """Return an uninitialised y [..., N] for x."""
    if out_dtype is None:
        out_dtype = parse_format(parse_spec(spec).out_dtype or "bf16").torch_storage
    return torch.empty((*x.shape[:-1], _parse_layout(layout).n), dtype=out_dtype, device=x.device)


def check_width(x: Tensor, spec: Spec, layout: PackLayout, quantized: bool) -> None:
    """Raise ShapeError unless the last dimension of x fits the layout; `quantized`: x holds codes."""
    packed = quantized and spec.activation_format.bits == 4
    width = layout.k // 2 if packed else layout.k
    if x.shape[-1] != width:
        half = " packed as two codes a byte" if packed else ""
        raise ShapeError(
            f"x is {list(x.shape)}, but the weight is [{layout.n}, {layout.k}]: the last dimension must be {width}{half}"
        )


def check_x_dtype(x: Tensor, spec: Spec, x_scale: Tensor | None) -> None:
    """Raise DtypeError or SpecError unless x has the type that `spec` multiplies, or, with a scale, stores."""
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


def check_x_scale(x: Tensor, spec: Spec, k: int, x_scale: Tensor | None, x_global_scale: Tensor | None) -> None:
    """Raise unless the scales beside quantized x [..., K] have the shape, dtype and device that `spec` reads."""
    if x_scale is None:
        if x_global_scale is not None:
            raise SpecError("x_global_scale was given without x_scale; pass both beside codes, or neither with a float x")
        return
    want = parse_format(str(spec.activation_scale)).torch_storage
    lead, groups = tuple(x.shape[:-1]), k // (spec.activation_group_size or k)
    rows = math.prod(lead)
    fits: tuple[tuple[int, ...], ...] = ((rows, groups), (*lead, groups))
    if spec.activation_granularity == "tensor":
        fits = ((1,),)
    elif x_scale.dtype == torch.int32 and spec.activation_scale == "e8m0" and spec.activation_group_size:
        want, fits = torch.int32, ((rows, -(-groups // 4)),)  # packed, as hh.quantize_input packs them
    if tuple(x_scale.shape) not in fits or x_scale.dtype != want or x_scale.device != x.device:
        shapes = " or ".join(dict.fromkeys(str(list(shape)) for shape in fits))
        raise ShapeError(
            f"x_scale is {x_scale.dtype} {list(x_scale.shape)} on {x_scale.device}; "
            f"'{spec}' with x {list(x.shape)} needs {want} {shapes} on {x.device}"
        )
    if (x_global_scale is not None) != (spec.activation_secondary is not None):
        have = "an" if x_global_scale is not None else "no"
        raise SpecError(f"{have} x_global_scale was given beside x_scale, but the spec is '{spec}'")
    if x_global_scale is None:
        return
    if tuple(x_global_scale.shape) != (1,) or x_global_scale.dtype != torch.float32 or x_global_scale.device != x.device:
        raise ShapeError(
            f"x_global_scale is {x_global_scale.dtype} {list(x_global_scale.shape)} on {x_global_scale.device}; "
            f"it must be torch.float32 [1] on {x.device}"
        )


def check_bias_dtype(bias: Tensor | None) -> None:
    """Raise DtypeError unless a bias is a float that kernels read."""
    if bias is not None and bias.dtype not in _WIDE:
        raise DtypeError(f"bias is {bias.dtype}; it must be float16, bfloat16 or float32")


def _format_name(dtype: torch.dtype) -> str:
    return _WIDE[dtype]


for _key in ("CPU", "CUDA"):
    _LIBRARY.impl("gemm", _gemm, _key)
    _LIBRARY.impl("gemm_out", run_guarded, _key)
torch.library.register_fake("hybrid_humming::gemm", _gemm_fake, lib=_LIBRARY)
torch.library.register_fake("hybrid_humming::gemm_out", _gemm_out_fake, lib=_LIBRARY)


# ---- gradient for x: dequantize, matmul; straight through the quantization of x ----
def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, qweight, scale, zero, secondary, _, _, bias, permutation, pre_quant = inputs[:10]
    ctx.save_for_backward(qweight, scale, zero, secondary, permutation, pre_quant)
    ctx.spec, ctx.layout, ctx.hadamard, ctx.block_offset = inputs[11], inputs[12], inputs[15], tuple(inputs[16])
    ctx.x_shape = x.shape
    ctx.x_dtype, ctx.bias_dtype = x.dtype, None if bias is None else bias.dtype


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    qweight, scale, zero, secondary, permutation, pre_quant = ctx.saved_tensors
    grads: list[Tensor | None] = [None] * 18
    if ctx.needs_input_grad[0]:
        packed = QWeight(
            spec=parse_spec(ctx.spec),
            layout=_parse_layout(ctx.layout),
            qweight=qweight,
            scale=scale,
            zero_point=zero,
            secondary_scale=secondary,
            block_offset=ctx.block_offset,
        )
        grad_x = grad @ dequantize(unpack(packed), torch.float32).to(grad.dtype)
        if permutation is not None or pre_quant is not None or ctx.hadamard:
            transform = InputTransform(permutation=permutation, pre_quant_scale=pre_quant, hadamard=ctx.hadamard or None)
            origin = torch.zeros(ctx.x_shape, dtype=grad.dtype, device=grad.device)
            adjoint = torch.func.vjp(lambda x: apply_transform(x, transform), origin)[1]
            (grad_x,) = adjoint(grad_x)
        grads[0] = grad_x.to(ctx.x_dtype)
    if ctx.bias_dtype is not None and ctx.needs_input_grad[7]:
        grads[7] = grad.reshape(-1, grad.shape[-1]).sum(0).to(ctx.bias_dtype)
    return tuple(grads)


torch.library.register_autograd("hybrid_humming::gemm", _backward, setup_context=_setup_context, lib=_LIBRARY)
