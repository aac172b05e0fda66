"""Where compiled kernels are kept, that only what this library wrote is deleted, and what is said where that can't be done."""

import os
import threading
from pathlib import Path

import pytest
import triton
from triton import knobs

from hybrid_humming.errors import CacheError
from hybrid_humming.jit import compile as compiling
from hybrid_humming.jit import store
from tests.jit.probe import matmul_kernel

SIGNATURE = {"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp32", "K": "i32"}
VERSION = f"triton-{triton.__version__}"


@pytest.fixture
def root(monkeypatch, tmp_path):
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setenv("HYBRID_HUMMING_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def compiled(block: int):
    return compiling.compile_triton(matmul_kernel, SIGNATURE, {"BLOCK": block}, sm=80)


def test_a_compiled_kernel_is_kept_and_found_again(root):
    before = knobs.cache.dir
    first = compiled(16)
    assert (knobs.cache.dir, os.environ.get("TRITON_CACHE_DIR")) == (before, None), "Triton's own settings are as they were"
    ((entry,), foreign) = store.kept(root)
    assert (entry.version, entry.kernels, foreign) == (VERSION, {"matmul_kernel": 1}, [])
    assert entry.size_bytes == sum(f.stat().st_size for f in entry.path.rglob("*") if f.is_file() and f.name != store.TAG)
    again = compiled(16)
    assert again.cubin == first.cubin and store.kept(root)[0][0].kernels == {"matmul_kernel": 1}
    compiled(32)
    assert store.kept(root)[0][0].kernels == {"matmul_kernel": 2}


def test_tritons_own_setting_counts(root, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    compiled(16)
    assert not root.exists() and list((tmp_path / "triton").rglob("matmul_kernel.cubin"))


def test_threads_that_compile_leave_tritons_setting_alone(root):
    before, meet = dict(vars(knobs.cache)), threading.Barrier(4, timeout=20)

    def work() -> None:
        with store.keeping():
            meet.wait()
            assert knobs.cache.dir == str(root / VERSION)
            meet.wait()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert vars(knobs.cache) == before


def test_clearing_deletes_what_is_ours_and_nothing_else(root):
    ours = store.claim(root / "triton-3.6.0")
    (ours / "key").mkdir()
    (ours / "key" / "k.cubin").write_bytes(bytes(1000))
    other = root.parent / "other"
    store.claim(other)
    (other / "k.cubin").write_bytes(bytes(10))
    (root / "notes.txt").write_text("mine")
    (root / "triton-3.5.0").mkdir()
    (root / "triton-3.5.0" / "k.cubin").write_bytes(bytes(10))
    (root / "link").symlink_to(other)
    (ours / "key" / "out").symlink_to(other)
    found, foreign = store.kept(root)
    assert [entry.version for entry in found] == ["triton-3.6.0"] and foreign == ["link", "notes.txt", "triton-3.5.0"]
    assert store.clear(found) == found[0].size_bytes == 1000
    assert sorted(child.name for child in root.iterdir()) == foreign
    assert (other / "k.cubin").exists() and (root / "triton-3.5.0" / "k.cubin").exists()


def test_a_folder_that_lost_its_mark_is_refused(root):
    ours = store.claim(root / "triton-3.6.0")
    (ours / "k.cubin").write_bytes(bytes(10))
    found, _ = store.kept(root)
    (ours / store.TAG).write_text("Signature: 8a477f597d28d172789f06886806bc55\n# of another program\n")
    with pytest.raises(CacheError, match="is not a folder that this library made; it is left as it is"):
        store.clear(found)
    assert (ours / "k.cubin").exists()


def test_a_clearing_that_was_interrupted_can_be_finished(root, monkeypatch):
    ours = store.claim(root / "triton-3.6.0")
    for key in ("a", "b"):
        (ours / key).mkdir()
        (ours / key / "k.cubin").write_bytes(bytes(10))
    rmtree, calls = store.shutil.rmtree, []

    def once(path):
        calls.append(path)
        if len(calls) > 1:
            raise PermissionError(13, "Permission denied", str(path))
        rmtree(path)

    monkeypatch.setattr(store.shutil, "rmtree", once)
    with pytest.raises(CacheError, match=r"triton-3.6.0 can't be deleted: Permission denied .*Mend its permissions"):
        store.clear(store.kept(root)[0])
    monkeypatch.undo()
    (left,), _ = store.kept(root)
    assert left.version.startswith("triton-3.6.0.deleted-") and left.kernels == {"k": 1}
    store.clear([left])
    assert list(root.iterdir()) == []


def test_a_folder_that_is_not_ours_is_not_written_into(root):
    (root / VERSION).mkdir(parents=True)
    (root / VERSION / "thesis.tex").write_text("")
    with pytest.raises(CacheError, match=r"holds files that this library did not write; set HYBRID_HUMMING_CACHE_DIR"):
        compiled(16)
    assert [file.name for file in (root / VERSION).iterdir()] == ["thesis.tex"]


def test_a_cache_that_cant_be_written_says_so(root):
    root.write_text("a file")
    with pytest.raises(CacheError, match=r"compiled kernels can't be kept in .*: Not a directory; set HYBRID_HUMMING_CACHE_DIR"):
        compiled(16)
    with pytest.raises(CacheError, match="can't be read as a cache folder: Not a directory"):
        store.kept(root)


def test_a_cache_that_is_not_there_is_empty(root):
    assert store.kept(root) == ([], []) and not Path(root).exists()
