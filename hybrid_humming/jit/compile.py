"""Compile a kernel for a GPU that need not be present, and describe the result in one value, `Compiled`.

The key covers the kernel's source with the functions that it calls, its constants and signature, the target, and the
versions of Triton and ptxas; no path, no time, no host name, so that two machines agree on it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hybrid_humming.errors import CacheError, CompileError
from hybrid_humming.jit.store import keeping


@dataclass(frozen=True, kw_only=True, eq=False)
class Compiled:
    """One compiled kernel. `signature` lists (parameter, type) of the launch, without the constants."""

    cubin: bytes = field(repr=False)
    entry: str
    sm: int
    shared_bytes: int
    registers: int
    spill_bytes: int
    signature: tuple[tuple[str, str], ...]
    key: str
    seconds: float
    asm: dict[str, Any] = field(repr=False, default_factory=dict)


# The first Triton that compiles for an SM, where not every supported one does: older ones end in an assembler's error (sm_110a)
# or end the process (sm_107a).
FIRST_TRITON = {107: "3.9.0", 110: "3.7.1"}


def check_target(sm: int) -> None:
    """Raise CompileError where the installed Triton is too old for `sm`."""
    import triton

    first = FIRST_TRITON.get(sm)
    if first is not None and _release(triton.__version__) < _release(first):
        raise CompileError(
            f"Triton {triton.__version__} does not know sm_{sm}a; {first} is the first that does: pip install 'triton>={first}', "
            "with the torch that asks for it"
        )


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def compile_triton(
    kernel: Any,
    signature: dict[str, str],
    constants: dict[str, Any],
    *,
    sm: int,
    num_warps: int = 4,
    num_stages: int = 3,
    aligned: tuple[str, ...] = (),
    options: dict[str, Any] | None = None,
    source_type: Any = None,
) -> Compiled:
    """Return `kernel` compiled for `sm`; needs no GPU.

    signature  parameter -> Triton type ("*bf16", "i32", ...), for every parameter that is no constant
    aligned    parameters whose value is a multiple of 16 (pointers, strides)
    source_type  Triton's ASTSource; Gluon kernels pass GluonASTSource
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    check_target(sm)
    begin = time.perf_counter()
    index = {name: i for i, name in enumerate(kernel.arg_names)}
    attrs = {(index[name],): [["tt.divisibility", 16]] for name in aligned}
    kinds = {name: signature.get(name, "constexpr") for name in kernel.arg_names}
    source = (source_type or ASTSource)(kernel, kinds, {(index[name],): value for name, value in constants.items()}, attrs)
    launch = {"num_warps": num_warps, "num_stages": num_stages, **(options or {})}
    try:
        with keeping():
            built = triton.compile(source, target=GPUTarget("cuda", sm, 32), options=launch)
    except CacheError:
        raise
    except Exception as error:
        raise CompileError(f"{kernel.fn.__name__} does not compile for sm_{sm}: {error}") from error
    return _describe(kernel, built, sm, launch, time.perf_counter() - begin)


def compile_launch(
    kernel: Any, grid: tuple[int, int, int], args: tuple[Any, ...], constants: dict[str, Any], *, sm: int, launch: dict[str, Any]
) -> Compiled:
    """Return what `kernel[grid](*args, **constants)` would launch on `sm`; only inside `offline.compiling_for(sm)`."""
    check_target(sm)
    begin = time.perf_counter()
    try:
        with keeping():
            built = kernel.warmup(*args, grid=grid, **constants, **launch)
    except CacheError:
        raise
    except Exception as error:
        raise CompileError(f"{kernel.fn.__name__} does not compile for sm_{sm}: {error}") from error
    return _describe(kernel, built, sm, launch, time.perf_counter() - begin)


def _describe(kernel: Any, built: Any, sm: int, launch: dict[str, Any], seconds: float) -> Compiled:
    """Return Triton's compiled kernel as a Compiled."""
    cubin, source = built.asm["cubin"], built.src
    usage = resource_usage(cubin)
    constants = {source.fn.arg_names[path[0]]: value for path, value in source.constants.items() if len(path) == 1}
    return Compiled(
        cubin=cubin,
        entry=built.metadata.name,
        sm=sm,
        shared_bytes=built.metadata.shared,
        registers=usage["registers"],
        spill_bytes=usage["stack"],
        signature=tuple((n, t) for n, t in source.signature.items() if t != "constexpr"),
        key=kernel_key(kernel, source.signature, constants, source.attrs, sm, launch),
        seconds=seconds,
        asm=dict(built.asm),
    )


def kernel_key(
    kernel: Any, signature: dict[str, str], constants: dict[str, Any], attrs: Any, sm: int, launch: dict[str, Any]
) -> str:
    """Return the sha256 that identifies a compiled kernel on every machine."""
    import triton

    parts = [
        kernel.cache_key,  # Triton's hash of the source, with the functions and constants that it uses
        sorted(signature.items()),
        sorted((k, getattr(v, "cache_key", None) or repr(v)) for k, v in constants.items()),
        repr(attrs),
        f"sm_{sm}",
        sorted(launch.items()),
        triton.__version__,
        ptxas_version(),
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def toolchain() -> Path:
    """Return the folder of ptxas, cuobjdump and nvdisasm inside Triton's wheel."""
    import triton

    return Path(os.path.dirname(triton.__file__)) / "backends" / "nvidia" / "bin"


@functools.cache
def ptxas_version() -> str:
    """Return the release of Triton's ptxas, such as `12.9.86`."""
    out = subprocess.run([toolchain() / "ptxas", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"V(\d+\.\d+\.\d+)", out)
    return found[1] if found else "unknown"


def resource_usage(cubin: bytes) -> dict[str, int]:
    """Return registers, stack (spill) and static shared bytes of a cubin, as cuobjdump reports them."""
    out = _cuobjdump(cubin, "-res-usage")
    found = re.search(r"REG:(\d+).*?STACK:(\d+).*?SHARED:(\d+)", out)
    if found is None:
        raise CompileError(f"cuobjdump -res-usage printed no resource line: {out[:200]!r}")
    return {"registers": int(found[1]), "stack": int(found[2]), "shared": int(found[3])}


def disassemble(cubin: bytes) -> str:
    """Return the SASS of a cubin."""
    return _cuobjdump(cubin, "-sass")


def _cuobjdump(cubin: bytes, flag: str) -> str:
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([toolchain() / "cuobjdump", flag, file.name], capture_output=True, text=True)
    if done.returncode:
        raise CompileError(f"cuobjdump {flag} failed: {done.stderr.strip()[:400]}")
    return done.stdout
