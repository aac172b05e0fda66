"""What README and docs say is what the code says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_generated_parts_are_up_to_date():
    done = subprocess.run(
        [sys.executable, "scripts/generate_docs.py", "--check"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def python_of(page: Path) -> str:
    """The Python of a page, its blocks one after the other."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M))


@pytest.mark.parametrize("page", [p for p in PAGES if python_of(p)], ids=lambda p: p.name)
def test_python_of_a_page_runs(page):
    done = subprocess.run([sys.executable, "-c", python_of(page)], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_readme_has_python_to_run():
    assert "hh.gemm" in python_of(ROOT / "README.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_and_scripts_of_a_page_exist(page):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / target).exists(), target
    for script in re.findall(r"\b(?:scripts|examples|tests|hybrid_humming)/[\w./]+\w", text):
        assert (ROOT / script).exists(), script


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_tests_that_a_page_names_exist(page):
    for file, function in re.findall(r"`(test_\w+)::(test_\w+)`", page.read_text()):
        sources = [path.read_text() for path in (ROOT / "tests").rglob(f"{file}.py")]
        assert any(re.search(rf"^def {function}\(", source, re.M) for source in sources), f"{file}::{function}"
