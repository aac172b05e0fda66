"""Reading machine code as text: the loop around a kernel's products, and registers that a product still reads when they change."""

import re


def instructions(sass: str) -> list[tuple[int, str]]:
    """(address, text) of each instruction."""
    return [(int(at, 16), text.strip()) for at, text in re.findall(r"^\s+/\*([0-9a-f]{4,5})\*/\s+(.*?);", sass, re.M)]


def loop_of(sass: str) -> list[str]:
    """The instructions of the innermost loop around the first product."""
    found = instructions(sass)
    first = next(at for at, text in found if "GMMA" in text)
    loops = []
    for at, text in found:
        target = re.search(r"BRA.*?0x([0-9a-f]+)", text)
        if target and int(target[1], 16) <= first <= at:
            loops.append((int(target[1], 16), at))
    begin, end = min(loops, key=lambda loop: loop[1] - loop[0])
    return [text for at, text in found if begin <= at <= end]


def overwritten_in_flight(loop: list[str]) -> list[str]:
    """Instructions of two rounds of a loop that write a register which a product under way still reads as its row operand."""
    groups: list[set[int]] = [set()]  # registers of each group of products not yet waited for; the last is still open
    wrong = []
    for text in loop * 2:
        body = re.sub(r"^@!?U?P\w+\s+", "", text)
        product = re.match(r"[QI]GMMA\S*\s+R\d+, R(\d+)(?:\.\w+)*, gdesc", body)
        wait = re.match(r"WARPGROUP\.DEPBAR\.LE gsb0, (0x\w+)", body)
        if "GMMA" in body:
            if product:
                groups[-1].update(range(int(product[1]), int(product[1]) + 4))
            if "gsb0" in body:
                groups.append(set())
        elif wait:
            keep = int(wait[1], 16)
            groups = groups[len(groups) - 1 - keep :] if len(groups) - 1 > keep else groups
        elif busy := set().union(*groups) & written(body):
            wrong.append(f"R{min(busy)}: {text}")
    return wrong


def written(body: str) -> set[int]:
    """The general registers that an instruction writes."""
    found = re.match(r"(\S+)\s+(?:P\w+, )*R(\d+)", body)
    if not found or found[1].startswith(("ST", "RED", "BAR", "SYNCS", "UTMA", "R2UR", "ISETP", "FSETP", "BRA")):
        return set()
    wide = 4 if ".128" in found[1] else 2 if ".64" in found[1] or ".WIDE" in found[1] else 1
    return set(range(int(found[2]), int(found[2]) + wide))
