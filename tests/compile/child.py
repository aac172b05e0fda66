"""The child process of harness.py: build and compile each job in jobs.json, one line of built.jsonl for each."""

import dataclasses
import importlib
import json
import os
import re
import subprocess
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

from tests.compile.harness import Built, Source

MNEMONIC = re.compile(r"^\s+/\*[0-9a-f]{4,5}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Za-z0-9_.]*)", re.M)


def tool(name: str) -> str:
    """Path of a CUDA tool that this Triton ships."""
    import triton

    return os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin", name)


def resource_usage(cubin: Path, entry: str) -> tuple[int, int, int]:
    """(registers, stack bytes, static shared bytes) of one kernel."""
    text = subprocess.run([tool("cuobjdump"), "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
    found = re.search(rf"Function {re.escape(entry)}:\s*\n\s*REG:(\d+) STACK:(\d+) SHARED:(\d+)", text)
    if not found:
        raise RuntimeError(f"cuobjdump names no function {entry}: {text}")
    return int(found[1]), int(found[2]), int(found[3])


def describe(kernel, folder: Path, seconds: float) -> Built:
    """Read a compiled kernel of Triton, or an object with cubin, entry and shared_bytes."""
    import triton

    folder.mkdir()
    asm = getattr(kernel, "asm", None) or {"cubin": kernel.cubin, "ptx": getattr(kernel, "ptx", "")}
    entry = kernel.metadata.name if hasattr(kernel, "metadata") else kernel.entry
    for form in [form for form in asm if form != "sass"]:
        text = asm[form]
        (folder / f"kernel.{form}").write_bytes(text if isinstance(text, bytes) else str(text).encode())
    cubin = folder / "kernel.cubin"
    registers, stack_bytes, static_bytes = resource_usage(cubin, entry)
    sass = subprocess.run([tool("cuobjdump"), "-sass", cubin], capture_output=True, text=True, check=True).stdout
    (folder / "kernel.sass").write_text(sass)
    shared_bytes = kernel.metadata.shared if hasattr(kernel, "metadata") else getattr(kernel, "shared_bytes", 0)
    return Built(
        ok=True,
        triton=triton.__version__,
        seconds=round(seconds, 3),
        entry=entry,
        registers=registers,
        shared_bytes=max(shared_bytes, static_bytes),
        stack_bytes=stack_bytes,
        sass=dict(Counter(MNEMONIC.findall(sass))),
        ptx=str(asm["ptx"]),
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
