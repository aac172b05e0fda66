"""The wheel: one top-level name, every file of the tree, small, and asking for five packages."""

import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGED = (".py", ".json", ".cu", ".cuh", "py.typed")
CORE = {"torch", "triton", "numpy", "safetensors", "ml_dtypes"}


def tree_files() -> list[str]:
    """Paths of the working tree that git tracks or would track, symlinks not followed."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\n")  # fmt: skip
    return [path for path in listed if path and (ROOT / path).exists()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    """Built from a clean copy: a build inside the tree leaves build/lib, from which deleted modules come back."""
    copy = tmp_path_factory.mktemp("tree")
    subprocess.run(["tar", "-cf", copy / "tree.tar", "--no-recursion", *tree_files()], cwd=ROOT, check=True)
    subprocess.run(["tar", "-xf", "tree.tar"], cwd=copy, check=True)
    (copy / "tree.tar").unlink()
    out = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(copy)],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    [path] = out.glob("*.whl")
    return zipfile.ZipFile(path)


def expected_files() -> set[str]:
    found = set()
    for path in tree_files():
        top = path.split("/")[0]
        if (ROOT / path).is_dir() or not path.endswith(PACKAGED):
            continue
        if top == "hybrid_humming":
            found.add(path)
        elif top in ("triton_kernels", "cuda_kernels"):
            found.add(f"hybrid_humming/{path}")
    return found


def test_wheel_holds_every_file_of_the_tree_and_no_other(wheel):
    files = {name for name in wheel.namelist() if ".dist-info/" not in name}
    expected = expected_files()
    assert files == expected, f"missing: {sorted(expected - files)}; not in the tree: {sorted(files - expected)}"


def test_only_top_level_name_is_hybrid_humming(wheel):
    assert {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" not in name} == {"hybrid_humming"}


def test_wheel_is_under_one_megabyte(wheel):
    assert Path(wheel.filename).stat().st_size < 1_000_000


def test_wheel_asks_for_the_five_core_dependencies_alone(wheel):
    [name] = [n for n in wheel.namelist() if n.endswith(".dist-info/METADATA")]
    metadata = Parser().parsestr(wheel.read(name).decode())
    core = {re.split(r"[ ;<>=!~\[]", r)[0] for r in metadata.get_all("Requires-Dist") if "extra ==" not in r}
    assert core == CORE


def test_wheel_carries_the_licence_and_the_command(wheel):
    names = wheel.namelist()
    assert any(n.endswith("licenses/LICENSE") for n in names)
    [entry] = [n for n in names if n.endswith("entry_points.txt")]
    assert "hybrid-humming = hybrid_humming.cli:main" in wheel.read(entry).decode()
