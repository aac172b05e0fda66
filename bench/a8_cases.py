"""Cases of bench.a8_check: which problems and tiles it checks and times, and how one is built and launched."""

from __future__ import annotations

import dataclasses
import importlib
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SHAPES = ((8192, 8192), (28672, 4096), (4096, 14336))
ROWS = (1, 16, 64, 128, 256, 512, 1024, 4096)
MX, INT4_FP8, INT4_INT8 = "mxfp4 x e4m3 token", "int4 g128 x e4m3 token", "int4 g128 x int8 token"
FP8, BLOCK, INT8 = "e4m3 channel x e4m3 token", "e4m3 b128x128 x e4m3 g128", "int8 channel x int8 token"


@dataclass(frozen=True)
class Case:
    """One kernel, problem and tile. scales: "rows" | "columns", how x's scales lie in memory; folded: MXFP4's exponents are;
    zero: x has zero points."""

    spec: str
    n: int
    k: int
    m: int
    kernel: str
    tile: dict[str, Any]
    bias: bool = False
    out_dtype: str | None = None
    fast: bool = False
    scales: str = "columns"
    folded: bool = False
    zero: bool = False

    def label(self) -> str:
        tile = " ".join(f"{k.replace('block_', 'b').replace('num_', '')}={v}" for k, v in self.tile.items())
        more = (
            (" fast" if self.fast else "")
            + (" folded" if self.folded else "")
            + (f" -> {self.out_dtype}" if self.out_dtype else "")
        )
        return f"{self.spec}{more} [{self.m},{self.n},{self.k}] {self.kernel} {tile}"


def tile(bm: int, bn: int, stages: int, ctas: int = 1, stream_k: bool = True, raster: int = 0, **more: Any) -> dict[str, Any]:
    """A tile of the W8A8 kernel: a warpgroup for 64 rows of its row operand, two of them at most."""
    rows = bn if bm < 128 else bm
    return {"block_m": bm, "block_n": bn, "block_k": 128, "num_warps": 4 if rows == 64 else 8, "num_stages": stages,
            "ctas_per_sm": ctas, "stream_k": stream_k, "raster_m": raster} | more  # fmt: skip


