"""The checkers that anyone can run by hand, run here with the same settings."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ("triton_kernels", "cuda_kernels")
MAX_LINES = 600
READERS = {"environ", "environb", "getenv", "getenvb"}

CHECKERS = {
    "ruff check": ["ruff", "check", "."],
    "ruff format": ["ruff", "format", "--check", "."],
    "codespell": ["codespell_lib"],
    "mypy": ["mypy"],
}


@pytest.mark.parametrize("name", CHECKERS)
def test_checker_is_content(name):
    done = subprocess.run([sys.executable, "-m", *CHECKERS[name]], cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def python_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    return [ROOT / path for path in listed if (ROOT / path).exists()]


def reads_environment(source: str) -> bool:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in READERS:
            return True
        if isinstance(node, ast.ImportFrom) and node.module == "os" and READERS & {alias.name for alias in node.names}:
            return True
    return False


def test_the_environment_is_read_in_one_file():
    package = [p for p in python_files() if p.relative_to(ROOT).parts[0] in ("hybrid_humming", *KERNELS)]
    assert package
    readers = {str(p.relative_to(ROOT)) for p in package if reads_environment(p.read_text())}
    assert readers <= {"hybrid_humming/env.py"}, f"ask hybrid_humming/env.py instead: {readers}"


def test_the_environment_check_sees_each_way_of_reading():
    for source in ("import os\nos.environ['A']", "import os\nos.getenv('A')", "from os import environ"):
        assert reads_environment(source)


def test_files_can_be_held_in_mind():
    long = {str(p.relative_to(ROOT)): n for p in python_files() if (n := len(p.read_text().splitlines())) > MAX_LINES}
    assert not long, f"over {MAX_LINES} lines; split by idea: {long}"


def test_kernel_packages_open_with_their_guard():
    """The first statement after the docstring refuses the bare name."""
    for name in KERNELS:
        first = ast.parse((ROOT / name / "__init__.py").read_text()).body[1]
        assert isinstance(first, ast.If)
        assert isinstance(first.body[0], ast.Raise)
        assert f"hybrid_humming.{name}" in ast.unparse(first.test)
