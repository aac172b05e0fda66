"""Run a kernel's producer and consumers in Python threads: their own source, with barriers, slots and products that keep book.

Nothing is computed. A slot holds the coordinates of what was loaded into it, and a product reads them when it is waited for, as
late as the hardware may; so a slot that is filled too early, a phase that is off by one, and an arrival that is missing show
as a wrong coordinate or as a deadlock.
"""

import random
import threading
from types import SimpleNamespace

TIMEOUT = 20.0  # seconds until a wait counts as a deadlock


class Deadlock(Exception):
    pass


class Board:
    """One lock for everything, and each thread's role."""

    def __init__(self, seed: int) -> None:
        self.changed = threading.Condition()
        self.roles = threading.local()
        self.random = random.Random(seed)
        self.failed = False


class Barrier:
    """An mbarrier: `count` arrivals and the bytes announced complete a phase."""

    def __init__(self, board: Board, count: int) -> None:
        self.board, self.count, self.pending, self.bytes, self.phase = board, count, count, 0, 0

    def _settle(self) -> None:
        assert self.pending >= 0
        if self.pending == 0 and self.bytes == 0:
            self.phase, self.pending = self.phase + 1, self.count
            self.board.changed.notify_all()

    def arrive(self, bytes_: int = 0) -> None:
        with self.board.changed:
            self.bytes += bytes_
            self.pending -= 1
            self._settle()

    def complete(self, bytes_: int) -> None:
        with self.board.changed:
            self.bytes -= bytes_
            self._settle()

    def wait(self, parity: int) -> None:
        with self.board.changed:
            done = self.board.changed.wait_for(lambda: self.board.failed or self.phase & 1 != parity, TIMEOUT)
            if not done or self.board.failed:
                self.board.failed = True
                raise Deadlock


class Buffer:
    """Shared memory of several slots; `rows` of a slot are what a load's coordinate counts."""

    def __init__(self, slots: int, shape: tuple[int, ...], nbytes: int) -> None:
        self.content: list = [None] * slots
        self.shape, self.nbytes, self.dtype = shape, nbytes, "e4m3"

    def index(self, i: int) -> "View":
        return View(self, (i,), self.shape)


class View:
    """Some slots of a buffer; slices and permutations of it are the same to the books."""

    def __init__(self, buffer: Buffer, slots: tuple[int, ...], shape: tuple[int, ...]) -> None:
        self.buffer, self.slots, self.shape, self.dtype = buffer, slots, shape, buffer.dtype

    def slice(self, *_args, **_kwargs) -> "View":
        return self

    permute = slice

    def read(self) -> tuple:
        return tuple(self.buffer.content[s] for s in self.slots)


class Sum:
    """What has been added: (x, W) of each product. Scales and layouts vanish in it."""

    def __init__(self, parts=()) -> None:
        self.parts, self.shape = list(parts), (1, 1)

    def __add__(self, other: "Sum") -> "Sum":
        return Sum(self.parts + other.parts)

    def __mul__(self, _other) -> "Sum":
        return self

    def to(self, _dtype) -> "Sum":
        return self


class Anything:
    """Stands for values that the books don't need."""

    def __getattr__(self, _name):
        return Anything()

    def __call__(self, *_args, **_kwargs):
        return Anything()

    def _same(self, *_args):
        return self

    __add__ = __radd__ = __mul__ = __rmul__ = __getitem__ = __or__ = __and__ = __lt__ = __sub__ = _same


class Cta:
    """One CTA's barriers and the products under way of its consumers."""

    def __init__(self, board: Board, stages: int, pair: int) -> None:
        self.full = [Barrier(board, 1) for _ in range(stages)]
        self.empty = [Barrier(board, pair) for _ in range(stages)]
        self.flying: list = []
        self.other: Cta = self
        self.buffers: list[Buffer] = []


class Bars(list):
    """Barriers as a kernel indexes them, which know their twins in the other CTA."""

    def __init__(self, cta: Cta, name: str) -> None:
        super().__init__(getattr(cta, name))
        self.cta, self.name = cta, name

    def index(self, i: int):
        return SimpleNamespace(own=self[i], twin=getattr(self.cta.other, self.name)[i])


def gluon_of(board: Board, pid_of) -> SimpleNamespace:
    """`gl` for one kernel: sizes and choices are real, tensors are not."""
    return SimpleNamespace(
        program_id=lambda _axis: pid_of(), num_programs=lambda _axis: board.ctas, minimum=min, maximum=max,
        where=lambda condition, a, b: a if condition else b, cdiv=lambda a, b: -(-a // b), static_range=range,
        zeros=lambda *_a, **_k: Sum(), arange=lambda *_a, **_k: Anything(), constexpr=Anything(), float32=None, int32=None,
        SliceLayout=Anything(), DotOperandLayout=Anything(), static_assert=lambda *_a: None,
    )  # fmt: skip


def mbarrier_of(board: Board) -> SimpleNamespace:
    def marked() -> bool:
        mark, board.roles.mark = getattr(board.roles, "mark", None), None
        return mark == "release"

    def arrive(bar, *, count=1, pred=True) -> None:
        both = marked()
        if pred:
            bar.own.arrive()
            if both:
                bar.twin.arrive()

    return SimpleNamespace(
        arrive=arrive,
        wait=lambda bar, phase, pred=True: bar.own.wait(phase) if pred else None,
        expect=lambda bar, nbytes: bar.own.arrive(nbytes),
    )


def loader_of(board: Board, pair: int):
    def load(desc, coordinates, bar, view) -> None:
        mark, board.roles.mark = getattr(board.roles, "mark", None), None
        cta: Cta = board.roles.cta
        targets = [(view.buffer, bar.own)]
        if mark == "both":
            assert pair == 2
            targets.append((cta.other.buffers[cta.buffers.index(view.buffer)], bar.twin))
        for buffer, barrier in targets:
            with board.changed:
                buffer.content[view.slots[0]] = (desc, *coordinates)
            barrier.complete(buffer.nbytes)

    return load


def products_of(board: Board) -> dict:
    """warpgroup_mma and its waits: operands are read when the product retires."""

    def product(rows, columns, acc, use_acc=True, is_async=True):
        cta: Cta = board.roles.cta
        result = Sum(acc.parts if use_acc else ())
        cta.flying.append((rows, columns, result))
        return result

    def wait(left, tokens):
        cta: Cta = board.roles.cta
        while len(cta.flying) > left:
            rows, columns, result = cta.flying.pop(0)
            result.parts.append((rows.read() if isinstance(rows, View) else rows, columns.read()))
        return tokens[0] if len(tokens) == 1 else tuple(tokens)

    def chained(rows, columns, acc, **kwargs):
        """Products of one sum share their list, so that a later one holds the earlier ones that are still under way."""
        result = product(rows, columns, acc, **kwargs)
        if kwargs.get("use_acc", True):
            result.parts = acc.parts
        return result

    return {"warpgroup_mma": chained, "warpgroup_mma_wait": wait, "warpgroup_mma_init": lambda value: value}
