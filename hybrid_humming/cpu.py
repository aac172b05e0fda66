"""CPU backend: y = x @ dequantize(W).T with vectorised unpacking and one fp32 matmul, and the input quantizer: the reference.

For machines with no GPU and for tests; every spec and every layout. W and x are dequantized to fp32, the sum is kept in
fp32 and rounded once.
"""

from __future__ import annotations

import torch

from hybrid_humming.device import DeviceInfo
from hybrid_humming.dtypes import parse_format
from hybrid_humming.jit.args import GemmArgs, InputArgs
from hybrid_humming.pack import unpack
from hybrid_humming.plan import KernelEntry, Plan, QuantizerEntry, Tile
from hybrid_humming.reference import QuantizedInput, dequantize, dequantize_input, prepare_input, quantize_input, widen_input
from hybrid_humming.spec import PackLayout, Problem
from hybrid_humming.weight import InputTransform, QWeight

_TILE = Tile(mma="library")


def launch(args: GemmArgs, plan: Plan) -> None:
    """Write `args.out`; the plan's tile has nothing to say here."""
    spec = args.problem.spec
    weight = dequantize(
        unpack(
            QWeight(
                spec=spec,
                layout=args.layout,
                qweight=args.qweight,
                scale=args.scale,
                zero_point=args.zero_point,
                secondary_scale=args.secondary_scale,
                block_offset=args.block_offset,
            )
        )
    )
    if spec.quantizes_activation:
        quantized = QuantizedInput(values=args.x, scale=args.x_scale, global_scale=args.x_global_scale)
        x = dequantize_input(quantized, spec, torch.float32)
    else:
        x = args.x.float()
    if args.problem.batch_invariant:
        y = torch.stack([torch.mv(weight, row) for row in x])
    else:
        y = x @ weight.T
    if args.bias is not None:
        y += args.bias.float()
    args.out.copy_(y)


def _reject(problem: Problem, layout: PackLayout, device: DeviceInfo) -> str | None:
    return "experts run through the reference" if problem.experts else None


def _cost_us(tile: Tile, problem: Problem, layout: PackLayout, device: DeviceInfo) -> float:
    unpacking = problem.n * problem.k * 20 / device.dram_gbps * 1e-3
    return unpacking + 2.0 * problem.m * problem.n * problem.k / device.rate("fp32") * 1e-6


ENTRY = KernelEntry(
    name="torch.gemm_dequant",
    family="*",
    launcher="hybrid_humming.cpu:launch",
    device="cpu",
    reject=_reject,
    tiles=lambda problem, layout, device: (_TILE,),
    check=lambda tile, problem, layout, device: None,
    cost_us=_cost_us,
    multiplies=lambda problem, device: "fp32",
    note="unpacks in torch, then one fp32 matmul",
)


def quantize(args: InputArgs) -> None:
    """Write the values and scales of `args`, as the reference has them."""
    transform = InputTransform(pre_quant_scale=args.pre_quant_scale, hadamard=args.hadamard or None, permutation=args.permutation)
    x = prepare_input(args.x, rows=args.rows, activation=args.activation, limit=args.limit or None, transform=transform)
    made = quantize_input(x, args.spec, input_scale=args.input_scale)
    values = made.values
    if args.stored != args.spec.activation:
        values = widen_input(values, args.spec.activation_format, parse_format(args.stored))
    args.values.copy_(values)
    assert made.scale is not None
    if args.packed:
        groups = made.scale.view(torch.uint8)
        words = torch.zeros(groups.shape[0], 4 * args.scale.shape[1], dtype=torch.uint8, device=groups.device)
        words[:, : groups.shape[1]] = groups
        args.scale.copy_(words.view(torch.int32))
    else:
        args.scale.copy_(made.scale)
    if args.global_scale is not None and made.global_scale is not None:
        args.global_scale.copy_(made.global_scale)


QUANTIZER = QuantizerEntry(
    name="torch.quantize_input",
    launcher="hybrid_humming.cpu:quantize",
    device="cpu",
    launches=lambda spec, static: 0,
    fuses=lambda spec, k, hadamard, permuted: True,
)
