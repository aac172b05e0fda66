"""The bits of each editable SASS instruction, as data.

An instruction is 128 bits, little-endian; bit i counts from its least significant bit and the opcode is bits 0 to 11. A
`SassEdit` turns the code of a legal type (`neighbour`) into that of a hidden one, in one operand of one instruction.

Found by comparing the words that ptxas 12.8 to 13.5 write for every pair of types. nvdisasm 13.1 prints E0M3 by name and
prints nothing at all for E3M4, where an unused code prints INVALID; other releases print nothing for both.
"""

from __future__ import annotations

from dataclasses import dataclass

SM12X = (120, 121)
SM1XX = (100, 103, 120, 121)
OPCODE_MASK = 0xFFF


@dataclass(frozen=True)
class BitField:
    """Bits of a word that hold one code, lowest first; they need not be neighbours."""

    bits: tuple[int, ...]

    def get(self, word: int) -> int:
        """Return the code that `word` holds."""
        return sum((word >> bit & 1) << i for i, bit in enumerate(self.bits))

    def set(self, word: int, code: int) -> int:
        """Return `word` with this code, every other bit unchanged."""
        if not 0 <= code < 1 << len(self.bits):
            raise ValueError(f"code {code} does not fit the {len(self.bits)} bits {self.bits}")
        return word & ~self.mask | sum((code >> i & 1) << bit for i, bit in enumerate(self.bits))

    @property
    def mask(self) -> int:
        """The word with these bits set and no other."""
        return sum(1 << bit for bit in self.bits)


@dataclass(frozen=True, kw_only=True)
class SassEdit:
    """One operand of one instruction: where its type is, which legal code to look for, which hidden code to write.

    requires  (field, allowed codes): the word is this instruction's form only when every field has such a code
    refuses   (field, code, reason): a word that is ours and has this code can't run; editing is refused
    sms       SMs whose machine code may be edited
    """

    name: str
    instruction: str
    opcodes: tuple[int, ...]
    field: BitField
    neighbour: str
    source: int
    hidden: str
    target: int
    sms: tuple[int, ...]
    requires: tuple[tuple[BitField, tuple[int, ...]], ...] = ()
    refuses: tuple[tuple[BitField, int, str], ...] = ()

    def matches(self, word: int) -> bool:
        """Whether `word` is this instruction, whatever type it carries."""
        return word & OPCODE_MASK in self.opcodes and all(field.get(word) in codes for field, codes in self.requires)


QMMA, QMMA_SF, OMMA_SF, F2FP, LDSM = 0x27A, 0x47A, 0x47F, 0x23E, 0x83B
QMMA_A, QMMA_B = BitField((78, 82, 83)), BitField((79, 84, 85))
QMMA_CODES = {"e4m3": 0, "e5m2": 1, "e3m4": 2, "e3m2": 3, "e2m3": 4, "e2m1": 5}
OMMA_A, OMMA_B = BitField((78,)), BitField((79,))
OMMA_CODES = {"e2m1": 0, "e0m3": 1}
OMMA_2X = BitField((83,))
F2FP_DOWN = BitField((76, 85, 86, 87))
F2FP_DOWN_CODES = {"e0m3": 2, "e2m1": 3, "e2m3": 6, "e3m2": 7, "e5m2": 8, "e4m3": 9, "e3m4": 10, "e8m0": 12}
F2FP_UP = BitField((73, 74, 82, 83))
F2FP_UP_CODES = {"e5m2": 2, "e4m3": 3, "e0m3": 4, "e2m1": 5, "e2m3": 6, "e3m2": 7, "e3m4": 8}
LDSM_FORM = BitField((75, 76, 77, 78, 79, 80))  # three bits of format, three of shape
LDSM_COUNT = BitField((72, 73))  # log2 of the matrices
LDSM_CODES = {"b16 trans": 0 | 1 << 3, "s4 to s8": 2 | 2 << 3, "s2 to s4": 4 | 3 << 3}

TWO_X = "scales of 32 values (scale_vec::2X) can't go with E0M3: the instruction would fault; use scale_vec::4X"


def _qmma(side: str, field: BitField) -> SassEdit:
    return SassEdit(
        name=f"qmma_e3m4_{side}", instruction="QMMA", opcodes=(QMMA, QMMA_SF), field=field, neighbour="e5m2",
        source=QMMA_CODES["e5m2"], hidden="e3m4", target=QMMA_CODES["e3m4"], sms=SM12X,
    )  # fmt: skip


def _omma(side: str, field: BitField) -> SassEdit:
    return SassEdit(
        name=f"omma_e0m3_{side}", instruction="OMMA", opcodes=(OMMA_SF,), field=field, neighbour="e2m1",
        source=OMMA_CODES["e2m1"], hidden="e0m3", target=OMMA_CODES["e0m3"], sms=SM12X, refuses=((OMMA_2X, 1, TWO_X),),
    )  # fmt: skip


def _down(neighbour: str, hidden: str) -> SassEdit:
    return SassEdit(
        name=f"f2fp_down_{hidden}", instruction="F2FP", opcodes=(F2FP,), field=F2FP_DOWN, neighbour=neighbour,
        source=F2FP_DOWN_CODES[neighbour], hidden=hidden, target=F2FP_DOWN_CODES[hidden], sms=SM1XX,
    )  # fmt: skip


def _up(neighbour: str, hidden: str) -> SassEdit:
    return SassEdit(
        name=f"f2fp_up_{hidden}", instruction="F2FP", opcodes=(F2FP,), field=F2FP_UP, neighbour=neighbour,
        source=F2FP_UP_CODES[neighbour], hidden=hidden, target=F2FP_UP_CODES[hidden], sms=SM1XX,
        requires=((F2FP_DOWN, (0,)),),  # otherwise these bits belong to a conversion down
    )  # fmt: skip


def _ldsm(hidden: str) -> SassEdit:
    return SassEdit(
        name=f"ldsm_{hidden.replace(' ', '_')}", instruction="LDSM", opcodes=(LDSM,), field=LDSM_FORM, neighbour="b16 trans",
        source=LDSM_CODES["b16 trans"], hidden=hidden, target=LDSM_CODES[hidden], sms=(90, *SM1XX),
        requires=((LDSM_COUNT, (1, 2)),),
    )  # fmt: skip


EDITS: dict[str, SassEdit] = {
    edit.name: edit
    for edit in (
        _qmma("a", QMMA_A), _qmma("b", QMMA_B), _omma("a", OMMA_A), _omma("b", OMMA_B),
        _down("e5m2", "e3m4"), _down("e2m1", "e0m3"), _up("e5m2", "e3m4"), _up("e2m1", "e0m3"),
        _ldsm("s4 to s8"), _ldsm("s2 to s4"),
    )
}  # fmt: skip
