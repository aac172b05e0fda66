"""Set hidden types in the instruction descriptors of a PTX text: Triton's kernels keep them as constants.

    mov.b32  %r63, 136316048;
    tcgen05.mma.cta_group::1.kind::f8f6f4 [ %r384 + 0 ], %rd42, %rd43, %r63, %p13;

A kernel that takes its descriptor as an argument needs no edit. Only the constant changes: ptxas takes every type code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from hybrid_humming import env
from hybrid_humming.cuda_kernels.patch.descriptor import InstructionDescriptor
from hybrid_humming.errors import PatchError

NEIGHBOURS = {"e3m4": "e5m2", "e0m3": "e2m1"}
_MMA = re.compile(r"tcgen05\.mma\.[\w.:]*?kind::(\w+)([\w.:]*)\s+([^;]*);")
_REGISTER = re.compile(r"%[\w$]+")


@dataclass(frozen=True, kw_only=True)
class Site:
    """One tcgen05.mma of a text: its kind, block modifier, the register of its descriptor, and the constant in it."""

    kind: str
    modifiers: str
    register: str
    word: int

    @property
    def descriptor(self) -> InstructionDescriptor:
        """The constant, decoded."""
        return InstructionDescriptor.decode(self.word, self.kind)


def read_descriptors(ptx: str) -> tuple[Site, ...]:
    """Return every tcgen05.mma of `ptx` with its constant descriptor, in order; PatchError where one is no constant."""
    constants = _constants(ptx)
    sites = []
    for found in _MMA.finditer(ptx):
        register = _operands(found[3])[3]
        values = constants.get(register, [])
        if len(values) != 1:
            raise PatchError(
                f"the descriptor of {found[0][:60]!r} is {register}, which {len(values)} constants define; "
                "only a kernel with a single constant descriptor can be edited: pass the descriptor as an argument instead"
            )
        sites.append(Site(kind=found[1], modifiers=found[2], register=register, word=values[0] & 0xFFFFFFFF))
    return tuple(sites)


def patch_ptx(ptx: str, *, a: str, b: str, promised: int, sm: int) -> str:
    """Return `ptx` with operand types `a` and `b` in every tcgen05.mma; a hidden one replaces its legal neighbour.

    promised  how many instructions carry the legal types: any other count is refused
    """
    hidden = [fmt for fmt in (a, b) if fmt in NEIGHBOURS]
    if not env.hidden_formats():
        raise PatchError("HYBRID_HUMMING_HIDDEN_FORMATS=0 turns the hidden types off; unset it, or choose another format")
    _check_target(ptx, sm, hidden)
    legal = (NEIGHBOURS.get(a, a), NEIGHBOURS.get(b, b))
    sites = read_descriptors(ptx)
    plain = [site for site in sites if (site.descriptor.a, site.descriptor.b) == legal]
    done = [site for site in sites if (site.descriptor.a, site.descriptor.b) == (a, b)]
    if legal != (a, b) and plain and done:
        raise PatchError(
            f"{len(done)} descriptors carry {a} x {b} and {len(plain)} {' x '.join(legal)}: edited in part, compile again"
        )
    ours = done or plain
    if len(ours) != promised or promised < 1:
        raise PatchError(
            f"{len(ours)} tcgen05.mma carry {' x '.join(legal)} or {a} x {b}, the kernel promised {promised}; "
            "the compiler chose other instructions, or swapped operands: this kernel can't be edited"
        )
    for site in ours:
        if "e0m3" in hidden and not (site.kind == "mxf4nvf4" and re.search(r"block16|scale_vec::4X", site.modifiers)):
            raise PatchError(f"kind::{site.kind}{site.modifiers}: e0m3 needs kind::mxf4nvf4 with one scale for 16 values (block16)")
    for register, word in {site.register: site.word for site in ours if site in plain}.items():
        _check_only_descriptor(ptx, register, [site.register for site in ours].count(register))
        kind = next(site.kind for site in ours if site.register == register)
        edited = replace(InstructionDescriptor.decode(word, kind), a=a, b=b).encode()
        ptx = re.sub(rf"(mov\.[bus]32\s+{re.escape(register)},\s*)[^;]+;", rf"\g<1>{_signed(edited)};", ptx)
    return ptx


def _check_target(ptx: str, sm: int, hidden: list[str]) -> None:
    found = re.search(r"^\s*\.target\s+(sm_\w+)", ptx, re.M)
    target = found[1] if found else "no target at all"
    if 107 <= sm < 110 or sm > 121:
        raise PatchError(f"sm_{sm} has no {' or '.join(hidden)}; Rubin (sm_107) and later GPUs dropped the hidden types")
    if sm not in (100, 103):
        raise PatchError(f"sm_{sm}: tcgen05 takes hidden types on sm_100 and sm_103; on sm_120 and sm_121 edit the cubin")
    if target != f"sm_{sm}a":
        raise PatchError(f"the PTX is for {target}, the kernel for sm_{sm}a; compile it for sm_{sm}a")


def _constants(ptx: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for register, value in re.findall(r"mov\.[bus]32\s+(%[\w$]+),\s*([^;]+);", ptx):
        if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?", value.strip()):
            found.setdefault(register, []).append(int(value.strip().rstrip("U"), 0))
        else:
            found.setdefault(register, []).extend((0, 0))  # a copy: no constant
    return found


def _check_only_descriptor(ptx: str, register: str, uses: int) -> None:
    code = re.sub(r"//[^\n]*", "", ptx)
    times = len(re.findall(rf"{re.escape(register)}(?![\w$])", code))
    if times != uses + 1:
        raise PatchError(
            f"register {register} holds a descriptor and is used {times - uses - 1} times for something else; "
            "its constant can't be edited: compile the kernel again, or pass the descriptor as an argument"
        )


def _operands(text: str) -> list[str]:
    """Split an instruction's operands at the commas outside brackets; returns them stripped."""
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char in "[{(") - (char in "]})")
        if char == "," and not depth:
            parts.append(text[start:i].strip())
            start = i + 1
    return [*parts, text[start:].strip()]


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word
