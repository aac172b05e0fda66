"""Choose the tile of an input quantization, bind the constants, launch: one kernel, or two where a scale spans the tensor."""

import functools
from dataclasses import dataclass
from typing import Any

import torch

from hybrid_humming.dtypes import parse_format
from hybrid_humming.env import interpreting
from hybrid_humming.jit import launch as jit_launch
from hybrid_humming.jit.args import InputArgs
from hybrid_humming.jit.launch import launch_triton, target_sm
from hybrid_humming.spec import Spec
from hybrid_humming.triton_kernels.quantize.encode import encoder_constants
from hybrid_humming.triton_kernels.quantize.kernels import (
    GIVEN,
    OWN,
    PACKED,
    PARTS,
    STRIDED,
    absmax_kernel,
    long_row_kernel,
    quantize_kernel,
)
from hybrid_humming.triton_kernels.quantize.load import ACTIVATIONS, OAI_LIMIT
from hybrid_humming.triton_kernels.quantize.scale import scale_constants

Tensor = torch.Tensor
LONGEST_ROW = 32768  # a row of more values does not fit the registers of one CTA
SMALL_M = 64  # up to here latency counts: few values a thread; above, bandwidth: many
# A multiply-add made of a product and a sum that the source keeps apart would round once too little.
OPTIONS = {"enable_fp_fusion": False}


@dataclass(frozen=True, kw_only=True)
class InputTile:
    """Values that one program quantizes: rows x groups units of `unit` values (a power of two)."""

    unit: int
    rows: int = 1
    groups: int = 1
    num_warps: int = 4


