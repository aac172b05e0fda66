"""`hybrid-humming doctor`: what is installed, what will run here, and why the rest will not."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from hybrid_humming import __version__, env
from hybrid_humming.errors import DeviceError, SettingError, did_you_mean

PACKAGES = ("torch", "triton", "numpy", "safetensors", "ml_dtypes")
OPTIONAL = {
    "nvidia-cutlass-dsl": "cute",
    "cuda-core": "cuda12 or cuda13",
    "typer": "cli",
    "rich": "cli",
    "vllm": "vllm",
    "transformers": "",
}


@dataclass
class Report:
    """What the command found. `problems` are for the user to mend, `limits` are how this machine is."""

    versions: dict[str, str | None] = field(default_factory=dict)
    optional: dict[str, str | None] = field(default_factory=dict)
    gpus: list[dict[str, Any]] = field(default_factory=list)
    driver: str | None = None
    compilers: dict[str, str | None] = field(default_factory=dict)
    caches: dict[str, dict[str, Any]] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    limits: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Say what is installed, what will run here, and why the rest will not.

    The output is enough for a bug report. Exit code 1 if a problem was found.

    Example: hybrid-humming doctor --json
    """
    report = examine()
    if as_json:
        print(json.dumps(asdict(report), indent=2))
    else:
        show(report)
    raise typer.Exit(1 if report.problems else 0)


def examine() -> Report:
    """Look at everything, once; a part that fails becomes a problem in the report."""
    report = Report()
    report.versions = {"hybrid_humming": __version__, "python": platform.python_version()}
    report.versions |= {name: _version(name) for name in PACKAGES}
    report.optional = {name: _version(name) for name in OPTIONAL}
    report.environment = env.set_variables()
    for look in (_look_at_packages, _look_at_gpus, _look_at_compilers, _look_at_caches, _look_at_environment):
        look(report)
    return report


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _look_at_packages(report: Report) -> None:
    for name in PACKAGES:
        if report.versions[name] is None:
            report.problems.append(f"{name} is not installed: pip install {name}")
    for name, extra in OPTIONAL.items():
        if report.optional[name] is None and extra:
            report.limits.append(f"{name} is not installed; pip install 'hybrid-humming[{extra.split()[0]}]' brings it")


def _look_at_gpus(report: Report) -> None:
    if report.versions["torch"] is None:
        return
    import torch

    if torch.version.cuda is None:
        report.limits.append("torch is a CPU build: GEMMs run on the CPU backend, kernels can be compiled but not run")
        return
    report.versions["cuda"] = torch.version.cuda
    if not torch.cuda.is_available():
        report.limits.append("torch sees no CUDA device: GEMMs run on the CPU backend")
        return
    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(index)
        sm = found.major * 10 + found.minor
        report.gpus.append(
            {
                "index": index,
                "name": found.name,
                "sm": sm,
                "sm_count": found.multi_processor_count,
                "memory_gb": round(found.total_memory / 1e9, 1),
            }
        )
        if sm < 75:
            report.problems.append(f"GPU {index}, {found.name}, is sm_{sm}; the kernels need sm_75 or newer")
        else:
            _look_at_formats(report, index)


def _look_at_formats(report: Report, index: int) -> None:
    """Name the activation formats that this GPU multiplies in another one's place."""
    from hybrid_humming.device import DeviceInfo
    from hybrid_humming.plan.fallback import SUBSTITUTES, operand_format

    try:
        device = DeviceInfo.of(f"cuda:{index}")
    except DeviceError as error:
        report.problems.append(str(error))
        return
    stand_ins = {fmt: operand_format(fmt, device) for fmt in SUBSTITUTES if not device.multiplies(fmt)}
    if stand_ins:
        pairs = ", ".join(f"{fmt} as {other}" for fmt, other in stand_ins.items())
        report.limits.append(f"GPU {index} has no tensor cores for some activation formats; it multiplies {pairs}")


def _look_at_compilers(report: Report) -> None:
    report.compilers = {name: shutil.which(name) for name in ("nvcc", "cc")}
    if report.versions["triton"] is None:
        return
    import triton

    folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    for name in ("ptxas", "ptxas-blackwell", "cuobjdump"):
        report.compilers[f"triton's {name}"] = str(folder / name) if (folder / name).exists() else None
    if report.compilers["triton's ptxas"] is None:
        report.problems.append(f"this Triton has no ptxas in {folder}: reinstall triton")
    if report.compilers["cc"] is None and report.gpus:
        report.problems.append("no C compiler (cc): Triton builds its launcher with one; install gcc or clang")
    if env.interpreting():
        report.problems.append("TRITON_INTERPRET=1 is set: Triton kernels run in the interpreter, slowly; unset it")


def _look_at_caches(report: Report) -> None:
    folder = env.cache_dir()
    files = [f for f in folder.rglob("*") if f.is_file()] if folder.is_dir() else []
    report.caches["hybrid_humming"] = {
        "path": str(folder),
        "files": len(files),
        "mb": round(sum(f.stat().st_size for f in files) / 1e6, 1),
    }
    parent = folder
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not _writable(parent):
        report.problems.append(f"the cache folder {folder} can't be written: set HYBRID_HUMMING_CACHE_DIR to one that can")


def _writable(folder: Path) -> bool:
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _look_at_environment(report: Report) -> None:
    for name in env.unknown_variables():
        known = [variable.name for variable in env.VARIABLES]
        report.problems.append(f"{name} is set, but no such variable is read.{did_you_mean(name, known)}")
    try:
        env.log_topics()
    except SettingError as error:
        report.problems.append(str(error))


def show(report: Report) -> None:
    """Print the report in plain lines."""
    from rich.console import Console

    console = Console(no_color=env.no_color(), highlight=False, soft_wrap=True)

    def section(title: str, rows: dict[str, Any]) -> None:
        console.print(f"[bold]{title}[/bold]")
        for name, value in rows.items():
            console.print(f"  {name:<26} {'not found' if value is None else value}", markup=False)

    section("Versions", report.versions)
    section("Optional", report.optional)
    gpus = {f"GPU {g['index']}": f"{g['name']}, sm_{g['sm']}, {g['sm_count']} SMs, {g['memory_gb']} GB" for g in report.gpus}
    section("Devices", gpus or {"GPU": "none"})
    section("Compilers", report.compilers)
    section("Caches", {name: f"{c['path']} ({c['files']} files, {c['mb']} MB)" for name, c in report.caches.items()})
    section("Environment", report.environment or {"": "nothing set"})
    for title, lines in (("Will not run here, and why", report.limits), ("Problems", report.problems)):
        console.print(f"[bold]{title}[/bold]")
        for line in lines or ["none"]:
            console.print(f"  {line}", markup=False)
    sys.stdout.flush()
