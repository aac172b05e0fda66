"""Lanes' registers as arrays of 64-bit patterns: signed, unsigned and float views of them."""

import functools
import re

import numpy as np

LANES = np.arange(32)
U64 = np.uint64


def listed(text: str) -> list[str]:
    return [part.strip() for part in text.strip()[1:-1].split(",")]


def signed(value: np.ndarray, bits: int) -> np.ndarray:
    return value.astype(np.int64) if bits == 64 else (value & U64((1 << bits) - 1)).astype(np.int64) << (64 - bits) >> (64 - bits)


def unsigned(value: np.ndarray, bits: int) -> np.ndarray:
    return value & U64((1 << bits) - 1)


def as_float(value: np.ndarray) -> np.ndarray:
    return value.astype(np.uint32).view(np.float32)


def as_bits(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float32).view(np.uint32).astype(U64)


@functools.cache
def width(kind: str) -> int:
    return int(re.sub(r"\D", "", kind) or 0)
