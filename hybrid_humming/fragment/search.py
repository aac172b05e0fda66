"""Where the bits of float formats fit: a search over turns of a pattern of positions in 16 bits. Numbers only.

A pattern is the set of positions that a code's bits have in the operand. A field word is 16 bits that hold several codes;
"turned by k" reads position t from position t + k, modulo 16.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from hybrid_humming.errors import FormatError

REGISTERS = 8
"""Registers of one half of a block."""


def mask_of(positions: tuple[int, ...]) -> int:
    """Return the 16-bit mask of these positions."""
    return sum(1 << p for p in positions)


Group = tuple[int, tuple[int, ...]]
"""(turn, target positions): these positions of the register are read from the field word turned right by so much."""
Fields = tuple[tuple[Group, ...], ...]


@functools.cache
def solve(target: tuple[int, ...], fields: int, planes: tuple[int, ...]) -> tuple[Fields, tuple[tuple[int, ...], ...]]:
    """Return (groups of each field, positions of the field word that each plane fills) for a target pattern.

    `fields` copies of the pattern must lie in 16 bits without overlap, each turned by an amount of its own; a field that
    no single turn can bring in place is read in two or three groups. A search; the first of the cheapest kind found wins.
    """
    for chosen in singles(target, fields):
        found: Fields = tuple(((k, target),) for k in chosen)
        for complete in _complete(target, found, fields):
            taken = tuple(sorted((p + k) % 16 for field in complete for k, positions in field for p in positions))
            used = _share(taken, fields, planes)
            if used is not None:
                return complete, used
    raise FormatError(f"no placement of the bits {target} {fields} times in 16 bits")


def singles(target: tuple[int, ...], fields: int) -> list[tuple[int, ...]]:
    """Return the sets of turns that bring disjoint copies of the pattern in place, most copies first; the first is not turned."""
    found: list[tuple[int, ...]] = []

    def grow(chosen: tuple[int, ...], taken: frozenset[int]) -> None:
        found.append(chosen)
        for k in range(chosen[-1] + 1, 16):
            copy = frozenset((t + k) % 16 for t in target)
            if len(chosen) < fields and not copy & taken:
                grow((*chosen, k), taken | copy)

    grow((0,), frozenset(target))
    return sorted(found, key=lambda chosen: (-len(chosen), chosen))


def _complete(target: tuple[int, ...], found: Fields, fields: int) -> Iterator[Fields]:
    """`found` with the fields that are still missing, each read in several groups."""
    if len(found) == fields:
        yield found
        return
    taken = {(p + k) % 16 for field in found for k, positions in field for p in positions}
    known = {k for field in found for k, _ in field}
    free = frozenset(range(16)) - taken
    if len(free) < len(target) * (fields - len(found)):
        return
    sets = [turns for count in (2, 3) for turns in itertools.combinations(range(16), count)]
    for turns in sorted(sets, key=lambda turns: (len(turns) + sum(k not in known for k in turns), turns)):
        for field in _assign(target, turns, free):
            yield from _complete(target, (*found, field), fields)


def _assign(target: tuple[int, ...], turns: tuple[int, ...], free: frozenset[int]) -> Iterator[tuple[Group, ...]]:
    """Each way of reading every position of the pattern from a free one by one of `turns`, all turns in use."""

    def place(i: int, left: frozenset[int]) -> Iterator[tuple[int, ...]]:
        if i == len(target):
            yield ()
            return
        for k in turns:
            source = (target[i] + k) % 16
            if source in left:
                for rest in place(i + 1, left - {source}):
                    yield (k, *rest)

    for chosen in place(0, free):
        if len(set(chosen)) == len(turns):
            yield tuple((k, tuple(t for t, c in zip(target, chosen, strict=True) if c == k)) for k in turns)


@dataclass(frozen=True)
class Pair:
    """Two words of four 4-bit fields read as 3 + 3 + 2: see `solve_pair`.

    left, right: the positions that the first and the second word's leftovers take when turned by `turns`; together they
    are the pattern and its copy turned by `second`.
    """

    singles: tuple[int, ...]
    second: int
    turns: tuple[int, int]
    left: frozenset[int]
    right: frozenset[int]


@functools.cache
def solve_pair(target: tuple[int, ...]) -> Pair | None:
    """Return how two words give eight registers with one extra `choose`, or None.

    Three copies of the pattern in each word, and the leftovers of both words, turned, make up two copies more.
    """
    twice = {frozenset(target) | frozenset((t + k) % 16 for t in target): k for k in range(1, 16)}
    for chosen in singles(target, 3):
        rest = frozenset(range(16)) - {(t + k) % 16 for k in chosen for t in target}
        for turns in itertools.product(range(16), range(16)):
            left, right = (frozenset((p - k) % 16 for p in rest) for k in turns)
            if len(chosen) == 3 and not left & right and left | right in twice:
                return Pair(chosen, twice[left | right], turns, left, right)
    return None


def _share(taken: tuple[int, ...], fields: int, planes: tuple[int, ...]) -> tuple[tuple[int, ...], ...] | None:
    """Split the positions of a field word over the planes so that turns by a fixed step read every bit of a plane once."""
    if len(planes) == 1:
        return (taken,)
    share = planes[0] * 8 * fields // REGISTERS
    by_remainder: dict[int, list[int]] = {}
    for position in taken:
        by_remainder.setdefault(position % share, []).append(position)
    if len(by_remainder) < share:
        return None
    for pick in itertools.product(*(by_remainder[r] for r in range(share))):
        rest = tuple(p for p in taken if p not in pick)
        tail = _share_rest(rest, fields, planes[1:])
        if tail is not None:
            return (tuple(sorted(pick)), *tail)
    return None


def _share_rest(taken: tuple[int, ...], fields: int, planes: tuple[int, ...]) -> tuple[tuple[int, ...], ...] | None:
    if len(planes) > 1:
        return _share(taken, fields, planes)
    share = planes[0] * 8 * fields // REGISTERS
    ok = len(taken) == share and len({p % share for p in taken}) == share
    return (taken,) if ok else None


@dataclass(frozen=True)
class Four:
    """Two words of four 4-bit fields read as 2 + 2 + 2 + 2: two copies in each word, and two joins of their leftovers.

    copies  turn of the second copy in the first word, the second word, the first join and the second join
    joins   (turns, positions from the first word, positions from the second) of each join
    """

    copies: tuple[int, int, int, int]
    joins: tuple[tuple[tuple[int, int], frozenset[int], frozenset[int]], ...]


def four(target: tuple[int, ...], copies: tuple[int, int, int, int], turns: tuple[int, int, int, int], split: Split) -> Four:
    """Return the Four in which the bits `split` of the two words' leftovers, turned by turns[:2], make the first join."""
    joins = []
    rest = [frozenset(range(16)) - set(target) - {(t + k) % 16 for t in target} for k in copies[:2]]
    for i, parts in enumerate((split, (rest[0] - split[0], rest[1] - split[1]))):
        pair = (turns[2 * i], turns[2 * i + 1])
        left, right = (frozenset((p - k) % 16 for p in part) for part, k in zip(parts, pair, strict=True))
        joins.append((pair, left, right))
    return Four(copies, tuple(joins))


Split = tuple[frozenset[int], frozenset[int]]

# Patterns of which neither four copies nor a Pair fit. Found by exhaustive search (minutes), fewest turns first:
# second copies, turns of both joins, positions that the first join takes from each word.
FOURS = {
    target: four(target, copies, turns, (frozenset(a), frozenset(b)))
    for target, copies, turns, a, b in (
        ((9, 10, 11, 15), (3, 3, 3, 3), (6, 8, 8, 6), (0, 8), (1, 3, 4, 5, 6, 7)),  # e2m1 -> fp16
        ((5, 6, 7, 15), (3, 3, 3, 3), (4, 11, 11, 4), (3, 11, 12, 14), (0, 1, 4, 13)),  # e0m3, e1m2 -> bf16
        ((7, 8, 9, 15), (3, 3, 3, 3), (4, 9, 9, 4), (3, 6, 13, 14), (0, 1, 4, 5)),  # e3m0 -> bf16
        ((10, 11, 12, 15), (6, 6, 6, 6), (3, 7, 7, 3), (4, 8, 13, 14), (3, 6, 7, 9)),  # e3m0 -> fp16
    )
}
