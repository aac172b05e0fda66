"""Builders for test_hopper.py: compile what a Hopper kernel's own launcher would launch."""

import importlib
from unittest import mock

import torch

from hybrid_humming.device import DeviceInfo
from hybrid_humming.jit.args import GemmArgs
from hybrid_humming.jit.compile import Compiled
from hybrid_humming.jit.offline import compiling_for
from hybrid_humming.pack import make_layout, pack
from hybrid_humming.plan import Plan, Tile
from hybrid_humming.spec import Problem, Spec
from hybrid_humming.triton_kernels.hopper import catalog
from hybrid_humming.weight import Facts
from tests.kernels.problems import WIDE, weight_of


def built(kernel: str, line: str, tile: dict, *, m: int = 5, n: int = 192, k: int = 1024, bias: bool = True) -> Compiled:
    """The kernel that `kernel`'s launcher would run for x [m, k] and `tile`."""
    spec = Spec.parse(line)
    layout = make_layout("hopper", spec, n, k, facts=Facts())
    packed = pack(weight_of(spec, n, k), layout)
    entry = next(e for e in (*catalog.ENTRIES, catalog.WGMMA) if e.name == kernel)
    problem = Problem(spec=spec, m=m, n=n, k=k, bias=bias)
    need = entry.workspace(Tile(**tile), problem, layout, DeviceInfo.named("h200"))
    x = torch.zeros(m, k, dtype=WIDE[spec.activation])
    args = GemmArgs(
        x=x, qweight=packed.qweight, scale=packed.scale, zero_point=packed.zero_point, secondary_scale=packed.secondary_scale,
        x_scale=None, x_global_scale=None, bias=torch.zeros(n, dtype=x.dtype) if bias else None,
        out=torch.zeros(m, n, dtype=WIDE[str(spec.out_dtype)]), workspace=torch.zeros(need, dtype=torch.uint8) if need else None,
        problem=problem, layout=layout, memo={},
    )  # fmt: skip
    plan = Plan(kernel=kernel, tile=Tile(**tile), multiplies=spec.activation, workspace_bytes=need)
    module, _, function = entry.launcher.partition(":")
    launch = getattr(importlib.import_module(module), function)
    with compiling_for(90) as compiled, mock.patch("torch.mm"), mock.patch("torch.addmm"):
        launch(args, plan)
    return compiled[0]
