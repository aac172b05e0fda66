"""Loops of wgmma in machine code: what overlaps, and what the tensor cores still read when it is overwritten."""

import re

_LINE = re.compile(r"^\s+/\*([0-9a-f]{4,5})\*/\s+(.*?);", re.M)
_PREDICATE = re.compile(r"^@!?U?P\w+\s+")
_WIDTH = {"64": 2, "128": 4, "WIDE": 2, "x2": 2, "x4": 4, "M88": 1}
_NO_RESULT = ("ST", "BAR", "BRA", "SYNCS", "WARP", "RED", "MEMBAR", "FENCE", "UTMA", "EXIT", "NOP", "BSYNC", "BSSY", "DEPBAR")


def loop_of(sass: str) -> list[str]:
    """Instructions, predicates left out, of the shortest loop that has a wgmma."""
    code = [(int(address, 16), _PREDICATE.sub("", text)) for address, text in _LINE.findall(sass)]
    at = {address: i for i, (address, _) in enumerate(code)}
    found = []
    for i, (address, text) in enumerate(code):
        back = re.match(r"BRA\b.*?(0x[0-9a-f]+)", text)
        if back and int(back[1], 16) < address:
            body = [text for _, text in code[at[int(back[1], 16)] : i + 1]]
            if any(text.startswith("HGMMA") or re.match(r"[QI]GMMA", text) for text in body):
                found.append(body)
    return min(found, key=len)


def is_mma(text: str) -> bool:
    """True for a wgmma."""
    return re.match(r"[HQI]GMMA", text) is not None


def beside_products(body: list[str]) -> int:
    """Instructions of a round, wgmma left out, that find a product running."""
    running, issued, count = 0, False, 0
    for i, text in enumerate(body + body):  # the second round begins with what the first left running
        if is_mma(text):
            running, issued = running + ("gsb0" in text), "gsb0" not in text
        elif (wait := re.match(r"WARPGROUP\.DEPBAR\.LE gsb0, (0x[0-9a-f]+)", text)) is not None:
            running = min(running, int(wait[1], 16))
        else:
            count += i >= len(body) and (running > 0 or issued)
    return count


def written(text: str) -> set[int]:
    """Registers that an instruction writes."""
    opcode, _, operands = text.partition(" ")
    result = re.match(r"\s*(?:U?P\w+,\s*)*R(\d+)\b", operands)
    if result is None or opcode.startswith(_NO_RESULT):
        return set()
    width = max([_WIDTH.get(part, 1) for part in opcode.split(".")[1:]] or [1])
    return set(range(int(result[1]), int(result[1]) + width))


def overwritten(body: list[str]) -> list[str]:
    """Instructions of two rounds of a loop that write a register which a running wgmma still reads as its first operand."""
    running: list[set[int]] = []
    group: set[int] = set()
    bad = []
    for text in body + body:
        if is_mma(text):
            operand = re.match(r"\S+ R\d+, R(\d+),", text)
            if operand is not None:
                group |= set(range(int(operand[1]), int(operand[1]) + 4))
            if "gsb0" in text:
                running, group = [*running, group], set()
        elif (wait := re.match(r"WARPGROUP\.DEPBAR\.LE gsb0, (0x[0-9a-f]+)", text)) is not None:
            left = int(wait[1], 16)
            running = running[len(running) - left :] if left else []
        elif written(text) & set().union(group, *running):
            bad.append(text)
    return bad
