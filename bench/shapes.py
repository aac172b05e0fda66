"""Named shapes, values of M and spec lines that the suites time; bytes that each problem moves; the order in which to time them.

A shape is (N, K) of one weight as an inference engine holds it: q, k and v stacked along N, gate and up stacked along N.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hybrid_humming.spec import Spec

MS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
# One per regime (a token, small batch, the turn from memory-bound to compute-bound, prefill): timed before the others.
FIRST_MS = (1, 16, 64, 256, 1024, 8192)

PEER_SHAPES = ((8192, 8192), (28672, 4096), (4096, 14336))

MODELS: dict[str, dict[str, tuple[int, int]]] = {
    "llama-2-7b": {"qkv": (12288, 4096), "o": (4096, 4096), "gate_up": (22016, 4096), "down": (4096, 11008)},
    "llama-3-70b": {"qkv": (10240, 8192), "o": (8192, 8192), "gate_up": (57344, 8192), "down": (8192, 28672)},
    "qwen3-32b": {"qkv": (10240, 5120), "o": (5120, 8192), "gate_up": (51200, 5120), "down": (5120, 25600)},
    "deepseek-v3": {
        "qkv_a": (2112, 7168),
        "q_b": (24576, 1536),
        "kv_b": (32768, 512),
        "o": (7168, 16384),
        "gate_up": (36864, 7168),
        "down": (7168, 18432),
    },
}

SUITES: dict[str, tuple[str, ...]] = {
    "w4a16": ("int4 g128 x bf16", "mxfp4 x bf16", "uint4 g128 zp x bf16", "nvfp4 x bf16"),
    "widths": (
        "int1 g128 x bf16",
        "int2 g128 x bf16",
        "int3 g128 x bf16",
        "int5 g128 x bf16",
        "int6 g128 x bf16",
        "int7 g128 x bf16",
        "e3m2 g128 x bf16",
    ),
    "w8a16": ("int8 g128 x bf16", "int8 channel x bf16", "e4m3 channel x bf16", "e4m3 b128x128 x bf16"),
    "w8a8": ("e4m3 channel x e4m3 token", "e4m3 b128x128 x e4m3 g128", "int8 channel x int8 token"),
    "w4a8": ("mxfp4 x e4m3 token", "int4 g128 x e4m3 token", "int4 g128 x int8 token"),
}
SUITES["dense"] = tuple(
    line for suite in ("w4a16", "w8a16", "w8a8", "w4a8") for line in SUITES[suite] if line != "int8 channel x bf16"
)
SUITES["all"] = tuple(dict.fromkeys(line for suite in SUITES.values() for line in suite))


@dataclass(frozen=True, kw_only=True)
class Point:
    """One dense problem to check and time: y [m, n] = x [m, k] @ W [n, k].T with W and x in the formats of `spec`."""

    spec: str
    n: int
    k: int
    m: int

    def __str__(self) -> str:
        return f"{self.spec} [M={self.m} N={self.n} K={self.k}]"

    @property
    def weight(self) -> tuple[str, int, int]:
        """What is built once and used for every M."""
        return self.spec, self.n, self.k


def parse_shapes(text: str) -> tuple[tuple[int, int], ...]:
    """Return the shapes that a comma-separated list names: `8192x8192`, a model, `model:part`, or `peer` for the three above."""
    found: list[tuple[int, int]] = []
    for word in text.split(","):
        name, _, part = word.strip().partition(":")
        if name == "peer":
            found += PEER_SHAPES
        elif name in MODELS:
            if part and part not in MODELS[name]:
                raise SystemExit(f"{name} has no part {part!r}; it has {', '.join(MODELS[name])}")
            found += [MODELS[name][part]] if part else list(MODELS[name].values())
        elif all(side.isdigit() for side in name.split("x")) and name.count("x") == 1:
            n, k = name.split("x")
            found.append((int(n), int(k)))
        else:
            raise SystemExit(f"unknown shape {word!r}; write NxK, peer, or a model: {', '.join(MODELS)}")
    return tuple(dict.fromkeys(found))


def parse_specs(text: str) -> tuple[str, ...]:
    """Return the spec lines of a comma-separated list of suites and spec lines, each in its canonical spelling."""
    lines = [line for word in text.split(",") for line in SUITES.get(word.strip(), (word.strip(),))]
    return tuple(dict.fromkeys(str(Spec.parse(line)) for line in lines))


def points(specs: Iterable[str], shapes: Iterable[tuple[int, int]], ms: Iterable[int]) -> list[Point]:
    """Return every combination that the spec allows: a K that a group does not divide is left out."""
    shapes, ms = list(shapes), list(ms)
    return [Point(spec=s, n=n, k=k, m=m) for s in specs for n, k in shapes if _fits(s, n, k) for m in ms]


def in_order(todo: Iterable[Point], ratios: Mapping[tuple[str, int, int, int], float] | None = None) -> list[Point]:
    """Return the points, the most urgent first, so that a run cut short has what matters.

    ratios  (spec, n, k, m) -> our time over the best peer's, from an earlier run: the worst come first, unknown ones before all.
            Without it: one M of each regime over all specs and shapes, then the rest.
    """
    known = ratios or {}

    def urgency(point: Point) -> tuple[float, int]:
        ratio = known.get((point.spec, point.n, point.k, point.m), float("inf") if known else 0.0)
        return -ratio, FIRST_MS.index(point.m) if point.m in FIRST_MS else len(FIRST_MS)

    return sorted(todo, key=urgency)  # stable: specs and shapes stay in the order given


def io_bytes(spec: str, n: int, k: int, m: int) -> tuple[int, int]:
    """Return (bytes of the packed weight with its scales, bytes of x with its scales and of y)."""
    parsed = Spec.parse(spec)
    scales = 0.0
    if parsed.quantizes_activation:
        per_row = {"token": 1, "tensor": 0}.get(str(parsed.activation_granularity), k // (parsed.activation_group_size or k))
        scales = m * per_row * {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}.get(str(parsed.activation_scale), 1.0)
    out = 4 if parsed.out_dtype == "fp32" else 2
    return parsed.weight_bytes(n, k), int(m * k * parsed.activation_format.bits / 8 + scales + m * n * out)


def flops(n: int, k: int, m: int) -> float:
    """Return the operations of one GEMM, a multiply and an add counted as two."""
    return 2.0 * m * n * k


def _fits(spec: str, n: int, k: int) -> bool:
    parsed = Spec.parse(spec)
    sizes = (parsed.group_size, parsed.activation_group_size, parsed.block[1] if parsed.block else None)
    return all(k % size == 0 for size in sizes if size) and (not parsed.block or n % parsed.block[0] == 0)
