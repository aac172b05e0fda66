"""What hardware reads: the bits of tcgen05's instruction descriptor and of SASS words, written down a second time.

The library's own tables (cuda_kernels/patch) make the bits; these, from the reference pages alone, take them apart. So a wrong
bit on either side shows.
"""

from typing import NamedTuple

EIGHT = ("e4m3", "e5m2", "e3m4", "e2m3", "e3m2", "e2m1")
TYPES = {
    "f16": ("fp16", "bf16"),
    "i8": ("uint8", "int8"),
    "f8f6f4": EIGHT,
    "mxf8f6f4": EIGHT,
    "mxf4": ("", "e2m1"),
    "mxf4nvf4": ("e0m3", "e2m1"),
}
QMMA_TYPES = ("e4m3", "e5m2", "e3m4", "e3m2", "e2m3", "e2m1")


class Instruction(NamedTuple):
    """One tcgen05.mma as its descriptor says."""

    kind: str
    a: str
    b: str
    m: int
    n: int
    accumulator: str
    scale: str
    a_scale_id: int
    b_scale_id: int
    negate_a: bool
    negate_b: bool
    transpose_a: bool
    transpose_b: bool

    @property
    def hidden(self) -> tuple[str, ...]:
        return tuple(fmt for fmt in (self.a, self.b) if fmt in ("e3m4", "e0m3"))


def read_descriptor(word: int, kind: str) -> Instruction:
    """Return the fields of a descriptor; ValueError for a code or bit that means nothing to this kind."""
    scaled = kind.startswith("mx")
    a, b = word >> 7 & 7, word >> 10 & 7
    if max(a, b) >= len(TYPES[kind]) or "" in (TYPES[kind][a], TYPES[kind][b]):
        raise ValueError(f"type codes {a}, {b} of kind::{kind}")
    unknown = word & (0b111 | 1 << 3) | (word & (1 << 6)) | (word & (1 << 31))
    unknown |= word & 0x07000000 if scaled else word & 0x60800000
    accumulator = "fp32" if scaled else ("fp16", "fp32", "int32", "")[word >> 4 & 3]
    if unknown or not accumulator:
        raise ValueError(f"descriptor {word:#x} of kind::{kind}")
    return Instruction(
        kind=kind,
        a=TYPES[kind][a],
        b=TYPES[kind][b],
        m=128 * (word >> 27 & 3) if scaled else 16 * (word >> 24 & 31),
        n=8 * (word >> 17 & 63),
        accumulator=accumulator,
        scale=("e4m3", "e8m0")[word >> 23 & 1] if scaled else "",
        a_scale_id=word >> 29 & 3 if scaled else 0,
        b_scale_id=word >> 4 & 3 if scaled else 0,
        negate_a=bool(word >> 13 & 1),
        negate_b=bool(word >> 14 & 1),
        transpose_a=bool(word >> 15 & 1),
        transpose_b=bool(word >> 16 & 1),
    )


def read_warp_mma(word: int) -> tuple[str, str, str] | None:
    """Return (instruction, type of A, type of B) of a QMMA or OMMA word of sm_120; None for any other instruction."""

    def code(*bits: int) -> int:
        return sum((word >> bit & 1) << i for i, bit in enumerate(bits))

    if word & 0xFFF in (0x27A, 0x47A):
        a, b = code(78, 82, 83), code(79, 84, 85)
        if max(a, b) >= len(QMMA_TYPES):
            raise ValueError(f"QMMA with type codes {a}, {b}")
        return "QMMA", QMMA_TYPES[a], QMMA_TYPES[b]
    if word & 0xFFF == 0x47F:
        hidden = code(78), code(79)
        if any(hidden) and code(83):
            raise ValueError("OMMA with E0M3 and scale_vec::2X")
        return "OMMA", *(("e2m1", "e0m3")[h] for h in hidden)
    return None
