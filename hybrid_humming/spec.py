"""What is computed: Spec (number formats and scales), Problem (Spec and sizes), PackLayout (order of bytes).

    y[M, N] = x[M, K] @ dequantize(W)[N, K].T (+ bias[N])
    dequantize(W)[n, k] = (value(code) - zero_point) * scale * secondary

All three are frozen, hashable, and print as one line that parses back to an equal value:

    spec        := weight " x " activation [" -> " out_dtype]
    weight      := format granularity[":" scale_format]["+" secondary] ["zp"[":" zero_point_format]]
    activation  := format [granularity[":" scale_format]["+" secondary]]
    granularity := tensor | channel | token | gG (G along K) | bNxK (block)
    secondary   := tensor | channel

`mxfp4`, `mxint4`, `mxfp6`, `mxfp8` and `nvfp4` name a whole half and are printed wherever they apply. The scale
format is left out where it is the 16-bit activation's own type, or fp32 beside activations of 8 bits or fewer.
The secondary scale is always fp32. An impossible combination is refused at construction, with the reason.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from typing import Any

from hybrid_humming.dtypes import ElementFormat, parse_format
from hybrid_humming.errors import FormatError, LayoutError, ShapeError, SpecError, did_you_mean

ACTIVATION_FORMATS = ("fp16", "bf16", "e4m3", "e5m2", "e3m4", "e2m3", "e3m2", "e2m1", "e0m3", "int8", "int4")
SCALE_FORMATS = ("bf16", "fp16", "fp32", "e4m3", "e5m2", "e8m0", "e5m3")
ZERO_POINT_FORMATS = ("bf16", "fp16", "fp32")
OUT_DTYPES = ("fp16", "bf16", "fp32")
WEIGHT_GRANULARITIES = ("tensor", "channel", "group", "block")
ACTIVATION_GRANULARITIES = ("tensor", "token", "group")
SECONDARY = ("tensor", "channel")

# One name for a whole half: (format, group_size, scale, secondary).
SHORTHANDS = {
    "mxfp4": ("e2m1", 32, "e8m0", None),
    "mxint4": ("int4", 32, "e8m0", None),
    "mxfp6": ("e2m3", 32, "e8m0", None),
    "mxfp8": ("e4m3", 32, "e8m0", None),
    "nvfp4": ("e2m1", 16, "e4m3", "tensor"),
}


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Number formats and scales of one GEMM.

    weight                  element format of W: int1..int8, uint1..uint8, eXmY
    granularity             tensor | channel | group | block; None: group if group_size is given, block if block is, else channel
    group_size              weights along K that share a scale (group)
    block                   (N, K) extent of a block that shares a scale (block)
    scale                   scale format; None: the 16-bit activation's type, or fp32 beside narrower activations
    secondary               tensor | channel: a second, fp32 scale on top of the first; or None
    zero_point              None | "int" (unsigned code in the weight's own format) | bf16 | fp16 | fp32; True means "int"
    activation              element format of x in the product
    activation_granularity  tensor (static) | token | group; only for activations of 8 bits and fewer
    activation_group_size   activations along K that share a scale
    activation_scale        its format; None: fp32
    activation_secondary    tensor: a second, fp32 scale of the whole tensor (NVFP4); or None
    out_dtype               fp16 | bf16 | fp32; None: the activation's type if 16-bit, else bf16
    """

    weight: str
    activation: str = "bf16"
    granularity: str | None = None
    group_size: int | None = None
    block: tuple[int, int] | None = None
    scale: str | None = None
    secondary: str | None = None
    zero_point: str | bool | None = None
    activation_granularity: str | None = None
    activation_group_size: int | None = None
    activation_scale: str | None = None
    activation_secondary: str | None = None
    out_dtype: str | None = None

    def __post_init__(self) -> None:
        _expand_shorthands(self)
        _fill_defaults(self)
        _check_weight(self)
        _check_activation(self)
        if self.out_dtype not in OUT_DTYPES:
            raise SpecError(f"out_dtype {self.out_dtype!r}: allowed are {', '.join(OUT_DTYPES)}")

    # ---- text ----
    @classmethod
    def parse(cls, line: str) -> Spec:
        """Return the Spec that a line such as `int4 g128 x bf16` describes; raises SpecError."""
        if isinstance(line, Spec):
            return line
        return cls(**_parse_line(str(line)))

    def __str__(self) -> str:
        out = "" if self.out_dtype == _default_out(self.activation) else f" -> {self.out_dtype}"
        return f"{_weight_text(self)} x {_activation_text(self)}{out}"

    def to_json(self) -> str:
        """Return the fields as a JSON object, sorted, without those that are None."""
        fields = {k: v for k, v in dataclasses.asdict(self).items() if v is not None}
        return json.dumps(fields, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Spec:
        """Return the Spec that `to_json` wrote; raises SpecError naming an unknown field."""
        try:
            fields = dict(json.loads(text))
        except (TypeError, ValueError):
            raise SpecError(f"can't read spec {text[:80]!r}: expected the JSON object that Spec.to_json writes") from None
        unknown = sorted(set(fields) - {f.name for f in dataclasses.fields(cls)})
        if unknown:
            raise SpecError(f"unknown Spec fields in JSON: {', '.join(unknown)}; written by a newer version?")
        if "weight" not in fields:
            raise SpecError(f"can't read spec {text[:80]!r}: it names no weight format")
        if isinstance(fields.get("block"), list):
            fields["block"] = tuple(fields["block"])
        return cls(**fields)

    def replace(self, **changes: Any) -> Spec:
        """Return a Spec with the named fields changed; defaults that followed a changed field follow again."""
        fields = dataclasses.asdict(self)
        for name in changes:
            if name not in fields:
                raise SpecError(f"a Spec has no field {name!r}; it has {', '.join(fields)}.{did_you_mean(name, fields)}")
        if "activation" in changes:
            old, new = _default_scale(self.activation), _default_scale(changes["activation"])
            if self.scale == old and "scale" not in changes:
                fields["scale"] = new
            if self.out_dtype == _default_out(self.activation) and "out_dtype" not in changes:
                fields["out_dtype"] = None
            for name in ("granularity", "group_size", "scale", "secondary"):
                fields[f"activation_{name}"] = None
        return Spec(**(fields | changes))

    # ---- derived ----
    @property
    def weight_format(self) -> ElementFormat:
        """Element format of W."""
        return parse_format(self.weight)

    @property
    def activation_format(self) -> ElementFormat:
        """Element format of x in the product."""
        return parse_format(self.activation)

    @property
    def scale_format(self) -> ElementFormat:
        """Format of the weight scale."""
        return parse_format(self.scale or "fp32")

    @property
    def bits(self) -> int:
        """Bits of one weight code."""
        return self.weight_format.bits

    @property
    def quantizes_activation(self) -> bool:
        """True when x is multiplied in 8 bits or fewer."""
        return not self.activation_format.is_wide

    @property
    def activation_line(self) -> str:
        """The activation half of the line: "e4m3 g128"."""
        return _activation_text(self)

    @property
    def has_zero_point(self) -> bool:
        """True when a zero point is subtracted from the codes."""
        return self.zero_point is not None

    def scale_shape(self, n: int, k: int) -> tuple[int, int]:
        """Return the canonical shape of the weight scale, [scale rows along N, scale columns along K]."""
        self.check_shape(n, k)
        if self.granularity == "tensor":
            return 1, 1
        if self.granularity == "channel":
            return n, 1
        if self.granularity == "group":
            assert self.group_size is not None
            return n, k // self.group_size
        assert self.block is not None
        return -(-n // self.block[0]), -(-k // self.block[1])

    def check_shape(self, n: int, k: int) -> None:
        """Raise ShapeError unless a weight [n, k] can carry this spec's scales."""
        if type(n) is not int or type(k) is not int:
            raise ShapeError(f"weight [{n!r}, {k!r}]: N and K must be integers")
        if n < 1 or k < 1:
            raise ShapeError(f"weight [{n}, {k}]: N and K must be at least 1")
        for what, g in (("group_size", self.group_size), ("activation group_size", self.activation_group_size)):
            if g is not None and k % g:
                raise ShapeError(
                    f"K={k} is not a multiple of {what}={g} ({k / g:.4g} groups); "
                    f"pad K to {-(-k // g) * g} before quantizing, or use a group size that divides K"
                )
        if k % 2 and self.activation_format.bits == 4:
            raise ShapeError(
                f"K={k} is odd; {self.activation} activations are stored two a byte: pad K to {k + 1} before quantizing"
            )

    def weight_bytes(self, n: int, k: int) -> int:
        """Return the bytes of the packed weight [n, k]: codes, scales, zero points and secondary scale."""
        rows, cols = self.scale_shape(n, k)
        total = n * k * self.bits / 8 + rows * cols * self.scale_format.bits / 8
        if self.zero_point is not None:
            bits = self.bits if self.zero_point == "int" else parse_format(str(self.zero_point)).bits
            total += rows * cols * bits / 8
        total += {None: 0, "tensor": 4, "channel": 4 * n}[self.secondary]
        return int(total + 0.5)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One GEMM to plan: a Spec and the sizes, with everything else that changes the answer.

    m, n, k            rows of x, output features, reduction (logical sizes, without padding)
    bias               a bias [N] is added before the one rounding
    batch_invariant    row i has the same bits whatever m is
    fast_accumulation  8-bit products may accumulate at the tensor core's own precision
    dependent_launch   the kernel may begin to read the weight while the kernel before it on the stream still runs
    act_order          columns of x are gathered before the product
    experts            0 for a dense weight, else the number of experts
    """

    spec: Spec
    m: int
    n: int
    k: int
    bias: bool = False
    batch_invariant: bool = False
    fast_accumulation: bool = False
    dependent_launch: bool = False
    act_order: bool = False
    experts: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.spec, Spec):
            raise SpecError(f"spec is {type(self.spec).__name__}; a Problem takes a Spec: Spec.parse({self.spec!r})")
        for name in ("m", "n", "k", "experts"):
            size = getattr(self, name)
            if type(size) is not int or size < 0:
                raise ShapeError(f"{name}={size!r}: must be an integer of at least 0")
        self.spec.check_shape(self.n, self.k)

    def __str__(self) -> str:
        flags = [f.name for f in dataclasses.fields(self) if f.type == "bool" and getattr(self, f.name)]
        tail = "".join(f" +{f}" for f in flags) + (f" experts={self.experts}" if self.experts else "")
        return f"{self.spec} [M={self.m} N={self.n} K={self.k}]{tail}"

    def replace(self, **changes: Any) -> Problem:
        """Return a Problem with the named fields changed."""
        return dataclasses.replace(self, **changes)


_LAYOUT = re.compile(
    r"(?P<family>[a-z][a-z0-9_]*)\.v(?P<version>\d+):(?P<encoding>[a-z0-9]+):(?P<n>\d+)x(?P<k>\d+)"
    r":(?P<padded_n>\d+)x(?P<padded_k>\d+)(?::e(?P<experts>\d+))?(?P<folded>:folded)?$"
)


@dataclass(frozen=True, kw_only=True)
class PackLayout:
    """Order of the packed bytes of one weight. `family` and `version` name the rule, documented in `pack/<family>.py`.

    encoding     element format in which the codes are stored. It is the spec's own weight format, or another in which these
                 codes have the same values and decode faster (int4 without its lowest code stored as e0m3)
    n, k         logical sizes;  padded_n, padded_k: sizes in memory
    experts      0 for a dense weight
    folded       exponents of groups are stored less the row's least, for a kernel that folds them into its operands
    """

    family: str
    encoding: str
    n: int
    k: int
    padded_n: int
    padded_k: int
    version: int = 1
    experts: int = 0
    folded: bool = False

    def __post_init__(self) -> None:
        if self.padded_n < self.n or self.padded_k < self.k:
            raise LayoutError(
                f"layout {self.family}: padded size [{self.padded_n}, {self.padded_k}] is smaller than [{self.n}, {self.k}]"
            )

    def __str__(self) -> str:
        tail = (f":e{self.experts}" if self.experts else "") + (":folded" if self.folded else "")
        return f"{self.family}.v{self.version}:{self.encoding}:{self.n}x{self.k}:{self.padded_n}x{self.padded_k}{tail}"

    @classmethod
    def parse(cls, text: str) -> PackLayout:
        """Return the layout that `str(layout)` printed; raises LayoutError."""
        match = _LAYOUT.match(str(text))
        if match is None:
            raise LayoutError(f"can't read layout {text!r}; expected family.vV:format:NxK:PADNxPADK[:eE][:folded]")
        fields: dict[str, Any] = {k: v for k, v in match.groupdict().items() if v is not None}
        for name in ("version", "n", "k", "padded_n", "padded_k", "experts"):
            if name in fields:
                fields[name] = int(fields[name])
        return cls(**fields | {"folded": "folded" in fields})


# ---- construction ----
def _set(spec: Spec, **fields: Any) -> None:
    for name, value in fields.items():
        object.__setattr__(spec, name, value)


def _default_scale(activation: str) -> str:
    return activation if activation in ("fp16", "bf16") else "fp32"


def _default_out(activation: str) -> str:
    return activation if activation in ("fp16", "bf16") else "bf16"


def _expand_shorthands(spec: Spec) -> None:
    for side in ("weight", "activation"):
        if not isinstance(getattr(spec, side), str | ElementFormat):
            raise SpecError(f"{side}={getattr(spec, side)!r}: must be the name of an element format, such as 'int4' or 'bf16'")
    if spec.weight in SHORTHANDS:
        fmt, group, scale, secondary = SHORTHANDS[spec.weight]
        if spec.granularity not in (None, "group") or spec.group_size not in (None, group):
            raise SpecError(f"{spec.weight} means group {group}; write {fmt!r} with a granularity of your own instead")
        _set(spec, weight=fmt, granularity="group", group_size=group, scale=spec.scale or scale)
        _set(spec, secondary=spec.secondary or secondary)
    if spec.activation in SHORTHANDS:
        fmt, group, scale, secondary = SHORTHANDS[spec.activation]
        if spec.activation_granularity not in (None, "group") or spec.activation_group_size not in (None, group):
            raise SpecError(f"{spec.activation} means group {group}; write {fmt!r} with a granularity of your own instead")
        _set(spec, activation=fmt, activation_granularity="group", activation_group_size=group)
        _set(spec, activation_scale=spec.activation_scale or scale)
        _set(spec, activation_secondary=spec.activation_secondary or secondary)


def _fill_defaults(spec: Spec) -> None:
    try:
        _set(spec, weight=parse_format(spec.weight).name, activation=parse_format(spec.activation).name)
    except FormatError as error:
        raise SpecError(str(error.args[0])) from None
    if spec.granularity is None:
        _set(spec, granularity="group" if spec.group_size else "block" if spec.block else "channel")
    if spec.block is not None:
        if not isinstance(spec.block, tuple | list) or [type(e) for e in spec.block] != [int, int]:
            raise SpecError(f"block={spec.block!r}: must be two integers, (N, K) such as (128, 128)")
        _set(spec, block=tuple(spec.block))
    _set(spec, scale=spec.scale or _default_scale(spec.activation))
    if spec.zero_point is True:
        _set(spec, zero_point="int")
    elif spec.zero_point is False:
        _set(spec, zero_point=None)
    if spec.quantizes_activation:
        if spec.activation_granularity is None:
            _set(spec, activation_granularity="group" if spec.activation_group_size else "token")
        _set(spec, activation_scale=spec.activation_scale or "fp32")
    _set(spec, out_dtype=spec.out_dtype or _default_out(spec.activation))


def _check_weight(spec: Spec) -> None:
    fmt, zero = spec.weight_format, spec.zero_point
    if fmt.kind in ("wide", "scale"):
        raise SpecError(f"{fmt} is no weight format; allowed are int1..int8, uint1..uint8 and signed eXmY of 8 bits or fewer")
    if spec.granularity not in WEIGHT_GRANULARITIES:
        raise SpecError(
            f"weight granularity {spec.granularity!r}: allowed are tensor, channel, gG and bNxK"
            + ("; token is a granularity of activations" if spec.granularity == "token" else "")
        )
    _check_extent(spec)
    if spec.scale not in SCALE_FORMATS:
        raise SpecError(f"scale format {spec.scale!r}: allowed are {', '.join(SCALE_FORMATS)}")
    if spec.secondary is not None:
        if spec.secondary not in SECONDARY:
            raise SpecError(f"secondary scale {spec.secondary!r}: allowed are tensor and channel")
        if spec.granularity == "tensor" or spec.granularity == spec.secondary:
            raise SpecError(
                f"a {spec.secondary} secondary scale on top of a {spec.granularity} scale adds nothing; multiply the two into one"
            )
    if zero is not None and fmt.kind != "uint":
        raise SpecError(f"{fmt} takes no zero point: only uint1..uint8 do; write uint{fmt.bits} ... zp")
    if zero is None and fmt.kind == "uint":
        raise SpecError(f"{fmt} needs a zero point; write '{fmt} ... zp' (or int{fmt.bits} for symmetric codes)")
    if zero is not None and zero != "int" and zero not in ZERO_POINT_FORMATS:
        raise SpecError(f"zero point format {zero!r}: allowed are int and {', '.join(ZERO_POINT_FORMATS)}")
    if spec.activation == "fp16" and fmt.largest > 65504:
        raise SpecError(f"{fmt} weights (up to {fmt.largest:g}) don't fit fp16 activations (up to 65504); use bf16")


def _check_extent(spec: Spec) -> None:
    if (spec.granularity == "group") != (spec.group_size is not None):
        raise SpecError(
            f"granularity {spec.granularity} with group_size={spec.group_size}: a group needs a group_size, others take none"
        )
    if (spec.granularity == "block") != (spec.block is not None):
        raise SpecError(f"granularity {spec.granularity} with block={spec.block}: a block needs (N, K), others take none")
    if spec.group_size is not None:
        _check_group("group_size", spec.group_size)
    if spec.block is not None:
        if spec.block[0] < 1:
            raise SpecError(f"block {spec.block}: the N extent must be at least 1")
        _check_group("block K", spec.block[1])


def _check_group(what: str, size: int) -> None:
    if type(size) is not int:
        raise SpecError(f"{what}={size!r} is {type(size).__name__}; it must be an integer, a positive multiple of 8")
    if size < 8 or size % 8:
        raise SpecError(f"{what}={size}: must be a positive multiple of 8 (per-channel is 'channel', not -1)")


def _check_activation(spec: Spec) -> None:
    if spec.activation not in ACTIVATION_FORMATS:
        raise SpecError(f"activation format {spec.activation!r}: allowed are {', '.join(ACTIVATION_FORMATS)}")
    extras = (spec.activation_granularity, spec.activation_group_size, spec.activation_scale, spec.activation_secondary)
    if not spec.quantizes_activation:
        if any(e is not None for e in extras):
            raise SpecError(f"{spec.activation} activations carry no scale; leave the activation granularity out")
        return
    if spec.activation_granularity not in ACTIVATION_GRANULARITIES:
        raise SpecError(
            f"activation granularity {spec.activation_granularity!r}: allowed are tensor, token and gG"
            + ("; channel is a granularity of weights" if spec.activation_granularity == "channel" else "")
        )
    if (spec.activation_granularity == "group") != (spec.activation_group_size is not None):
        raise SpecError(
            f"activation granularity {spec.activation_granularity} with group size {spec.activation_group_size}: "
            "a group needs a size, others take none"
        )
    if spec.activation_group_size is not None:
        _check_group("activation group_size", spec.activation_group_size)
    if spec.activation_scale not in SCALE_FORMATS:
        raise SpecError(f"activation scale format {spec.activation_scale!r}: allowed are {', '.join(SCALE_FORMATS)}")
    if spec.activation_secondary not in (None, "tensor"):
        raise SpecError(f"secondary activation scale {spec.activation_secondary!r}: only tensor is allowed")
    if spec.activation_secondary and spec.activation_granularity != "group":
        raise SpecError(f"a secondary activation scale needs groups, not {spec.activation_granularity}")


# ---- text ----
_TAIL = re.compile(r"(?P<granularity>tensor|channel|token|g-?\d+|b\d+x\d+)(?::(?P<scale>\w+))?(?:\+(?P<secondary>\w+))?$")
_ZERO = re.compile(r"zp(?::(?P<format>\w+))?$")


def _parse_line(line: str) -> dict[str, Any]:
    body, arrow, out = line.partition("->")
    halves = re.split(r"\s+x\s+", body.strip())
    if len(halves) != 2 or (arrow and not out.strip()):
        raise SpecError(f"can't read spec {line!r}: expected 'weight x activation [-> out]', such as 'int4 g128 x bf16'")
    fields = _parse_half(line, halves[0].split(), activation=False)
    fields |= _parse_half(line, halves[1].split(), activation=True)
    if arrow:
        fields["out_dtype"] = out.strip()
    return fields


def _parse_half(line: str, words: list[str], *, activation: bool) -> dict[str, Any]:
    side, prefix = ("activation", "activation_") if activation else ("weight", "")
    fields: dict[str, Any] = {side: words[0]}
    rest = words[1:]
    if not activation and rest and (zero := _ZERO.match(rest[-1])):
        fields["zero_point"] = zero["format"] or "int"
        rest = rest[:-1]
    if len(rest) > 1:
        raise SpecError(f"can't read spec {line!r}: {' '.join(rest[1:])!r} is left over in the {side} half")
    if not rest:
        if not activation and words[0] not in SHORTHANDS:
            raise SpecError(f"can't read spec {line!r}: {words[0]} needs a granularity (tensor, channel, gG or bNxK)")
        return fields
    tail = _TAIL.match(rest[0])
    if tail is None:
        raise SpecError(
            f"can't read {rest[0]!r} in spec {line!r}: expected tensor, channel, token, gG or bNxK, then [:scale][+secondary]"
        )
    kind = tail["granularity"]
    if kind[0] == "g":
        fields[f"{prefix}granularity"], fields[f"{prefix}group_size"] = "group", int(kind[1:])
    elif kind[0] == "b":
        if activation:
            raise SpecError(f"spec {line!r}: block is a granularity of weights; activations take tensor, token or gG")
        n, k = kind[1:].split("x")
        fields["granularity"], fields["block"] = "block", (int(n), int(k))
    else:
        fields[f"{prefix}granularity"] = kind
    fields[f"{prefix}scale"] = tail["scale"]
    fields[f"{prefix}secondary"] = tail["secondary"]
    return fields


def _shorthand(fmt: str, group: int | None, scale: str | None, secondary: str | None) -> str | None:
    for name, half in SHORTHANDS.items():
        if half == (fmt, group, scale, secondary):
            return name
    return None


def _weight_text(spec: Spec) -> str:
    zero = "" if spec.zero_point is None else " zp" if spec.zero_point == "int" else f" zp:{spec.zero_point}"
    short = _shorthand(spec.weight, spec.group_size, spec.scale, spec.secondary)
    if short:
        return short + zero
    kind = spec.granularity
    if kind == "group":
        kind = f"g{spec.group_size}"
    elif kind == "block" and spec.block:
        kind = f"b{spec.block[0]}x{spec.block[1]}"
    scale = "" if spec.scale == _default_scale(spec.activation) else f":{spec.scale}"
    secondary = f"+{spec.secondary}" if spec.secondary else ""
    return f"{spec.weight} {kind}{scale}{secondary}{zero}"


def _activation_text(spec: Spec) -> str:
    if not spec.quantizes_activation:
        return spec.activation
    short = _shorthand(spec.activation, spec.activation_group_size, spec.activation_scale, spec.activation_secondary)
    if short:
        return short
    kind = f"g{spec.activation_group_size}" if spec.activation_granularity == "group" else spec.activation_granularity
    scale = "" if spec.activation_scale == "fp32" else f":{spec.activation_scale}"
    secondary = f"+{spec.activation_secondary}" if spec.activation_secondary else ""
    return f"{spec.activation} {kind}{scale}{secondary}"