def choose_tile(spec: Spec, m: int, k: int, hadamard: int = 0, *, m_major: bool = False) -> InputTile:
    """Return the tile for x [m, k]."""
    small = m <= SMALL_M
    group = spec.activation_group_size
    if group is None:
        if spec.activation_granularity == "tensor":
            unit = max(1024 if small else 4096, hadamard)
            return InputTile(unit=min(unit, max(_power(k), hadamard)), num_warps=4)
        unit = min(max(_power(k), hadamard), LONGEST_ROW)
        rows = max(1, 1024 // unit)
        return InputTile(unit=unit, rows=rows, num_warps=_warps(unit * rows, 16 if small else 32))
    unit = _power(group)
    wanted = max(1024 if small else 4096, hadamard)
    rows = 8 if m_major and not small else 1
    groups = max(1, min(wanted // (rows * unit), _power(k // group)))
    if hadamard and unit == group:
        groups = max(groups, hadamard // unit)
    if rows == 1:
        rows = max(1, min(wanted // (groups * unit), _power(m)))
    return InputTile(unit=unit, rows=rows, groups=groups, num_warps=_warps(rows * groups * unit, 8 if small else 32))


def _power(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def _warps(values: int, per_thread: int) -> int:
    return max(1, min(32, values // (32 * per_thread)))


def quantize(args: InputArgs, tile: InputTile | None = None) -> None:
    """Write values, scale and, where there is one, global_scale."""
    spec, x = args.spec, args.x
    m = args.values.shape[0]
    k = args.values.shape[1] * (2 if parse_format(args.stored).bits == 4 else 1)
    sm = 0 if interpreting() else target_sm(x.device)  # 0: what the interpreter can run
    m_major = spec.activation_granularity == "group" and args.scale.stride(0) == 1 and args.scale.stride(1) > 1
    tile = tile or choose_tile(spec, m, k, args.hadamard, m_major=m_major)
    source, second = sources(args)
    load = (_bits(x), args.rows, _bits(args.pre_quant_scale), args.permutation)
    (t, _), stride = x.shape, x.stride(0)
    before = (args.activation, args.limit, args.hadamard)
    kinds = (
        spec, sm, k, tile, source, second, before, args.packed, args.stored, m == 1, m % 16, t == 1, t % 16, x.dtype,
        x.device.index, stride, max(m, t) * stride >= 2**31, *map(_kind, (*load, args.input_scale)), args.scale.stride(),
    )  # fmt: skip
    memo: dict[str, Any] | None = _memos.setdefault(kinds, {}) if jit_launch.offline is None else {}
    first_scale = second_scale = args.input_scale
    if PARTS in (source, second):
        count = part_count(sm)
        parts = torch.empty(count, dtype=torch.int32, device=x.device)
        first_scale, second_scale = (parts if source == PARTS else None), (parts if second == PARTS else None)
        unit = max(min(_power(k), 4096), args.hadamard)
        constants = {"K": k, "UNIT": unit, "COUNT": count, "FINITE": second == PARTS, **_before(*before)}
        launch_triton(
            absmax_kernel, (count, 1, 1), *load, parts, m, t, stride,
            num_warps=_warps(unit, 16), constants=constants, options=OPTIONS, memo=memo,
        )  # fmt: skip
    scale = _storage(args.scale)
    if spec.activation_granularity == "token" and k > tile.unit:
        launch_triton(
            long_row_kernel, (m, 1, 1), *load, args.values.view(torch.uint8), scale, t, stride,
            num_warps=tile.num_warps, constants=_long_constants(spec, args.stored, sm, k, tile.unit, before), options=OPTIONS,
            memo=memo,
        )  # fmt: skip
        return
    stride_sm, stride_sg = scale.stride() if scale.dim() == 2 else (0, 0)
    pad, pad_g = 1, 1
    if m_major and stride_sg > m:
        pad = 16 // scale.element_size()
    if args.packed and (k // (spec.activation_group_size or k)) % 4:
        pad_g = 4
    if args.packed:
        scale, stride_sg = scale.t().view(torch.uint8), 4 * stride_sg
    across = -(-k // (spec.activation_group_size or tile.unit))
    grid = -(-m // tile.rows) * -(-across // tile.groups)
    constants = _constants(spec, args.stored, sm, k, tile, source, second, (pad, pad_g), args.packed, before)
    launch_triton(
        quantize_kernel, (grid, 1, 1), *load,
        first_scale if source != OWN else None, second_scale if second else None, args.values.view(torch.uint8), scale,
        args.global_scale if second else None, m, t, stride, stride_sm, stride_sg,
        num_warps=tile.num_warps, constants=constants, options=OPTIONS, memo=memo,
    )  # fmt: skip


def part_count(sm: int) -> int:
    """Programs that look for the tensor's largest magnitude; few in the interpreter, which runs one after the other."""
    return 256 if sm else 8


def sources(args: InputArgs) -> tuple[int, int]:
    """Where the scale and the second scale come from; the second is 0 where there is none."""
    tensorwide = PARTS if args.input_scale is None else GIVEN
    first = tensorwide if args.spec.activation_granularity == "tensor" else OWN
    return first, tensorwide if args.spec.activation_secondary else 0


_memos: dict[Any, dict[str, Any]] = {}


def _kind(tensor: Tensor | None) -> Any:
    return tensor if tensor is None else (tensor.dtype, tensor.data_ptr() & 15 if not tensor.is_meta else 0)


def _bits(tensor: Tensor | None) -> Tensor | None:
    """bf16 as int16: its bits are shifted into fp32's on every SM and in the interpreter."""
    return tensor.view(torch.int16) if tensor is not None and tensor.dtype == torch.bfloat16 else tensor


def _storage(scale: Tensor) -> Tensor:
    return scale.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[scale.element_size()])


def _before(activation: str, limit: float, hadamard: int) -> dict[str, object]:
    norm = float(hadamard) ** -0.5 if hadamard else 1.0
    limit = limit or (OAI_LIMIT if activation == "swiglu_oai" else 0.0)
    return {"ACTIVATION": ACTIVATIONS[activation], "LIMIT": limit, "HADAMARD": hadamard, "NORM": norm}


@functools.lru_cache(maxsize=4096)
def _long_constants(spec: Spec, stored: str, sm: int, k: int, unit: int, before: tuple[Any, ...]) -> dict[str, object]:
    """Constants of long_row_kernel, in its order."""
    fmt = spec.activation_format
    return {
        "K": k, "UNIT": unit, "FUSED": sm > 0, **_before(*before),
        **scale_constants(fmt, parse_format(str(spec.activation_scale))), **encoder_constants(fmt, sm, stored),
    }  # fmt: skip


@functools.lru_cache(maxsize=4096)
def _constants(
    spec: Spec, stored: str, sm: int, k: int, tile: InputTile, source: int, second: int, pads: tuple[int, int], packed: bool,
    before: tuple[Any, ...],
) -> dict[str, object]:  # fmt: skip
    """Constants of quantize_kernel, in its order."""
    fmt, scale = spec.activation_format, parse_format(str(spec.activation_scale))
    group = k if spec.activation_granularity == "token" else spec.activation_group_size or tile.unit
    signed = scale.is_wide or scale.kind == "float"
    return {
        "K": k, "GROUP": group, "UNIT": tile.unit, "ROWS": tile.rows, "GROUPS": tile.groups,
        "SOURCE": source, "SECOND": second, "COUNT": part_count(sm),
        "REACH_G": fmt.largest * (1.0 if scale.is_wide else scale.largest),
        "LAYOUT": PACKED if packed else STRIDED, "PAD": pads[0], "PAD_G": pads[1],
        "BOUND": 2.0**20 if source == GIVEN else None, "FUSED": sm > 0,
        **_before(*before), **scale_constants(fmt, scale),
        "SIGN_S": _sign_bit(scale.bits) if signed else 0, "WIDE_S": scale.is_wide, **encoder_constants(fmt, sm, stored),
    }  # fmt: skip


def _sign_bit(bits: int) -> int:
    return -(1 << 31) if bits == 32 else 1 << (bits - 1)
