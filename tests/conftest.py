"""Tiers of the test run: who runs where, what is skipped and why, and a count of each at the end.

cpu (no marker)  everywhere
compile          everywhere; kernels compiled offline, each Triton in a process of its own
interpret        only with TRITON_INTERPRET=1, which Triton reads when a kernel is defined: a run of its own
gpu              only where torch sees a CUDA device; every test under tests/gpu is of this tier
slow             only with --slow
"""

import os
import tempfile
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TIERS = ("gpu", "compile", "interpret", "slow")
INTERPRET = os.environ.get("TRITON_INTERPRET") == "1"


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the slow tier too")


def pytest_configure(config):
    # Tests write neither to the user's caches nor read what an earlier run left there.
    cache = tempfile.TemporaryDirectory(prefix="hybrid_humming_tests_")
    config.add_cleanup(cache.cleanup)
    os.environ["HYBRID_HUMMING_CACHE_DIR"] = cache.name
    os.environ.setdefault("TRITON_CACHE_DIR", str(ROOT / ".cache" / "triton" / "tests"))
    if "PYTEST_XDIST_WORKER" in os.environ:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers share the cores


def tier_of(keywords) -> str:
    """The tier of a test, from its item or report keywords."""
    return next((tier for tier in TIERS if tier in keywords), "cpu")


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def pytest_collection_modifyitems(config, items):
    for item in items:
        if item.path.is_relative_to(ROOT / "tests" / "gpu"):
            item.add_marker("gpu")
    if INTERPRET:
        others = [item for item in items if "interpret" not in item.keywords]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if "interpret" in item.keywords]
    no_gpu = any("gpu" in item.keywords for item in items) and not _has_gpu()
    for item in items:
        if no_gpu and "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        if "interpret" in item.keywords and not INTERPRET:
            item.add_marker(pytest.mark.skip(reason="needs TRITON_INTERPRET=1"))
        if "slow" in item.keywords and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="needs --slow"))


def pytest_terminal_summary(terminalreporter):
    counts = {outcome: Counter() for outcome in ("passed", "failed", "error", "skipped", "xfailed", "xpassed")}
    for outcome, tally in counts.items():
        for report in terminalreporter.stats.get(outcome, ()):
            tally[tier_of(getattr(report, "keywords", ()))] += 1  # a module that failed to load has none
    for tier in ("cpu", *TIERS):
        parts = [f"{tally[tier]} {outcome}" for outcome, tally in counts.items() if tally[tier]]
        if parts:
            terminalreporter.write_line(f"tier {tier}: " + ", ".join(parts))
