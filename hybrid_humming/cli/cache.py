"""`hybrid-humming cache`: where compiled kernels are kept, how much lies there, and clearing it."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from hybrid_humming import env
from hybrid_humming.errors import CacheError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybrid_humming.jit.store import Kept


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Delete the compiled kernels; asks first.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --clear: don't ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead; --clear then needs --yes.")] = False,
) -> None:
    """Show where compiled kernels are kept and how much each version left; --clear deletes them.

    Only folders that this library made are deleted. Kernels are compiled again when they are needed.

    Example: hybrid-humming cache --clear
    """
    from hybrid_humming.jit import store

    root = env.cache_dir()
    found, foreign = store.kept(root)
    if not as_json:
        show(found, foreign)
    freed = None
    if clear and found:
        size = sum(entry.size_bytes for entry in found)
        if not (yes or agreed(f"Delete {kernels_text(found)}, {size_text(size)}?", as_json)):
            print("nothing was deleted")
            raise typer.Exit(1)
        freed = store.clear(found)
    if as_json:
        print(json.dumps(as_object(found, foreign, freed), indent=1))
    elif clear:
        print("there was nothing to delete" if freed is None else f"{size_text(freed)} freed")


def agreed(question: str, as_json: bool) -> bool:
    """Ask on the terminal; raises CacheError where nobody can answer."""
    if as_json or not sys.stdin.isatty():
        raise CacheError("nothing was deleted: this is no terminal to ask on, so --clear needs --yes")
    return typer.confirm(question, default=False)


def as_object(found: Sequence[Kept], foreign: Sequence[str], freed: int | None) -> dict[str, object]:
    """Return what the table shows; `freed_bytes` is null unless something was deleted, and the versions are those before."""
    return {
        "path": str(env.cache_dir()),
        "triton_cache_dir": None if env.triton_cache_dir() is None else str(env.triton_cache_dir()),
        "versions": [
            {
                "version": entry.version,
                "kernels": entry.kernels,
                "files": entry.files,
                "bytes": entry.size_bytes,
                "last_written": entry.last_written,
            }
            for entry in found
        ],
        "bytes": sum(entry.size_bytes for entry in found),
        "foreign": list(foreign),
        "freed_bytes": freed,
    }


def show(found: Sequence[Kept], foreign: Sequence[str]) -> None:
    """Print the folder, a line for each version, and what is not ours."""
    rows = [("version", "kernels", "files", "size", "last written")]
    for entry in found:
        when = datetime.fromtimestamp(entry.last_written).isoformat(" ", "minutes") if entry.files else "never"
        rows.append((entry.version, str(sum(entry.kernels.values())), str(entry.files), size_text(entry.size_bytes), when))
    print(f"Compiled kernels in {env.cache_dir()}" + ("" if found else ": none yet"))
    if found:
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        for row in rows:
            cells = [
                cell.rjust(w) if i in (1, 2, 3) else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            ]
            print(f"  {'  '.join(cells)}".rstrip())
    if foreign:
        print(f"Not written by this library, never deleted: {', '.join(foreign[:10])}{' ...' if len(foreign) > 10 else ''}")
    if env.triton_cache_dir() is not None:
        print(
            f"TRITON_CACHE_DIR is set: kernels are compiled into {env.triton_cache_dir()}, among those of other programs, "
            "and this command does not clear it"
        )


def kernels_text(found: Sequence[Kept]) -> str:
    """Return `12 kernels`."""
    count = sum(sum(entry.kernels.values()) for entry in found)
    return f"{count} kernel{'' if count == 1 else 's'}"


def size_text(count: int) -> str:
    """Return a number of bytes in the unit that suits it."""
    from hybrid_humming.cli.inspect import size_text as text

    return text(count)
