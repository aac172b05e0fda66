"""Weights between the stages: CanonicalWeight (one code a byte, readable) and QWeight (packed for a kernel).

Shapes without an expert axis; with E experts every tensor but the transform's gains a leading [E].

    codes            [N, K]    uint8, the stored unsigned code of each weight
    scale            [R, C]    in the spec's scale format; [R, C] = spec.scale_shape(N, K): [1, 1], [N, 1], [N, K/G] or blocks
    zero_point       [R, C]    uint8 codes ("int"), or a float in code units; value = (code_value - zero_point) * scale
    secondary_scale  [1] | [N] fp32
    input_scale      [1]       fp32, static scale of the activations (x = code * input_scale)
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from dataclasses import dataclass
from typing import Any

from hybrid_humming.dtypes import parse_format
from hybrid_humming.errors import DeviceError, DtypeError, LayoutError, ShapeError, ValueRangeError
from hybrid_humming.lazy import Tensor, torch
from hybrid_humming.spec import PackLayout, Spec


@dataclass(frozen=True, kw_only=True, eq=False)
class InputTransform:
    """What happens to x [..., K] before the product, in this order.

    pre_quant_scale  [K]  x is multiplied by it, channel by channel (AWQ's and ModelOpt's name)
    hadamard         int  orthonormal Walsh-Hadamard transform over blocks of this size along K
    permutation      [K]  int32; column k of what the product reads is column permutation[k] of x (act-order)
    """

    pre_quant_scale: Tensor | None = None
    hadamard: int | None = None
    permutation: Tensor | None = None

    def __post_init__(self) -> None:
        if self.hadamard is not None and (self.hadamard < 2 or self.hadamard & (self.hadamard - 1)):
            raise ShapeError(f"hadamard block {self.hadamard}: must be a power of two of at least 2")
        if self.permutation is not None and self.permutation.dtype != torch.int32:
            raise DtypeError(f"permutation is {self.permutation.dtype}; it must be int32 [K]")

    def to(self, device: torch.device | str) -> InputTransform:
        """Return the transform with its tensors on `device`."""
        return dataclasses.replace(
            self, pre_quant_scale=_move(self.pre_quant_scale, device), permutation=_move(self.permutation, device)
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class CanonicalWeight:
    """A quantized weight in the clear: what importers make and packers read. Shapes as the module's head says.

    block_offset  (n, k) of this weight's first element inside the block grid of the tensor that it was cut from;
                  only block granularity reads it (a shard that starts inside a block)
    """

    spec: Spec
    codes: Tensor
    scale: Tensor
    zero_point: Tensor | None = None
    secondary_scale: Tensor | None = None
    input_scale: Tensor | None = None
    bias: Tensor | None = None
    transform: InputTransform | None = None
    block_offset: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        _check_canonical(self)

    @property
    def experts(self) -> int:
        """Number of experts; 0 for a dense weight."""
        return self.codes.shape[0] if self.codes.dim() == 3 else 0

    @property
    def n(self) -> int:
        """Output features."""
        return self.codes.shape[-2]

    @property
    def k(self) -> int:
        """Reduction size."""
        return self.codes.shape[-1]

    @property
    def scale_shape(self) -> tuple[int, int]:
        """[R, C] of the scale, with the partial blocks that `block_offset` adds."""
        return scale_shape(self.spec, self.n, self.k, self.block_offset)

    def replace(self, **changes: Any) -> CanonicalWeight:
        """Return a weight with the named fields changed."""
        return dataclasses.replace(self, **changes)

    def to(self, device: torch.device | str) -> CanonicalWeight:
        """Return the weight with every tensor on `device`."""
        return _move_fields(self, device)

    def validate(self) -> CanonicalWeight:
        """Return self; raise ValueRangeError naming the first NaN or infinite scale, or the first code out of range."""
        if not self.codes.is_meta:
            check_codes(self.codes, self.spec)
        for name in ("scale", "zero_point", "secondary_scale", "input_scale"):
            tensor = getattr(self, name)
            if tensor is None or (name == "zero_point" and self.spec.zero_point == "int"):
                continue
            tensor = _real_scale(self) if name == "scale" else tensor.float()
            bad = ~torch.isfinite(tensor)
            if bad.any():
                where = tuple(int(i) for i in bad.nonzero()[0])
                raise ValueRangeError(
                    f"{name}{list(where)} is {float(tensor[where])} ({int(bad.sum())} of {bad.numel()} are not finite); "
                    "a NaN scale poisons its whole group: fix the checkpoint, or load with validate=False to let it through"
                )
        if self.input_scale is not None and bool((self.input_scale <= 0).any()):
            raise ValueRangeError(
                f"input_scale is {float(self.input_scale.min())}: activations are divided by it, so it must be above 0; calibrate "
                "again, or load with validate=False to let it through"
            )
        return self


@dataclass(frozen=True, kw_only=True, eq=False)
class QWeight:
    """A packed weight. `qweight` holds the codes in the order that `layout` names; the small tensors beside it are laid
    out by the same packer (see `pack/<family>.py`). Made by `hh.quantize`, `hh.load` or `hh.pack_weight`; immutable."""

    spec: Spec
    layout: PackLayout
    qweight: Tensor
    scale: Tensor
    zero_point: Tensor | None = None
    secondary_scale: Tensor | None = None
    input_scale: Tensor | None = None
    transform: InputTransform | None = None
    block_offset: tuple[int, int] = (0, 0)
    spec_line: str = dataclasses.field(init=False, repr=False)
    layout_line: str = dataclasses.field(init=False, repr=False)
    x_dtype: torch.dtype | None = dataclasses.field(init=False, repr=False)
    prepared: dict[Any, Any] = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        # The op takes both as strings on every call; a string attribute also keeps torch.compile from tracing the printer.
        object.__setattr__(self, "spec_line", str(self.spec))
        object.__setattr__(self, "layout_line", str(self.layout))
        wide = self.spec.activation_format.torch_storage if not self.spec.quantizes_activation else None
        object.__setattr__(self, "x_dtype", wide)  # the one type that x may have; None: x is quantized
        object.__setattr__(self, "prepared", {})  # plans that ran with this weight, kept by the op

    def __getstate__(self) -> dict[str, Any]:
        # Copies and pickles start without the plans that ran here: those hold this process's compiled kernels and counters.
        return self.__dict__ | {"prepared": {}}

    @property
    def n(self) -> int:
        """Output features (logical)."""
        return self.layout.n

    @property
    def k(self) -> int:
        """Reduction size (logical)."""
        return self.layout.k

    @property
    def experts(self) -> int:
        """Number of experts; 0 for a dense weight."""
        return self.layout.experts

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape of the weight that was packed, [N, K] or [E, N, K]."""
        return (self.experts, self.n, self.k) if self.experts else (self.n, self.k)

    @property
    def device(self) -> torch.device:
        """Where the packed bytes lie."""
        return self.qweight.device

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(t.numel() * t.element_size() for t in self.tensors().values())

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor by name, those of the transform too; what a state dict holds."""
        found = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        if self.transform is not None:
            found["pre_quant_scale"] = self.transform.pre_quant_scale
            found["permutation"] = self.transform.permutation
        return {name: t for name, t in found.items() if isinstance(t, torch.Tensor)}

    def to(self, device: torch.device | str) -> QWeight:
        """Return the weight on `device`, bytes and layout unchanged (`hh.repack` chooses the layout anew)."""
        return _move_fields(self, device)

    def replace(self, **changes: Any) -> QWeight:
        """Return a weight with the named fields changed."""
        return dataclasses.replace(self, **changes)

    def shard(self, dim: int, rank: int, world: int, *, columns: str = "natural") -> QWeight:
        """Return rank's part among `world`, along N (dim 0) or K (dim 1); see `hh.shard`."""
        # By name: packing lies above this module.
        parallel = importlib.import_module("hybrid_humming.parallel")
        part: QWeight = parallel.shard(self, dim, rank, world, columns=columns)
        return part

    def __repr__(self) -> str:
        return f"QWeight({self.spec}, {list(self.shape)}, {self.layout.family}, {self.nbytes} bytes, {self.device})"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What one scan of a weight's data found; lets `choose_layout` pick a faster encoding of the same values.

    lowest_code_unused  no symmetric integer code is the lowest (-8 of int4)
    scale_exponent_min, scale_exponent_max  range of floor(log2(scale)) over the nonzero scales; None if all are zero
    row_exponent_span  largest minus smallest e8m0 exponent of the groups of a row that hold anything but zeros, the widest row's;
                       None for other scales, and where one of them is NaN
    """

    lowest_code_unused: bool = False
    scale_exponent_min: int | None = None
    scale_exponent_max: int | None = None
    row_exponent_span: int | None = None


def check_codes(codes: Tensor, spec: Spec) -> None:
    """Raise ValueRangeError if one of `codes` is outside the format."""
    top = 2**spec.bits
    if top < 256 and codes.numel() and int(codes.max()) >= top:
        raise ValueRangeError(f"codes reach {int(codes.max())}, but {spec.weight} has codes 0..{top - 1}")


def scan(weight: CanonicalWeight) -> Facts:
    """Return the Facts of `weight`; reads every code once. Nothing is said of codes on the meta device."""
    lowest = weight.spec.weight_format.kind == "int" and weight.codes.numel() > 0
    lowest = lowest and not weight.codes.is_meta and int(weight.codes.min()) > 0
    low, high = _scale_range(weight)
    span = row_exponent_span(weight)
    if not high:
        return Facts(lowest_code_unused=lowest, row_exponent_span=span)
    smallest, largest = (math.frexp(value)[1] - 1 for value in (low, high))
    return Facts(lowest_code_unused=lowest, scale_exponent_min=smallest, scale_exponent_max=largest, row_exponent_span=span)


def used_exponents(weight: CanonicalWeight) -> tuple[Tensor, Tensor]:
    """Return ([.., N, K/G] e8m0 codes, whether the group holds anything but zeros) of a weight in e2m1 with groups along K.

    Codes on the meta device may be anything.
    """
    codes = weight.scale.view(torch.uint8)
    if weight.codes.is_meta:
        return codes, torch.ones_like(codes, dtype=torch.bool)
    groups = (weight.codes & 7).unflatten(-1, (codes.shape[-1], -1))
    return codes, groups.amax(-1) != 0


def row_exponent_span(weight: CanonicalWeight) -> int | None:
    """Return the fact of that name; only of e2m1 weights, where a kernel can make use of it."""
    spec = weight.spec
    if spec.weight != "e2m1" or spec.granularity != "group" or spec.scale != "e8m0" or not weight.codes.numel():
        return None
    codes, used = used_exponents(weight)
    if bool((used & (codes == 255)).any()):
        return None
    low = torch.where(used, codes.int(), 255).amin(-1)
    high = torch.where(used, codes.int(), 0).amax(-1)
    return max(0, int((high - low).max()))


def _scale_range(weight: CanonicalWeight) -> tuple[float, float]:
    """The smallest and the largest finite magnitude of a scale that is not 0; (inf, 0) if there is none."""
    if weight.scale.element_size() == 1:  # at most 256 values: those of the codes that occur
        seen = torch.bincount(weight.scale.view(torch.uint8).flatten(), minlength=256).nonzero().flatten().tolist()
        values = [abs(float(weight.spec.scale_format.values[code])) for code in seen]
        values = [value for value in values if 0 < value < math.inf]
        return min(values, default=math.inf), max(values, default=0.0)
    size = weight.scale.float().abs()
    if not size.numel():
        return math.inf, 0.0
    good = torch.isfinite(size) & (size > 0)
    return float(torch.where(good, size, math.inf).min()), float(torch.where(good, size, 0.0).max())


def scale_shape(spec: Spec, n: int, k: int, block_offset: tuple[int, int] = (0, 0)) -> tuple[int, int]:
    """Return [R, C] of the scale of a weight [n, k] whose first element lies at `block_offset` inside the block grid."""
    if spec.granularity != "block" or spec.block is None:
        return spec.scale_shape(n, k)
    (block_n, block_k), (off_n, off_k) = spec.block, block_offset
    return -(-(n + off_n % block_n) // block_n), -(-(k + off_k % block_k) // block_k)


def _real_scale(weight: CanonicalWeight) -> Tensor:
    """The values of the scale in fp32; a format without a torch dtype of its own is looked up."""
    fmt = weight.spec.scale_format
    if weight.scale.dtype != torch.uint8:
        return weight.scale.float()
    return torch.tensor(fmt.values.tolist(), device=weight.scale.device)[weight.scale.int()]


def _check_canonical(weight: CanonicalWeight) -> None:
    spec, codes = weight.spec, weight.codes
    if codes.dtype != torch.uint8:
        raise DtypeError(f"codes are {codes.dtype}; they must be uint8, one unsigned code a byte")
    if codes.dim() not in (2, 3):
        raise ShapeError(f"codes are {list(codes.shape)}; they must be [N, K] or [E, N, K]")
    lead = tuple(codes.shape[:-2])
    want = (*lead, *weight.scale_shape)
    if tuple(weight.scale.shape) != want:
        raise ShapeError(f"scale is {list(weight.scale.shape)}; '{spec}' on weight {list(codes.shape)} needs {list(want)}")
    if weight.scale.dtype != spec.scale_format.torch_storage:
        raise DtypeError(
            f"scale is {weight.scale.dtype}; '{spec}' stores it as {spec.scale_format.torch_storage}: "
            "convert it, or name its format in the spec (g128:fp32)"
        )
    if (weight.zero_point is not None) != spec.has_zero_point:
        have = "a" if weight.zero_point is not None else "no"
        raise ShapeError(f"{have} zero point was given, but the spec is '{spec}'")
    if weight.zero_point is not None:
        dtype = torch.uint8 if spec.zero_point == "int" else parse_format(str(spec.zero_point)).torch_storage
        if tuple(weight.zero_point.shape) != want or weight.zero_point.dtype != dtype:
            raise ShapeError(
                f"zero_point is {weight.zero_point.dtype} {list(weight.zero_point.shape)}; '{spec}' needs {dtype} {list(want)}"
            )
    _check_secondary(weight, lead)


def _check_secondary(weight: CanonicalWeight, lead: tuple[int, ...]) -> None:
    spec, secondary = weight.spec, weight.secondary_scale
    if (secondary is not None) != (spec.secondary is not None):
        have = "a" if secondary is not None else "no"
        raise ShapeError(f"{have} secondary scale was given, but the spec is '{spec}'")
    if secondary is not None:
        want = (*lead, 1 if spec.secondary == "tensor" else weight.n)
        if tuple(secondary.shape) != want or secondary.dtype != torch.float32:
            raise ShapeError(f"secondary_scale is {secondary.dtype} {list(secondary.shape)}; '{spec}' needs float32 {list(want)}")
    if weight.bias is not None and tuple(weight.bias.shape) != (*lead, weight.n):
        raise ShapeError(f"bias is {list(weight.bias.shape)}; this weight needs {[*lead, weight.n]}")
    if weight.block_offset != (0, 0) and spec.granularity != "block":
        raise LayoutError(f"block_offset {weight.block_offset} has no meaning for '{spec}'")


def _move(tensor: Tensor | None, device: torch.device | str) -> Tensor | None:
    return None if tensor is None else tensor.to(device)


def _there(device: torch.device | str) -> torch.device:
    """Return a torch device that tensors can be moved to; raises DeviceError for any other."""
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        raise DeviceError(
            f"device {device!r} is no torch device; pass 'cpu', 'cuda' or 'cuda:1' (hh.pack_weight packs for a GPU by its name)"
        ) from None
    if found.type == "cuda" and not (count := torch.cuda.device_count()) > (found.index or 0):
        raise DeviceError(f"device {found} was asked for, but torch sees {count} CUDA devices; pass 'cpu', or fix the driver")
    return found


def _move_fields(value: Any, device: torch.device | str) -> Any:
    device = _there(device)
    moved = {
        f.name: getattr(value, f.name).to(device)
        for f in dataclasses.fields(value)
        if isinstance(getattr(value, f.name), torch.Tensor | InputTransform)
    }
    return dataclasses.replace(value, **moved)
