"""What several importers share: 16-bit types, scale checks, lists of excluded modules, small conversions."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Mapping

from hybrid_humming.checkpoint.config import QuantConfig
from hybrid_humming.checkpoint.files import TensorInfo
from hybrid_humming.checkpoint.registry import Parts, expect
from hybrid_humming.dtypes import from_torch
from hybrid_humming.errors import CheckpointMismatch
from hybrid_humming.lazy import Tensor, torch
from hybrid_humming.spec import Spec

FLOATS = ("F16", "BF16", "F32")


def float_format(name: str, info: TensorInfo) -> str:
    """Return fp16, bf16 or fp32 as a stored float tensor has it; raises CheckpointMismatch for another dtype."""
    if info.dtype not in FLOATS:
        part = info.name.rpartition(".")[2]
        raise CheckpointMismatch(f"{name}: {part} is {info}, expected one of {', '.join(FLOATS)}")
    return from_torch(info.torch_name).name


def model_format(config: QuantConfig, stored: str | None = None) -> str:
    """Return the 16-bit type of unquantized activations: the model's dtype, else a 16-bit scale's own, else bf16."""
    return config.activation or (stored if stored in ("fp16", "bf16") else None) or "bf16"


def matrix(
    name: str, info: TensorInfo, dtypes: tuple[str, ...], what: str, *, experts: bool = False
) -> tuple[int, ...]:  # fmt: skip
    """Return the shape of a stored weight of 2 dimensions (or 3, experts first, where allowed); raises CheckpointMismatch."""
    if info.dtype not in dtypes or len(info.shape) not in ((2, 3) if experts else (2,)) or not info.numel:
        part = info.name.rpartition(".")[2]
        raise CheckpointMismatch(f"{name}: {part} is {info}, expected {' or '.join(dtypes)} {what}")
    return info.shape


def check_bias(name: str, parts: Parts, *shape: int) -> None:
    """Raise CheckpointMismatch unless the bias, if there is one, is a float tensor of `shape`."""
    if "bias" in parts:
        expect(name, parts["bias"], FLOATS, shape)


def check_numel(name: str, info: TensorInfo, dtypes: tuple[str, ...], shape: tuple[int, ...], spec: Spec) -> None:
    """Raise CheckpointMismatch unless a scale has as many elements as `shape` ([N] passes for [N, 1], [] for [1, 1])."""
    flat = [size for size in info.shape if size != 1]
    if info.dtype not in dtypes or info.numel != math.prod(shape) or flat != [size for size in shape if size != 1]:
        part = info.name.rpartition(".")[2]
        raise CheckpointMismatch(f"{name}: {part} is {info}, but '{spec}' needs {' or '.join(dtypes)} {list(shape)}")


def check_scalar(name: str, info: TensorInfo, count: int = 1) -> None:
    """Raise CheckpointMismatch unless a stored scale is `count` numbers in a float format."""
    if info.dtype not in FLOATS or info.numel != count:
        part = info.name.rpartition(".")[2]
        wanted = "one number" if count == 1 else f"{count} numbers, one an expert"
        raise CheckpointMismatch(f"{name}: {part} is {info}, expected {wanted}, {' or '.join(FLOATS)}")


def scalar(tensors: Mapping[str, Tensor], part: str) -> Tensor | None:
    """Return a stored scalar as fp32 [1], or None if the part is absent."""
    return tensors[part].float().reshape(1) if part in tensors else None


def excluded(name: str, patterns: Iterable[str]) -> str | None:
    """Return the first pattern that hits module `name`: the whole name, a parent of it, or a shell wildcard; else None."""
    for pattern in patterns:
        whole = pattern.removesuffix(".weight")
        if whole == name or name.startswith(f"{whole}.") or ("*" in whole and fnmatch.fnmatchcase(name, whole)):
            return pattern
    return None


def refuse_excluded(name: str, patterns: Iterable[str], where: str) -> None:
    """Raise CheckpointMismatch if module `name`, which holds quantized tensors, is listed as not quantized."""
    hit = excluded(name, patterns)
    if hit is not None:
        raise CheckpointMismatch(f"{name}: {where} lists {hit!r} as not quantized, but the files hold quantized tensors for it")


def signed_codes(name: str, values: Tensor, bits: int) -> Tensor:
    """Return offset-binary uint8 codes, value + 2^(bits-1), of signed integers; raises CheckpointMismatch if one does not fit."""
    half = 2 ** (bits - 1)
    low, high = (int(v) for v in torch.aminmax(values)) if values.numel() else (0, 0)
    if low < -half or high >= half:
        raise CheckpointMismatch(f"{name}: integers span {low}..{high}, but {bits} bits hold {-half}..{half - 1}")
    return (values.to(torch.int16) + half).to(torch.uint8)


def as_e8m0(scale: Tensor) -> Tensor:
    """Return stored exponent bytes (uint8 or e8m0) as e8m0."""
    return scale.contiguous().view(torch.float8_e8m0fnu)


def one(shape: tuple[int, ...]) -> bool:
    """Return whether a tensor of `shape` holds a single element."""
    return math.prod(shape) == 1
