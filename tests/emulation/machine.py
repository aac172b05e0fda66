"""Runs the PTX of a whole kernel on a CPU: warps of 32 lanes, barriers, TMA, tensor memory, clusters of one or two CTAs.

    counts = run(ptx, params, grid=(4, 1), cluster=1, threads=192, seed=0)

params are bytes of each parameter in order, `Map`s for tensor maps, or `Pointer`s to numpy arrays, which the kernel reads and
writes in place. A lane has its own program counter; the lowest runs first, so lanes meet again behind a branch.
Raises Fault for a deadlock, and for what hardware would fault on; an instruction it doesn't know is NotImplementedError.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.emulation import hardware, plain
from tests.emulation.memory import GLOBAL_BASE, PARAM_BASE, Block, Fault, Map
from tests.emulation.ptx import Instruction, Kernel, parse
from tests.emulation.words import LANES, U64

HANDLERS = plain.HANDLERS | hardware.HANDLERS


@dataclass(frozen=True, eq=False)
class Pointer:
    """A pointer parameter: the first element of a numpy array, or a place inside a struct of other bytes."""

    array: np.ndarray


@dataclass
class Memory:
    """Global memory: each array at an address of its own."""

    arrays: list[tuple[int, np.ndarray]] = field(default_factory=list)
    maps: list[Map] = field(default_factory=list)
    params: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint8))

    def add(self, array: np.ndarray) -> int:
        flat = array.reshape(-1).view(np.uint8)
        base = self.arrays[-1][0] + len(self.arrays[-1][1]) + 4096 if self.arrays else GLOBAL_BASE
        base = -(-base // 1024) * 1024
        self.arrays.append((base, flat))
        return base

    def find(self, addresses: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        low, high = int(addresses.min()), int(addresses.max()) + size
        if low >= PARAM_BASE:
            return self.params, addresses - U64(PARAM_BASE)
        for base, flat in self.arrays:
            if base <= low and high <= base + len(flat):
                return flat, addresses - U64(base)
        raise Fault(f"global access to {low:#x}..{high:#x}, which is inside no array")


@dataclass
class Warp:
    """One warp: registers by name, where its lanes are, and what it waits for.

    at   the next instruction of all lanes, or -1 when they have parted: then `pc` has each lane's
    """

    block: Block
    index: int
    cta: tuple[int, int]
    grid: tuple[int, int]
    threads: int
    registers: dict[str, np.ndarray] = field(default_factory=dict)
    at: int = 0
    pc: np.ndarray = field(default_factory=lambda: np.zeros(32, np.int64))
    alive: np.ndarray = field(default_factory=lambda: np.ones(32, bool))
    running: bool = True
    waiting: str = ""  # the barrier of the CTA or cluster that it stands at
    late: list[Callable[[], None]] = field(default_factory=list)  # register writes of tcgen05.ld and wgmma

    def __post_init__(self) -> None:
        special = {
            "%tid.x": self.index * 32 + LANES, "%ctaid.x": self.cta[0], "%ctaid.y": self.cta[1], "%nctaid.x": self.grid[0],
            "%nctaid.y": self.grid[1], "%ntid.x": self.threads, "%cluster_ctarank": self.block.rank, "%laneid": LANES,
            **dict.fromkeys(("%tid.y", "%tid.z", "%ctaid.z"), 0),
        }  # fmt: skip
        self.registers = {name: np.broadcast_to(np.asarray(value), 32).astype(U64) for name, value in special.items()}

    def next(self) -> tuple[int, np.ndarray]:
        """The instruction to run and the lanes that run it: the lowest first, so that lanes meet again behind a branch."""
        if self.at < 0:
            first = int(self.pc[self.alive].min())
            lanes = self.alive & (self.pc == first)
            if np.array_equal(lanes, self.alive):
                self.at = first
            return first, lanes
        return self.at, self.alive

    def jump(self, target: int, lanes: np.ndarray) -> None:
        if self.at >= 0:
            if lanes is self.alive or np.array_equal(lanes, self.alive):
                self.at = target
                return
            self.pc[:] = self.at
            self.at = -1
        self.pc[lanes] = target

    def leave(self, lanes: np.ndarray) -> None:
        self.alive = self.alive & ~lanes
        self.running = bool(self.alive.any())


class Machine:
    """One cluster of CTAs running one kernel."""

    def __init__(
        self, kernel: Kernel, memory: Memory, ctas: list[tuple[int, int]], threads: int, grid: tuple[int, int], seed: int
    ) -> None:
        self.kernel, self.memory, self.random = kernel, memory, np.random.default_rng(seed)
        cluster: list[Block] = []
        for rank in range(len(ctas)):
            cluster.append(Block(rank=rank, cluster=cluster))
        self.blocks = cluster
        pairs = zip(cluster, ctas, strict=True)
        self.warps = [Warp(block, i, cta, grid, threads) for block, cta in pairs for i in range(threads // 32)]
        self.steps = 0
        self.constants: dict[str, np.ndarray] = {}

    def run(self) -> dict[str, int]:
        """Run to the end; returns how often each kind of tensor instruction ran."""
        while any(warp.running for warp in self.warps):
            moved = False
            for warp in self.warps:
                moved |= self._advance(warp)
            if not moved and not self._release() and not self._hardware():
                running = [w for w in self.warps if w.running]
                where = {(w.block.rank, w.index): str(self.kernel.instructions[w.next()[0]]) for w in running}
                raise Fault(f"deadlock: {where}")
        for block in self.blocks:
            if block.loads or block.allocated:
                raise Fault("the kernel ended with loads on the way, or with tensor memory that it did not free")
        total: dict[str, int] = {}
        for block in self.blocks:
            for what, count in block.counts.items():
                total[what] = total.get(what, 0) + count
        return total

    def _hardware(self) -> bool:
        """One piece of queued work, from a CTA and queue that the random number picks; False if there is none."""
        queues = [q for block in self.blocks for q in (block.loads, block.products) if q]
        if not queues:
            return False
        queue = queues[self.random.integers(len(queues))]
        if isinstance(queue, list):
            queue.pop(self.random.integers(len(queue)))()
        else:
            queue.popleft()()
        return True

    def _release(self) -> bool:
        """Let warps past a barrier of the CTA or cluster at which all of them stand."""
        released = False
        for group in [[w for w in self.warps if w.block is block] for block in self.blocks]:
            standing = [w for w in group if w.running]
            if standing and all(w.waiting == "cta" for w in standing):
                for warp in standing:
                    warp.waiting, released = "", True
        standing = [w for w in self.warps if w.running]
        if standing and all(w.waiting == "cluster" for w in standing):
            for warp in standing:
                warp.waiting, released = "", True
        return released

    def _advance(self, warp: Warp) -> bool:
        """Run one warp until it waits; returns whether it got anywhere."""
        moved = False
        while warp.running and not warp.waiting:
            at, lanes = warp.next()
            if at >= len(self.kernel.instructions):
                raise Fault("ran past the end of the kernel")
            instruction = self.kernel.instructions[at]
            active = lanes
            if instruction.guard is not None:
                name, wanted = instruction.guard
                active = lanes & (warp.registers[name].astype(bool) == wanted)
            self.steps += 1
            if self.steps > 20_000_000:
                raise Fault("twenty million warp instructions: the kernel does not end")
            some = active is lanes or bool(active.any())
            waits = some and instruction.parts[:2] == ("mbarrier", "try_wait")
            if waits and not self._passes(warp, instruction, active):
                return moved  # it waits here, as hardware may
            moved = True
            warp.jump(at + 1, lanes)
            if some and not waits:
                handler = HANDLERS.get(instruction.parts[0])
                if handler is None:
                    raise NotImplementedError(str(instruction))
                handler(self, warp, instruction, active)
        return moved

    def _passes(self, warp: Warp, instruction: Instruction, active: np.ndarray) -> bool:
        target, address, parity = instruction.operands[:3]
        lane = int(np.flatnonzero(active)[0])
        barrier = warp.block.barrier(int(self._address(warp, address)[lane]))
        passed = barrier.phase != int(self._value(warp, parity)[lane]) & 1
        if passed:
            self._write(warp, target, np.ones(32, bool), active)
        return passed

    # ---- operands ----
    def _value(self, warp: Warp, text: str) -> np.ndarray:
        """The 64-bit pattern of an operand in each lane."""
        found = warp.registers.get(text)
        if found is None:
            found = self.constants.get(text)
        if found is None:
            found = self.constants[text] = np.full(32, self._constant(text), U64)
        return found

    def _constant(self, text: str) -> int:
        if text in self.kernel.params:
            return self.kernel.params[text][0]
        if text in self.kernel.shared:
            return self.kernel.shared[text]
        if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", text):
            return int(text[2:], 16)
        if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?", text):
            return int(text.rstrip("U"), 0) & 0xFFFFFFFFFFFFFFFF
        raise Fault(f"{text} is read before it is written")

    def _address(self, warp: Warp, text: str) -> np.ndarray:
        name, _, offset = text.strip()[1:-1].partition("+")
        value = self._value(warp, name.strip())
        return value + self._value(warp, offset.strip()) if offset.strip() not in ("", "0") else value

    def _write(self, warp: Warp, name: str, value: np.ndarray, active: np.ndarray) -> None:
        if name == "_":
            return
        value = np.asarray(value)
        if value.dtype != U64:
            value = value.astype(U64)
        warp.registers[name] = np.where(active, value, warp.registers.get(name, U64(0)))


def run(
    text: str, params: list, *, grid: tuple[int, int], threads: int, cluster: int = 1, seed: int = 0, entry: str = ""
) -> dict[str, int]:
    """Run a kernel; returns how often each kind of tensor instruction and TMA load ran. See the module's head."""
    kernel, memory = parse(text, entry), Memory()
    known: dict[int, int] = {}
    buffer = bytearray(max(offset + size for offset, size in kernel.params.values()))
    if len(params) != len(kernel.params):
        raise Fault(f"the kernel has {len(kernel.params)} parameters, {len(params)} were given")
    for param, (offset, size) in zip(params, kernel.params.values(), strict=True):
        data = b"".join(_bytes(part, memory, known) for part in (param if isinstance(param, list) else [param]))
        if len(data) > size:
            raise Fault(f"a parameter of {size} bytes is given {len(data)}")
        buffer[offset : offset + len(data)] = data
    memory.params = np.frombuffer(buffer, np.uint8)
    total: dict[str, int] = {}
    for first in range(0, grid[0] * grid[1], cluster):
        ctas = [(cta % grid[0], cta // grid[0]) for cta in range(first, first + cluster)]
        machine = Machine(kernel, memory, ctas, threads, grid, seed + first)
        for what, count in machine.run().items():
            total[what] = total.get(what, 0) + count
    return total


def _bytes(param: object, memory: Memory, known: dict[int, int]) -> bytes:
    if isinstance(param, bytes):
        return param
    if isinstance(param, Map):
        memory.maps.append(param)
        return struct.pack("<I", len(memory.maps) - 1).ljust(128, b"\0")
    if isinstance(param, Pointer):
        key = id(param.array)
        if key not in known:
            known[key] = memory.add(param.array)
        return struct.pack("<Q", known[key])
    raise TypeError(f"no parameter: {param!r}")
