"""Tensor maps as values: which box of which tensor TMA loads. The same value is encoded for a GPU and read by the emulator."""

from __future__ import annotations

from dataclasses import dataclass

from hybrid_humming.cuda_kernels.sm100.config import STEP_BYTES, GemmConfig, code_bits, slot_bits

TILE_ROWS, TILE_COLUMNS, TILE_BYTES = 128, 4, 512  # of one tile of scales


@dataclass(frozen=True, kw_only=True)
class TensorMapSpec:
    """A 2-D tensor of codes, rows contiguous, and the box that one TMA load takes from it.

    bits      of one code;  columns, rows  of the tensor;  stride_bytes  from row to row
    slots     spread each 16 codes of 4 or 6 bits over 16 bytes of shared memory
    swizzled  128-byte swizzle: eight rows of 128 bytes exchange their 16-byte chunks
    """

    bits: int
    columns: int
    rows: int
    stride_bytes: int
    box_columns: int
    box_rows: int
    slots: bool = False
    swizzled: bool = True


def operand_map(config: GemmConfig, fmt: str, rows: int, k: int, stride_bytes: int, box_rows: int) -> TensorMapSpec:
    """Return the map of an operand's codes [rows, k]: boxes of 128 bytes of K.

    Four-bit codes that shared memory keeps packed are loaded as bytes.
    """
    bits, slot = code_bits(fmt), slot_bits(config.kind, fmt)
    spread = bits < slot
    unit = bits if spread else max(bits, 8)
    scale = unit // bits
    return TensorMapSpec(
        bits=unit,
        columns=k // scale,
        rows=rows,
        stride_bytes=stride_bytes,
        box_columns=STEP_BYTES * 8 // slot // scale,
        box_rows=box_rows,
        slots=spread,
    )


def scale_map(config: GemmConfig, tiles: int) -> TensorMapSpec:
    """Return the map of a scale tensor, one tile of 128 x 4 codes (512 bytes, as 16-bit units) a row."""
    return TensorMapSpec(
        bits=16, columns=TILE_BYTES // 2, rows=tiles, stride_bytes=TILE_BYTES, box_columns=TILE_BYTES // 2, box_rows=config.vector,
        swizzled=False,
    )  # fmt: skip
