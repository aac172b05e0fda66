"""Plan and its parts: Tile (speed only), Candidate, Rejection, KernelEntry (a kernel as data).

A kernel package's `catalog.py` lists `KernelEntry` values and imports no compiler, so that planning needs neither a GPU
nor Triton. `choose_plan` asks each entry: does it support the problem, which tiles are legal, what does each cost.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from hybrid_humming.device import DeviceInfo
from hybrid_humming.errors import PlanError, did_you_mean
from hybrid_humming.spec import PackLayout, Problem, Spec

Mma = Literal["", "fma", "mma_sync", "wgmma", "tcgen05", "library"]
SplitK = Literal["ordered", "two_pass"]


@dataclass(frozen=True, kw_only=True)
class Tile:
    """Choices that change only speed. A tile that a kernel can't run is refused with the number that breaks it.

    block_m, block_n, block_k  tile of one CTA
    num_warps, num_stages      as Triton says
    ctas_per_sm                resident CTAs per SM that a persistent grid counts on
    split_k                    slices of K summed afterwards, in fixed order
    stream_k                   equal K work per CTA instead of whole tiles
    raster_m                   tiles of M visited before N advances; 0: N fastest
    mma                        which unit multiplies
    """

    block_m: int = 16
    block_n: int = 128
    block_k: int = 64
    num_warps: int = 4
    num_stages: int = 3
    ctas_per_sm: int = 1
    split_k: int = 1
    stream_k: bool = False
    raster_m: int = 0
    warp_specialize: bool = False
    mma: Mma = ""
    tma_w: bool = False
    tma_x: bool = False
    tma_scale: bool = False
    tma_out: bool = False
    multicast: int = 1
    dependent_launch: bool = False

    def __str__(self) -> str:
        text = f"{self.block_m}x{self.block_n}x{self.block_k} warps={self.num_warps} stages={self.num_stages}"
        for f in dataclasses.fields(self)[5:]:
            value = getattr(self, f.name)
            if value != f.default:
                text += f" {f.name}" if value is True else f" {f.name}={value}"
        return text

    def replace(self, **changes: Any) -> Tile:
        """Return a tile with the named fields changed; raises PlanError for a name that is none."""
        names = [f.name for f in dataclasses.fields(self)]
        for name in changes:
            if name not in names:
                raise PlanError(f"a tile has no field {name!r}; it has {', '.join(names)}.{did_you_mean(name, names)}")
        return dataclasses.replace(self, **changes)

    def nonsense(self) -> str | None:
        """Return the number that no kernel at all takes, or None; what one kernel can't run, its `check` refuses."""
        least = dict.fromkeys(
            ("block_m", "block_n", "block_k", "num_warps", "num_stages", "ctas_per_sm", "split_k", "multicast"), 1
        )
        for name, low in (least | {"raster_m": 0}).items():
            value = getattr(self, name)
            if type(value) is not int or value < low:
                return f"{name}={value!r} must be an integer of at least {low}"
        return None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The whole decision for one problem: which kernel, which tile, what multiplies, how much workspace.

    kernel       name of the KernelEntry, such as `triton.gemm_portable`
    multiplies   format of the operands that the MMA (or FMA) reads
    fallback     why that is not the activation's own format; empty when it is
    cost_us      the cost model's estimate, or the tuned table's measurement
    source       heuristic | tuned | user
    """

    kernel: str
    tile: Tile
    multiplies: str
    fallback: str = ""
    workspace_bytes: int = 0
    cost_us: float = 0.0
    source: str = "heuristic"
    line: str = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # The op takes a plan as a string: made once here, and an attribute that torch.compile need not trace the making of.
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.init}
        tile = {f.name: getattr(self.tile, f.name) for f in dataclasses.fields(self.tile)}
        fields["tile"] = {f.name: tile[f.name] for f in dataclasses.fields(self.tile) if tile[f.name] != f.default}
        object.__setattr__(self, "line", json.dumps(fields, sort_keys=True))

    def __str__(self) -> str:
        return f"{self.kernel} [{self.tile}]"

    def replace(self, **changes: Any) -> Plan:
        """Return a user's plan: names of Plan fields change the plan, names of Tile fields its tile."""
        own = {f.name for f in dataclasses.fields(self) if f.init}
        plan_changes = {k: v for k, v in changes.items() if k in own}
        given = plan_changes.pop("tile", self.tile)
        if not isinstance(given, Tile):
            raise PlanError(f"tile is {type(given).__name__}; pass a Tile, or its fields by name: plan.replace(block_m=16)")
        tile = given.replace(**{k: v for k, v in changes.items() if k not in own})
        return dataclasses.replace(self, tile=tile, source=plan_changes.pop("source", "user"), **plan_changes)

    def to_json(self) -> str:
        """Return the plan as canonical JSON (sorted keys, defaults of the tile left out)."""
        return self.line

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Return the plan that `to_json` wrote; raises PlanError for any other text."""
        try:
            fields = json.loads(text)
            return cls(**(fields | {"tile": Tile().replace(**fields["tile"])}))
        except (ValueError, TypeError, KeyError) as error:
            if isinstance(error, PlanError):
                raise
            raise PlanError(f"can't read plan {text[:80]!r}: expected the JSON object that Plan.to_json writes") from None


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A kernel with one legal tile and its cost; problem: what the kernel is given, if not what was asked."""

    entry: KernelEntry
    tile: Tile
    cost_us: float
    problem: Problem | None = None
    source: str = "heuristic"


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """A kernel that can't run a problem, and why; one sentence with the numbers."""

    kernel: str
    reason: str


