"""Which of Blackwell's matrix instructions multiplies a spec: one table that packing, planning and kernels read.

    kind       types of both operands               scales inside the instruction
    f8f6f4     e4m3 e5m2 e3m4 e2m1 (w: e2m3 e3m2)    none: weight scales by channel or tensor, x scales by token or tensor
    mxf8f6f4   the same                              e8m0, one for 32 codes
    mxf4       e2m1                                  e8m0, one for 32 codes
    nvf4       e2m1 e0m3                             e4m3, one for 16 codes

A second, coarser scale is left to the epilogue. e3m4 and e0m3 are hidden types (docs/blackwell.md). A symmetric int4 weight
whose lowest code does not occur is multiplied as e0m3, which has the same values.
"""

from __future__ import annotations

from hybrid_humming.spec import Spec

EIGHT = ("e4m3", "e5m2", "e3m4", "e2m3", "e3m2", "e2m1")
X_EIGHT = ("e4m3", "e5m2", "e3m4", "e2m1")  # x of 6-bit types comes one code a byte, which TMA can't bring into their slots
FOUR = ("e2m1", "e0m3")
HIDDEN = ("e3m4", "e0m3")
AS_FLOAT = {"int4": "e0m3"}
"""Symmetric integer -> the float with the same values but the lowest."""


def encoding_of(spec: Spec, lowest_code_unused: bool) -> str:
    """Return the element format in which a weight of `spec` is multiplied."""
    encoding = AS_FLOAT.get(spec.weight, spec.weight) if lowest_code_unused else spec.weight
    return encoding if umma_kind(spec, encoding)[0] else spec.weight


def umma_kind(spec: Spec, encoding: str) -> tuple[str, str]:
    """Return (kind, "") of a weight stored as `encoding`, or ("", why no kind of tensor memory multiplies the spec)."""
    x = spec.activation
    if not spec.quantizes_activation:
        return "", f"multiplies quantized activations, '{spec}' has {x}"
    if spec.has_zero_point:
        return "", "multiplies weights without zero points"
    if not ((encoding in EIGHT and x in X_EIGHT) or (encoding in FOUR and x in FOUR)):
        note = (
            f"; {spec.weight} counts as {AS_FLOAT[spec.weight]} where its lowest code is unused" if spec.weight in AS_FLOAT else ""
        )
        return "", (
            f"multiplies {', '.join(EIGHT)} by {', '.join(X_EIGHT)}, and two of {', '.join(FOUR)}; "
            f"'{spec}' has {encoding} and {x}{note}"
        )
    groups = (spec.group_size, str(spec.scale_format), spec.activation_group_size, str(spec.activation_scale))
    if groups == (16, "e4m3", 16, "e4m3") and encoding in FOUR and x in FOUR:
        return "nvf4", ""
    if groups == (32, "e8m0", 32, "e8m0") and encoding in EIGHT and x in X_EIGHT:
        return ("mxf4" if encoding == x == "e2m1" else "mxf8f6f4"), ""
    if (
        spec.granularity in ("channel", "tensor")
        and spec.activation_granularity in ("token", "tensor")
        and encoding in EIGHT
        and x in X_EIGHT
    ):
        return "f8f6f4", ""
    return "", (
        "takes e4m3 scales of 16 codes on both sides (4-bit types), e8m0 scales of 32 (8-bit types and mxfp4), or scales by "
        f"channel and token (8-bit types); '{spec}' has others"
    )


def scale_block(kind: str) -> int:
    """Return how many codes share a scale inside the instruction; 0 where scales are left to the epilogue."""
    return {"mxf8f6f4": 32, "mxf4": 32, "nvf4": 16}.get(kind, 0)
