"""PTX instructions that hand work to hardware: mbarriers, TMA, tcgen05, wgmma, mma.sync."""

import re
import struct

import numpy as np

from tests.emulation import fragments, mma
from tests.emulation.memory import PARAM_BASE, WINDOW, Barrier, Fault
from tests.emulation.ptx import Instruction
from tests.emulation.words import U64, as_bits, as_float, listed, signed, unsigned


def mbarrier(m, w, i: Instruction, active: np.ndarray) -> None:
    place = next(text for text in i.operands if text.startswith("["))
    for lane in np.flatnonzero(active):
        address = int(m._address(w, place)[lane])
        if i.parts[1] == "init":
            count = int(m._value(w, i.operands[1])[lane])
            owner, offset = w.block.at(address)
            owner.barriers[offset] = Barrier(count, count)
        elif i.parts[1] == "inval":
            owner, offset = w.block.at(address)
            del owner.barriers[offset]
        elif i.parts[1] == "arrive":
            last = i.operands[-1]
            amount = 0 if last.startswith("[") else int(m._value(w, last)[lane])
            expects = "expect_tx" in i.parts
            w.block.arrive(address, 1 if expects or not amount else amount, amount if expects else 0)
        elif i.parts[1] == "expect_tx":
            w.block.barrier(address).bytes += int(m._value(w, i.operands[-1])[lane])
        else:
            raise NotImplementedError(str(i))


def map_address(m, w, i: Instruction, active: np.ndarray) -> None:
    address, rank = m._value(w, i.operands[1]), m._value(w, i.operands[2])
    m._write(w, i.operands[0], (rank + U64(1)) * U64(WINDOW) + address, active)


def bulk_copy(m, w, i: Instruction, active: np.ndarray) -> None:
    if i.parts[:5] != ("cp", "async", "bulk", "tensor", "2d") or "tile" not in i.parts:
        raise NotImplementedError(str(i))
    target, source, signal = i.operands[:3]
    found = re.fullmatch(r"\[\s*([^,\[\]]+?)\s*,\s*\{(.*)\}\s*\]", source)
    for lane in np.flatnonzero(active):
        handle = int(m._address(w, f"[{found[1]}]")[lane])
        index = struct.unpack_from("<I", m.memory.params.tobytes(), handle - PARAM_BASE)[0]
        x, y = (int(signed(m._value(w, text.strip()), 32)[lane]) for text in found[2].split(","))
        where, bar = (int(unsigned(m._address(w, text), 32)[lane]) for text in (target, signal))
        w.block.count("tma")
        w.block.tma_load(where, m.memory.maps[index], x, y, bar, i.parts[-1] == "cta_group::2")


def tcgen05(m, w, i: Instruction, active: np.ndarray) -> None:
    what, block = i.parts[1], w.block
    group = 2 if "cta_group::2" in i.parts else 1
    lane = int(np.flatnonzero(active)[0])

    def value(text: str) -> int:
        return int((m._address(w, text) if text.startswith("[") else m._value(w, text))[lane])

    if what in ("fence::after_thread_sync", "fence::before_thread_sync", "relinquish_alloc_permit"):
        return
    if what == "alloc":
        if block.allocated:
            raise Fault("tensor memory is allocated twice")
        block.allocated = value(i.operands[1])
        offset = value(i.operands[0])
        block.shared[offset : offset + 4] = 0
    elif what == "dealloc":
        if block.products:
            raise Fault("tensor memory is freed while products are on the way")
        if block.allocated != value(i.operands[1]):
            raise Fault(f"{block.allocated} columns were allocated, {value(i.operands[1])} are freed")
        block.allocated = 0
    elif what == "cp":
        if i.parts[-2:] != ("32x128b", "warpx4"):
            raise NotImplementedError(str(i))
        for _ in np.flatnonzero(active):
            block.count("scale copy")
            block.copy_scales(value(i.operands[0]), value(i.operands[1]), group)
    elif what == "mma":
        kind = next(p for p in i.parts if p.startswith("kind::"))[6:]
        modifiers = i.parts[-1] if "block_scale" in i.parts else ""
        d, a, b, word = (value(text) for text in i.operands[:4])
        sa, sb = (value(text) for text in i.operands[4:6]) if modifiers else (0, 0)
        if active.sum() != 1:
            raise Fault("one thread issues tcgen05.mma")
        block.umma(kind, modifiers, d, a, b, word & 0xFFFFFFFF, bool(value(i.operands[-1])), sa, sb, group)
    elif what == "commit":
        block.commit(value(i.operands[0]) & 0xFFFFFFFF, value(i.operands[1]) if "multicast::cluster" in i.parts else None)
    elif what == "ld":
        load_tensor(m, w, i, active, value(i.operands[1]))
    elif what == "wait::ld":
        for write in w.late:
            write()
        w.late.clear()
    else:
        raise NotImplementedError(str(i))


