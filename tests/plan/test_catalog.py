"""Every spec runs on every GPU that we name, at few rows and many: by its own format or by a documented stand-in."""

import pytest

import hybrid_humming as hh
from hybrid_humming.device import device_names

SPECS = (
    "int4 g128 x bf16", "uint4 g64 zp x fp16", "int3 channel x bf16", "int8 channel x bf16", "e3m2 g32 x bf16", "mxfp4 x bf16",
    "e4m3 b128x128 x bf16", "nvfp4 x bf16", "int4 g128 x e4m3 token", "int8 channel x int8 token", "e4m3 channel x e4m3 token",
    "mxfp4 x mxfp8", "nvfp4 x nvfp4", "int4 channel x int4 token", "e4m3 b128x128 x e4m3 g128",
)  # fmt: skip


@pytest.mark.parametrize("device", device_names())
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_every_spec_has_a_plan(device, batch_invariant):
    for line in SPECS:
        for m in (1, 16, 1024):
            problem = hh.Problem(spec=hh.Spec.parse(line), m=m, n=4096, k=4096, batch_invariant=batch_invariant)
            assert hh.choose_plan(problem, device=device).kernel
