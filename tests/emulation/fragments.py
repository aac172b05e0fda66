"""Which lane's register holds which element in mma.sync, as index arrays; and the words of a warp to matrices and back.

    A [16, k]   register i of 4: row lane / 4 + 8 (i % 2), columns (lane % 4) e + j + 4 e (i / 2), j < e = 32 / container bits
    B [8, k]    register i of 2: row lane / 4, columns (lane % 4) e + j + 4 e i
    D [16, 8]   register i of 4: row lane / 4 + 8 (i / 2), column 2 (lane % 4) + i % 2
    scales of A: lanes 2 t and 2 t + 1 of each quad (t: thread id, 0 or 1), rows lane / 4 and lane / 4 + 8
    scales of B: lane t of each quad (t: 0 to 3), row lane / 4;  byte id: the first byte of the register that is read

kind::f8f6f4 keeps every element in a byte: 6-bit types in its low bits, e2m1 in bits 2 to 5.
"""

import numpy as np

LANE = np.arange(32)


def operand_index(rows: int, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Return row and column [32, registers, 32 / bits] of every element of an operand fragment; rows is 16 (A) or 8 (B)."""
    each, registers = 32 // bits, rows // 4
    lane, i, j = np.meshgrid(LANE, np.arange(registers), np.arange(each), indexing="ij")
    high_row, high_k = (i % 2, i // 2) if rows == 16 else (0 * i, i)
    return lane // 4 + 8 * high_row, lane % 4 * each + j + 4 * each * high_k


def to_matrix(words: np.ndarray, rows: int, bits: int) -> np.ndarray:
    """Return the codes [rows, k] that a warp's words [32, registers] hold."""
    each = 32 // bits
    row, column = operand_index(rows, bits)
    out = np.zeros((rows, 8 * each), np.int64)
    out[row, column] = words.astype(np.int64)[..., None] >> bits * np.arange(each) & (1 << bits) - 1
    return out


def to_words(codes: np.ndarray, bits: int) -> np.ndarray:
    """Return the words [32, registers] of codes [rows, k]: the inverse of `to_matrix`."""
    row, column = operand_index(codes.shape[0], bits)
    return (codes[row, column].astype(np.int64) << bits * np.arange(32 // bits)).sum(-1).astype(np.uint32)


def accumulator_index() -> tuple[np.ndarray, np.ndarray]:
    """Return row and column [32, 4] of every element of D."""
    lane, i = np.meshgrid(LANE, np.arange(4), indexing="ij")
    return lane // 4 + 8 * (i // 2), 2 * (lane % 4) + i % 2


def scale_matrix(words: np.ndarray, rows: int, count: int, byte: int, thread: int) -> np.ndarray:
    """Return the scale codes [rows, count] in a warp's scale registers [32]."""
    if byte + count > 4 or byte % count or (rows == 16 and thread > 1) or (rows == 8 and thread > 3):
        raise ValueError(f"{count} scales a row at byte {byte}, thread {thread} of the quad")
    row = np.arange(rows)
    lane = row % 8 * 4 + (2 * thread + row // 8 if rows == 16 else thread)
    return words.astype(np.int64)[lane][:, None] >> 8 * (byte + np.arange(count)) & 0xFF


def container(codes: np.ndarray, fmt: str) -> np.ndarray:
    """Return the bytes in which kind::f8f6f4 of mma.sync keeps element codes."""
    return codes << 2 if fmt == "e2m1" else codes


def uncontained(byte: np.ndarray, fmt: str) -> np.ndarray:
    """Return the element codes in such bytes."""
    return byte >> 2 & 15 if fmt == "e2m1" else byte & {"e2m3": 63, "e3m2": 63}.get(fmt, 255)
