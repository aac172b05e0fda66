"""hh.quantize_input: float x -> codes and scales, as torch.ops.hybrid_humming.quantize_input; `hh.gemm` quantizes through it too.

One kernel in one pass over x, two where a scale spans the tensor and is not given. On a CPU the reference runs. Both give the same
bits, but for the activation functions, whose exponentials differ in the last place.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from hybrid_humming.catalogs import load_catalogs
from hybrid_humming.device import DeviceInfo
from hybrid_humming.dispatch import needs_dispatcher
from hybrid_humming.dtypes import parse_format
from hybrid_humming.errors import DeviceError, DtypeError, ShapeError, SpecError, ValueRangeError, did_you_mean
from hybrid_humming.jit.args import InputArgs
from hybrid_humming.jit.launch import load_launcher
from hybrid_humming.plan.registry import quantizer
from hybrid_humming.reference import QuantizedInput, prepare_input
from hybrid_humming.reference import quantize_input as quantize_reference
from hybrid_humming.reference.prologue import ACTIVATIONS
from hybrid_humming.spec import Spec
from hybrid_humming.usage import InputCounter
from hybrid_humming.weight import InputTransform, QWeight

Tensor = torch.Tensor

SCALE_LAYOUTS = ("row_major", "m_major", "packed")
VECTOR_BYTES = 16  # an M-major scale is padded to whole vectors of this size, as TMA and 16-byte loads want it
SCHEMA = (
    "quantize_input(Tensor x, Tensor? input_scale, Tensor? rows, Tensor? permutation, Tensor? pre_quant_scale, "
    "str spec, str activation, float limit, int hadamard, str scale_layout) -> (Tensor, Tensor, Tensor)"
)
_LIBRARY = torch.library.Library("hybrid_humming", "FRAGMENT")
_LIBRARY.define(SCHEMA)
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)

parse_spec = functools.lru_cache(maxsize=4096)(Spec.parse)


def quantize_input(
    x: Tensor,
    spec: Spec | str | QWeight,
    *,
    input_scale: Tensor | None = None,
    transform: InputTransform | None = None,
    activation: str | None = None,
    limit: float | None = None,
    rows: Tensor | None = None,
    scale_layout: str = "row_major",
    check_finite: bool = False,
) -> QuantizedInput:
    """Return (values, scale, global_scale): x [..., K] quantized to nearest by the activation half of `spec`.

    x             float16, bfloat16 or float32, any strides
    spec          a Spec or its line; or a QWeight, which brings its own spec, static scale and transform
    values        [..., K]: float8 | int8 | uint8 (e2m3, e3m2, e3m4), or uint8 [..., K/2] with two codes a byte (int4, e2m1, e0m3)
    scale         token [M, 1], tensor [1], group [M, K/G], in the spec's format; M: the product of the leading sizes
    global_scale  [1] fp32 beside NVFP4's group scales, else None

    input_scale   [1] fp32, the static scale of the tensor, or of NVFP4's second scale; without it the tensor's own absmax counts,
                  so that one row's bits depend on all rows
    transform     pre_quant_scale, Hadamard, permutation, done to x before
    activation    silu | gelu | gelu_tanh | swiglu_oai of x [..., 2K], gate first: act(gate) * up is quantized
    limit         clamps gate to at most limit and up to -limit..limit before (swiglu_oai: 7 unless given)
    rows          [M] int32 or int64: row i of the result is row rows[i] of x [T, K]; zeros where that lies outside x
    scale_layout  of group scales: row_major; m_major: [M, K/G] with strides (1, M rounded up to 16 bytes), the rows beyond M
                  zero in memory; packed: int32 [M, ceil(K/4G)] of the same order, four e8m0 scales a word, the first lowest
    check_finite  raise ValueRangeError if x holds NaN or infinity (waits for the device). Without it a row or group that holds one
                  has the scale NaN; under a static scale the element becomes NaN where the format has one, else 0 (infinity: the
                  largest)

    A row or group of zeros decodes to zeros. Codes are not differentiable: the result carries no gradient.

    Raises SpecError, DtypeError, ShapeError, DeviceError or ValueRangeError.
    """
    if isinstance(spec, QWeight):
        line, input_scale = spec.spec_line, spec.input_scale if input_scale is None else input_scale
        transform = spec.transform if transform is None else transform
        if input_scale is not None and not spans_tensor(spec.spec):
            input_scale = None  # a checkpoint's static scale that this spec has no use for
    else:
        line = _spec_line(spec)
    arguments = (
        x, input_scale, rows, transform.permutation if transform else None, transform.pre_quant_scale if transform else None,
        line, activation or "", float(limit or 0.0), (transform.hadamard or 0) if transform else 0, scale_layout,
    )  # fmt: skip
    if not torch.compiler.is_compiling():  # there, the fake kernel checks
        if limit is not None and not limit > 0:
            raise SpecError(f"limit={limit!r}: must be positive; leave it out for no clamp")
        check_input(*arguments)
        if check_finite:
            _check_finite(x)
    if needs_dispatcher(x):
        values, scale, second = torch.ops.hybrid_humming.quantize_input(
            x.detach() if x.requires_grad else x, *arguments[1:]
        )  # fmt: skip
        return QuantizedInput(values, scale, second if second.numel() else None)
    return run_guarded(*arguments)


def spans_tensor(spec: Spec) -> bool:
    """Whether one scale spans the whole tensor, so that it can be static, and depends on every row when it is not."""
    return spec.activation_granularity == "tensor" or spec.activation_secondary is not None


def empty_input(
    lead: tuple[int, ...], k: int, spec: Spec, scale_layout: str, device: torch.device, stored: str = ""
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return unwritten (values, scale, global_scale) for x [*lead, k]; stored: format of the values in place of the spec's."""
    fmt, scale_fmt = parse_format(stored or spec.activation), parse_format(str(spec.activation_scale))
    values = torch.empty((*lead, k // 2 if fmt.bits == 4 else k), dtype=fmt.torch_storage, device=device)
    m = math.prod(lead)
    second = torch.empty(1, dtype=torch.float32, device=device) if spec.activation_secondary else None
    if spec.activation_granularity == "tensor":
        return values, torch.empty(1, dtype=scale_fmt.torch_storage, device=device), second
    columns, dtype = k // (spec.activation_group_size or k), scale_fmt.torch_storage
    if scale_layout == "row_major":
        return values, torch.empty(m, columns, dtype=dtype, device=device), second
    if scale_layout == "packed":
        columns, dtype = -(-columns // 4), torch.int32
    vector = VECTOR_BYTES // dtype.itemsize
    # The reference leaves the rows beyond M as they are; kernels write them.
    new = torch.zeros if device.type == "cpu" else torch.empty
    return values, new(columns, -(-m // vector) * vector, dtype=dtype, device=device).t()[:m], second


def unpack_scale(scale: Tensor, spec: Spec, k: int) -> Tensor:
    """Return packed scales int32 [M, ceil(K/4G)] as e8m0 [M, K/G]: a copy."""
    codes = scale.contiguous().view(torch.uint8)[:, : k // (spec.activation_group_size or k)]
    return codes.view(parse_format(str(spec.activation_scale)).torch_storage)


# ---- the implementation ----
class _Quantizer:
    """What one kind of x on one device runs; made once."""

    __slots__ = ("counter", "fuses", "launch", "spec")

    def __init__(self, spec: Spec, stored: str, k: int, dtype: torch.dtype, device: torch.device, before: str, fuses: bool) -> None:
        info = DeviceInfo.of(device)
        entry = quantizer(info.kind)
        self.spec, self.fuses = spec, fuses
        self.launch = load_launcher(entry.launcher)
        line = f"{spec.activation_line} as {stored}" if stored else spec.activation_line
        note = "" if fuses else ", before it in torch"
        self.counter = InputCounter(line, k, str(dtype).removeprefix("torch."), info.name, entry.name, before + note)


@functools.lru_cache(maxsize=4096)
def _quantizer(
    spec: str, stored: str, k: int, dtype: torch.dtype, device: torch.device, activation: str, hadamard: int,
    permuted: bool, scaled: bool, gathered: bool,
) -> _Quantizer:  # fmt: skip
    load_catalogs()
    parsed = parse_spec(spec)
    block = f"Hadamard {hadamard}" if hadamard else ""
    steps = ("rows" * gathered, activation, "pre_quant_scale" * scaled, block, "permutation" * permuted)
    fuses = quantizer(device.type).fuses(parsed, k, hadamard, permuted)
    return _Quantizer(parsed, stored, k, dtype, device, " > ".join(filter(None, steps)), fuses)


def run_input(
    x: Tensor,
    input_scale: Tensor | None,
    rows: Tensor | None,
    permutation: Tensor | None,
    pre_quant_scale: Tensor | None,
    spec: str,
    activation: str = "",
    limit: float = 0.0,
    hadamard: int = 0,
    scale_layout: str = "row_major",
    stored: str = "",
) -> QuantizedInput:
    """Quantize checked arguments on the current device; stored: the format that holds the values, other than the spec's."""
    k = x.shape[-1] // 2 if activation else x.shape[-1]
    chosen = _quantizer(
        spec, stored, k, x.dtype, x.device, activation, hadamard, permutation is not None, pre_quant_scale is not None,
        rows is not None,
    )  # fmt: skip
    parsed = chosen.spec
    lead = x.shape[:-1] if rows is None else rows.shape
    values, scale, second = empty_input(lead, k, parsed, scale_layout, x.device, stored)
    if values.numel() == 0:
        return _quantized_nothing(values, scale, second, parsed, input_scale)
    x2 = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    if x2.stride(1) != 1:
        x2 = x2.contiguous()
    if not chosen.fuses:
        transform = InputTransform(permutation=permutation, pre_quant_scale=pre_quant_scale, hadamard=hadamard or None)
        x2 = prepare_input(x2, rows=rows, activation=activation, limit=limit or None, transform=transform)
        rows = permutation = pre_quant_scale = None
        activation, hadamard = "", 0
    if input_scale is not None and (input_scale.dtype != torch.float32 or input_scale.dim() != 1):
        input_scale = input_scale.to(torch.float32).reshape(1)
    args = InputArgs(
        x2, values if values.dim() == 2 else values.view(-1, values.shape[-1]), scale, second, input_scale, rows, pre_quant_scale,
        permutation, hadamard, activation, limit, scale_layout == "packed", parsed, stored or parsed.activation,
    )  # fmt: skip
    chosen.launch(args)
    chosen.counter.calls += 1
    return QuantizedInput(values, scale, second)


def run_guarded(*args: Any) -> QuantizedInput:
    """run_input with the device of x as the current one."""
    x = args[0]
    if x.is_cuda and x.device.index != torch.cuda.current_device():
        with torch.cuda.device(x.device):
            return run_input(*args)
    return run_input(*args)


def _quantized_nothing(
    values: Tensor, scale: Tensor, second: Tensor | None, spec: Spec, input_scale: Tensor | None
) -> QuantizedInput:
    """No rows: only a scale of the tensor is there to be written."""
    if spans_tensor(spec):
        made = quantize_reference(
            values.new_zeros(0, spec.activation_group_size or 8, dtype=torch.float32), spec, input_scale=input_scale
        )
        for ours, theirs in ((scale, made.scale), (second, made.global_scale)):
            if ours is not None and theirs is not None:
                ours.copy_(theirs)
    return QuantizedInput(values, scale, second)


def _op(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    made = run_guarded(*args)
    assert made.scale is not None
    second = made.global_scale
    return made.values, made.scale, made.scale.new_empty(0, dtype=torch.float32) if second is None else second


def _fake(x: Tensor, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
    check_input(x, *args)
    rows, line, activation, scale_layout = args[1], args[4], args[5], args[8]
    k = x.shape[-1] // 2 if activation else x.shape[-1]
    lead = x.shape[:-1] if rows is None else rows.shape
    values, scale, second = empty_input(tuple(lead), k, parse_spec(line), scale_layout, x.device)
    return values, scale, scale.new_empty(0, dtype=torch.float32) if second is None else second


for _key in ("CPU", "CUDA"):
    _LIBRARY.impl("quantize_input", _op, _key)
torch.library.register_fake("hybrid_humming::quantize_input", _fake, lib=_LIBRARY)


# ---- checks ----
@torch.compiler.assume_constant_result
def _spec_line(spec: Spec | str) -> str:
    return str(Spec.parse(spec))  # type: ignore[arg-type]


def check_input(
    x: Tensor,
    input_scale: Tensor | None,
    rows: Tensor | None,
    permutation: Tensor | None,
    pre_quant_scale: Tensor | None,
    line: str,
    activation: str,
    limit: float,
    hadamard: int,
    scale_layout: str,
) -> None:
    """Raise what the public call promises; also run on fake tensors."""
    spec = parse_spec(line)
    if not spec.quantizes_activation:
        raise SpecError(
            f"'{spec}' has {spec.activation} activations; there is nothing to quantize: name a spec with 8-bit or 4-bit activations"
        )
    named = {"x": x, "input_scale": input_scale, "rows": rows, "permutation": permutation, "pre_quant_scale": pre_quant_scale}
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor) and (tensor is not None or name == "x"):
            raise DtypeError(f"{name} is {type(tensor).__name__}; it must be a torch tensor")
        if tensor is not None and tensor.device != x.device:
            raise DeviceError(f"{name} is on {tensor.device}, x on {x.device}; move one of them")
    if x.layout != torch.strided or x.dtype not in _DTYPES:
        have = x.dtype if x.layout == torch.strided else x.layout
        raise DtypeError(f"x is {have}; quantize_input takes dense float16, bfloat16 or float32")
    if activation and activation not in ACTIVATIONS:
        raise SpecError(f"activation {activation!r}: allowed are {', '.join(ACTIVATIONS)}.{did_you_mean(activation, ACTIVATIONS)}")
    if limit and not activation:
        raise SpecError(f"limit={limit:g} without an activation: it clamps gate and up; name the activation")
    _check_width(x, spec, activation, hadamard)
    k = x.shape[-1] // 2 if activation else x.shape[-1]
    for name, tensor in (("permutation", permutation), ("pre_quant_scale", pre_quant_scale)):
        if tensor is not None and tuple(tensor.shape) != (k,):
            raise ShapeError(f"{name} is {list(tensor.shape)}; it must be [{k}], one for each channel that is quantized")
    if pre_quant_scale is not None and pre_quant_scale.dtype not in _DTYPES:
        raise DtypeError(f"pre_quant_scale is {pre_quant_scale.dtype}; it must be float16, bfloat16 or float32")
    if rows is not None and (rows.dim() != 1 or rows.dtype not in (torch.int32, torch.int64) or x.dim() != 2):
        raise ShapeError(
            f"rows is {rows.dtype} {list(rows.shape)} beside x {list(x.shape)}; it must be int32 or int64 [M] beside x [T, K]"
        )
    _check_scales(spec, input_scale, scale_layout)


def _check_width(x: Tensor, spec: Spec, activation: str, hadamard: int) -> None:
    if x.dim() < 1 or x.shape[-1] == 0:
        raise ShapeError(f"x is {list(x.shape)}; it must be [..., K] with K of at least 1")
    width = x.shape[-1]
    if activation and width % 2:
        raise ShapeError(f"x is {list(x.shape)}; before {activation} it holds gate and up side by side, [..., 2K]: {width} is odd")
    k = width // 2 if activation else width
    if spec.activation_group_size and k % spec.activation_group_size:
        raise ShapeError(f"x is {list(x.shape)}, so K={k}; K must be a multiple of the group size {spec.activation_group_size}")
    if spec.activation_format.bits == 4 and k % 2:
        raise ShapeError(f"x is {list(x.shape)}, so K={k}; {spec.activation} is stored two a byte, so K must be even")
    if hadamard and k % hadamard:
        raise ShapeError(f"x is {list(x.shape)}, so K={k}; K must be a multiple of the Hadamard block {hadamard}")


def _check_scales(spec: Spec, input_scale: Tensor | None, scale_layout: str) -> None:
    if input_scale is not None:
        if not spans_tensor(spec):
            raise SpecError(
                f"input_scale was given, but '{spec}' has a scale for each {spec.activation_granularity}; a static scale goes with "
                "granularity tensor, or with a second scale (nvfp4)"
            )
        if input_scale.numel() != 1 or not input_scale.is_floating_point():
            raise ShapeError(f"input_scale is {input_scale.dtype} {list(input_scale.shape)}; it must be torch.float32 [1]")
    if scale_layout not in SCALE_LAYOUTS:
        raise SpecError(
            f"scale_layout={scale_layout!r}: allowed are {', '.join(SCALE_LAYOUTS)}.{did_you_mean(scale_layout, SCALE_LAYOUTS)}"
        )
    if scale_layout != "row_major" and spec.activation_granularity != "group":
        raise SpecError(f"scale_layout={scale_layout!r}: '{spec}' has a scale for each {spec.activation_granularity}; leave it out")
    if scale_layout == "packed" and spec.activation_scale != "e8m0":
        raise SpecError(
            f"scale_layout='packed' holds four e8m0 scales a word; '{spec}' has {spec.activation_scale} scales: use m_major"
        )


def _check_finite(x: Tensor) -> None:
    bad = ~torch.isfinite(x)
    if bool(bad.any()):
        where = [int(i) for i in bad.nonzero()[0]]
        raise ValueRangeError(
            f"x{where} is {float(x[tuple(where)])} ({int(bad.sum())} of {bad.numel()} are not finite); "
            "repair x, or leave check_finite out: its row or group then decodes to NaN"
        )
