"""Input quantizations to check and time: what is quantized, with which prologue, beside the reference's memory byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from hybrid_humming import cpu
from hybrid_humming.dtypes import parse_format
from hybrid_humming.inputs import empty_input
from hybrid_humming.jit.args import InputArgs
from hybrid_humming.reference import QuantizedInput, dequantize_input, prepare_input
from hybrid_humming.spec import Spec
from hybrid_humming.weight import InputTransform

Tensor = torch.Tensor
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
POISON = 0x5A

FORMATS = (
    "e4m3 token", "e5m2 token", "int8 token", "int4 token", "e2m1 token", "e4m3 tensor", "int8 tensor", "e4m3 g128", "e4m3 g64",
    "int8 g32", "int4 g128", "mxfp8", "mxfp6", "mxfp4", "nvfp4",
)  # fmt: skip
PROLOGUES = (
    "silu", "gelu", "gelu_tanh", "swiglu_oai", "hadamard 16", "hadamard 128", "hadamard 256", "pre", "permutation", "rows",
    "pre, hadamard 64", "rows, silu",
)  # fmt: skip
LAYOUTS = (
    ("e4m3 g128", "m_major"), ("mxfp8", "m_major"), ("nvfp4", "m_major"), ("mxfp8", "packed"), ("mxfp4", "packed"),
)  # fmt: skip
WIDENED = (
    ("int4 token", "int8"), ("int4 g128", "int8"), ("e0m3 token", "int8"), ("e2m1 token", "e4m3"), ("mxfp4", "e4m3"),
    ("nvfp4", "e4m3"), ("mxfp6", "e4m3"), ("e3m2 token", "e4m3"),
)  # fmt: skip
CLOSE = ("silu", "gelu", "swiglu_oai")  # whose exponentials differ from torch's in the last place


@dataclass(frozen=True)
class Case:
    """One quantization of x [m, k] (or [m, 2k]); prologue: the steps before it, separated by commas."""

    activation: str
    m: int
    k: int
    dtype: str = "bf16"
    prologue: str = ""
    layout: str = "row_major"
    static: bool = False
    stored: str = ""

    @property
    def spec(self) -> Spec:
        return Spec.parse(f"e4m3 channel x {self.activation}")

    @property
    def close(self) -> bool:
        """Whether a code may be the other neighbour of a value near the middle between two."""
        return any(name in self.prologue for name in CLOSE)

    def label(self) -> str:
        layout, stored = "" if self.layout == "row_major" else self.layout, f"as {self.stored}" if self.stored else ""
        more = [self.prologue, layout, "static" if self.static else "", stored]
        return f"{self.dtype} to {self.activation} [{self.m},{self.k}] {' '.join(filter(None, more))}".strip()


def arguments(case: Case, device: str) -> InputArgs:
    """The launcher's arguments with poisoned outputs; on "meta" without values."""
    spec, k, on = case.spec, case.k, torch.device(device)
    steps = case.prologue.split(", ")
    activation = next((s for s in steps if s.startswith(CLOSE)), "")
    hadamard = next((int(s.split()[1]) for s in steps if s.startswith("hadamard")), 0)
    rows = pre = permutation = static = None
    if on.type == "meta":
        x = torch.empty(case.m, 2 * k if activation else k, dtype=DTYPES[case.dtype], device=on)
    else:
        torch.manual_seed(case.m * k)
        tensorwide = spec.activation_granularity == "tensor" or spec.activation_secondary is not None
        x = hard_input(case.m, 2 * k if activation else k, on, special=not tensorwide or case.static).to(DTYPES[case.dtype])
    if "rows" in steps:
        rows = torch.randint(-1, case.m + 1, (case.m,), dtype=torch.int32, device=on)
    if "pre" in steps:
        pre = (torch.rand(k, device=on) + 0.5).to(x.dtype)
    if "permutation" in steps:
        permutation = torch.randperm(k, device=on).int() if on.type != "meta" else torch.empty(k, dtype=torch.int32, device=on)
    if case.static:
        static = torch.full((1,), 0.037, device=on)
    values, scale, second = empty_input((case.m,), k, spec, case.layout, on, case.stored)
    args = InputArgs(
        x=x, values=values, scale=scale, global_scale=second, input_scale=static, rows=rows, pre_quant_scale=pre,
        permutation=permutation, hadamard=hadamard, activation=activation, limit=0.0, packed=case.layout == "packed", spec=spec,
        stored=case.stored or spec.activation,
    )  # fmt: skip
    poison(args)
    return args


