"""The child process of harness.py: build and compile each job in jobs.json, one line of built.jsonl for each."""

import dataclasses
import importlib
import json
import re
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

import triton

from hybrid_humming.errors import CompileError
from hybrid_humming.jit.compile import Compiled, disassemble
from tests.compile.harness import Built, Source

MNEMONIC = re.compile(r"^\s+/\*[0-9a-f]{4,5}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Za-z0-9_.]*)", re.M)


def describe(kernel: Compiled, folder: Path, seconds: float) -> Built:
    folder.mkdir()
    for form, text in kernel.asm.items():
        (folder / f"kernel.{form}").write_bytes(text if isinstance(text, bytes) else str(text).encode())
    (folder / "kernel.cubin").write_bytes(kernel.cubin)
    sass, undecoded = "", ""
    try:
        sass = disassemble(kernel.cubin)
    except CompileError as error:
        if "Cannot decode architecture" not in str(error):
            raise
        undecoded = str(error)
    (folder / "kernel.sass").write_text(sass)
    return Built(
        ok=True,
        triton=triton.__version__,
        seconds=round(seconds, 3),
        entry=kernel.entry,
        registers=kernel.registers,
        shared_bytes=kernel.shared_bytes,
        stack_bytes=kernel.spill_bytes,
        sass=dict(Counter(MNEMONIC.findall(sass))),
        undecoded=undecoded,
        ptx=str(kernel.asm.get("ptx", "")),
        folder=str(folder),
    )


def build(job: dict, folder: Path) -> Built:
    started = time.perf_counter()
    try:
        module, function = job["builder"].split(":")
        made = getattr(importlib.import_module(module), function)(**job["kwargs"])
        kernel = made.compile() if isinstance(made, Source) else made
        return describe(kernel, folder, time.perf_counter() - started)
    except Exception:
        return Built(ok=False, error=traceback.format_exc(), seconds=round(time.perf_counter() - started, 3))


def main(folder: Path) -> None:
    with (folder / "built.jsonl").open("w") as out:
        for i, job in enumerate(json.loads((folder / "jobs.json").read_text())):
            print(json.dumps(dataclasses.asdict(build(job, folder / str(i)))), file=out, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
