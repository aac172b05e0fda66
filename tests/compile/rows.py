"""What the catalogs support, as rows (kind, family or kernel, SM, format), and the representatives that stand for them.

    ("weight", "ampere", 89, "int4")        the family packs int4 for sm_89
    ("activation", "portable", 75, "e4m3")  the family takes e4m3 activations on sm_75
    ("kernel", "gluon.gemm_stream", 90, "") the kernel runs on sm_90

A representative is one kernel with one tile on one problem: `representatives.json` lists them, and each row needs one.
"""

import dataclasses
import functools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import hybrid_humming as hh
from hybrid_humming.device import DeviceInfo, device_names
from hybrid_humming.dtypes import format_names, parse_format
from hybrid_humming.errors import SpecError
from hybrid_humming.ops import load_catalogs
from hybrid_humming.pack import make_layout
from hybrid_humming.plan import Candidate, Tile, survey
from hybrid_humming.plan.registry import kernels, layouts
from hybrid_humming.spec import ACTIVATION_FORMATS, PackLayout, Problem, Spec
from hybrid_humming.weight import Facts

LIST = Path(__file__).with_name("representatives.json")
N = K = 4096
ROWS_OF_X = (16, 1, 1024)  # the first that a kernel takes is the one compiled
Row = tuple[str, str, int, str]