def hard_input(m: int, k: int, device: torch.device, special: bool) -> Tensor:
    """Magnitudes of 30 binades, a row of ties, of zeros, of minus zeros, of fp32 subnormals; `special`: NaN and infinities."""
    x = torch.randn(m, k, device=device) * torch.exp2(torch.randint(-20, 10, (m, 1), device=device).float())
    made = (
        torch.arange(k, device=device) % 61 / 8 - 3.75, torch.zeros(k, device=device), -torch.zeros(k, device=device),
        torch.randn(k, device=device) * 2.0**-130,
    )  # fmt: skip
    for row, values in enumerate(made[:m] if m > 1 else ()):
        x[row] = values
    if special and m > 6:
        x[4, min(3, k - 1)], x[5, k // 2], x[6, k - 1] = float("nan"), float("inf"), -float("inf")
    return x


def memory(tensor: Tensor) -> Tensor:
    """Every byte of a tensor's storage, the padding behind an M-major scale included."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def poison(args: InputArgs, value: int = POISON) -> None:
    for tensor in (args.values, args.scale, args.global_scale):
        if tensor is not None and not tensor.is_meta:
            memory(tensor).fill_(value)


def expected(args: InputArgs, device: str) -> InputArgs:
    """The same arguments on `device`, with what the reference writes."""
    outputs = ("values", "scale", "global_scale")
    moved = {name: t.to(device) for name, t in args._asdict().items() if isinstance(t, Tensor) and name not in outputs}
    layout = "row_major"
    if args.packed:
        layout = "packed"
    elif args.scale.dim() == 2 and args.scale.stride(0) == 1 and args.scale.stride(1) > 1:
        layout = "m_major"
    m, k = args.values.shape[0], args.values.shape[1] * (2 if parse_format(args.stored).bits == 4 else 1)
    values, scale, second = empty_input((m,), k, args.spec, layout, torch.device(device), args.stored)
    want = args._replace(**moved, values=values, scale=scale, global_scale=second)
    poison(want, 0)
    cpu.quantize(want)
    return want


def differences(got: InputArgs, want: InputArgs) -> dict[str, Any]:
    """Bytes that differ in each output, and where the first code differs: its x, what came and what had to come."""
    found: dict[str, Any] = {}
    for name in ("values", "scale", "global_scale"):
        ours, theirs = getattr(got, name), getattr(want, name)
        if ours is None:
            continue
        apart = memory(ours).cpu() != memory(theirs).cpu()
        if bool(apart.any()):
            found[name] = int(apart.sum())
            if name == "values":
                place = int(apart.nonzero()[0])
                row, column = divmod(place, ours.shape[1])
                pair = 2 if parse_format(got.stored).bits == 4 else 1
                known = got.rows is None and not got.activation and not got.hadamard and got.permutation is None
                found["first"] = {
                    "row": row, "column": column, "got": int(memory(ours)[place]), "want": int(memory(theirs)[place]),
                    "x": got.x[row, column * pair : column * pair + pair].tolist() if known else None,
                    "scale": want.scale.float().reshape(want.scale.shape[0], -1)[row if want.scale.shape[0] > 1 else 0, 0].item()
                    if not got.packed else None,
                }  # fmt: skip
    return found


def nearly(got: InputArgs, want: InputArgs) -> dict[str, Any]:
    """What is wrong behind an activation function: scales apart by more than rounding, or codes that are no nearest ones."""
    found: dict[str, Any] = {}
    ours, theirs = (t.scale.cpu().float().nan_to_num(-1.0) for t in (got, want))
    if not torch.allclose(ours, theirs, rtol=1e-5, atol=0):
        found["scale"] = int((~torch.isclose(ours, theirs, rtol=1e-5, atol=0)).sum())
    real = [dequantize_input(QuantizedInput(t.values.cpu(), t.scale.cpu(), _cpu(t.global_scale)), got.spec) for t in (got, want)]
    if not torch.equal(real[0].isnan(), real[1].isnan()):
        found["nan"] = int((real[0].isnan() != real[1].isnan()).sum())
    transform = InputTransform(pre_quant_scale=want.pre_quant_scale, hadamard=want.hadamard or None, permutation=want.permutation)
    exact = prepare_input(want.x, rows=want.rows, activation=want.activation, transform=transform).cpu()
    # A code may be the other neighbour of a value near the middle between two, as far as an exponential is off.
    off = 1e-5 * exact.abs() + 1e-6 * exact.abs().nan_to_num(0.0, 0.0).amax(1, keepdim=True)
    worse = (real[0] - exact).abs() > (real[1] - exact).abs() + off
    if bool(worse.any()):
        found["values"] = int(worse.sum())
    return found


def _cpu(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.cpu()


def bit_cases() -> Iterator[Case]:
    """Every format x input type over M, ragged K, static scales, layouts, and every prologue on six formats."""
    for activation in FORMATS:
        for dtype in DTYPES:
            for m in (1, 7, 64, 300, 4096) if dtype == "bf16" else (7, 300):
                yield Case(activation, m, 4096, dtype)
        group = Spec.parse(f"e4m3 channel x {activation}").activation_group_size
        ragged = 1030 if group is None else 17 * group
        for m in (7, 300):
            yield Case(activation, m, ragged)
    for activation, stored in WIDENED:
        for m in (7, 300):
            yield Case(activation, m, 4096, stored=stored)
    for activation in ("e4m3 token", "int8 token"):
        for k in (28672, 40960):
            yield Case(activation, 7, k)
            yield Case(activation, 300, k)
    for activation in ("e4m3 tensor", "int8 tensor", "nvfp4"):
        for m in (7, 300):
            yield Case(activation, m, 4096, static=True)
    for activation, layout in LAYOUTS:
        for m in (1, 7, 64, 300, 4096):
            yield Case(activation, m, 4096 if m < 4096 else 4096 + 128, layout=layout)
    for prologue in PROLOGUES:
        for activation in ("e4m3 token", "int8 token", "e4m3 g128", "mxfp8", "nvfp4", "e4m3 tensor"):
            for m, dtype in ((7, "bf16"), (300, "bf16"), (64, "fp16")):
                yield Case(activation, m, 4096, dtype, prologue)


def time_cases() -> Iterator[Case]:
    """The grid of the issue, largest K first so that a cut run has the whole column."""
    for k in (8192, 4096):
        for activation in ("e4m3 token", "e4m3 g128", "int8 token", "mxfp8", "nvfp4", "e4m3 tensor"):
            for m in (1, 16, 64, 256, 1024, 4096, 16384):
                yield Case(activation, m, k, static=activation == "nvfp4")
        for m in (1, 64, 1024, 16384):
            yield Case("e4m3 token", m, k, prologue="silu")
            yield Case("e4m3 g128", m, k, layout="m_major")
            yield Case("e4m3 g128", m, k, prologue="hadamard 128")
    for m in (16, 4096):
        yield Case("e4m3 tensor", m, 8192, static=True)


def moved_bytes(case: Case) -> int:
    """Bytes that a quantization reads and writes once."""
    spec, wide = case.spec, 2 if case.prologue.startswith(CLOSE) else 1
    read = case.m * case.k * wide * DTYPES[case.dtype].itemsize
    groups = case.k // (spec.activation_group_size or case.k)
    scales = case.m * groups * parse_format(str(spec.activation_scale)).bits // 8
    return read + case.m * case.k * spec.activation_format.bits // 8 + scales
