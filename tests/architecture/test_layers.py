"""Imports point one way: the contracts of pyproject.toml, checked by import-linter."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def lint(folder: Path, *options: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()",
         "--no-cache", "--no-logo", *options, str(folder / "pyproject.toml")],
        cwd=folder, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": str(folder)},
    )  # fmt: skip


def test_imports_point_one_way():
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_linter_sees_the_kernel_packages_and_catches_a_wrong_import(tmp_path):
    """A planted import from dtypes up into triton_kernels, and one between the two kernel packages, are both named."""
    for name in ("triton_kernels", "cuda_kernels"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    package = tmp_path / "hybrid_humming"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for name in ("triton_kernels", "cuda_kernels"):
        (package / name).symlink_to(f"../{name}")
    (package / "dtypes.py").write_text("import hybrid_humming.triton_kernels.decode\n")
    (tmp_path / "triton_kernels" / "decode.py").write_text("from hybrid_humming.cuda_kernels import patch\n")
    (tmp_path / "cuda_kernels" / "patch.py").write_text("")
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    done = lint(tmp_path, "--contract", "layers")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "hybrid_humming.dtypes -> hybrid_humming.triton_kernels.decode" in done.stdout
    assert "hybrid_humming.triton_kernels.decode -> hybrid_humming.cuda_kernels.patch" in done.stdout


def test_every_module_has_a_line_in_the_contract(tmp_path):
    """The contract is exhaustive: a module that no layer names is refused."""
    package = tmp_path / "hybrid_humming"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "stray.py").write_text("")
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    done = lint(tmp_path, "--contract", "layers")
    assert done.returncode == 1
    assert "stray" in done.stdout
