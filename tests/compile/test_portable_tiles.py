"""Tiles of the portable kernels: no spills, shared memory that fits, and no operand of wgmma in registers."""

import dataclasses
import re

import pytest

from hybrid_humming.device import DeviceInfo
from hybrid_humming.pack.portable import make_layout
from hybrid_humming.spec import Problem, Spec
from hybrid_humming.triton_kernels.portable.catalog import DEQUANT_MATMUL, ENTRIES, GEMM, GEMV
from hybrid_humming.weight import Facts
from tests.compile.harness import TRITONS, Job, compile_all

WGMMA = {"block_m": 64, "block_n": 128, "block_k": 64, "num_warps": 4, "num_stages": 2}
DECODE = {"block_m": 16, "block_n": 64, "block_k": 128, "num_warps": 4, "num_stages": 2}
GEMV_TILE = {"block_m": 1, "block_n": 128, "block_k": 128, "num_warps": 4, "num_stages": 2, "mma": "fma"}


def job(entry, line, m, device, tile):
    kwargs = {"kernel": entry.name, "line": line, "m": m, "sm": DeviceInfo.named(device).sm, "device": device, "tile": tile}
    return Job("tests.compile.portable:build", kwargs)


HOPPER = [
    job(GEMM, "int4 g128 x fp16", 64, "h200", WGMMA),
    job(GEMV, "nvfp4 x fp16", 1, "h200", GEMV_TILE),
    job(DEQUANT_MATMUL, "int3 g32 x fp16", 256, "h200", {"block_n": 64, "block_k": 128}),
]
HOPPER += [
    job(GEMM, f"{half} x bf16", 64, "h200", WGMMA)
    for half in ("uint4 g64 zp", "uint4 g64 zp:bf16", "int7 channel", "e5m2 tensor", "e0m3 g128", "mxfp6", "int4 g24:e5m3+channel")
]
HOPPER += [
    job(GEMM, line, 64, "h200", DECODE | {"block_m": 32, "block_k": 32})
    for line in ("mxfp4 x e4m3 token", "int4 g128 x int8 token", "e4m3 b128x128 x e4m3 g128", "nvfp4 x nvfp4")
]
pytestmark = pytest.mark.compile


@pytest.mark.parametrize("triton", TRITONS)
@pytest.mark.parametrize("chosen", HOPPER, ids=str)
@pytest.mark.timeout(900)
def test_no_wgmma_reads_its_operands_from_registers(chosen, triton):
    """Under Triton 3.6.0 a register operand that a multi-step product still reads may be overwritten by the next one."""
    built = compile_all(HOPPER, triton)[chosen]
    assert built.ok, built.error
    assert built.spills == 0
    found = re.findall(r"wgmma\.mma_async[^;]*;", built.ptx)
    assert bool(found) == (built.sass_count("HGMMA") > 0)
    for product in found:
        # { accumulators }, descriptor of A, descriptor of B, ...: a second brace would be A in registers.
        assert product.count("{") == 1, product


def offered(name):
    """Jobs for each distinct tile that the catalog offers a device, over small and large M."""
    device, found = DeviceInfo.named(name), {}
    for line, m in (("int4 g128 x fp16", 1), ("int4 g128 x fp16", 16), ("int4 g128 x fp16", 1024)):
        spec = Spec.parse(line)
        problem, layout = Problem(spec=spec, m=m, n=4096, k=4096), make_layout(spec, 4096, 4096, 0, Facts())
        for entry in ENTRIES:
            if entry.reject(problem, layout, device) is None:
                for tile in entry.tiles(problem, layout, device):
                    one = tile.replace(split_k=1, raster_m=0)
                    found.setdefault((entry.name, str(one)), (entry, line, m, one))
    return [
        job(entry, line, m, name, {f.name: getattr(tile, f.name) for f in dataclasses.fields(tile)})
        for entry, line, m, tile in found.values()
    ]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["h200", "a100", "t4"])
def test_no_tile_of_the_catalog_spills_or_takes_more_shared_memory_than_there_is(name):
    jobs = offered(name)
    built = compile_all(jobs, "3.6.0")
    assert len(jobs) > 3
    for one in jobs:
        assert built[one].ok, built[one].error
        assert built[one].spills == 0, one
        assert built[one].shared_bytes <= DeviceInfo.named(name).shared_per_block_bytes, one
