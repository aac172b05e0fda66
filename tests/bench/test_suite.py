"""The pytest-benchmark suite: its clock is the device's, and without a GPU it says what it skipped."""

import os
import subprocess
import sys

import pytest

from bench.clock import DeviceClock
from bench.record import ROOT

pytest.importorskip("pytest_benchmark")

# A worker of pytest-xdist marks its children's environment, and pytest-benchmark then measures nothing.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}


def test_without_a_gpu_the_suite_says_what_it_skipped():
    env = ENVIRONMENT | {"BENCH_SPECS": "w4a16", "BENCH_MS": "1,2", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "pytest", "bench/bench_dense.py", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "24 skipped" in done.stdout
    assert "needs a CUDA device: 24 points of 4 specs are not timed" in done.stdout


def test_pytest_benchmark_reports_device_time(pytestconfig, tmp_path):
    """Rounds that advance the clock by 7 us are reported as 7 us, whatever the host took."""
    test = tmp_path / "test_it.py"
    test.write_text(
        "import pytest\n"
        "from bench.clock import DeviceClock\n"
        "CLOCK = DeviceClock()\n"
        "@pytest.mark.benchmark(timer=CLOCK, warmup=False)\n"
        "def test_it(benchmark):\n"
        "    benchmark.pedantic(lambda: CLOCK.advance_us(7.0), rounds=9, iterations=1)\n"
        "    assert abs(benchmark.stats.stats.median - 7e-6) < 1e-12\n"
        "    assert benchmark.stats.stats.rounds == 9\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        str(test),
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--rootdir",
        str(tmp_path),
    ]
    done = subprocess.run(
        command, cwd=tmp_path, env=ENVIRONMENT | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_clock_moves_only_when_told():
    clock = DeviceClock()
    assert clock() == clock() == 0.0
    clock.advance_us(1.5)
    assert clock() == pytest.approx(1.5e-6)