# Formats that hardly a checkpoint and no tensor core has; the same generators make their decoders. Only the slow matrix has them.
RARE = (
    "uint5", "uint7", "e0m7", "e1m2", "e4m1",
    "e0m2", "e0m4", "e0m5", "e0m6", "e1m1", "e2m0", "e3m0", "e1m3", "e2m2", "e3m1", "e4m0", "e1m4", "e5m0", "e1m5", "e2m4", "e3m3",
    "e4m2", "e5m1", "e6m0", "e1m6", "e2m5", "e6m1", "e7m0",
)  # fmt: skip
# How a format is scaled where it is met; the others take a group of 128.
HALVES = {
    "e2m1": "nvfp4", "e4m3": "e4m3 b128x128", "int8": "int8 channel", "e5m2": "e5m2 channel", "int3": "int3 g32",
    "int6": "int6 g64", "e2m3": "mxfp6", "uint3": "uint3 g32 zp:fp32", "e0m1": "e0m1 channel", "e3m2": "e3m2 g64",
}  # fmt: skip
WITH_ACTIVATION = {
    "e4m3": "e4m3 channel x e4m3 token", "e5m2": "e5m2 channel x e5m2 token", "e3m4": "e3m4 channel x e3m4 token",
    "e2m3": "mxfp6 x e2m3 g32:e8m0", "e3m2": "e3m2 g32:e8m0 x e3m2 g32:e8m0", "e2m1": "nvfp4 x nvfp4",
    "e0m3": "e0m3 g128 x e0m3 token", "int8": "int8 channel x int8 token", "int4": "int4 channel x int4 token",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Representative:
    """One kernel to compile. `everywhere`: under every Triton, and not only the one that the GPU tests have."""

    kernel: str
    device: str
    line: str
    m: int
    tile: str  # canonical JSON of the fields that differ from Tile()
    everywhere: bool = True

    @property
    def key(self) -> str:
        return f"{self.kernel} | {self.device} | {self.line} | M={self.m}"

    @property
    def sizes(self) -> Tile:
        return Tile(**json.loads(self.tile))


def weight_formats(rare: bool = False) -> list[str]:
    """The element formats of weights that rows are about, in order."""
    kinds = ((name, parse_format(name)) for name in format_names())
    return [n for n, fmt in kinds if fmt.kind in ("int", "uint", "float") and fmt.bits <= 8 and (rare or n not in RARE)]


def line_of(weight: str, activation: str) -> str:
    """The spec line in which `weight` is compiled."""
    half = HALVES.get(weight, f"{weight} g64 zp" if weight.startswith("uint") else f"{weight} g128")
    return f"{half} x {activation}"


@functools.cache
def gpus() -> dict[int, str]:
    """One named GPU of each SM, the largest."""
    infos = [info for info in map(DeviceInfo.named, device_names()) if info.kind == "cuda" and not info.families]
    infos.sort(key=lambda info: (info.sm, info.sm_count, info.dram_gbps, info.name))
    return {info.sm: info.name for info in infos}


def candidates(family: str, line: str, device: str, m: int) -> list[Candidate]:
    """The kernels with tiles that run the line from a weight of that layout, cheapest first."""
    load_catalogs()
    try:
        info, spec = DeviceInfo.named(device), Spec.parse(line)
    except SpecError:  # a float beyond fp16's range
        return []
    entry = next(e for e in layouts() if e.family == family)
    if entry.reject(spec, N, K, info) is not None:
        return []
    return list(survey(Problem(spec=spec, m=m, n=N, k=K), layout_of(family, spec), info).candidates)


def lines(rare: bool) -> Iterator[tuple[str, str, str]]:
    """(kind, format, spec line) of all that rows are about: first those that stand for an activation and a weight at once.

    The 16-bit activations of weight rows take turns.
    """
    for name in ACTIVATION_FORMATS:
        yield "activation", name, WITH_ACTIVATION.get(name, f"int4 g128 x {name}")
    for i, name in enumerate(weight_formats(rare)):
        for activation in (("bf16", "fp16"), ("fp16", "bf16"))[i % 2]:
            yield "weight", name, line_of(name, activation)
        if name in WITH_ACTIVATION:
            yield "weight", name, WITH_ACTIVATION[name]  # for a family with no kernel for 16-bit activations


def found(rare: bool = False) -> Iterator[tuple[Row, str, int, Candidate]]:
    """Every row with each (spec line, M, candidate) that could represent it."""
    load_catalogs()
    for entry in layouts():
        for sm, device in gpus().items():
            for kind, name, line in lines(rare):
                for m in ROWS_OF_X:
                    for candidate in candidates(entry.family, line, device, m):
                        if candidate.entry.name.startswith("cuda."):
                            continue  # no Triton compiles it: tests/cuda_kernels/test_compile.py does, for every SM and kind
                        yield (kind, entry.family, sm, name), line, m, candidate
                        yield ("kernel", candidate.entry.name, sm, ""), line, m, candidate


def catalog_rows() -> set[Row]:
    """Every row that the catalogs support."""
    return {row for row, *_ in found()}


def rows_of(one: Representative) -> set[Row]:
    """The rows that a representative stands for."""
    load_catalogs()
    entry = next(e for e in kernels() if e.name == one.kernel)
    spec, sm = Spec.parse(one.line), DeviceInfo.named(one.device).sm
    sides = (("weight", str(spec.weight_format)), ("activation", spec.activation))
    return {(kind, entry.family, sm, name) for kind, name in sides} | {("kernel", one.kernel, sm, "")}


def representatives() -> tuple[Representative, ...]:
    """The checked-in list."""
    return tuple(Representative(**row | {"tile": json.dumps(row["tile"])}) for row in json.loads(LIST.read_text()))


def chosen(rare: bool = False, kept: Iterable[Representative] = ()) -> list[Representative]:
    """The legal ones of `kept`, and for each row that none yet stands for the cheapest kernel of its first spec and M."""
    made = {one.key: one for one in kept if legal(one)}
    covered = set().union(*map(rows_of, made.values()))
    seen = set().union(*map(_news, made.values()))
    for row, line, m, candidate in found(rare):
        if row in covered:
            continue
        tile = candidate.tile
        fields = {f.name: getattr(tile, f.name) for f in dataclasses.fields(tile) if getattr(tile, f.name) != f.default}
        one = Representative(kernel=candidate.entry.name, device=gpus()[row[2]], line=line, m=m, tile=json.dumps(fields))
        made[one.key] = one = dataclasses.replace(one, everywhere=bool(_news(one) - seen))
        seen |= _news(one)
        covered |= rows_of(one)
    return list(made.values())


def legal(one: Representative) -> bool:
    """Whether the catalogs still have the kernel, for this problem, GPU and tile."""
    load_catalogs()
    entry = next((e for e in kernels() if e.name == one.kernel), None)
    if entry is None or one.device not in device_names():
        return False
    device, problem = DeviceInfo.named(one.device), problem_of(one)
    layout = layout_of(entry.family, problem.spec)
    return entry.reject(problem, layout, device) is None and entry.check(one.sizes, problem, layout, device) is None


def _news(one: Representative) -> set[tuple[str, ...]]:
    """What every Triton should compile once: each format of a kernel on some SM, each SM of a kernel."""
    spec = Spec.parse(one.line)
    return {(one.kernel, str(spec.weight_format)), (one.kernel, one.device), (one.kernel, "x", spec.activation)}


def write(rows: list[Representative]) -> None:
    """Write the list, one representative a line."""
    body = ",\n".join(" " + json.dumps(dataclasses.asdict(row) | {"tile": json.loads(row.tile)}) for row in rows)
    LIST.write_text(f"[\n{body}\n]\n")


def layout_of(family: str, spec: Spec) -> PackLayout:
    """The layout of the weight that a representative multiplies."""
    return make_layout(family, spec, N, K, facts=Facts())


def problem_of(one: Representative) -> Problem:
    """What the representative multiplies."""
    return hh.Problem(spec=Spec.parse(one.line), m=one.m, n=N, k=K)
