"""Compile the representatives, measure what came out, and compare it with the baseline of the same Triton.

    python scripts/compile_matrix.py            measure again and write tests/compile/baseline/TRITON.json
    python scripts/compile_matrix.py --list     choose the representatives again as well, from the catalogs

ptxas is deterministic, so a baseline holds on every machine; it changes with the kernels' source and with Triton alone.
"""

import dataclasses
import functools
import json
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hybrid_humming.ahead import compile_gemm
from hybrid_humming.device import DeviceInfo
from hybrid_humming.jit.compile import Compiled
from hybrid_humming.ops import load_catalogs
from hybrid_humming.plan import Candidate
from hybrid_humming.plan.choose import make_plan
from hybrid_humming.plan.registry import kernel
from tests.compile.harness import INSTALLED, SIDE_VERSIONS, Built, Job, compile_beside
from tests.compile.rows import Representative, layout_of, problem_of
from tests.compile.test_hopper_decode import loop_of

FOLDER = Path(__file__).with_name("baseline")
BUILDER = "tests.compile.matrix:build"
# The unit that multiplies, newest first: SASS names it (UTC*MMA: tcgen05), or PTX where this Triton can't disassemble.
UNITS = ("UTCHMMA", "UTCQMMA", "UTCOMMA", "UTCIMMA", "QGMMA", "IGMMA", "HGMMA", "OMMA", "QMMA", "IMMA", "HMMA")
IN_PTX = ("tcgen05.mma", "wgmma.mma_async", "mma.sync")
OLDEST, NEWEST = SIDE_VERSIONS  # the GPU tests have the oldest
HOME = {103: INSTALLED, 107: NEWEST, 110: INSTALLED, 121: INSTALLED}  # SMs that the oldest can't compile for, or can't disassemble
SLACK_REGISTERS = 8  # registers are given out in eights
SLACK_INSTRUCTIONS = 0.05  # of the instructions for one weight


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one representative came to under one Triton.

    registers     of a thread
    stack_bytes   of a thread; spilled registers lie there
    spills        instructions that touch local memory
    shared_bytes  of a CTA
    mma           the opcode that multiplies, with its shape: HMMA.16816; FMA where none does
    per_weight    instructions of the main loop (of the whole kernel where it has none) that a lane spends on one weight; 0 where
                  this Triton can't disassemble for the SM
    refused       why it does not compile, where that is known and expected
    """

    registers: int = 0
    stack_bytes: int = 0
    spills: int = 0
    shared_bytes: int = 0
    mma: str = ""
    per_weight: float = 0.0
    refused: str = ""


def build(kernel_name: str, device: str, line: str, m: int, tile: str) -> Compiled:
    """The first kernel that the representative launches (others sum slices of K, or are the vendor's)."""
    load_catalogs()
    one = Representative(kernel=kernel_name, device=device, line=line, m=m, tile=tile)
    problem, info = problem_of(one), DeviceInfo.named(device)
    entry = kernel(kernel_name)
    layout = layout_of(entry.family, problem.spec)
    plan = make_plan(Candidate(entry=entry, tile=one.sizes, cost_us=0.0), problem, layout, info)
    return compile_gemm(problem, info, layout=layout, plan=plan)[1][0]


def job_of(one: Representative) -> Job:
    """What the harness builds."""
    return Job(BUILDER, {"kernel_name": one.kernel, "device": one.device, "line": one.line, "m": one.m, "tile": one.tile})


def measure(one: Representative, built: Built) -> Measured:
    """The numbers of a kernel; its files are removed, for there are many."""
    if not built.ok:
        unknown = re.search(r"Triton \S+ does not know sm_\d+a", built.error)
        return Measured(refused=unknown[0] if unknown else built.error[-2000:])
    tile = one.sizes
    folder = Path(built.folder)
    instructions = 0
    if not built.undecoded:
        try:
            instructions = sum(loop_of(built.folder).values())
        except ValueError:  # no loop
            instructions = sum(built.sass.values())
    shutil.rmtree(folder)
    weights = tile.block_n * tile.block_k / (32 * tile.num_warps)
    return Measured(
        registers=built.registers,
        stack_bytes=built.stack_bytes,
        spills=built.spills,
        shared_bytes=built.shared_bytes,
        mma=unit(built),
        per_weight=round(instructions / weights, 3),
    )


def unit(built: Built) -> str:
    """The opcode that multiplies: the name before its types."""
    if built.undecoded:
        return next((name for name in IN_PTX if name in built.ptx), "FMA")
    opcodes: Counter[str] = Counter()
    for name, times in built.sass.items():
        if name.split(".")[0] in UNITS:
            opcodes[".".join(part for i, part in enumerate(name.split(".")) if i == 0 or part[:1].isdigit())] += times
    return opcodes.most_common(1)[0][0] if opcodes else "FMA"


@functools.cache
def measured(ones: tuple[Representative, ...], triton: str) -> dict[str, Measured]:
    """Key of each representative -> what it came to under `triton`."""
    built = compile_beside([job_of(one) for one in ones], triton)
    return {one.key: measure(one, built[job_of(one)]) for one in ones}


def baseline(version: str) -> dict[str, Measured]:
    """What was measured before under Triton `version`; empty where nothing was."""
    path = FOLDER / f"{version}.json"
    if not path.exists():
        return {}
    return {key: Measured(**fields) for key, fields in json.loads(path.read_text()).items()}


def write_baseline(version: str, found: dict[str, Measured]) -> None:
    """Write a baseline, one representative a line, only the fields that are not 0."""
    FOLDER.mkdir(exist_ok=True)
    kept = {key: {n: v for n, v in dataclasses.asdict(one).items() if v} for key, one in sorted(found.items())}
    body = ",\n".join(f" {json.dumps(key)}: {json.dumps(fields)}" for key, fields in kept.items())
    (FOLDER / f"{version}.json").write_text(f"{{\n{body}\n}}\n")


def regressions(now: Measured, before: Measured) -> list[str]:
    """What got worse, with both numbers: any spill, shared memory or other opcode, registers and instructions beyond the slack."""
    if now.refused != before.refused:
        return [f"compiling: {now.refused or 'works'}, was: {before.refused or 'works'}"]
    worse = [
        f"{name} {getattr(now, name)}, was {getattr(before, name)}"
        for name in ("spills", "stack_bytes", "shared_bytes")
        if getattr(now, name) > getattr(before, name)
    ]
    if now.registers > before.registers + SLACK_REGISTERS:
        worse.append(f"registers {now.registers}, was {before.registers} (allowed {SLACK_REGISTERS} more)")
    if now.mma != before.mma:
        worse.append(f"multiplies with {now.mma}, was {before.mma}")
    if now.per_weight > before.per_weight * (1 + SLACK_INSTRUCTIONS):
        worse.append(f"instructions per weight {now.per_weight}, was {before.per_weight} (allowed {SLACK_INSTRUCTIONS:.0%} more)")
    return worse


def subset(ones: Sequence[Representative], triton: str) -> tuple[Representative, ...]:
    """Those that are compiled under `triton`: all of an SM under one that knows it, under the others those marked so."""
    return tuple(one for one in ones if one.everywhere or triton == HOME.get(DeviceInfo.named(one.device).sm, OLDEST))
