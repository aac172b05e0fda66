"""The tensor cores' arithmetic in numpy: operand decode, block scales, exact products, one rounding to fp32 an instruction.

    d = tensor_mma(descriptor, a, b, d)                          tcgen05 kinds f16, f8f6f4, i8
    d = tensor_mma(descriptor, a, b, d, a_scale, b_scale)        kinds mxf8f6f4, mxf4, mxf4nvf4

a [m, k] and b [n, k] are unsigned element codes, one an entry; a_scale [m, k / block] and b_scale [n, k / block] codes of the
descriptor's scale format; d [m, n] is fp32, fp16 or int32. Products and their sum are formed in float64, which holds the
sum of an instruction to 2^-53 of its largest term; hardware cuts some of those bits off, so equality with a GPU is promised
only where every partial sum fits fp32. e3m4's code 0x7f decodes to NaN: what hardware makes of it is not published.
"""

import numpy as np

from hybrid_humming.cuda_kernels.patch import InstructionDescriptor
from hybrid_humming.dtypes import parse_format
from tests.emulation.encodings import Instruction

DEPTH = {"f16": 16, "i8": 32, "f8f6f4": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}
D_TYPES = {"fp32": np.float32, "fp16": np.float16, "int32": np.int32}


def decode(codes: np.ndarray, fmt: str) -> np.ndarray:
    """Return the exact float64 values of element codes as hardware reads them; integers are two's complement."""
    codes = np.asarray(codes).astype(np.int64)
    if fmt in ("int8", "uint8"):
        return (codes ^ 128) - 128.0 if fmt == "int8" else codes.astype(np.float64)
    table = parse_format(fmt).values
    if fmt == "e3m4":
        table = np.where(np.arange(256) & 0x7F == 0x7F, np.nan, table)
    return table[codes]


def scale_block(kind: str, scale_format: str, vector: int) -> int:
    """Return how many values share a scale: `vector` scales an instruction of this kind (1, 2 or 4)."""
    if (kind == "mxf8f6f4" and vector != 1) or (kind == "mxf4" and vector != 2) or (kind == "mxf4nvf4" and vector not in (2, 4)):
        raise ValueError(f"kind::{kind} takes no {vector} scales a row")
    if kind == "mxf4nvf4" and vector == 2 and scale_format != "e8m0":
        raise ValueError("two scales a row are ue8m0")
    return DEPTH[kind] // vector


def products(a: np.ndarray, b: np.ndarray, fmt_a: str, fmt_b: str, scales=None, scale_format: str = "") -> np.ndarray:
    """Return sum over k of a[m, k] * b[n, k], each times its block scales, float64 [m, n]."""
    left, right = decode(a, fmt_a), decode(b, fmt_b)
    if scales is not None:
        for_a, for_b = (decode(s, scale_format) for s in scales)
        left = left * np.repeat(for_a, left.shape[1] // for_a.shape[1], axis=1)
        right = right * np.repeat(for_b, right.shape[1] // for_b.shape[1], axis=1)
    with np.errstate(invalid="ignore"):
        return left @ right.T


def accumulate(d: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Return d + exact in d's type, rounded once; int32 wraps."""
    if d.dtype == np.int32:
        return (d.astype(np.int64) + exact.astype(np.int64)).astype(np.int32)
    with np.errstate(over="ignore", invalid="ignore"):
        return (d.astype(np.float64) + exact).astype(d.dtype)


def tensor_mma(descriptor: InstructionDescriptor | Instruction, a, b, d, a_scale=None, b_scale=None) -> np.ndarray:
    """Return D after one tcgen05.mma; see the module's head for the shapes."""
    kind, depth = descriptor.kind, DEPTH[descriptor.kind]
    m, n = descriptor.m, descriptor.n
    if a.shape != (m, depth) or b.shape != (n, depth) or d.shape != (m, n):
        raise ValueError(
            f"kind::{kind} m={m} n={n} multiplies [{m}, {depth}] by [{n}, {depth}]; got {a.shape}, {b.shape}, {d.shape}"
        )
    if d.dtype != D_TYPES[descriptor.accumulator]:
        raise ValueError(f"the descriptor accumulates in {descriptor.accumulator}, D is {d.dtype}")
    if descriptor.transpose_a or descriptor.transpose_b:
        raise NotImplementedError("only operands with K contiguous")
    scaled = bool(descriptor.scale)
    if scaled != (a_scale is not None) or scaled != (b_scale is not None):
        raise ValueError(f"kind::{kind} takes {'two' if scaled else 'no'} scale operands")
    if "e0m3" in descriptor.hidden and a_scale.shape[1] != 4:
        raise ValueError("e0m3 with another block than 16 faults")
    sign = -1.0 if descriptor.negate_a != descriptor.negate_b else 1.0
    scales = (a_scale, b_scale) if scaled else None
    return accumulate(d, sign * products(a, b, descriptor.a, descriptor.b, scales, descriptor.scale))


def warp_mma(fmt_a: str, fmt_b: str, a, b, d, a_scale=None, b_scale=None, scale_format: str = "") -> np.ndarray:
    """Return D [16, 8] after one mma.sync (QMMA m16n8k32, OMMA m16n8k64, HMMA m16n8k16): a [16, k], b [8, k] codes."""
    if a.shape[0] != 16 or b.shape[0] != 8 or a.shape[1] != b.shape[1]:
        raise ValueError(f"mma.sync multiplies [16, k] by [8, k]; got {a.shape}, {b.shape}")
    scales = None if a_scale is None else (a_scale, b_scale)
    return accumulate(d, products(a, b, fmt_a, fmt_b, scales, scale_format))


def warpgroup_mma(fmt_a: str, fmt_b: str, a, b, d) -> np.ndarray:
    """Return D [64, n] after one wgmma.mma_async: a [64, k], b [n, k] codes of 32 bytes a row."""
    return accumulate(d, products(a, b, fmt_a, fmt_b))
