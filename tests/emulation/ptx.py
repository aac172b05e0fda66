"""PTX text of one kernel -> its parameters, shared variables and instructions, registers of inline assembly made distinct."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

SIZES = {"8": 1, "16": 2, "32": 4, "64": 8}


@dataclass
class Instruction:
    """`@guard op operands`, with the operands as text; a guard is (predicate register, expected value)."""

    op: str
    operands: list[str]
    guard: tuple[str, bool] | None = None
    parts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.parts = tuple(self.op.split("."))

    def __str__(self) -> str:
        return f"{self.op} {', '.join(self.operands)}"


@dataclass
class Kernel:
    """One entry: parameter and shared variable offsets, instructions, and the index that each label stands for."""

    name: str
    params: dict[str, tuple[int, int]] = field(default_factory=dict)  # name -> (offset, size)
    shared: dict[str, int] = field(default_factory=dict)  # name -> offset
    shared_bytes: int = 0
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    max_threads: int = 0
    globals: dict[str, bytes] = field(default_factory=dict)


def parse(text: str, entry: str = "") -> Kernel:
    """Return the kernel `entry` (or the only one) of a PTX module."""
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"^\s*\.(loc|file|pragma|version|target|address_size)\b[^\n]*$", "", text, flags=re.M)
    found = re.search(r"\.entry\s+(" + (re.escape(entry) or r"[\w$]+") + r")\s*\((.*?)\)(.*?)\{", text, re.S)
    if found is None:
        raise ValueError(f"no entry {entry!r} in this PTX")
    kernel = Kernel(found[1])
    offset = 0
    pattern = r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr[^,]*?\s)?(\w+)(?:\[(\d+)\])?\s*$"
    for align, kind, name, count in (re.search(pattern, line).groups() for line in found[2].split(",") if line.strip()):
        size = SIZES[kind[1:]] * int(count or 1)
        step = int(align or min(size, 8))
        offset = -(-offset // step) * step
        kernel.params[name] = (offset, size)
        offset += size
    threads = re.search(r"\.(?:maxntid|reqntid)\s+(\d+)", found[3])
    kernel.max_threads = int(threads[1]) if threads else 0
    body = _body(text, found.end() - 1)
    outside = text[: found.start()]
    _declare_shared(kernel, outside, body)
    _read_body(kernel, body)
    return kernel


def _body(text: str, start: int) -> str:
    depth = 0
    for i in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[start + 1 : i]
    raise ValueError("the kernel's body does not end")


def _declare_shared(kernel: Kernel, outside: str, body: str) -> None:
    pattern = r"(\.extern\s+)?\.shared\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(?:\[(\d*)\])?\s*;"
    last = []
    for external, align, kind, name, count in re.findall(pattern, outside + body):
        if external:
            last.append((name, int(align or 16)))
            continue
        size = SIZES[kind[1:]] * int(count or 1)
        step = int(align or size)
        kernel.shared_bytes = -(-kernel.shared_bytes // step) * step
        kernel.shared[name] = kernel.shared_bytes
        kernel.shared_bytes += size
    for name, align in last:  # dynamic shared memory follows the static part
        kernel.shared_bytes = -(-kernel.shared_bytes // align) * align
        kernel.shared[name] = kernel.shared_bytes


def _read_body(kernel: Kernel, body: str) -> None:
    """Statements end in ';'. Braces open a scope (outside an operand list): registers declared inside get a name of their own."""
    scopes: list[dict[str, str]] = [{}]
    made, token, depth = 0, "", 0
    for char in body:
        if char == "{" and not token.strip():
            scopes.append({})
            continue
        if char == "}" and depth == 0:
            scopes.pop()
            token = ""
            continue
        depth += (char in "{[(") - (char in "}])")
        if char == ":" and depth == 0 and re.fullmatch(r"\s*[$\w]+\s*", token):
            label = token.strip()
            if len(scopes) > 1:
                scopes[-1][label] = f"{label}@{made}"
                made += 1
            kernel.labels[_renamed(label, scopes)] = len(kernel.instructions)
            token = ""
            continue
        if char != ";":
            token += char
            continue
        statement, token = token.strip(), ""
        if statement.startswith(".reg"):
            if len(scopes) > 1:
                for name in re.split(r"\s*,\s*", statement.split(None, 2)[2].strip()):
                    made += 1
                    scopes[-1][name] = f"{name}@{made}"
            continue
        if not statement or statement.startswith("."):
            continue
        kernel.instructions.append(_instruction(statement, scopes))


def _renamed(name: str, scopes: list[dict[str, str]]) -> str:
    for scope in reversed(scopes):
        if name in scope:
            return scope[name]
    return name


def _instruction(statement: str, scopes: list[dict[str, str]]) -> Instruction:
    guard = None
    found = re.match(r"@(!?)([%$\w]+)\s+", statement)
    if found:
        guard = (_renamed(found[2], scopes), not found[1])
        statement = statement[found.end() :]
    op, _, rest = statement.partition(" ") if " " in statement.split("\t")[0] else statement.partition("\t")
    rest = re.sub(r"[%$\w]+", lambda m: _renamed(m[0], scopes), rest)
    operands, depth, start = [], 0, 0
    for i, char in enumerate(rest):
        depth += (char in "{[") - (char in "}]")
        if char == "," and depth == 0:
            operands.append(rest[start:i].strip())
            start = i + 1
    if rest[start:].strip():
        operands.append(rest[start:].strip())
    return Instruction(op.strip(), operands, guard)
