"""Compile CUDA C++ with NVRTC for a GPU that need not be present; the result is the same `Compiled` as a Triton kernel's.

    built = compile_cuda(folder / "gemm.cu", "gemm_kernel", sm=100, defines={"KIND": 1}, signature=(("ma", "tensormap"), ...))

NVRTC gives PTX and cubin of one compilation. It needs no CUDA toolkit and no driver: cuda-bindings finds the library of the
nvidia-cuda-nvrtc wheel, which the extras `cuda12` and `cuda13` install. The cubin is for exactly one SM (`sm_100a`).
"""

from __future__ import annotations

import functools
import hashlib
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybrid_humming.errors import CompileError, MissingDependency
from hybrid_humming.jit.compile import Compiled, resource_usage

EXTRA = "install hybrid_humming[cuda13] (or [cuda12] beside a CUDA 12 torch)"
_INCLUDE = re.compile(r'^\s*#include\s+"([^"]+)"', re.M)


def target(sm: int) -> str:
    """Return the target that a kernel is compiled for: its own SM alone where that unlocks instructions (`sm_90a`)."""
    return f"sm_{sm}a" if sm >= 90 else f"sm_{sm}"


def compile_cuda(
    path: Path,
    entry: str,
    *,
    sm: int,
    defines: Mapping[str, int | str] | None = None,
    signature: tuple[tuple[str, str], ...] = (),
    shared_bytes: int = 0,
) -> Compiled:
    """Return kernel `entry` of the file at `path`, compiled for `sm` with the macros `defines`.

    entry         its name as `extern "C"` leaves it
    shared_bytes  dynamic shared memory that a launch asks for; the static part is the cubin's own

    Raises MissingDependency without NVRTC, CompileError when NVRTC is too old for `sm` or refuses the source, with its log.
    """
    begin = time.perf_counter()
    defines = dict(defines or {})
    text = path.read_text()
    options = [f"--gpu-architecture={target(sm)}", "--std=c++17", f"--include-path={path.parent}", "--extra-device-vectorization"]
    options += [f"--define-macro={name}={value}" for name, value in defines.items()]
    cubin, ptx = _nvrtc(text, path.name, options, sm)
    usage = resource_usage(cubin)
    return Compiled(
        cubin=cubin,
        entry=entry,
        sm=sm,
        shared_bytes=shared_bytes,
        registers=usage["registers"],
        spill_bytes=usage["stack"],
        signature=signature,
        key=_key(path, entry, options[:2] + options[3:], nvrtc_version()),
        seconds=time.perf_counter() - begin,
        asm={"cubin": cubin, "ptx": ptx},
    )


@functools.cache
def nvrtc_version() -> tuple[int, int]:
    """Return NVRTC's release, (13, 5); raises MissingDependency, naming the extra, where there is none."""
    nvrtc = _bindings()
    try:
        status, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:  # the loader's own kinds of error, one for each way in which a library is not found
        raise MissingDependency(f"NVRTC, which compiles the CUDA kernels, can't be loaded ({error}); {EXTRA}") from error
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise MissingDependency(f"NVRTC does not answer ({status.name}); {EXTRA}")
    return major, minor


@functools.cache
def supported_sms() -> tuple[int, ...]:
    """Return the SMs that this NVRTC compiles for."""
    nvrtc_version()
    nvrtc = _bindings()
    _, archs = nvrtc.nvrtcGetSupportedArchs()
    return tuple(archs)


def _bindings() -> Any:
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise MissingDependency(f"cuda-bindings, through which NVRTC compiles the CUDA kernels, is missing; {EXTRA}") from error
    return nvrtc


def _nvrtc(text: str, name: str, options: list[str], sm: int) -> tuple[bytes, str]:
    """The cubin and the PTX of one source text."""
    version = nvrtc_version()
    if sm not in supported_sms():
        known = ", ".join(f"sm_{known}" for known in supported_sms())
        raise CompileError(
            f"NVRTC {version[0]}.{version[1]} compiles for {known}, not for sm_{sm}; install a newer nvidia-cuda-nvrtc: {EXTRA}"
        )
    nvrtc = _bindings()
    status, program = nvrtc.nvrtcCreateProgram(text.encode(), name.encode(), 0, [], [])
    _check(nvrtc, status, "create a program")
    try:
        status = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])[0]
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = _output(nvrtc, program, "ProgramLog").decode("utf-8", "replace").strip("\0\n ")
            raise CompileError(f"NVRTC {version[0]}.{version[1]} does not compile {name} for {target(sm)}: {log[:1500]}")
        return _output(nvrtc, program, "CUBIN"), _output(nvrtc, program, "PTX").decode().strip("\0")
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _output(nvrtc: Any, program: Any, what: str) -> bytes:
    status, size = getattr(nvrtc, f"nvrtcGet{what}Size")(program)
    _check(nvrtc, status, f"give the {what}")
    data = b" " * size
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, data)[0], f"give the {what}")
    return data


def _check(nvrtc: Any, status: Any, what: str) -> None:
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"NVRTC does not {what}: {status.name}")


def _key(path: Path, entry: str, options: list[str], version: tuple[int, int]) -> str:
    """The sha256 that identifies a compiled kernel on every machine: its text with what it includes, options, version."""
    texts, wanted = {}, [path.name]
    while wanted:
        name = wanted.pop()
        if name not in texts:
            texts[name] = (path.parent / name).read_text()
            wanted += _INCLUDE.findall(texts[name])
    return hashlib.sha256(repr((sorted(texts.items()), entry, options, version)).encode()).hexdigest()
