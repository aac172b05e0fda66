"""Where compiled kernels are kept on disk, what lies there, and how it is cleared.

    <HYBRID_HUMMING_CACHE_DIR>/triton-3.7.1/CACHEDIR.TAG                    says that this library made the folder
                                           /<key>/gemm_stream_kernel.cubin  Triton's files of one compiled kernel

Triton's key covers source, constants, target and versions and no path, so that machines with the same Triton can share or copy
a folder. Where TRITON_CACHE_DIR is set, Triton's own setting counts and nothing is kept here. Layouts and plans are computed
in each process and leave nothing on disk.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hybrid_humming import env
from hybrid_humming.errors import CacheError

TAG = "CACHEDIR.TAG"
# The first line is what backup programs look for (https://bford.info/cachedir), the second tells our folders from others'.
TAG_TEXT = "Signature: 8a477f597d28d172789f06886806bc55\n# compiled kernels of hybrid_humming, safe to delete\n"
TO_DO = "set HYBRID_HUMMING_CACHE_DIR to a folder that can be written"

_lock, _inside, _before = threading.Lock(), 0, None


@dataclass(frozen=True, kw_only=True)
class Kept:
    """The kernels that one version of a compiler left: `triton-3.7.1`. `last_written` is in seconds since 1970, 0 if empty."""

    version: str
    path: Path
    kernels: dict[str, int]
    files: int
    size_bytes: int
    last_written: float


@contextmanager
def keeping() -> Iterator[None]:
    """Inside the block Triton looks for compiled kernels in our folder, and leaves them there; raises CacheError.

    The setting is the process's own: a kernel of someone else that another thread compiles meanwhile is kept here too.
    """
    global _inside, _before
    if env.triton_cache_dir() is not None:
        yield
        return
    import triton
    from triton import knobs

    folder = claim(env.cache_dir() / f"triton-{triton.__version__}")
    settings = vars(knobs.cache)  # not its attribute, which would change the environment as well
    with _lock:
        if _inside == 0:
            _before = settings.get("dir")
        _inside += 1
        settings["dir"] = str(folder)
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                settings.pop("dir") if _before is None else settings.update(dir=_before)


def claim(folder: Path) -> Path:
    """Make `folder`, if need be, and mark it as ours; raises CacheError where it can't be written or holds what is not ours."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not is_ours(folder):
            if any(folder.iterdir()):
                raise CacheError(f"{folder} holds files that this library did not write; {TO_DO} and holds nothing else")
            (folder / TAG).write_text(TAG_TEXT)
    except OSError as error:
        raise CacheError(f"compiled kernels can't be kept in {folder}: {error.strerror}; {TO_DO}") from error
    return folder


def is_ours(folder: Path) -> bool:
    """Return whether this library made `folder`; a link to one is not ours."""
    try:
        return not folder.is_symlink() and (folder / TAG).read_text() == TAG_TEXT
    except (OSError, UnicodeDecodeError):
        return False


def kept(root: Path) -> tuple[list[Kept], list[str]]:
    """Return what lies in the cache folder `root`, by version, and the names of what is not ours there; raises CacheError."""
    try:
        children = sorted(root.iterdir()) if root.exists() else []
    except OSError as error:
        raise CacheError(f"{root} can't be read as a cache folder: {error.strerror}; {TO_DO}") from error
    ours = [child for child in children if is_ours(child)]
    return [_look(child) for child in ours], [child.name for child in children if child not in ours]


def clear(found: Sequence[Kept]) -> int:
    """Delete the folders of `found` and return the bytes freed; raises CacheError, having deleted what it could.

    Each is renamed first, so that a process which compiles meanwhile starts a new folder in place of finding half of one.
    """
    freed = 0
    for entry in found:
        if not is_ours(entry.path):
            raise CacheError(f"{entry.path} is not a folder that this library made; it is left as it is")
        gone = entry.path.with_name(f"{entry.path.name}.deleted-{os.getpid()}")
        try:
            entry.path.rename(gone)
            _delete(gone)
        except OSError as error:
            raise CacheError(
                f"{entry.path} can't be deleted: {error.strerror} ({error.filename}); {freed} bytes of others were. "
                "Mend its permissions, or delete it by hand"
            ) from error
        freed += entry.size_bytes
    return freed


def _delete(folder: Path) -> None:
    """Delete a folder, its mark last, so that one that was interrupted is still known as ours."""
    for child in folder.iterdir():
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        elif child.name != TAG:
            child.unlink()
    (folder / TAG).unlink()
    folder.rmdir()


def _look(folder: Path) -> Kept:
    kernels, files, size, last = Counter[str](), 0, 0, 0.0
    for path, _, names in os.walk(folder):
        for name in names:
            if path == str(folder) and name == TAG:
                continue
            try:
                stat = os.lstat(os.path.join(path, name))
            except OSError:  # another process replaced or cleared it since
                continue
            files, size, last = files + 1, size + stat.st_size, max(last, stat.st_mtime)
            if name.endswith(".cubin"):
                kernels[name.removesuffix(".cubin")] += 1
    return Kept(
        version=folder.name, path=folder, kernels=dict(sorted(kernels.items())), files=files, size_bytes=size, last_written=last
    )
