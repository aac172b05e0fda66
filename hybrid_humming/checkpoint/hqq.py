"""HQQ: half-quadratic quantization, float zero points.

    W_q    [rows/f, G]    uint8: 1, 2, 4 or 8 bits, f a byte: the first rows/f rows in the highest bits, the last in the lowest
           [rows/10, G]   int32: 3 bits, ten a word, the first rows in bits 27..29, the last in bits 0..2; padded with zeros
    scale  [rows, 1]      fp16 | bf16 | fp32
    zero   [rows, 1]      the same type, in code units and not rounded
    shape  [2]            int64 (N, K);  nbits, group_size, axis: scalars;  rows = N * K / G, one group of one n each (axis 1)

    w[n, k] = (code - zero) * scale

`view_as_float` stores W_q's bytes under a float dtype.

axis 0 lays the same values out as [G, N*K/G], scale and zero [1, N*K/G]: a group is every (N/G)-th row of one column. Its scale
depends on k and on n mod N/G, so no group along K and no block holds it: blocks would have to be 1x1, with a scale and a zero point
for each weight, more bytes than the weight in 16 bits. Such a layer is refused, or with `plain` decoded to the 16-bit weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hybrid_humming.checkpoint.common import FLOATS, check_bias, float_format, model_format
from hybrid_humming.checkpoint.files import TensorInfo
from hybrid_humming.checkpoint.registry import Importer, Parts, PlainLayer, StoredLayer, expect, require
from hybrid_humming.dtypes import parse_format
from hybrid_humming.errors import CheckpointMismatch, UnknownQuantMethod
from hybrid_humming.lazy import Tensor, torch
from hybrid_humming.spec import Spec
from hybrid_humming.weight import CanonicalWeight

# bits -> (codes a word, bits of a word)
WORDS = {1: (8, 8), 2: (4, 8), 3: (10, 32), 4: (2, 8), 8: (1, 8)}
# What HQQLinear stores beside its weight and what says nothing about the weight's values.
META = (
    *("compute_dtype", "encoded_state_dict", "stores_quant_config", "offload_meta", "channel_wise", "optimize", "round_zero"),
    *("packing", "unpack_view_dtype", "view_as_float", "quant_scale", "quant_zero", "nbits", "group_size", "axis", "shape"),
)


@dataclass(frozen=True, kw_only=True)
class Packed:
    """Sizes of one packed weight; group_size is K (axis 1) or N (axis 0) where a row or a column of W is one group."""

    n: int
    k: int
    bits: int
    group_size: int
    axis: int = 1

    @property
    def groups(self) -> int:
        """Number of groups."""
        return self.n * self.k // self.group_size

    @property
    def rows(self) -> int:
        """Rows of the unpacked codes."""
        return self.groups if self.axis == 1 else self.group_size

    @property
    def columns(self) -> int:
        """Columns of the unpacked codes and of W_q."""
        return self.group_size if self.axis == 1 else self.groups

    @property
    def scale_shape(self) -> tuple[int, int]:
        """Shape of scale and zero."""
        return (self.groups, 1) if self.axis == 1 else (1, self.groups)

    @property
    def stored_rows(self) -> int:
        """Rows of W_q."""
        return -(-self.rows // WORDS[self.bits][0])

    @property
    def nbytes(self) -> int:
        """Bytes of W_q."""
        return self.stored_rows * self.columns * WORDS[self.bits][1] // 8


class HQQ(Importer):
    """Reads `quant_method: hqq`; each layer carries its own settings, so the config's are not needed."""

    def describe(self, name: str, parts: Parts) -> StoredLayer | PlainLayer | None:
        """Return the layer, or None for a module that is not HQQ's; raises what `Importer.describe` says."""
        if "W_q" not in parts and not {"nbits", "axis", "zero"} & set(parts):
            return None
        nested = sorted(part for part in parts if part.startswith(("zero_", "scale_", "meta_")))
        if nested:
            raise UnknownQuantMethod(
                f"{name}: its scales or zero points are quantized themselves ({', '.join(nested)}), which is not read; "
                "quantize with quant_zero=False, quant_scale=False"
            )
        require(name, parts, ("W_q", "scale", "zero", "shape", "nbits", "axis"), "HQQ")
        sizes = _sizes(name, parts)
        _check(name, parts, sizes)
        if sizes.axis == 0:
            return self._plain(name, parts, sizes)
        scale, zero = float_format(name, parts["scale"]), float_format(name, parts["zero"])
        spec = Spec(
            weight=f"uint{sizes.bits}",
            group_size=sizes.group_size if sizes.group_size < sizes.k else None,
            scale=scale,
            zero_point=zero,
            activation=model_format(self.config, scale),
        )
        spec.check_shape(sizes.n, sizes.k)
        check_bias(name, parts, sizes.n)

        def convert(tensors: Mapping[str, Tensor]) -> CanonicalWeight:
            shape = spec.scale_shape(sizes.n, sizes.k)
            return CanonicalWeight(
                spec=spec,
                codes=unpack_rows(tensors["W_q"], sizes).reshape(sizes.n, sizes.k),
                scale=tensors["scale"].reshape(shape),
                zero_point=tensors["zero"].reshape(shape),
                bias=tensors.get("bias"),
            )

        used = {part: parts[part] for part in ("W_q", "scale", "zero", "bias", *META) if part in parts}
        return StoredLayer(name=name, spec=spec, n=sizes.n, k=sizes.k, parts=used, convert=convert)

    def _plain(self, name: str, parts: Parts, sizes: Packed) -> PlainLayer:
        """Return an axis-0 layer to decode; without the option `plain` it is refused."""
        if not self.options.plain:
            rows = f"each {sizes.n // sizes.group_size}. row" if sizes.n > sizes.group_size else "all rows"
            raise UnknownQuantMethod(
                f"{name}: HQQ with axis=0 groups along N: a scale belongs to {rows} of one column, {sizes.groups} scales in all, "
                f"and no scale group along K fits the {sizes.k} columns. Quantize with axis=1; or load with plain=True (--plain), "
                "which decodes the layer to its 16-bit weight"
            )
        stored = float_format(name, parts["scale"])
        dtype = stored if stored in ("fp16", "bf16") else model_format(self.config, "bf16")

        def decode(tensors: Mapping[str, Tensor]) -> Tensor:
            codes = unpack_rows(tensors["W_q"], sizes).float()
            weight = (codes - tensors["zero"].float()) * tensors["scale"].float()
            return weight.reshape(sizes.n, sizes.k).to(parse_format(dtype).torch_storage)

        used = {part: parts[part] for part in ("W_q", "scale", "zero", *META) if part in parts}
        return PlainLayer(name=name, dtype=dtype, n=sizes.n, k=sizes.k, parts=used, decode=decode)


