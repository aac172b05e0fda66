"""The pipelines of the kernels for 8-bit activations, alone and in pairs: every product meets the x and the W of its step."""

import threading

import pytest

from hybrid_humming.triton_kernels.hopper import producer, segments
from hybrid_humming.triton_kernels.hopper.a8 import decoded, pair, sums
from tests.kernels.pipeline import (
    Bars,
    Board,
    Buffer,
    Cta,
    Deadlock,
    View,
    gluon_of,
    loader_of,
    mbarrier_of,
    products_of,
)

MODULES = (segments, producer, pair, sums, decoded)
BM, BN = 128, 128
X_BYTES, W_BYTES = BM * 128, BN * 128


def unwrap(monkeypatch, **names):
    """Replace the device functions of every module by their Python source, and `names` by stand-ins."""
    for module in MODULES:
        for name, value in vars(module).copy().items():
            if name in names:
                monkeypatch.setattr(module, name, names[name])
            elif hasattr(value, "fn") and hasattr(value, "arg_names"):
                monkeypatch.setattr(module, name, value.fn)


def run(monkeypatch, body, *, pairs: int, ctas: int, tiles_m: int, tiles_n: int, steps: int, shared: int, share: int, stages: int):
    """Every CTA's (m, n) -> what it summed; tiles_n counts pairs where CTAs work in pairs."""
    board = Board(ctas)
    board.ctas = ctas
    all_ctas = [Cta(board, stages, pairs) for _ in range(ctas)]
    for i, cta in enumerate(all_ctas):
        cta.pid = i
        cta.other = all_ctas[i ^ 1] if pairs == 2 else cta
        x = Buffer(stages * pairs, (BM // pairs, 128), X_BYTES // pairs)
        w = Buffer(stages, (BN // 64, 64, 128), W_BYTES)
        cta.buffers = [x, w]
    gl = gluon_of(board, lambda: board.roles.cta.pid)

    def mark(name: str) -> None:
        board.roles.mark = name

    def view(part: View, _dtype, shape, _layout) -> View:
        double = part.buffer is board.roles.cta.buffers[0] and pairs == 2
        return View(part.buffer, (part.slots[0], part.slots[0] + 1) if double else part.slots, shape)

    unwrap(
        monkeypatch, gl=gl, mbarrier=mbarrier_of(board), load_tile=loader_of(board, pairs), mark=mark, view=view,
        extents=lambda *sizes: sizes, gdc_wait=lambda: None, BYTES=None,
        block_words=lambda buffers, slot, q, *_a: buffers[0].index(slot).read()[0] + (q,),
        operand=lambda words, *_a: words, planes_of=lambda _decoder: (8,), folds=lambda _decoder: False, **products_of(board),
    )  # fmt: skip
    found: dict = {}
    errors: list = []

    def guarded(task, cta):
        def work():
            board.roles.cta = cta
            try:
                task(cta)
            except BaseException as error:
                board.failed = True
                errors.append(error)

        return threading.Thread(target=work, daemon=True)

    def produce(cta):
        full, empty = Bars(cta, "full"), Bars(cta, "empty")
        dealt, count = pair.count_places(tiles_m, tiles_n, steps, shared, share, pairs)
        pair.produce_either("x", ("w",), cta.buffers[0], (cta.buffers[1],), full, empty, tiles_m, tiles_n, steps, shared, share,
                            dealt, count, 0, 1, False, (8,), BM, 128, stages, 0, X_BYTES + W_BYTES, False, pairs)  # fmt: skip

    def consume(cta):
        full, empty = Bars(cta, "full"), Bars(cta, "empty")
        dealt, count = pair.count_places(tiles_m, tiles_n, steps, shared, share, pairs)
        slot = phase = 0
        for i in range(count):
            _tile, begin, end, m, n = pair.place(i, dealt, steps, shared, share, tiles_m, tiles_n, 0, pairs)
            acc, slot, phase = body(slot, phase, begin, end, cta, full, empty, stages, pairs)
            assert not cta.flying
            found.setdefault((m, n), []).append((begin, end, acc.parts))

    threads = [guarded(task, cta) for cta in all_ctas for task in (produce, consume)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]
    return found


def products(slot, phase, begin, end, cta, full, empty, stages, pairs):
    return sums.sum_products(
        slot, phase, begin, end, cta.buffers[0], cta.buffers[1], full, empty, True, BM, BN, stages, None, None, pairs
    )


def promoted(slot, phase, begin, end, cta, full, empty, stages, pairs):
    acc, _second, slot, phase = sums.sum_promoted(
        slot, phase, begin, end, cta.buffers[0], cta.buffers[1], full, empty, None, None, 0, 0, 1, 1, 1, 1, 1,
        True, 0, 0, 0, 0, 0, 1, 1, BM, BN, stages, None, None, pairs,
    )  # fmt: skip
    return acc, slot, phase


def groups(slot, phase, begin, end, cta, full, empty, stages, pairs):
    return decoded.sum_groups(
        slot, phase, begin, end, cta.buffers[0], (cta.buffers[1],) * 2, full, empty, None, 0, 1, 1, 1,
        None, 0, 0, False, 0, 0, BM, BN, stages, 1, None, None, pairs,
    )  # fmt: skip


def kept(slot, phase, begin, end, cta, full, empty, stages, pairs):
    return decoded.sum_decoded(
        slot, phase, begin, end, cta.buffers[0], (cta.buffers[1],) * 2, full, empty, None, BM, BN, stages, 1, None, None, pairs
    )


BODIES = {"products": products, "promoted": promoted, "groups": groups, "kept": kept}


def expected(body: str, m: int, n: int, begin: int, end: int, pairs: int) -> list:
    """The products of a segment: x's rows (of each half), and W's tile, of each step."""
    wanted = []
    for k in range(begin, end):
        x = tuple(("x", m * BM + half * BM // pairs, 128 * k) for half in range(pairs))
        w = ("w", n * BN // 64, 64 * k, 0)
        wanted += [(x, (w,))] if body in ("products", "promoted") else [((*w, q), x) for q in (0, 1)]
    return wanted


@pytest.mark.parametrize("pairs, ctas, tiles_m, tiles_n, steps, shared, share, stages", [
    (1, 3, 2, 4, 5, 0, 1, 3), (1, 4, 1, 3, 7, 3, 6, 4), (1, 2, 1, 2, 2, 0, 1, 4),
    (2, 4, 3, 2, 5, 0, 1, 3), (2, 2, 1, 3, 1, 0, 1, 4), (2, 6, 2, 2, 9, 0, 1, 2),
])  # fmt: skip
@pytest.mark.parametrize("body", BODIES)
def test_every_product_meets_its_own_operands(monkeypatch, body, pairs, ctas, tiles_m, tiles_n, steps, shared, share, stages):
    found = run(monkeypatch, BODIES[body], pairs=pairs, ctas=ctas, tiles_m=tiles_m, tiles_n=tiles_n, steps=steps, shared=shared,
                share=share, stages=stages)  # fmt: skip
    assert sorted(found) == [(m, n) for m in range(tiles_m) for n in range(tiles_n * pairs)]
    for (m, n), parts in found.items():
        assert sorted(k for begin, end, _ in parts for k in range(begin, end)) == list(range(steps))
        for begin, end, got in parts:
            assert got == expected(body, m, n, begin, end, pairs)


def test_the_books_notice_a_release_that_is_missing(monkeypatch):
    """The harness itself: a consumer that never gives a slot back stands still, and says so."""
    monkeypatch.setattr("tests.kernels.pipeline.TIMEOUT", 1.0)

    def forgetful(*args):
        monkeypatch.setattr(sums, "release", lambda *_a: None)
        return products(*args)

    with pytest.raises(Deadlock):
        run(monkeypatch, forgetful, pairs=1, ctas=1, tiles_m=1, tiles_n=1, steps=9, shared=0, share=1, stages=2)


def test_the_books_notice_a_slot_that_is_given_back_too_early(monkeypatch):
    """A consumer that frees a slot before its product is complete reads another step's operands."""

    def hasty(slot, phase, begin, end, cta, full, empty, stages, pairs):
        def early(bar, pred, _pair):
            if pred:
                bar.own.arrive()

        monkeypatch.setattr(sums, "release", early)
        monkeypatch.setattr(sums, "warpgroup_mma_wait", lambda left, tokens, wait=sums.warpgroup_mma_wait: wait(left + 2, tokens))
        acc, slot, phase = products(slot, phase, begin, end, cta, full, empty, stages, pairs)
        cta.flying.clear()
        return acc, slot, phase

    found = run(monkeypatch, hasty, pairs=1, ctas=1, tiles_m=1, tiles_n=1, steps=12, shared=0, share=1, stages=2)
    ((_, _, parts),) = found[0, 0]
    assert parts != expected("products", 0, 0, 0, 12, 1)[: len(parts)]
