"""What a kernel works on: global memory, a cluster's shared memory, mbarriers and tensor memory, TMA boxes, operand descriptors.

Shared addresses are offsets below 2^24; `mapa` puts 1 + the CTA's rank above them. Memory starts as 0xff bytes (NaN as a float),
so what was not written shows. Work that hardware does on its own (TMA, tcgen05, wgmma) waits in queues and runs only when no
warp can go on, in an order that a random number decides where hardware has none: a missing wait reads what is not there yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.emulation import mma
from tests.emulation.encodings import Instruction, read_descriptor

SHARED_BYTES, WINDOW = 232448, 1 << 24
GLOBAL_BASE, PARAM_BASE, SHARED_BASE = 0x10_0000_0000, 0x20_0000_0000, 0x40_0000_0000


class Fault(Exception):
    """The kernel did what hardware faults on, or waits for what never comes."""


@dataclass
class Barrier:
    """One mbarrier: arrivals and bytes that its current phase still lacks."""

    arrivals: int
    pending: int
    bytes: int = 0
    phase: int = 0

    def settle(self) -> None:
        if self.pending < 0:
            raise Fault("more arrivals than the barrier was made for")
        if self.pending == 0 and self.bytes == 0:
            self.pending, self.phase = self.arrivals, self.phase ^ 1


@dataclass
class Map:
    """A 2-D tensor map: `codes` elements of `bits` a row of global memory, a box of them to shared memory; see `TensorMapSpec`."""

    memory: np.ndarray  # uint8, a flat view of the tensor's bytes
    bits: int
    columns: int
    rows: int
    stride_bytes: int
    box_columns: int
    box_rows: int
    slots: bool  # 16 codes of 4 or 6 bits to each 16 bytes
    swizzled: bool

    def __post_init__(self) -> None:
        if self.stride_bytes % (32 if self.slots else 16):
            raise Fault(f"row stride {self.stride_bytes} is no multiple of {32 if self.slots else 16} bytes")
        if max(self.box_columns, self.box_rows) > 256 or (self.slots and (self.columns % 128 or self.box_columns != 128)):
            raise Fault(f"box {self.box_rows} x {self.box_columns} of {self.rows} x {self.columns} codes of {self.bits} bits")
        if self.swizzled and self.row_bytes > 128:
            raise Fault(f"a swizzled box has rows of {self.row_bytes} bytes, more than 128")

    @property
    def row_bytes(self) -> int:
        return self.box_columns if self.slots else self.box_columns * self.bits // 8

    def box(self, x: int, y: int) -> np.ndarray:
        """Return the bytes [box_rows, row_bytes] of the box whose first code is (x, y); zeros outside the tensor."""
        width = self.box_columns * self.bits // 8
        out = np.zeros((self.box_rows, width), np.uint8)
        start, limit = x * self.bits // 8, self.columns * self.bits // 8
        for i in range(self.box_rows):
            if 0 <= y + i < self.rows and start < limit:
                row = self.memory[(y + i) * self.stride_bytes :][start : min(start + width, limit)]
                out[i, : len(row)] = row
        if self.slots:
            each = 2 * self.bits
            spread = np.zeros((self.box_rows, self.box_columns // 16, 16), np.uint8)
            spread[..., :each] = out.reshape(self.box_rows, -1, each)
            out = spread.reshape(self.box_rows, -1)
        return out


@dataclass
class Block:
    """One CTA: its shared memory, barriers and tensor memory, and what it has handed to hardware."""

    rank: int
    cluster: list[Block]
    shared: np.ndarray = field(default_factory=lambda: np.full(SHARED_BYTES, 0xFF, np.uint8))
    barriers: dict[int, Barrier] = field(default_factory=dict)
    tensor: np.ndarray = field(default_factory=lambda: np.full((128, 512), 0xFFFFFFFF, np.uint32))
    allocated: int = 0
    loads: list[Callable[[], None]] = field(default_factory=list)
    products: deque[Callable[[], None]] = field(default_factory=deque)
    counts: dict[str, int] = field(default_factory=dict)

    def at(self, address: int) -> tuple[Block, int]:
        """The CTA and the offset that a shared address means, seen from this CTA."""
        rank, offset = divmod(int(address), WINDOW)
        return (self.cluster[rank - 1] if rank else self), offset

    def barrier(self, address: int) -> Barrier:
        owner, offset = self.at(address)
        if offset not in owner.barriers:
            raise Fault(f"no barrier was made at shared address {offset:#x} of CTA {owner.rank}")
        return owner.barriers[offset]

    def arrive(self, address: int, count: int = 1, expect: int = 0) -> None:
        barrier = self.barrier(address)
        barrier.bytes += expect
        barrier.pending -= count
        barrier.settle()

    def complete(self, address: int, bytes_: int) -> None:
        barrier = self.barrier(address)
        barrier.bytes -= bytes_
        barrier.settle()

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    # ---- TMA ----
    def tma_load(self, target: int, source: Map, x: int, y: int, barrier: int, pair: bool) -> None:
        """Queue one box; the barrier may be in another CTA only for a pair."""
        owner, offset = self.at(target)
        if owner is not self or (self.at(barrier)[0] is not self and not pair):
            raise Fault("TMA without cta_group::2 signals its own CTA alone")
        if offset % (1024 if source.swizzled else 128):
            raise Fault(f"the box goes to {offset:#x}, which is not aligned for its swizzle")

        def run() -> None:
            data = source.box(x, y)
            row, byte = np.indices(data.shape)
            self.shared[swizzled(offset + row * source.row_bytes + byte, source.swizzled)] = data
            self.complete(barrier, data.size)

        self.loads.append(run)

    # ---- tensor memory ----
    def operand(self, descriptor: int, rows: int, bytes_: int = 32, *, hopper: bool = False) -> np.ndarray:
        """Return the bytes [rows, bytes_] that an operand's shared memory descriptor points at."""
        start, stride = (descriptor & 0x3FFF) << 4, (descriptor >> 32 & 0x3FFF) << 4
        if hopper:
            swizzle = {0: False, 1: True}.get(descriptor >> 62)
        else:
            swizzle = {0: False, 2: True}.get(descriptor >> 61)
            if descriptor >> 46 & 7 != 1 or descriptor >> 49 & 7:
                raise Fault(f"descriptor {descriptor:#x}: bits 46 to 51 must be 1 (version) and no base offset")
        if swizzle is None:
            raise Fault(f"descriptor {descriptor:#x}: a swizzle that this kernel has no use for")
        row, byte = np.indices((rows, bytes_))
        within = 128 if swizzle else 16
        return self.shared[swizzled(start + row // 8 * stride + row % 8 * within + byte, swizzle)]

    def scales(self, address: int, rows: int, count: int, first: int) -> np.ndarray:
        """Return the scale codes [rows, count] of one instruction: byte `first` on of each row's word."""
        lane, column = address >> 16, address & 0xFFFF
        if lane:
            raise Fault("scales start at lane 0")
        row = np.arange(rows)
        words = self.tensor[row % 32, column + row // 32]
        for part in range(1, 4):
            if not np.array_equal(words, self.tensor[32 * part + row % 32, column + row // 32]):
                raise Fault(f"the scales differ between the parts of tensor memory at column {column}")
        return words[:, None] >> (8 * (first + np.arange(count, dtype=np.uint32))) & np.uint32(0xFF)

    def copy_scales(self, target: int, descriptor: int, group: int) -> None:
        """Queue tcgen05.cp.32x128b.warpx4."""

        def run() -> None:
            for block in self.cluster[:group] if group == 2 else [self]:
                words = block.operand(descriptor, 32, 16).view(np.uint32)
                block.tensor[:, target : target + 4] = np.tile(words, (4, 1))

        self.products.append(run)

    def umma(
        self, kind: str, modifiers: str, d: int, a: int, b: int, word: int, accumulate: bool, sa: int, sb: int, group: int
    ) -> None:
        """Queue one tcgen05.mma of one or two CTAs."""
        try:
            descriptor = read_descriptor(word, kind)
        except ValueError as error:
            raise Fault(str(error)) from error
        if descriptor.m != 128 * group or descriptor.n % (16 * group):
            raise Fault(f"cta_group::{group} with m={descriptor.m}, n={descriptor.n}")
        self.count(f"umma {kind} {descriptor.a} {descriptor.b}")

        def run() -> None:
            blocks = self.cluster[:2] if group == 2 else [self]
            x = np.concatenate([block.operand(b, descriptor.n // group) for block in blocks])
            for block in blocks:
                columns = slice(d & 0xFFFF, (d & 0xFFFF) + descriptor.n)
                before = block.tensor[:, columns].view(np.float32) if accumulate else np.zeros((128, descriptor.n), np.float32)
                scales = ()
                if descriptor.scale:
                    vector = {"block16": 4, "block32": mma.DEPTH[kind] // 32}[modifiers]
                    ids = descriptor.a_scale_id, descriptor.b_scale_id
                    scales = tuple(
                        block.scales(address, rows, vector, first)
                        for address, rows, first in ((sa, 128, ids[0]), (sb, descriptor.n, ids[1]))
                    )
                result = half_umma(descriptor, block.operand(a, 128), x, before, scales)
                block.tensor[:, columns] = result.view(np.uint32)

        self.products.append(run)

    def commit(self, barrier: int, mask: int | None) -> None:
        """Queue the arrival that follows every product issued so far."""
        _, offset = self.at(barrier)
        targets = [self] if mask is None else [block for block in self.cluster if mask >> block.rank & 1]

        def run() -> None:
            for block in targets:
                block.arrive(offset)

        self.products.append(run)


def half_umma(instruction: Instruction, a_bytes, b_bytes, d, scales) -> np.ndarray:
    """Return D [128, n] of one CTA, which holds 128 of the instruction's rows."""
    kind, own = instruction.kind, instruction._replace(m=128)
    return mma.tensor_mma(own, codes_of(a_bytes, kind, own.a), codes_of(b_bytes, kind, own.b), d, *scales)


def codes_of(data: np.ndarray, kind: str, fmt: str) -> np.ndarray:
    """Return the element codes in 32 bytes a row of shared memory, as an instruction of `kind` reads them."""
    if kind in ("f16", "tf32"):
        return data.view(np.uint16).astype(np.int64)
    wide = data.astype(np.int64)
    if kind in ("mxf4", "mxf4nvf4"):
        return np.stack([wide & 15, wide >> 4], -1).reshape(len(data), -1)
    bits = {"e2m1": 4, "e2m3": 6, "e3m2": 6}.get(fmt, 8)
    if bits == 8:
        return wide
    slots = wide.reshape(len(data), -1, 16)[..., : 2 * bits]
    stream = (slots[..., None] >> np.arange(8) & 1).reshape(*slots.shape[:2], 16, bits)
    return (stream << np.arange(bits)).sum(-1).reshape(len(data), -1)


def swizzled(address: np.ndarray, on: bool) -> np.ndarray:
    """128-byte swizzle: address bits 4 to 6 are exchanged by bits 7 to 9."""
    return address ^ (address >> 7 & 7) << 4 if on else address
