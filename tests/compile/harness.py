"""Compile kernels offline, each Triton in a process of its own, and read what came out.

    JOBS = [Job("tests.compile.test_gemm:int4", {"sm": 90}), Job("tests.compile.test_gemm:int4", {"sm": 80})]

    @pytest.mark.compile
    @pytest.mark.parametrize("triton", TRITONS)
    @pytest.mark.parametrize("job", JOBS, ids=str)
    def test_uses_the_tensor_cores(job, triton):
        built = compile_all(JOBS, triton)[job]          # the whole list in one process, once
        assert built.ok, built.error
        assert built.sass_count("HGMMA") and not built.spills

A job names a builder, ``module:function``, and its keyword arguments (plain JSON values). The builder runs in the child
process and returns what to compile:

    Source(fn, signature, constexprs, sm, divisible=(...), num_warps=4, num_stages=3)    a kernel and how to compile it
    a jit.Compiled                                                                       already compiled by other code

The child has the repository root and this Triton first on its path, no interpreter, and a Triton cache of its own.
"""

import atexit
import functools
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SIDE = Path(os.environ.get("SIDE_TRITONS", ROOT / ".cache" / "tritons"))  # scripts/test fills it
INSTALLED = "installed"
SIDE_VERSIONS = ("3.6.0", "3.9.0")
TRITONS = (INSTALLED, *SIDE_VERSIONS)


@dataclass(frozen=True)
class Job:
    """One kernel to compile: a builder, ``module:function``, and its keyword arguments."""

    builder: str
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        shown = ",".join(f"{key}={value}" for key, value in self.kwargs.items())
        return f"{self.builder.split(':')[1]}[{shown}]"


@dataclass(frozen=True, kw_only=True)
class Built:
    """What one job came to. Text forms are for asserting on; ``folder`` has ptx, ttgir, sass ... until pytest ends."""

    ok: bool
    error: str = ""  # the whole traceback
    triton: str = ""  # the version that compiled it
    seconds: float = 0.0
    entry: str = ""
    registers: int = 0
    shared_bytes: int = 0
    stack_bytes: int = 0  # per thread; spilled registers live here
    sass: dict[str, int] = field(default_factory=dict)  # full mnemonic, "HGMMA.64x16x16.F32.BF16" -> times
    undecoded: str = ""  # why there is no sass: an old Triton compiles for a new SM that its own disassembler does not know
    ptx: str = ""
    folder: str = ""

    @property
    def spills(self) -> int:
        """Instructions that load from or store to local memory."""
        return self.sass_count("LDL") + self.sass_count("STL")

    def sass_count(self, mnemonic: str) -> int:
        """Instructions whose dotted mnemonic starts with ``mnemonic``: "HMMA", "HMMA.16816" ..."""
        return sum(n for name, n in self.sass.items() if f"{name}.".startswith(f"{mnemonic}."))


@dataclass(frozen=True)
class Source:
    """A plain or Gluon kernel, the types of its run-time arguments, its constexprs, and how to compile it."""

    fn: Any
    signature: dict[str, str]  # run-time argument -> "*fp16", "i32", "tensordesc<...>"
    constexprs: dict[str, Any]
    sm: int  # 90 for sm_90
    divisible: Sequence[str] = ()  # arguments known to be multiples of 16
    num_warps: int = 4
    num_stages: int = 3
    options: dict[str, Any] = field(default_factory=dict)  # further options of triton.compile: maxnreg ...

    def compile(self) -> Any:
        """The kernel as hybrid_humming's own compile path makes it, with no GPU."""
        from hybrid_humming.jit.compile import compile_triton

        source_type = None
        if type(self.fn).__name__ == "GluonJITFunction":
            from triton.experimental.gluon._runtime import GluonASTSource as source_type
        return compile_triton(
            self.fn, self.signature, self.constexprs, sm=self.sm, num_warps=self.num_warps, num_stages=self.num_stages,
            aligned=tuple(self.divisible), options=self.options, source_type=source_type,
        )  # fmt: skip


def missing(triton: str) -> str:
    """Why this Triton can't be used here, or an empty string."""
    if triton == INSTALLED or (SIDE / triton / "triton").is_dir():
        return ""
    return f"Triton {triton} is not in {SIDE}; scripts/test installs it"


def version_of(triton: str) -> str:
    """The version that `triton` ("installed" or a side version) stands for."""
    return importlib.metadata.version("triton") if triton == INSTALLED else triton


def compile_all(jobs: Sequence[Job], triton: str) -> dict[Job, Built]:
    """Compile every job under ``triton`` ("installed" or a side version); a job that fails has ``ok`` False.

    Skips the test, with the reason, where that Triton is not installed; with ``CI`` set it fails instead.
    """
    if why := missing(triton):
        import pytest

        (pytest.fail if os.environ.get("CI") else pytest.skip)(why)
    return _compile_all(tuple(jobs), triton)


def compile_beside(jobs: Sequence[Job], triton: str) -> dict[Job, Built]:
    """The same as compile_all, in as many processes as there are cores: for long lists."""
    if why := missing(triton):
        return dict.fromkeys(jobs, Built(ok=False, error=why))
    cores = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(cores) as threads:
        # A thread only waits for its process. Neighbours in the list cost about the same, so every core gets each kind.
        parts = threads.map(lambda i: _compile_all(tuple(jobs[i::cores]), triton), range(cores))
        return {job: built for part in parts for job, built in part.items()}


@functools.cache
def _compile_all(jobs: tuple[Job, ...], triton: str) -> dict[Job, Built]:
    folder = Path(tempfile.mkdtemp(prefix=f"hybrid_humming_compile_{triton}_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    asked = [{"builder": job.builder, "kwargs": job.kwargs} for job in jobs]
    (folder / "jobs.json").write_text(json.dumps(asked))
    path = [str(ROOT)] if triton == INSTALLED else [str(SIDE / triton), str(ROOT)]
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    env |= {"PYTHONPATH": os.pathsep.join(path), "TRITON_CACHE_DIR": str(ROOT / ".cache" / "triton" / triton)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.compile.child", str(folder)],
        cwd=ROOT, env=env, capture_output=True, text=True,
    )  # fmt: skip
    lines = (folder / "built.jsonl").read_text().splitlines() if (folder / "built.jsonl").exists() else []
    built = [Built(**json.loads(line)) for line in lines]
    # A compiler that aborts takes the process with it: the job it was at says so, those after it start again.
    if len(built) < len(jobs):
        crash = f"the compiler ended the process (exit {done.returncode})\n{done.stderr[-3000:]}"
        built.append(Built(ok=False, error=crash))
        rest = jobs[len(built) :]
        built += _compile_all(rest, triton).values() if rest else []
    return dict(zip(jobs, built, strict=True))
