"""A small PTX evaluator: runs the straight-line blocks that decoders print, on arrays of lanes, with exact rounding.

    registers = run(text, [words0, words1, ...], outputs=8)     uint32 arrays in operand order -> list of uint32 arrays

Knows what the decoders use: mov, shl, shr, shf.wrap, and, or, xor, lop3, prmt, integer add, sub, mul and mad, cvt among e4m3x2,
e5m2x2, f16, f32 and bf16x2, and add, sub, mul, fma of bf16x2 and f16x2, rounded once to nearest even, subnormals kept. Any other
instruction is an error.
"""

import re

import ml_dtypes
import numpy as np

TYPES = {"bf16x2": ml_dtypes.bfloat16, "f16x2": np.float16}


def run(text: str, operands: list[np.ndarray], outputs: int) -> list[np.ndarray]:
    """Return the output registers of one asm block; `operands` follow the outputs."""
    registers: dict[str, np.ndarray] = {f"${outputs + i}": np.asarray(v, np.uint32) for i, v in enumerate(operands)}
    lanes = registers[f"${outputs}"].shape
    body = text.strip().removeprefix("{").removesuffix("}")
    for line in filter(None, (part.strip() for part in body.split(";"))):
        op, _, rest = line.partition(" ")
        if op == ".reg":
            continue
        split = re.match(r"\{(\w+), (\w+)\}, (\S+)$", rest)
        if op == "mov.b32" and split:
            value = registers[split[3]]
            registers[split[1]], registers[split[2]] = value & 0xFFFF, value >> 16
            continue
        target, *sources = (name.strip() for name in rest.split(","))
        values = [registers[s] if s in registers else np.full(lanes, int(s, 0), np.uint32) for s in sources]
        registers[target] = execute(op, values)
    return [registers[f"${i}"] for i in range(outputs)]


def execute(op: str, v: list[np.ndarray]) -> np.ndarray:
    """Return the result of one instruction on uint32 (f32: bit pattern) arrays."""
    if op == "mov.b32":
        return v[0]
    if op == "and.b32":
        return v[0] & v[1]
    if op == "or.b32":
        return v[0] | v[1]
    if op == "xor.b32":
        return v[0] ^ v[1]
    if op == "sub.u32":
        return v[0] - v[1]
    if op == "mad.lo.u32":
        return v[0] * v[1] + v[2]
    if op == "add.u32":
        return v[0] + v[1]
    if op == "mul.lo.u32":
        return v[0] * v[1]
    if op in ("shl.b32", "shr.u32"):
        wide = v[0].astype(np.uint64)
        return ((wide << v[1] if op[2] == "l" else wide >> v[1]) & 0xFFFFFFFF).astype(np.uint32)
    if op in ("shf.l.wrap.b32", "shf.r.wrap.b32"):
        low, high, amount = v[0].astype(np.uint64), v[1].astype(np.uint64), v[2] & 31
        pair = high << 32 | low
        return ((pair << amount) >> 32 if op[4] == "l" else pair >> amount).astype(np.uint64).astype(np.uint32)
    if op == "lop3.b32":
        return lop3(*v)
    if op == "prmt.b32":
        return prmt(*v)
    if op.startswith("cvt."):
        return convert(op, v)
    name, rounding, kind = op.split(".")
    if name not in ("add", "sub", "mul", "fma") or rounding != "rn" or kind not in TYPES:
        raise NotImplementedError(op)
    return packed(name, TYPES[kind], v)


def lop3(a, b, c, table):
    """Bitwise function of three inputs by truth table."""
    table, out = int(table.flat[0]), np.zeros_like(a)
    for i in range(8):
        if table >> i & 1:
            out |= (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
    return out


def prmt(a, b, selector):
    """Four bytes picked from eight; the sign-replicating form is refused."""
    pair = b.astype(np.uint64) << 32 | a
    out = np.zeros_like(a)
    for i in range(4):
        pick = selector >> (4 * i) & 0xF
        assert (pick < 8).all(), "prmt replicates a sign: no decoder means that"
        out |= ((pair >> (8 * pick.astype(np.uint64)) & 0xFF) << (8 * i)).astype(np.uint32)
    return out


def convert(op: str, v: list[np.ndarray]) -> np.ndarray:
    """The conversions of the 8-bit floats."""
    if op in ("cvt.rn.f16x2.e4m3x2", "cvt.rn.f16x2.e5m2x2"):
        source = ml_dtypes.float8_e4m3fn if "e4m3" in op else ml_dtypes.float8_e5m2
        pair = [(v[0] >> s & 0xFF).astype(np.uint8).view(source).astype(np.float16) for s in (0, 8)]
        return join(*(half.view(np.uint16) for half in pair))
    if op == "cvt.f32.f16":
        return v[0].astype(np.uint16).view(np.float16).astype(np.float32).view(np.uint32)
    if op == "cvt.rn.bf16x2.f32":  # first source to the high half
        high, low = (half.view(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16) for half in v)
        return join(low, high)
    raise NotImplementedError(op)


def packed(name: str, dtype, v: list[np.ndarray]) -> np.ndarray:
    """add, sub, mul or fma of two packed 16-bit floats, each rounded once."""
    out = []
    for shift in (0, 16):
        x = [(value >> shift & 0xFFFF).astype(np.uint16).view(dtype).astype(np.float64) for value in v]
        # float64 holds every product and sum that a decoder forms exactly, so the one rounding is that to 16 bits.
        exact = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "fma": lambda a, b, c: a * b + c}[
            name
        ](*x)
        out.append(round16(exact, dtype).view(np.uint16))
    return join(*out)


def round16(value: np.ndarray, dtype) -> np.ndarray:
    """float64 -> 16-bit float, to nearest even in one step (never by way of float32), subnormals kept."""
    info = ml_dtypes.finfo(dtype)
    digits, smallest = info.nmant, info.minexp
    with np.errstate(invalid="ignore", over="ignore"):
        exponent = np.where(np.isfinite(value) & (value != 0), np.frexp(value)[1] - 1, smallest)
        step = np.ldexp(1.0, np.maximum(exponent, smallest) - digits)
        near = np.where(np.isfinite(value), np.rint(value / step) * step, value)
        return np.copysign(near, value).astype(dtype)


def join(low, high) -> np.ndarray:
    """Two 16-bit halves -> uint32."""
    return low.astype(np.uint32) | high.astype(np.uint32) << 16
