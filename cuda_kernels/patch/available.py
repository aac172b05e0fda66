"""Where the hidden types exist: one function that the catalogs, the editors and `explain` ask."""

from __future__ import annotations

from hybrid_humming import env

VERIFIED = (100, 103, 120, 121)


def hidden_reason(fmt: str, sm: int, scale_group: int = 0) -> str | None:
    """Return why operands of hidden format `fmt` can't be multiplied on `sm`, or None.

    scale_group  values that share a scale inside the instruction; 0: none
    """
    if not env.hidden_formats():
        return f"{fmt} is a hidden type, and HYBRID_HUMMING_HIDDEN_FORMATS=0 turns those off"
    if (sm >= 107 and sm < 110) or sm > 121:
        return f"sm_{sm} has no {fmt}: Rubin (sm_107) and later GPUs dropped the hidden types, an edited kernel would fault"
    if sm not in VERIFIED:
        return f"sm_{sm} has no {fmt}; the hidden types exist on sm_{', sm_'.join(map(str, VERIFIED))}"
    if fmt == "e0m3" and scale_group != 16:
        return f"e0m3 needs one scale for 16 values (scale_vec::4X), this kernel has {scale_group or 'none'}"
    return None
