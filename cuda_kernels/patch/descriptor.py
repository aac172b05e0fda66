"""The 32-bit instruction descriptor of `tcgen05.mma`: every field typed, to and from the word.

    bits    f16, tf32, f8f6f4, i8                           mxf8f6f4, mxf4, mxf4nvf4
    3       saturate (i8)
    4-5     D: 0 fp16, 1 fp32, 2 int32                      B scale id
    7-9     A type                                          A type
    10-12   B type                                          B type (10-11 for the 4-bit kinds)
    13, 14  negate A, B                                     same
    15, 16  transpose A, B                                  same
    17-22   N / 8                                           same
    23      -                                               scale: 0 ue4m3, 1 ue8m0
    24-28   M / 16                                          27-28: M / 128
    29-30   -                                               A scale id

Hidden: type 2 of f8f6f4 and mxf8f6f4 is e3m4, type 0 of mxf4nvf4 with a scale for 16 values is e0m3.
"""

from __future__ import annotations

from dataclasses import dataclass

from hybrid_humming.cuda_kernels.patch.fields import BitField
from hybrid_humming.errors import FormatError, PatchError

_EIGHT = {"e4m3": 0, "e5m2": 1, "e3m4": 2, "e2m3": 3, "e3m2": 4, "e2m1": 5}
_FOUR = {"e0m3": 0, "e2m1": 1}
TYPES: dict[str, dict[str, int]] = {
    "f16": {"fp16": 0, "bf16": 1},
    "tf32": {"tf32": 2},
    "i8": {"uint8": 0, "int8": 1},
    "f8f6f4": _EIGHT,
    "mxf8f6f4": _EIGHT,
    "mxf4": {"e2m1": 1},
    "mxf4nvf4": _FOUR,
}
ACCUMULATORS = {"fp16": 0, "fp32": 1, "int32": 2}
SCALES = {"e4m3": 0, "e8m0": 1}
SCALED_KINDS = ("mxf8f6f4", "mxf4", "mxf4nvf4")
A_TYPE, B_TYPE, ACC = BitField((7, 8, 9)), BitField((10, 11, 12)), BitField((4, 5))
N8, M16, M128 = BitField(tuple(range(17, 23))), BitField(tuple(range(24, 29))), BitField((27, 28))
SCALE, A_SCALE_ID, B_SCALE_ID = BitField((23,)), BitField((29, 30)), BitField((4, 5))
NEGATE_A, NEGATE_B, TRANSPOSE_A, TRANSPOSE_B = (BitField((bit,)) for bit in (13, 14, 15, 16))


@dataclass(frozen=True, kw_only=True)
class InstructionDescriptor:
    """One multiplication of tensor memory: D [m, n] += A [m, k] @ B [n, k].T, types and tile. `scale` only in scaled kinds."""

    kind: str
    a: str
    b: str
    m: int
    n: int
    accumulator: str = "fp32"
    scale: str = ""
    a_scale_id: int = 0
    b_scale_id: int = 0
    negate_a: bool = False
    negate_b: bool = False
    transpose_a: bool = False
    transpose_b: bool = False

    def __post_init__(self) -> None:
        if self.kind not in TYPES:
            raise PatchError(f"tcgen05 has no kind {self.kind!r}; it has {', '.join(TYPES)}")
        for side, fmt in (("A", self.a), ("B", self.b)):
            if fmt not in TYPES[self.kind]:
                raise FormatError(f"kind::{self.kind} takes no {fmt} as {side}; it takes {', '.join(TYPES[self.kind])}")
        allowed = SCALES if self.kind in SCALED_KINDS else ("",)
        if self.scale not in allowed or (self.kind in ("mxf8f6f4", "mxf4") and self.scale != "e8m0"):
            raise FormatError(f"kind::{self.kind} takes no scales of {self.scale or 'no format'}")
        if self.accumulator not in ACCUMULATORS:
            raise PatchError(f"kind::{self.kind} takes no accumulator {self.accumulator!r}; it takes {', '.join(ACCUMULATORS)}")
        if self.m not in (64, 128, 256) or not 8 <= self.n <= 256 or self.n % 8 or (self.kind in SCALED_KINDS and self.m == 64):
            raise PatchError(f"tile {self.m} x {self.n}: m is 64, 128 or 256 (128 or 256 with scales), n a multiple of 8 up to 256")

    @property
    def hidden(self) -> tuple[str, ...]:
        """The hidden types among the operands."""
        return tuple(fmt for fmt in (self.a, self.b) if fmt in ("e3m4", "e0m3"))

    def encode(self) -> int:
        """Return the 32-bit word."""
        types = TYPES[self.kind]
        word = N8.set(B_TYPE.set(A_TYPE.set(0, types[self.a]), types[self.b]), self.n // 8)
        for field, value in (
            (NEGATE_A, self.negate_a), (NEGATE_B, self.negate_b), (TRANSPOSE_A, self.transpose_a), (TRANSPOSE_B, self.transpose_b),
        ):  # fmt: skip
            word = field.set(word, int(value))
        if self.kind in SCALED_KINDS:
            word = M128.set(SCALE.set(word, SCALES[self.scale]), self.m // 128)
            return B_SCALE_ID.set(A_SCALE_ID.set(word, self.a_scale_id), self.b_scale_id)
        return M16.set(ACC.set(word, ACCUMULATORS[self.accumulator]), self.m // 16)

    @classmethod
    def decode(cls, word: int, kind: str) -> InstructionDescriptor:
        """Return the fields of `word` as an instruction of `kind` reads it; raises PatchError for a code that means nothing."""
        if kind not in TYPES:
            raise PatchError(f"tcgen05 has no kind {kind!r}; it has {', '.join(TYPES)}")
        names = {code: name for name, code in TYPES[kind].items()}
        a, b = A_TYPE.get(word), B_TYPE.get(word)
        if a not in names or b not in names:
            raise PatchError(f"descriptor {word:#x}: type codes {a} and {b}; kind::{kind} has {names}")
        scaled = kind in SCALED_KINDS
        accumulators = {code: name for name, code in ACCUMULATORS.items()}
        made = cls(
            kind=kind, a=names[a], b=names[b], n=8 * N8.get(word), m=128 * M128.get(word) if scaled else 16 * M16.get(word),
            accumulator="fp32" if scaled else accumulators.get(ACC.get(word), f"code {ACC.get(word)}"),
            scale=("e4m3", "e8m0")[SCALE.get(word)] if scaled else "",
            a_scale_id=A_SCALE_ID.get(word) if scaled else 0, b_scale_id=B_SCALE_ID.get(word) if scaled else 0,
            negate_a=bool(NEGATE_A.get(word)), negate_b=bool(NEGATE_B.get(word)),
            transpose_a=bool(TRANSPOSE_A.get(word)), transpose_b=bool(TRANSPOSE_B.get(word)),
        )  # fmt: skip
        if made.encode() != word:
            raise PatchError(f"descriptor {word:#x} has bits that kind::{kind} does not know: {word ^ made.encode():#x}")
        return made