def _nothing(*_: Any) -> int:
    return 0


@dataclass(frozen=True, kw_only=True)
class KernelEntry:
    """One kernel, described to the planner.

    name       `<backend>.<op>_<what>`, such as `triton.gemm_portable`
    family     PackLayout family that it reads; "*" reads every family
    launcher   `module:function` of `launch(args: GemmArgs, plan: Plan) -> None`, imported on first use
    device     "cuda" or "cpu"
    dependent_launch   whether its tiles may start beside the kernel before them (Tile.dependent_launch)
    status     "stable"; "trial": not run yet, planned with HYBRID_HUMMING_TRIAL=1 alone, since kernels that ran serve the same GPU;
               "compiled, not run": planned, nothing else of its kind serves the GPU
    reject     (problem, layout, device) -> None, or the reason why the kernel can't run it
    tiles      (problem, layout, device) -> tiles worth considering, all legal
    check      (tile, problem, layout, device) -> None, or the number that breaks a user's tile
    cost_us    (tile, problem, layout, device) -> estimated microseconds
    multiplies (problem, device) -> format of the operands that are multiplied
    workspace  (tile, problem, layout, device) -> bytes of scratch memory that `launch` is given
    note       one line for `explain` and the support matrix
    """

    name: str
    family: str
    launcher: str
    device: str
    reject: Callable[[Problem, PackLayout, DeviceInfo], str | None]
    tiles: Callable[[Problem, PackLayout, DeviceInfo], Iterable[Tile]]
    check: Callable[[Tile, Problem, PackLayout, DeviceInfo], str | None]
    cost_us: Callable[[Tile, Problem, PackLayout, DeviceInfo], float]
    multiplies: Callable[[Problem, DeviceInfo], str]
    workspace: Callable[[Tile, Problem, PackLayout, DeviceInfo], int] = _nothing
    dependent_launch: bool = False
    status: str = "stable"
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class LayoutEntry:
    """One pack layout family, described to `choose_layout`. The highest `preference` among those that accept wins.

    `hybrid_humming.pack.<family>` has its `pack`, `unpack` and `make_layout(spec, n, k, experts, facts) -> PackLayout`.

    family   name
    reject   (spec, n, k, device) -> None, or the reason why it can't hold this weight for this device
    experts        whether it holds weights with an expert axis
    inside_blocks  whether it holds a shard that starts inside a block of scales along K
    """

    family: str
    preference: int
    reject: Callable[[Spec, int, int, DeviceInfo], str | None]
    experts: bool = True
    inside_blocks: bool = True


@dataclass(frozen=True, kw_only=True)
class QuantizerEntry:
    """One input quantizer, described to `explain` and `report`.

    name       such as `triton.quantize_input`
    launcher   `module:function` of `launch(args: InputArgs) -> None`, imported on first use
    device     "cuda" or "cpu"
    launches   (spec, static) -> kernels that quantizing a float x takes; static: the tensor's scale is given
    fuses      (spec, k, hadamard, permuted) -> whether the transform is done inside as well
    status     as KernelEntry's
    """

    name: str
    launcher: str
    device: str
    launches: Callable[[Spec, bool], int]
    fuses: Callable[[Spec, int, int, bool], bool]
    status: str = "stable"