def decoded(bm: int, bn: int, stages: int, ctas: int = 1, stream_k: bool = True, raster: int = 0, **more: Any) -> dict[str, Any]:
    """A tile of the W4A8 kernel: a warpgroup for each 64 rows of W."""
    return tile(bm, bn, stages, ctas, stream_k, raster, **more) | {"num_warps": bn // 16}


def pair(one: dict[str, Any]) -> dict[str, Any]:
    """The tile for CTAs that work in pairs on the same rows of x."""
    return one | {"multicast": 2}


TILES = {
    1: (tile(16, 64, 10, 2), tile(8, 64, 11, 2), tile(16, 64, 6, 3), tile(16, 128, 10), tile(16, 128, 5, 2)),
    16: (tile(16, 64, 10, 2), tile(16, 64, 6, 3), tile(16, 64, 4, 4), tile(16, 128, 10), tile(16, 128, 5, 2)),
    64: (tile(64, 64, 6, 2), tile(64, 128, 8), tile(64, 64, 4, 3), tile(64, 128, 4, 2), tile(32, 128, 5, 2)),
    128: (tile(64, 128, 8), tile(128, 64, 4, 2), tile(128, 128, 6), tile(128, 128, 6, 1, False), tile(64, 64, 6, 2)),
    256: (tile(128, 128, 6), tile(128, 128, 6, 1, False, 8), pair(tile(128, 128, 6, 1, False)), tile(128, 64, 4, 2),
          tile(128, 256, 4), tile(256, 128, 4, 1, False)),
    512: (tile(128, 128, 6, 1, False, 8), tile(128, 128, 6, 1, True, 8), tile(256, 128, 4, 1, False), tile(128, 256, 4),
          tile(128, 256, 4, 1, False), pair(tile(128, 128, 6, 1, False, 8)), pair(tile(256, 128, 4, 1, False)),
          pair(tile(128, 256, 4, 1, False))),
    1024: (pair(tile(256, 128, 4, 1, False, 8)), pair(tile(128, 256, 4, 1, False, 8)), pair(tile(128, 128, 6, 1, False, 8)),
           tile(256, 128, 4, 1, False, 8), tile(128, 128, 6, 1, False, 8), tile(128, 256, 4, 1, False, 8),
           tile(128, 256, 4, 1, True, 8)),
    4096: (pair(tile(256, 128, 4, 1, False, 8)), pair(tile(256, 128, 4, 1, False, 4)), pair(tile(128, 256, 4, 1, False, 8)),
           pair(tile(128, 256, 4, 1, False, 16)), pair(tile(128, 128, 6, 1, False, 8)), tile(256, 128, 4, 1, False, 8),
           tile(128, 256, 4, 1, False, 8), tile(128, 128, 6, 1, False, 16)),
}  # fmt: skip
DECODED_TILES = {
    1: (decoded(8, 64, 6, 4), decoded(8, 64, 9, 3), decoded(8, 64, 14, 2), decoded(16, 64, 6, 4), decoded(8, 128, 6, 2)),
    16: (decoded(16, 64, 6, 4), decoded(16, 64, 9, 3), decoded(16, 64, 14, 2), decoded(16, 128, 6, 2),
         decoded(16, 128, 14, 1)),
    64: (decoded(64, 64, 7, 2), decoded(64, 64, 4, 3), decoded(64, 128, 9, 1), decoded(32, 64, 6, 3), decoded(32, 128, 7, 2)),
    128: (decoded(128, 64, 4, 2), decoded(128, 128, 7, 1), decoded(64, 64, 7, 2), decoded(64, 128, 9, 1)),
    256: (pair(decoded(128, 128, 7, 1, False)), decoded(128, 64, 4, 2), decoded(128, 128, 7, 1, False),
          decoded(64, 128, 9, 1, False), decoded(128, 128, 7, 1)),
    512: (pair(decoded(128, 128, 7, 1, False, 4)), pair(decoded(64, 128, 9, 1, False, 8)), decoded(128, 64, 4, 2, False),
          decoded(128, 128, 7, 1, False, 4), decoded(64, 128, 9, 1, False, 8)),
    1024: (pair(decoded(128, 128, 7, 1, False, 4)), pair(decoded(64, 128, 9, 1, False, 8)), decoded(128, 64, 4, 2, False, 4),
           decoded(128, 128, 7, 1, False, 4), decoded(128, 128, 7, 1, True, 4), decoded(64, 128, 9, 1, False, 8)),
    4096: (pair(decoded(128, 128, 7, 1, False, 8)), pair(decoded(128, 128, 7, 1, False, 16)),
           pair(decoded(64, 128, 9, 1, False, 16)), decoded(128, 64, 4, 2, False, 8), decoded(128, 128, 7, 1, False, 8),
           decoded(128, 128, 7, 1, False, 4), decoded(64, 128, 9, 1, False, 16)),
}  # fmt: skip
CHECKED = (
    tile(8, 64, 8, 2), tile(16, 64, 8, 2), tile(16, 128, 10), tile(32, 64, 8, 2), tile(64, 64, 6, 2), tile(64, 128, 8),
    tile(128, 64, 4, 2), tile(128, 128, 6), tile(128, 128, 6, 1, False, 8), tile(128, 256, 4, 1, False, 8), tile(128, 256, 4),
    tile(256, 128, 4, 1, False, 8), tile(16, 64, 8, 2, True, 0, dependent_launch=True),
    pair(tile(128, 128, 6, 1, False, 8)), pair(tile(256, 128, 4, 1, False, 8)), pair(tile(128, 256, 4, 1, False, 8)),
)  # fmt: skip
DECODED_CHECKED = (
    decoded(8, 64, 6, 4), decoded(16, 64, 6, 4), decoded(16, 128, 6, 2), decoded(32, 64, 6, 3), decoded(64, 64, 6, 2),
    decoded(64, 128, 8, 1), decoded(128, 64, 4, 2), decoded(128, 128, 6, 1), decoded(128, 128, 6, 1, False, 4),
    decoded(16, 64, 6, 4, True, 0, dependent_launch=True), pair(decoded(128, 128, 6, 1, False, 4)),
    pair(decoded(64, 128, 8, 1, False, 4)),
)  # fmt: skip
FORMATS = (
    "e5m2 tensor x e4m3 tensor", "e4m3 channel x e5m2 token", "e5m2 channel x e5m2 token", "e4m3 tensor x e4m3 tensor",
    "mxfp8 x mxfp8", "int8 g128 x int8 token", "int8 g64 x int8 g64", "int8 g32 x int8 g128", "e4m3 g128+channel x e4m3 token",
    "int8 tensor x int8 tensor", "e4m3 b256x128 x e4m3 g128", "e4m3 channel x e4m3 g64", "e4m3 b128x128 x e4m3 token",
)  # fmt: skip
DECODED_FORMATS = (
    "int1 g128 x e4m3 token", "int2 g128 x e4m3 token", "int3 g128 x e4m3 token", "int4 channel x e4m3 token",
    "int4 g64 x e4m3 token", "int4 g32 x e4m3 token", "mxint4 x e4m3 token", "nvfp4 x e4m3 token", "mxfp4 x e5m2 token",
    "uint4 g128 zp x e4m3 token", "uint4 g32 zp x e4m3 token", "uint3 channel zp x e4m3 token", "e3m2 g32 x e4m3 token",
    "e2m3 g32 x e4m3 tensor", "e0m3 g128 x e4m3 token", "e1m2 g64 x e4m3 token", "int4 b128x128 x e4m3 token",
    "int4 g128 x e4m3 g128", "int4 g128 x e4m3 g32", "mxfp4 x mxfp8", "nvfp4 x e4m3 g128", "int4 channel x e4m3 g64",
    "int4 g64 x int8 g128", "uint4 g128 zp x int8 g64",
    "int1 channel x int8 token", "int2 g128 x int8 token", "int3 g64 x int8 token", "int4 channel x int8 token",
    "int4 g32 x int8 token", "int4 g16:fp16 x int8 token", "int5 g128 x int8 token", "int6 g128 x int8 tensor",
    "int7 g128 x int8 token", "uint4 g64 zp x int8 token", "uint4 g32 zp x int8 token", "uint7 g128 zp x int8 token",
    "uint2 channel zp x int8 token", "mxint4 x int8 token", "int4 g256 x int8 token", "int4 tensor x int8 token",
)  # fmt: skip


def kernel_of(spec: str) -> str:
    """The kernel that multiplies a spec's weights."""
    from hybrid_humming.spec import Spec

    return "w8a8" if Spec.parse(spec).bits == 8 else "w4a8"


def ways(spec: str) -> tuple[tuple[bool, bool], ...]:
    """(fast accumulation, folded exponents) that a spec is run with."""
    return ((False, False), (True, False)) if spec == FP8 else ((False, True), (False, False)) if spec == MX else ((False, False),)


def check_cases(formats: bool, specs: tuple[str, ...]) -> Iterator[Case]:
    """Ragged rows, columns and K; tiles shared by many CTAs; several tiles a CTA; N that TMA can't store."""
    shapes = ((1, 328, 1920), (5, 200, 1920), (33, 1000, 640), (300, 2304, 4096), (129, 20000, 1024), (70, 330, 208))
    for spec in specs:
        kernel = kernel_of(spec)
        for one in CHECKED if kernel == "w8a8" else DECODED_CHECKED:
            for m, n, k in shapes:
                if k % 128 and any(mark in spec for mark in (" g", " b", "mx", "nv")):
                    continue
                for fast, folded in ways(spec):
                    if fast and n != 2304:
                        continue
                    case = Case(spec, n, k, m, kernel, one, fast=fast, scales="rows" if m % 2 else "columns", folded=folded)
                    if allowed(case):
                        yield case
        if spec == INT8:
            for one in (tile(16, 64, 8, 2), tile(128, 128, 6), tile(128, 256, 4, 1, False)):
                yield Case(spec, 328, 1280, 70, kernel, one, out_dtype="fp32", zero=True)
        for m, one in ((40, tile(64, 64, 6, 2)), (140, tile(128, 128, 4, 1, False))):
            case = Case(spec, 328, 1280, m, kernel, one, True, "fp32")
            if allowed(case):
                yield case
    if formats:
        whole = (tile(16, 64, 8, 2), tile(64, 64, 6, 2), tile(128, 64, 4, 2), tile(128, 128, 4), tile(256, 128, 4, 1, False))
        for kernel, names, tiles in (
            ("w8a8", FORMATS, whole),
            ("w4a8", DECODED_FORMATS, (decoded(16, 64, 4, 2), decoded(32, 128, 3))),
        ):
            for spec in names:
                for one in tiles:
                    for out in (None, "fp32"):
                        case = Case(spec, 328, 1280, 7, kernel, one, one["block_m"] == 64, out)
                        if allowed(case):
                            yield case


def time_cases(spec: str, shape: tuple[int, int], rows: tuple[int, ...] = ROWS) -> Iterator[Case]:
    (n, k), kernel = shape, kernel_of(spec)
    for m in rows:
        for one in (TILES if kernel == "w8a8" else DECODED_TILES)[m]:
            for fast, folded in ways(spec):
                case = Case(spec, n, k, m, kernel, one, fast=fast, folded=folded)
                while case.tile["num_stages"] > 2 and not allowed(case):
                    case = dataclasses.replace(case, tile=case.tile | {"num_stages": case.tile["num_stages"] - 1})
                if allowed(case):
                    yield case


def invariant_cases(spec: str) -> Iterator[Case]:
    """Tiles that keep K whole."""
    whole = (tile(16, 64, 8, 2, False), tile(64, 128, 8, 1, False), tile(128, 128, 6, 1, False), tile(256, 128, 4, 1, False),
             tile(128, 256, 4, 1, False))  # fmt: skip
    parts = (decoded(16, 64, 6, 2, False), decoded(64, 128, 6, 1, False), decoded(128, 64, 4, 1, False))
    for one in whole if kernel_of(spec) == "w8a8" else parts:
        case = Case(spec, 712, 4096, 300, kernel_of(spec), one)
        if allowed(case):
            yield case


# ---- one case ----
def entry_of(case: Case) -> Any:
    from hybrid_humming.triton_kernels.hopper.a8 import catalog

    return next(e for e in catalog.ENTRIES if e.name == f"gluon.gemm_{case.kernel}")


def problem_of(case: Case) -> tuple[Any, Any, Any]:
    """(problem, layout, plan) of a case."""
    from hybrid_humming.pack import make_layout
    from hybrid_humming.plan import Plan, Tile
    from hybrid_humming.spec import Problem, Spec
    from hybrid_humming.weight import Facts

    spec = Spec.parse(case.spec)
    if case.out_dtype:
        spec = spec.replace(out_dtype=case.out_dtype)
    layout = make_layout(entry_of(case).family, spec, case.n, case.k, facts=Facts(row_exponent_span=0 if case.folded else None))
    problem = Problem(spec=spec, m=case.m, n=case.n, k=case.k, bias=case.bias, fast_accumulation=case.fast)
    return problem, layout, Plan(kernel=f"gluon.gemm_{case.kernel}", tile=Tile(**case.tile), multiplies=spec.activation)


def allowed(case: Case) -> bool:
    """Whether the kernel takes a case at all, and its tile on an H200."""
    from hybrid_humming.device import DeviceInfo

    problem, layout, plan = problem_of(case)
    entry, device = entry_of(case), DeviceInfo.named("h200")
    return not entry.reject(problem, layout, device) and not entry.check(plan.tile, problem, layout, device)


def launcher(case: Case) -> Any:
    module, _, function = entry_of(case).launcher.partition(":")
    return getattr(importlib.import_module(module), function)


def args_of(case: Case, qweight: Any, x: Any, out: Any, bias: Any = None, zero: Any = None) -> tuple[Any, Any]:
    """(GemmArgs, plan) of a case for a quantized x, and its zero points int32 [M] if it has some."""
    import torch

    from hybrid_humming.device import DeviceInfo
    from hybrid_humming.jit.args import GemmArgs

    problem, layout, plan = problem_of(case)
    need = entry_of(case).workspace(plan.tile, problem, layout, DeviceInfo.of(out.device))
    scale = x.scale
    if case.scales == "columns" and scale is not None and scale.dim() == 2:
        scale = scale.t().contiguous().t()
    return GemmArgs(
        x=x.values, qweight=qweight.qweight, scale=qweight.scale, zero_point=qweight.zero_point,
        secondary_scale=qweight.secondary_scale, x_scale=scale, x_global_scale=x.global_scale, bias=bias, out=out,
        workspace=torch.empty(need, dtype=torch.uint8, device=out.device) if need else None,
        problem=problem, layout=layout, memo={}, x_zero_point=zero,
    ), plan  # fmt: skip


def compiled_alike(case: Case) -> tuple[Any, ...]:
    """What two cases share that run the same compiled kernel."""
    return case.spec, case.n % 16, case.bias, case.out_dtype, case.fast, case.folded, case.zero, str(case.tile)


def precompile(case: Case) -> str:
    """Compile a case with no GPU into Triton's cache; an error text, or empty."""
    import torch

    from hybrid_humming.jit.offline import compiling_for
    from hybrid_humming.pack import pack
    from hybrid_humming.reference import quantize, quantize_input

    case = dataclasses.replace(case, n=64 + case.n % 16, k=512, m=min(case.m, 16))  # only dtypes and alignments matter
    try:
        problem, layout, _ = problem_of(case)
        spec = problem.spec
        qweight = pack(quantize(torch.randn(case.n, case.k), spec), layout)
        x = quantize_input(torch.randn(case.m, case.k), spec)
        out = torch.zeros(case.m, case.n, dtype=torch_dtype(str(spec.out_dtype)))
        bias = torch.zeros(case.n, dtype=torch.bfloat16) if case.bias else None
        zero = torch.zeros(case.m, dtype=torch.int32) if case.zero else None
        args, plan = args_of(case, qweight, x, out, bias, zero)
        with compiling_for(90) as built:
            launcher(case)(args, plan)
        if built[0].spill_bytes > 64:
            return f"spills {built[0].spill_bytes} bytes ({built[0].registers} registers)"
        return ""
    except Exception:
        return traceback.format_exc()[-1500:]


def torch_dtype(name: str) -> Any:
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[name]
