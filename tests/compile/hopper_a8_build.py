"""Builders for test_hopper_a8.py: compile what a kernel's own launcher would launch."""

import importlib

import torch

from hybrid_humming.device import DeviceInfo
from hybrid_humming.jit.args import GemmArgs
from hybrid_humming.jit.compile import Compiled
from hybrid_humming.jit.offline import compiling_for
from hybrid_humming.pack import make_layout, pack
from hybrid_humming.plan import Plan, Tile
from hybrid_humming.reference import quantize_input
from hybrid_humming.spec import Problem, Spec
from hybrid_humming.triton_kernels.hopper.a8 import catalog
from hybrid_humming.weight import Facts, scan
from tests.kernels.problems import WIDE, weight_of


def built(
    kernel: str,
    line: str,
    tile: dict,
    *,
    m: int = 5,
    n: int = 256,
    k: int = 1024,
    bias: bool = True,
    fast: bool = False,
    folded: bool = False,
    zero: bool = False,
) -> Compiled:
    """The kernel that `kernel`'s launcher would run for x [m, k] and `tile`."""
    spec = Spec.parse(line)
    entry = next(e for e in catalog.ENTRIES if e.name == kernel)
    weight = weight_of(spec, n, k)
    layout = make_layout(entry.family, spec, n, k, facts=scan(weight) if folded else Facts())
    assert layout.folded == folded
    packed = pack(weight, layout)
    problem = Problem(spec=spec, m=m, n=n, k=k, bias=bias, fast_accumulation=fast)
    device = DeviceInfo.named("h200")
    reason = entry.check(Tile(**tile), problem, layout, device)
    assert reason is None, reason
    need = entry.workspace(Tile(**tile), problem, layout, device)
    x = quantize_input(torch.randn(m, k), spec)
    args = GemmArgs(
        x=x.values, qweight=packed.qweight, scale=packed.scale, zero_point=packed.zero_point,
        secondary_scale=packed.secondary_scale, x_scale=x.scale, x_global_scale=x.global_scale,
        bias=torch.zeros(n, dtype=torch.bfloat16) if bias else None, out=torch.zeros(m, n, dtype=WIDE[str(spec.out_dtype)]),
        workspace=torch.zeros(need, dtype=torch.uint8) if need else None, problem=problem, layout=layout, memo={},
        x_zero_point=torch.zeros(m, dtype=torch.int32) if zero else None,
    )  # fmt: skip
    plan = Plan(kernel=kernel, tile=Tile(**tile), multiplies=spec.activation, workspace_bytes=need)
    module, _, function = entry.launcher.partition(":")
    with compiling_for(90) as compiled:
        getattr(importlib.import_module(module), function)(args, plan)
    return compiled[0]
