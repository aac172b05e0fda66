"""The compile matrix: every row of the catalogs has a representative, and none of those got worse than the committed baseline."""

import dataclasses
import os

import pytest

from hybrid_humming.device import DeviceInfo
from tests.compile import matrix, rows
from tests.compile.harness import TRITONS, missing, version_of
from tests.compile.matrix import Measured, regressions

LISTED = rows.representatives()
SMS = tuple(rows.gpus())
AGAIN = "run python scripts/compile_matrix.py --new, then python scripts/generate_docs.py"
MOST_STACK = 16  # bytes of spills that the worst representative has


def test_every_row_of_the_catalogs_has_a_representative():
    stood_for = set().union(*map(rows.rows_of, LISTED))
    assert not rows.catalog_rows() - stood_for, AGAIN


@pytest.mark.parametrize("one", LISTED, ids=lambda one: one.key)
def test_every_representative_is_a_legal_plan(one):
    assert rows.legal(one), AGAIN


@pytest.mark.parametrize("triton", TRITONS)
def test_the_baseline_holds_the_representatives_and_nothing_else(triton):
    if triton == "installed" and not matrix.baseline(version_of(triton)):
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no baseline of Triton {version_of(triton)}: {AGAIN}")
    kept = matrix.baseline(version_of(triton))
    assert set(kept) == {one.key for one in matrix.subset(LISTED, triton)}, AGAIN
    assert all(one.refused or one.registers for one in kept.values())
    assert not [key for key, one in kept.items() if one.stack_bytes > MOST_STACK]


@pytest.mark.compile
@pytest.mark.timeout(900)  # the first test of each Triton compiles for all of them
@pytest.mark.parametrize("sm", SMS)
@pytest.mark.parametrize("triton", TRITONS)
def test_nothing_got_worse(triton, sm):
    kept = matrix.baseline(version_of(triton))
    if (why := missing(triton)) or not kept:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(why or f"no baseline of Triton {version_of(triton)}")
    ones = matrix.subset(LISTED, triton)
    found = matrix.measured(ones, triton)
    worse = {}
    for one in ones:
        device, now = DeviceInfo.named(one.device), found[one.key]
        if device.sm != sm:
            continue
        assert now.shared_bytes <= device.shared_per_block_bytes, one.key
        if changes := regressions(now, kept[one.key]):
            worse[one.key] = changes
    assert not worse, "\n".join(f"{key}: {'; '.join(changes)}" for key, changes in worse.items())


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("triton", TRITONS)
def test_every_format_compiles_for_every_sm(triton):
    """The whole matrix, the formats that hardly anyone has included."""
    if why := missing(triton):
        pytest.skip(why)
    ones = tuple(rows.chosen(rare=True))
    for key, now in matrix.measured(ones, triton).items():
        assert not now.refused or now.refused.startswith("Triton "), f"{key}: {now.refused}"
        assert now.stack_bytes <= 2 * MOST_STACK, key


BEFORE = Measured(registers=100, shared_bytes=4096, mma="HMMA.16816", per_weight=2.0)


@pytest.mark.parametrize(("changes", "said"), [
    ({"registers": 108, "per_weight": 2.1}, ""), ({"registers": 60, "per_weight": 1.0, "shared_bytes": 0}, ""),
    ({"registers": 109}, "registers 109, was 100"), ({"per_weight": 2.11}, "instructions per weight 2.11, was 2.0"),
    ({"spills": 1}, "spills 1, was 0"), ({"stack_bytes": 8}, "stack_bytes 8, was 0"),
    ({"shared_bytes": 4097}, "shared_bytes 4097, was 4096"), ({"mma": "FMA"}, "multiplies with FMA, was HMMA.16816"),
    ({"refused": "an error"}, "compiling: an error, was: works"),
])  # fmt: skip
def test_a_regression_is_told_with_both_numbers(changes, said):
    worse = "; ".join(regressions(dataclasses.replace(BEFORE, **changes), BEFORE))
    assert said in worse and bool(said) == bool(worse)
