"""Problems for the tests of kernels: a weight whose codes cover the whole format, activations, and the arguments of a launcher."""

import functools
import importlib
from dataclasses import dataclass

import torch

from hybrid_humming.device import DeviceInfo
from hybrid_humming.dtypes import ElementFormat
from hybrid_humming.jit.args import GemmArgs
from hybrid_humming.pack import make_layout, pack
from hybrid_humming.plan import KernelEntry, Plan, Tile
from hybrid_humming.reference import dequantize, dequantize_input, quantize_input
from hybrid_humming.spec import Problem, Spec
from hybrid_humming.weight import CanonicalWeight, Facts, scale_shape

WIDE = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


def codes_of(fmt: ElementFormat, shape: tuple[int, ...], gen: torch.Generator, *, finite: bool = True) -> torch.Tensor:
    """Random uint8 codes; every code of the format is equally likely, but NaN and infinities only where asked for."""
    table = torch.from_numpy(fmt.values.copy())
    allowed = torch.isfinite(table).nonzero()[:, 0] if finite else torch.arange(len(table))
    return allowed[torch.randint(0, len(allowed), shape, generator=gen)].to(torch.uint8)


def scales_of(fmt: ElementFormat, shape: tuple[int, ...], gen: torch.Generator) -> torch.Tensor:
    """Random positive scales within a factor of four, stored in `fmt`; no two neighbours alike where the format can tell."""
    values = 2.0 ** (torch.rand(shape, generator=gen) * 2 - 6)
    if fmt.kind == "scale":
        table = torch.from_numpy(fmt.values.copy()).nan_to_num(nan=float("inf"))
        return (table - values[..., None]).abs().argmin(-1).to(torch.uint8).view(fmt.torch_storage)
    return values.to(fmt.torch_storage)


def weight_of(
    spec: Spec, n: int, k: int, *, experts: int = 0, block_offset: tuple[int, int] = (0, 0), seed: int = 0
) -> CanonicalWeight:
    """A weight with random codes, scales, zero points and secondary scales (nothing is quantized: every code occurs)."""
    gen = torch.Generator().manual_seed(seed)
    lead = (experts,) if experts else ()
    grid = (*lead, *scale_shape(spec, n, k, block_offset))
    zero = None
    if spec.zero_point == "int":
        zero = torch.randint(0, 2**spec.bits, grid, generator=gen, dtype=torch.uint8)
    elif spec.zero_point is not None:
        zero = (torch.rand(grid, generator=gen) * (2**spec.bits - 1)).to(WIDE[str(spec.zero_point)])
    secondary = None
    if spec.secondary is not None:
        secondary = torch.rand((*lead, 1 if spec.secondary == "tensor" else n), generator=gen) + 0.5
    return CanonicalWeight(
        spec=spec,
        codes=codes_of(spec.weight_format, (*lead, n, k), gen),
        scale=scales_of(spec.scale_format, grid, gen),
        zero_point=zero,
        secondary_scale=secondary,
        block_offset=block_offset,
    )


