"""Set hidden types in a cubin: the same bytes but for the type bits of the instructions that were promised.

    patched = patch_cubin(cubin, {EDITS["qmma_e3m4_a"]: 64, EDITS["qmma_e3m4_b"]: 64}, sm=120)

Editing twice gives the same bytes. `.nv.capmerc` sections hold a second form of the kernel, from which a driver could
translate for another GPU of the family; it is left alone, so a cubin that is not for exactly this SM is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from hybrid_humming import env
from hybrid_humming.cuda_kernels.patch.fields import SassEdit
from hybrid_humming.errors import PatchError
from hybrid_humming.jit.elf import WORD_BYTES, Cubin, read_cubin


def patch_cubin(cubin: bytes, promised: Mapping[SassEdit, int], *, sm: int) -> bytes:
    """Return `cubin` with each edit made on exactly as many instructions as promised.

    An instruction that carries any other type stays as it is. Raises PatchError when a count differs, when only some of an
    edit's instructions carry the hidden type already, or when the cubin is not one for `sm` alone.
    """
    if not env.hidden_formats():
        raise PatchError("HYBRID_HUMMING_HIDDEN_FORMATS=0 turns the hidden types off; unset it, or choose another format")
    header = read_cubin(cubin)
    for edit in promised:
        _check_target(header, edit, sm)
    image = bytearray(cubin)
    for edit, count in promised.items():
        plain, done = _find(header, bytes(image), edit)
        if plain and done:
            raise PatchError(
                f"{edit.name}: {len(done)} instructions carry {edit.hidden} and {len(plain)} {edit.neighbour}; "
                "the cubin was edited in part: build it again"
            )
        if (found := len(plain) + len(done)) != count or count < 1:
            raise PatchError(
                f"{edit.name}: {found} {edit.instruction} instructions carry {edit.neighbour} or {edit.hidden}, the kernel "
                f"promised {count}; the compiler chose other instructions, or swapped operands: this kernel can't be edited"
            )
        for offset, word in plain:
            image[offset : offset + WORD_BYTES] = edit.field.set(word, edit.target).to_bytes(WORD_BYTES, "little")
    return bytes(image)


def count_edits(cubin: bytes, edit: SassEdit) -> tuple[int, int]:
    """Return how many instructions carry the edit's legal type, and how many its hidden one."""
    plain, done = _find(read_cubin(cubin), cubin, edit)
    return len(plain), len(done)


def _find(header: Cubin, image: bytes, edit: SassEdit) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    plain: list[tuple[int, int]] = []
    done: list[tuple[int, int]] = []
    for offset, word in header.words(image):
        if not edit.matches(word) or (code := edit.field.get(word)) not in (edit.source, edit.target):
            continue
        for field, bad, reason in edit.refuses:
            if field.get(word) == bad:
                raise PatchError(f"{edit.name}: the instruction at byte {offset:#x} has {reason}")
        (plain if code == edit.source else done).append((offset, word))
    return plain, done


def _check_target(header: Cubin, edit: SassEdit, sm: int) -> None:
    if header.sm != sm:
        raise PatchError(f"{edit.name}: the cubin is for sm_{header.sm}, the kernel for sm_{sm}; compile it for sm_{sm}")
    if 107 <= sm < 110 or sm > 121:
        raise PatchError(f"{edit.name}: sm_{sm} has no {edit.hidden}; Rubin (sm_107) and later GPUs dropped the hidden types")
    if sm not in edit.sms:
        raise PatchError(f"{edit.name}: sm_{sm} has no such instruction; it exists on sm_{', sm_'.join(map(str, edit.sms))}")
    wanted = f"sm_{sm}a"
    if sm >= 100 and header.target not in (wanted, wanted.replace("sm", "compute")):
        why = (
            "runs elsewhere in its family from a second, unedited form"
            if header.target.endswith("f")
            else "is not for this SM alone"
        )
        raise PatchError(f"{edit.name}: a cubin built for {header.target or 'an unnamed target'} {why}; compile it for {wanted}")
