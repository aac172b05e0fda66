"""PTX instructions of one lane, and those by which lanes of a warp meet: numpy functions of (machine, warp, instruction, lanes)."""

import ml_dtypes
import numpy as np

from tests.emulation.memory import PARAM_BASE, SHARED_BASE, Fault
from tests.emulation.ptx import Instruction
from tests.emulation.words import LANES, U64, as_bits, as_float, listed, signed, unsigned, width
from tests.ptx.evaluator import TYPES, execute, packed


def arithmetic(m, w, i: Instruction, active: np.ndarray) -> None:
    kind, op = i.parts[-1], i.parts[0]
    values = [m._value(w, text) for text in i.operands[1:]]
    if kind == "f32":
        x = [as_float(v).astype(np.float64) for v in values]
        with np.errstate(all="ignore"):
            exact = {"add": lambda: x[0] + x[1], "sub": lambda: x[0] - x[1], "mul": lambda: x[0] * x[1],
                     "fma": lambda: x[0] * x[1] + x[2], "max": lambda: np.fmax(x[0], x[1]), "min": lambda: np.fmin(x[0], x[1]),
                     "neg": lambda: -x[0], "abs": lambda: np.abs(x[0])}[op]()  # fmt: skip
        m._write(w, i.operands[0], as_bits(exact), active)
        return
    if kind in ("bf16x2", "f16x2"):
        m._write(w, i.operands[0], packed(op, TYPES[kind], [v.astype(np.uint32) for v in values]), active)
        return
    bits = width(kind)
    wide = op in ("mul", "mad") and "wide" in i.parts
    read = signed if kind[0] == "s" else (lambda v, b: unsigned(v, b).astype(np.int64))
    x = [read(v, bits * (2 if wide and n == 2 else 1)) for n, v in enumerate(values)]
    with np.errstate(all="ignore"):
        if op in ("div", "rem"):
            safe = np.where(x[1] == 0, 1, x[1])
            quotient = np.where((x[0] < 0) != (safe < 0), -(np.abs(x[0]) // np.abs(safe)), np.abs(x[0]) // np.abs(safe))
            out = quotient if op == "div" else x[0] - quotient * safe
        elif op == "mul" and "hi" in i.parts:
            out = np.array([int(a) * int(b) >> bits for a, b in zip(*x, strict=True)], np.int64)
        else:
            out = {"add": lambda: x[0] + x[1], "sub": lambda: x[0] - x[1], "mul": lambda: x[0] * x[1],
                   "mad": lambda: x[0] * x[1] + x[2], "min": lambda: np.minimum(x[0], x[1]), "max": lambda: np.maximum(x[0], x[1]),
                   "neg": lambda: -x[0], "abs": lambda: np.abs(x[0])}[op]()  # fmt: skip
    m._write(w, i.operands[0], unsigned(out.astype(U64), bits * (2 if wide else 1)), active)


def bitwise(m, w, i: Instruction, active: np.ndarray) -> None:
    x = [m._value(w, text) for text in i.operands[1:]]
    bits = 1 if i.parts[-1] == "pred" else width(i.parts[-1])
    out = {"and": lambda: x[0] & x[1], "or": lambda: x[0] | x[1], "xor": lambda: x[0] ^ x[1], "not": lambda: ~x[0]}[i.parts[0]]()
    m._write(w, i.operands[0], unsigned(out, bits), active)


def shift(m, w, i: Instruction, active: np.ndarray) -> None:
    kind = i.parts[-1]
    bits = width(kind)
    value, amount = m._value(w, i.operands[1]), unsigned(m._value(w, i.operands[2]), 32)
    over = amount >= bits
    amount = np.where(over, 0, amount).astype(U64)
    if i.parts[0] == "shl":
        out = np.where(over, 0, unsigned(value << amount, bits))
    elif kind[0] == "s":
        amount = np.where(over, bits - 1, amount).astype(np.int64)
        out = unsigned((signed(value, bits) >> amount).astype(U64), bits)
    else:
        out = np.where(over, 0, unsigned(value, bits) >> amount)
    m._write(w, i.operands[0], out, active)


def bit_field(m, w, i: Instruction, active: np.ndarray) -> None:
    """bfi: insert a field; bfe.u: extract one."""
    x = [m._value(w, text) for text in i.operands[1:]]
    bits = width(i.parts[-1])
    start, length = unsigned(x[-2], 8), unsigned(x[-1], 8)
    mask = (U64(1) << length) - U64(1)
    if i.parts[0] == "bfi":
        out = x[1] & ~(mask << start) | (x[0] & mask) << start
    elif i.parts[-1][0] == "u":
        out = unsigned(x[0], bits) >> start & mask
    else:
        raise NotImplementedError(str(i))
    m._write(w, i.operands[0], unsigned(out, bits), active)


def move(m, w, i: Instruction, active: np.ndarray) -> None:
    bits = width(i.parts[-1]) if i.parts[-1] != "pred" else 1
    target, source = i.operands
    if target.startswith("{"):
        names = listed(target)
        each = bits // len(names)
        value = m._value(w, source)
        for n, name in enumerate(names):
            m._write(w, name, unsigned(value >> U64(n * each), each), active)
        return
    if source.startswith("{"):
        names = listed(source)
        each = bits // len(names)
        value = sum((unsigned(m._value(w, name), each) << U64(n * each) for n, name in enumerate(names)), np.zeros(32, U64))
    else:
        value = m._value(w, source)
    m._write(w, target, unsigned(value, bits), active)


def convert(m, w, i: Instruction, active: np.ndarray) -> None:
    values = [m._value(w, text) for text in i.operands[1:]]
    tail = i.parts[1:]
    if tail[-1] == "f32" and tail[-2] in ("bf16", "f16"):
        out = as_float(values[0]).astype(ml_dtypes.bfloat16 if tail[-2] == "bf16" else np.float16).view(np.uint16)
    elif tail[-1] == "f32" and tail[-2] in ("bf16x2", "f16x2"):
        kind = ml_dtypes.bfloat16 if tail[-2] == "bf16x2" else np.float16
        high, low = (as_float(v).astype(kind).view(np.uint16).astype(np.uint32) for v in values)
        out = low | high << 16
    elif tail[-2:] == ("f32", "f16"):
        out = as_bits(values[0].astype(np.uint16).view(np.float16))
    elif tail[-2:] == ("f32", "bf16"):
        out = unsigned(values[0], 16) << U64(16)
    elif tail[-2] == "f32":
        read = signed(values[0], width(tail[-1])) if tail[-1][0] == "s" else unsigned(values[0], width(tail[-1]))
        out = as_bits(read)
    elif tail[-1][0] == "s":
        out = unsigned(signed(values[0], width(tail[-1])).astype(U64), width(tail[-2]))
    else:
        out = unsigned(unsigned(values[0], width(tail[-1])), width(tail[-2]))
    m._write(w, i.operands[0], out, active)


def compare(m, w, i: Instruction, active: np.ndarray) -> None:
    kind, relation = i.parts[-1], i.parts[1]
    x, y = (m._value(w, text) for text in i.operands[1:3])
    if kind == "f32":
        x, y = as_float(x), as_float(y)
    elif kind[0] == "s":
        x, y = signed(x, width(kind)), signed(y, width(kind))
    else:
        x, y = unsigned(x, width(kind)), unsigned(y, width(kind))
    out = {"eq": x == y, "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y,
           "lo": x < y, "ls": x <= y, "hi": x > y, "hs": x >= y}[relation]  # fmt: skip
    names = i.operands[0].split("|")
    m._write(w, names[0], out, active)
    if len(names) > 1:
        m._write(w, names[1], ~out, active)


def select(m, w, i: Instruction, active: np.ndarray) -> None:
    x, y, p = (m._value(w, text) for text in i.operands[1:])
    m._write(w, i.operands[0], np.where(p.astype(bool), x, y), active)


def branch(m, w, i: Instruction, active: np.ndarray) -> None:
    w.jump(m.kernel.labels[i.operands[0]], active)


def leave(m, w, i: Instruction, active: np.ndarray) -> None:
    w.leave(active)


def nothing(m, w, i: Instruction, active: np.ndarray) -> None:
    pass


def to_space(m, w, i: Instruction, active: np.ndarray) -> None:
    value = m._value(w, i.operands[1])
    if i.parts[1] == "shared":
        value = value + U64(SHARED_BASE)
    elif i.parts[1] == "param":
        value = value + U64(PARAM_BASE)
    elif i.parts[1:3] == ("to", "shared"):
        value = value - U64(SHARED_BASE)
    m._write(w, i.operands[0], value, active)


def access(m, w, i: Instruction, active: np.ndarray) -> None:
    load = i.parts[0] == "ld"
    names, place = (i.operands[0], i.operands[1]) if load else (i.operands[1], i.operands[0])
    names = listed(names) if names.startswith("{") else [names]
    size = width(i.parts[-1]) // 8
    space = next((p for p in i.parts if p.split("::")[0] in ("global", "shared", "param", "local")), "").split("::")[0]
    address = m._address(w, place)[active]
    for n, name in enumerate(names):
        where = address + U64(n * size)
        if space == "param":
            data, offset = m.memory.params, where
        elif space == "shared":
            data, offset = w.block.shared, where
            if int(where.max()) + size > len(data):
                raise Fault(f"shared access to {int(where.max()):#x}")
        else:
            data, offset = m.memory.find(where, size)
        if (where % U64(size)).any():
            raise Fault(f"misaligned: {i}")
        index = offset.astype(np.int64)[:, None] + np.arange(size)
        if load:
            value = np.zeros(32, U64)
            value[active] = (data[index].astype(U64) << (U64(8) * np.arange(size, dtype=U64))).sum(1, dtype=U64)
            if i.parts[-1][0] == "s":
                value = signed(value, 8 * size).astype(U64)
            m._write(w, name, value, active)
        else:
            value = m._value(w, name)[active]
            data[index] = (value[:, None] >> (U64(8) * np.arange(size, dtype=U64)) & U64(0xFF)).astype(np.uint8)


def shuffle(m, w, i: Instruction, active: np.ndarray) -> None:
    target, _, predicate = i.operands[0].partition("|")
    value, lane = m._value(w, i.operands[1]), unsigned(m._value(w, i.operands[2]), 32).astype(np.int64)
    clamp = int(m._value(w, i.operands[3])[0])
    if clamp & 0x1F00:
        raise NotImplementedError(str(i))
    source = {"idx": lane & 31, "bfly": LANES ^ lane, "down": np.minimum(LANES + lane, 31), "up": np.maximum(LANES - lane, 0)}[
        i.parts[2]
    ]
    m._write(w, target, value[source], active)
    if predicate:
        m._write(w, predicate, np.ones(32, bool), active)


def elect(m, w, i: Instruction, active: np.ndarray) -> None:
    target, _, predicate = i.operands[0].partition("|")
    chosen = np.flatnonzero(active)[0] == LANES
    m._write(w, target, np.full(32, np.flatnonzero(active)[0]), active)
    m._write(w, predicate, chosen, active)


def barrier(m, w, i: Instruction, active: np.ndarray) -> None:
    if i.parts[:2] in (("bar", "sync"), ("barrier", "sync")):
        if len(i.operands) > 1:
            raise NotImplementedError(str(i))
        w.waiting = "cta"
    elif i.parts[:3] == ("barrier", "cluster", "wait"):
        w.waiting = "cluster"
    elif i.parts[:3] != ("barrier", "cluster", "arrive") and i.parts[:3] != ("bar", "warp", "sync"):
        raise NotImplementedError(str(i))


def lookup(m, w, i: Instruction, active: np.ndarray) -> None:
    """lop3, prmt and shf: the instructions of the small evaluator."""
    values = [m._value(w, text).astype(np.uint32) for text in i.operands[1:]]
    m._write(w, i.operands[0], execute(i.op, values), active)


HANDLERS = {
    **dict.fromkeys(("add", "sub", "mul", "mad", "div", "rem", "min", "max", "neg", "abs", "fma"), arithmetic),
    **dict.fromkeys(("and", "or", "xor", "not"), bitwise),
    **dict.fromkeys(("shl", "shr"), shift),
    **dict.fromkeys(("bfi", "bfe"), bit_field),
    **dict.fromkeys(("lop3", "prmt", "shf"), lookup),
    **dict.fromkeys(("ld", "st"), access),
    **dict.fromkeys(("bar", "barrier"), barrier),
    **dict.fromkeys(("fence", "prefetch", "membar", "griddepcontrol"), nothing),
    "mov": move, "cvt": convert, "setp": compare, "selp": select, "bra": branch, "ret": leave, "exit": leave, "cvta": to_space,
    "shfl": shuffle, "elect": elect,
}  # fmt: skip