@dataclass(eq=False)
class Case:
    """A launcher's arguments with what they should come to."""

    args: GemmArgs
    weight: CanonicalWeight
    x: torch.Tensor  # [M, K] the float activations that the kernel multiplies, before any quantization
    guard: torch.Tensor  # the memory around `args.out`; only out's own elements may change

    @functools.cached_property
    def truth(self) -> torch.Tensor:
        """[M, N] float64 of the unrounded codes x scales and the quantized activations."""
        spec, args = self.weight.spec, self.args
        x = self.x.double()
        if spec.quantizes_activation:
            x = dequantize_input(quantize_input(self.x, spec), spec, torch.float64)
        y = x.to(args.out.device) @ dequantize(self.weight, torch.float64).T.to(args.out.device)
        return y if args.bias is None else y + args.bias.double()

    @functools.cached_property
    def torch_error(self) -> torch.Tensor:
        """Norm of the error that torch makes in the same types: x @ W.T + bias with W and the result rounded to them."""
        spec = self.weight.spec
        dtype = self.x.dtype
        x = dequantize_input(quantize_input(self.x, spec), spec, torch.float32) if spec.quantizes_activation else self.x
        w = dequantize(self.weight, torch.float32).to(dtype)
        device = self.args.out.device  # sums of 16-bit products in double: torch's own rounding of operands and result, no more
        y = (x.to(dtype).double().to(device) @ w.double().T.to(device)).to(self.args.out.dtype)
        if self.args.bias is not None:
            y = y + self.args.bias.to(y.dtype)
        return (y.double() - self.truth).norm()

    def check(self) -> None:
        """Nothing is NaN, nothing was written outside, the error is at most twice torch's."""
        out = self.args.out
        assert not out.isnan().any(), f"{int(out.isnan().sum())} of {out.numel()} outputs are NaN or were not written"
        outside = self.guard.clone()
        outside.as_strided(out.shape, out.stride(), out.storage_offset()).fill_(float("nan"))
        assert outside.isnan().all(), "the kernel wrote outside its output"
        error, limit = (out.double() - self.truth).norm(), 2 * self.torch_error
        assert error <= limit, f"error {error:.3e} is more than twice torch's ({limit:.3e})"


def case(
    line: str,
    m: int,
    n: int,
    k: int,
    *,
    out: str | None = None,
    bias: bool = False,
    device: str = "cpu",
    block_offset: tuple[int, int] = (0, 0),
    strided: bool = True,
    batch_invariant: bool = False,
    seed: int = 0,
) -> Case:
    """A problem with its output poisoned: rows of x and out are strided and out lies in the middle of a NaN buffer."""
    spec = Spec.parse(line)
    if out is not None:
        spec = spec.replace(out_dtype=out)
    weight = weight_of(spec, n, k, block_offset=block_offset, seed=seed)
    gen = torch.Generator().manual_seed(seed + 1)
    dtype = torch.bfloat16 if spec.quantizes_activation else WIDE[spec.activation]
    x = torch.randn(m, k, generator=gen).to(dtype)
    layout = make_layout("portable", spec, n, k, facts=Facts())
    packed = pack(weight, layout).to(device)
    pitch = 8 if strided else 0
    guard = torch.full((m + 2, n + pitch), float("nan"), dtype=WIDE[str(spec.out_dtype)], device=device)
    values, x_scale, x_global = x.to(device), None, None
    if spec.quantizes_activation:
        values, x_scale, x_global = (t if t is None else t.to(device) for t in quantize_input(x, spec))
    if strided:
        values = torch.cat([values, values[:, :16]], dim=1)[:, : values.shape[1]]
    bias_row = torch.randn(n, generator=gen).to(dtype).to(device) if bias else None
    args = GemmArgs(
        x=values,
        qweight=packed.qweight,
        scale=packed.scale,
        zero_point=packed.zero_point,
        secondary_scale=packed.secondary_scale,
        x_scale=x_scale,
        x_global_scale=x_global,
        bias=bias_row,
        out=guard[1 : m + 1, :n],
        workspace=None,
        problem=Problem(spec=spec, m=m, n=n, k=k, bias=bias, batch_invariant=batch_invariant),
        layout=layout,
        memo={},
        block_offset=block_offset,
    )
    return Case(args=args, weight=weight, x=x, guard=guard)


def run(entry: KernelEntry, case: Case, tile: Tile, device: DeviceInfo) -> Case:
    """Launch `entry` with `tile` as planned for `device`, the workspace poisoned too; returns the case."""
    problem, layout = case.args.problem, case.args.layout
    reason = entry.reject(problem, layout, device) or entry.check(tile, problem, layout, device)
    assert reason is None, reason
    need = entry.workspace(tile, problem, layout, device)
    workspace = torch.full((need,), 255, dtype=torch.uint8, device=case.args.out.device) if need else None
    module, _, function = entry.launcher.partition(":")
    plan = Plan(kernel=entry.name, tile=tile, multiplies=entry.multiplies(problem, device), workspace_bytes=need)
    getattr(importlib.import_module(module), function)(case.args._replace(workspace=workspace, memo={}), plan)
    return case