def load_tensor(m, w, i: Instruction, active: np.ndarray, address: int) -> None:
    if "32x32b" not in i.parts or not active.all():
        raise NotImplementedError(str(i))
    first, column = address >> 16, address & 0xFFFF
    if first != w.index % 4 * 32:
        raise Fault(f"warp {w.index} reads tensor memory from lane {first}: it reaches those from {w.index % 4 * 32} on")
    names = listed(i.operands[0])
    data = w.block.tensor[first : first + 32, column : column + len(names)].copy()

    def write() -> None:
        for n, name in enumerate(names):
            m._write(w, name, data[:, n], active)

    w.late.append(write)


def warpgroup(m, w, i: Instruction, active: np.ndarray) -> None:
    if i.parts[1] in ("fence", "commit_group"):
        return
    if i.parts[1] == "wait_group":
        for write in w.late:
            write()
        w.late.clear()
        return
    shape = re.fullmatch(r"m64n(\d+)k(\d+)", i.parts[4])
    n, a_type, b_type = int(shape[1]), i.parts[6], i.parts[7]
    names = listed(i.operands[0])
    a, b = (int(m._value(w, text)[0]) for text in i.operands[1:3])
    accumulate = bool(m._value(w, i.operands[3])[0])
    kind = "f16" if a_type in ("bf16", "f16") else "f8f6f4"
    formats = ["fp16" if t == "f16" else t for t in (a_type, b_type)]
    w.block.count(f"wgmma {a_type} {b_type}")
    row, column = fragments.accumulator_index()

    def run() -> None:
        part = slice(w.index % 4 * 16, w.index % 4 * 16 + 16)
        left = mma_codes(w.block.operand(a, 64, hopper=True)[part], kind)
        right = mma_codes(w.block.operand(b, n, hopper=True), kind)
        d = np.zeros((16, n), np.float32)
        if accumulate:
            for r, name in enumerate(names):
                d[row[:, r % 4], r // 4 * 8 + column[:, r % 4]] = as_float(w.registers[name])
        d = mma.warpgroup_mma(*formats, left, right, d)
        for r, name in enumerate(names):
            m._write(w, name, as_bits(d[row[:, r % 4], r // 4 * 8 + column[:, r % 4]]), active)

    w.late.append(run)


def mma_codes(data: np.ndarray, kind: str) -> np.ndarray:
    return data.view(np.uint16).astype(np.int64) if kind == "f16" else data.astype(np.int64)


def warp_product(m, w, i: Instruction, active: np.ndarray) -> None:
    """mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 and its fp16 twin."""
    if "m16n8k16" not in i.parts or i.parts[-3] not in ("bf16", "f16"):
        raise NotImplementedError(str(i))
    fmt = "fp16" if i.parts[-3] == "f16" else "bf16"
    d, a, b, c = (listed(text) for text in i.operands)
    words = [np.stack([m._value(w, name).astype(np.uint32) for name in names], 1) for names in (a, b)]
    row, column = fragments.accumulator_index()
    acc = np.zeros((16, 8), np.float32)
    for r, name in enumerate(c):
        acc[row[:, r], column[:, r]] = as_float(m._value(w, name))
    out = mma.warp_mma(fmt, fmt, fragments.to_matrix(words[0], 16, 16), fragments.to_matrix(words[1], 8, 16), acc)
    w.block.count(f"mma.sync {fmt}")
    for r, name in enumerate(d):
        m._write(w, name, as_bits(out[row[:, r], column[:, r]]), active)


HANDLERS = {
    "mbarrier": mbarrier, "mapa": map_address, "cp": bulk_copy, "tcgen05": tcgen05, "wgmma": warpgroup, "mma": warp_product,
}  # fmt: skip
