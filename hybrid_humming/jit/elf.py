"""A cubin's target and its instruction words: the part of the ELF that editing needs, every offset checked.

64-bit little-endian ELF, e_machine 190 (CUDA); SM in e_flags: bits 8 to 15 (ABI 8) or 0 to 7 (ABI 7 and before)
instructions: PROGBITS sections with the execute flag, 16 bytes each
the compiler's own -arch in the note section .note.nv.tkinfo, written by ptxas and NVRTC from 12.8 on
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from hybrid_humming.errors import PatchError

MACHINE_CUDA = 190
PROGBITS, NOBITS, EXECUTE = 1, 8, 4
WORD_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class Section:
    """One section: name, type, flags, where its bytes lie in the file."""

    name: str
    kind: int
    flags: int
    offset: int
    size: int


@dataclass(frozen=True, kw_only=True)
class Cubin:
    """The header of a cubin: SM number, target as the compiler was asked for it (`sm_120a`; empty if not noted), sections."""

    sm: int
    target: str
    sections: tuple[Section, ...]

    def words(self, image: bytes) -> Iterator[tuple[int, int]]:
        """Yield (offset in the file, 128-bit word) of every instruction."""
        for section in self.sections:
            if section.kind == PROGBITS and section.flags & EXECUTE:
                for offset in range(section.offset, section.offset + section.size, WORD_BYTES):
                    yield offset, int.from_bytes(image[offset : offset + WORD_BYTES], "little")


def read_cubin(image: bytes) -> Cubin:
    """Return the header of a cubin; raises PatchError for anything else, with what is wrong."""
    if image[:4] != b"\x7fELF":
        raise PatchError(f"not a cubin: it starts with {image[:4]!r}, a cubin with the ELF magic; pass the compiled binary")
    if len(image) < 64:
        raise PatchError(f"the cubin is cut off: {len(image)} bytes, its header alone has 64; build or copy it again")
    if image[4] != 2 or image[5] != 1:
        raise PatchError(f"the ELF is of class {image[4]} and byte order {image[5]}; cubins are 64-bit (2) little-endian (1)")
    machine, flags = struct.unpack_from("<H", image, 18)[0], struct.unpack_from("<I", image, 48)[0]
    if machine != MACHINE_CUDA:
        raise PatchError(f"the ELF is for machine {machine}, not CUDA ({MACHINE_CUDA}); pass the GPU's binary, not the host's")
    sections = _sections(image)
    sm = flags >> 8 & 0xFF if image[8] >= 8 else flags & 0xFF
    return Cubin(sm=sm, target=_target(image, sections), sections=sections)


def _sections(image: bytes) -> tuple[Section, ...]:
    table, each, count, names = *struct.unpack_from("<Q", image, 40), *struct.unpack_from("<HHH", image, 58)
    if each != 64 or names >= count or table + each * count > len(image):
        raise PatchError(
            f"the cubin is cut off: {count} section headers of {each} bytes at {table} do not fit its {len(image)} bytes; "
            "build or copy it again"
        )
    segments, size_each, segment_count = *struct.unpack_from("<Q", image, 32), *struct.unpack_from("<HH", image, 54)
    if segments + size_each * segment_count > len(image):
        raise PatchError(
            f"the cubin is cut off: {segment_count} program headers of {size_each} bytes at {segments} do not fit its "
            f"{len(image)} bytes; build or copy it again"
        )
    raw = [struct.unpack_from("<IIQQQQ", image, table + each * i) for i in range(count)]
    strings = image[raw[names][4] : raw[names][4] + raw[names][5]]
    found = []
    for name, kind, flags, _, offset, size in raw:
        text = strings[name : strings.find(b"\0", name)].decode("ascii", "replace")
        if kind != NOBITS and offset + size > len(image):
            raise PatchError(f"the cubin is cut off: section {text!r} ends at {offset + size}, the file at {len(image)}")
        if kind == PROGBITS and flags & EXECUTE and size % WORD_BYTES:
            raise PatchError(f"section {text!r} has {size} bytes, no multiple of an instruction's {WORD_BYTES}; rebuild the cubin")
        found.append(Section(name=text, kind=kind, flags=flags, offset=offset, size=size))
    return tuple(found)


def _target(image: bytes, sections: tuple[Section, ...]) -> str:
    for section in sections:
        if section.name == ".note.nv.tkinfo":
            text = image[section.offset : section.offset + section.size].decode("ascii", "replace")
            found = re.search(r"-arch[ =]+((?:sm|compute)_\d+[af]?)", text)
            return found[1] if found else ""
    return ""
