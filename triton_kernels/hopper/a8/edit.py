"""PTX of a kernel whose CTAs work in pairs: what Triton 3.6.0 cannot say, written at the lines that the kernel marks (pair.py).

    with paired():                  # around the launch that compiles
        kernel[grid](...)

Three edits, each counted: a kernel without every one of its marks, or with another instruction behind a mark than the one it is
for, is refused. The cluster's size is a directive of the kernel, so that any launch of an even grid makes pairs.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hybrid_humming.errors import CompileError

CLUSTER, BOTH, RELEASE = "pair: cluster", "pair: both", "pair: release"
LOAD = re.compile(
    r"^(?P<indent>\s*)(?P<guard>@%p\d+ )?(?P<name>cp\.async\.bulk\.tensor\.\dd\.shared::cluster\.global"
    r"\.mbarrier::complete_tx::bytes) (?P<operands>.*);$"
)
ARRIVE = re.compile(r"^(?P<indent>\s*)(?P<guard>@%p\d+ )?mbarrier\.arrive\.shared::cta\.b64 _, \[(?P<bar>%r\d+)\];$")


def edit(ptx: str) -> str:
    """Return `ptx` with its marked lines rewritten and the cluster declared; raises CompileError where it is not as expected."""
    lines, out, pending = ptx.splitlines(), [], ""
    found = {CLUSTER: 0, BOTH: 0, RELEASE: 0}
    for line in lines:
        mark = next((m for m in found if line.strip() == f"// {m}"), None)
        if mark:
            if pending:
                raise CompileError(f"the mark '{pending}' is followed by '{mark}', not by the instruction that it is for")
            found[mark] += 1
            out.append(line)
            if mark == CLUSTER:
                out += ["fence.mbarrier_init.release.cluster;", "barrier.cluster.arrive.release;", "barrier.cluster.wait.acquire;"]
            else:
                pending = mark
            continue
        load, arrive = LOAD.match(line), ARRIVE.match(line)
        if pending == BOTH and load:
            out += _multicast(load)
            pending = ""
        elif pending == RELEASE and arrive:
            out += _arrive_at_both(arrive)
            pending = ""
        elif pending and (load or arrive or line.strip().startswith("ret;")):
            raise CompileError(f"the mark '{pending}' is followed by '{line.strip()}', not by the instruction that it is for")
        else:
            out.append(line)
    if pending or found[CLUSTER] != 1 or not found[BOTH] or not found[RELEASE]:
        raise CompileError(
            f"the kernel of a pair has marks {found}, and '{pending}' open; it needs one cluster mark and some of each"
        )
    return "\n".join(_declared(out)) + "\n"


def _multicast(load: re.Match[str]) -> list[str]:
    """The TMA box into both CTAs, at the same place in each."""
    guard = load["guard"] or ""
    return [
        "{", ".reg .b16 pair;", "mov.b16 pair, 3;",
        f"{guard}{load['name']}.multicast::cluster {load['operands']}, pair;", "}",
    ]  # fmt: skip


def _arrive_at_both(arrive: re.Match[str]) -> list[str]:
    """An arrival at the barrier of each CTA."""
    guard, bar = arrive["guard"] or "", arrive["bar"]
    lines = ["{", ".reg .b32 there;"]
    for rank in (0, 1):
        lines += [
            f"mapa.shared::cluster.u32 there, {bar}, {rank};",
            f"{guard}mbarrier.arrive.shared::cluster.b64 _, [there];",
        ]
    return [*lines, "}"]


def _declared(lines: list[str]) -> list[str]:
    """The kernel with its cluster's size; warps that come to work later arrive at the cluster's barrier as they begin."""
    size = next((i for i, line in enumerate(lines) if line.startswith(".reqntid ")), None)
    body = next((i for i, line in enumerate(lines) if line.strip().startswith("$L__func_begin0:")), None)
    begin = "" if body is None else "\n".join(lines[body : body + 60])
    split = re.search(r"setp\.lt\.u32 \t%p\d+, %r\d+, (\d+);", begin)
    if size is None or body is None or split is None:
        raise CompileError("the kernel of a pair has no .reqntid, no beginning, or no choice between its warps' roles")
    workers = [
        "{", ".reg .pred first;", ".reg .b32 thread;", "mov.u32 thread, %tid.x;",
        f"setp.lt.u32 first, thread, {32 * int(split[1])};", "@!first barrier.cluster.arrive.relaxed;", "}",
    ]  # fmt: skip
    head = [*lines[: size + 1], ".explicitcluster", ".reqnctapercluster 2, 1, 1", *lines[size + 1 : body + 1]]
    return [*head, *workers, *lines[body + 1 :]]


@functools.cache
def digest() -> str:
    """Return what names this editor: a constant of the kernels that it edits, for Triton's caches don't know of it."""
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]


class _Hook:
    """Triton's hook on the stages of a compilation: PTX is edited where it is made."""

    def __call__(self, *args: Any) -> Any:
        if not args:  # from Triton 3.7 on: what its caches are keyed with
            return f"paired-{digest()}", digest()
        stages = args[1]
        make = stages["ptx"]
        stages["ptx"] = lambda source, metadata: edit(make(source, metadata))
        return None


@contextlib.contextmanager
def paired() -> Iterator[None]:
    """Kernels compiled inside are kernels of pairs."""
    from triton import knobs

    before = knobs.runtime.add_stages_inspection_hook
    if before is not None:
        raise CompileError(
            "a hook on Triton's compilation is set already; a kernel of a pair needs its own: unset it, or multicast=1"
        )
    knobs.runtime.add_stages_inspection_hook = _Hook()
    try:
        yield
    finally:
        knobs.runtime.add_stages_inspection_hook = before
