"""hybrid-humming cache."""

import json

import pytest

from hybrid_humming.cli import main
from hybrid_humming.jit import store


@pytest.fixture
def root(monkeypatch, tmp_path):
    """A cache folder with kernels of two Tritons, and a file of someone else."""
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setenv("HYBRID_HUMMING_CACHE_DIR", str(tmp_path / "cache"))
    for version, count in (("triton-3.6.0", 2), ("triton-3.7.1", 1)):
        folder = store.claim(tmp_path / "cache" / version)
        for i in range(count):
            (folder / f"key{i}").mkdir()
            (folder / f"key{i}" / "gemm_kernel.cubin").write_bytes(bytes(1500))
    (tmp_path / "cache" / "notes.txt").write_text("mine")
    return tmp_path / "cache"


def test_it_shows_the_folder_and_each_version(root, capsys):
    assert main(["cache"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"Compiled kernels in {root}"
    assert out[1].split() == ["version", "kernels", "files", "size", "last", "written"]
    assert out[2].split()[:5] == ["triton-3.6.0", "2", "2", "3.0", "kB"] and out[3].split()[:5] == [
        "triton-3.7.1",
        "1",
        "1",
        "1.5",
        "kB",
    ]
    assert out[4] == "Not written by this library, never deleted: notes.txt"
    assert (root / "triton-3.6.0").exists()


def test_json_holds_what_the_table_shows(root, capsys):
    assert main(["cache", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["path"] == str(root) and shown["bytes"] == 4500 and shown["foreign"] == ["notes.txt"]
    assert shown["freed_bytes"] is None and shown["triton_cache_dir"] is None
    assert [(v["version"], v["kernels"], v["bytes"]) for v in shown["versions"]] == [
        ("triton-3.6.0", {"gemm_kernel": 2}, 3000),
        ("triton-3.7.1", {"gemm_kernel": 1}, 1500),
    ]
    assert main(["cache", "--json", "--clear", "--yes"]) == 0
    assert json.loads(capsys.readouterr().out)["freed_bytes"] == 4500


def test_clear_without_a_terminal_needs_yes(root, capsys):
    for flags in ([], ["--json"]):
        assert main(["cache", "--clear", *flags]) == 1
        assert (
            capsys.readouterr().err == "error: [HH024] nothing was deleted: this is no terminal to ask on, so --clear needs --yes\n"
        )
    assert (root / "triton-3.6.0" / "key0" / "gemm_kernel.cubin").exists()


def test_clear_with_yes_deletes_what_is_ours(root, capsys):
    assert main(["cache", "--clear", "--yes"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "4.5 kB freed"
    assert [child.name for child in root.iterdir()] == ["notes.txt"]
    assert main(["cache", "--clear", "--yes"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "there was nothing to delete"


@pytest.mark.parametrize(("answer", "code"), [(True, 0), (False, 1)])
def test_clear_asks_on_a_terminal(root, capsys, monkeypatch, answer, code):
    asked = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda question, **_: asked.append(question) or answer)
    assert main(["cache", "--clear"]) == code
    assert asked == ["Delete 3 kernels, 4.5 kB?"]
    assert (root / "triton-3.6.0").exists() != answer
    assert answer or capsys.readouterr().out.endswith("nothing was deleted\n")


def test_a_folder_set_for_triton_is_named_and_left_alone(root, capsys, monkeypatch, tmp_path):
    theirs = tmp_path / "triton"
    theirs.mkdir()
    (theirs / "k.cubin").write_bytes(bytes(10))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(theirs))
    assert main(["cache", "--clear", "--yes"]) == 0
    assert f"kernels are compiled into {theirs}, among those of other programs" in capsys.readouterr().out
    assert (theirs / "k.cubin").exists()


def test_a_cache_that_is_no_folder_is_one_line(root, capsys, monkeypatch):
    monkeypatch.setenv("HYBRID_HUMMING_CACHE_DIR", str(root / "notes.txt"))
    assert main(["cache"]) == 1
    assert capsys.readouterr().err.startswith(
        f"error: [HH024] {root / 'notes.txt'} can't be read as a cache folder: Not a directory"
    )