def unpack_rows(stored: Tensor, sizes: Packed) -> Tensor:
    """Return uint8 codes [rows, columns]: field i of the words, from the highest, holds the i-th part of the rows."""
    count, width = WORDS[sizes.bits]
    words = stored.contiguous().view(torch.uint8 if width == 8 else torch.int32).reshape(sizes.stored_rows, sizes.columns)
    mask = 2**sizes.bits - 1
    fields = [(words >> (sizes.bits * (count - 1 - i)) & mask).to(torch.uint8) for i in range(count)]
    return torch.cat(fields)[: sizes.rows]


def _sizes(name: str, parts: Parts) -> Packed:
    """Return the sizes from the small tensors beside W_q (a few bytes, read while describing)."""
    if parts["shape"].shape != (2,):
        raise CheckpointMismatch(f"{name}: shape is {parts['shape']}, expected (N, K)")
    n, k = parts["shape"].integers()
    if n < 1 or k < 1:
        raise CheckpointMismatch(f"{name}: shape says [{n}, {k}]; N and K must be at least 1")
    bits, axis = _integer(name, parts["nbits"]), _integer(name, parts["axis"])
    if bits not in WORDS:
        raise UnknownQuantMethod(f"{name}: HQQ with {bits} bits is not read, only {', '.join(map(str, WORDS))}")
    if axis not in (0, 1):
        raise CheckpointMismatch(f"{name}: axis is {axis}; HQQ groups along axis 0 or 1")
    length = k if axis == 1 else n
    group_size = _integer(name, parts["group_size"]) if "group_size" in parts else length
    if group_size < 1 or (k if axis == 1 else n * k) % group_size:
        straddled = f"straddle rows of K={k}; group_size must divide K" if axis == 1 else f"don't divide the {n} x {k} weights"
        raise CheckpointMismatch(f"{name}: groups of {group_size} {straddled}")
    return Packed(n=n, k=k, bits=bits, group_size=group_size, axis=axis)


def _check(name: str, parts: Parts, sizes: Packed) -> None:
    """Raise CheckpointMismatch unless the stored tensors have these sizes."""
    for part in ("scale", "zero"):
        float_format(name, parts[part])
        expect(name, parts[part], FLOATS, sizes.scale_shape, f"{sizes.groups} groups of {sizes.group_size}")
    stored, words = parts["W_q"], (sizes.stored_rows, sizes.columns)
    integer = "U8" if WORDS[sizes.bits][1] == 8 else "I32"
    if stored.dtype not in (integer, *FLOATS) or (stored.dtype == integer and stored.shape != words):
        raise CheckpointMismatch(f"{name}: W_q is {stored}, expected {integer} {list(words)}, or those bytes viewed as floats")
    if parts["W_q"].nbytes != sizes.nbytes:
        raise CheckpointMismatch(
            f"{name}: W_q is {parts['W_q']}, {parts['W_q'].nbytes} bytes, but [{sizes.n}, {sizes.k}] at {sizes.bits} bits in "
            f"groups of {sizes.group_size} takes {sizes.nbytes}"
        )


def _integer(name: str, info: TensorInfo) -> int:
    if info.numel != 1:
        raise CheckpointMismatch(f"{name}: {info.name.rpartition('.')[2]} is {info}; one integer is expected")
    return info.integers()[0]
