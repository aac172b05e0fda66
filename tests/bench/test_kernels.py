"""The bench's own kernels compile; the read roof loads 16 bytes at a time, and a chain's kernels speak of their dependents."""

import pytest

from tests.compile.harness import TRITONS, Job, compile_all

READ = {d: Job("tests.bench.builders:read", {"sm": 90, "dependent": d}) for d in (False, True)}
COPY = {d: Job("tests.bench.builders:copy", {"sm": 90, "dependent": d}) for d in (False, True)}
ON_AMPERE = [
    Job("tests.bench.builders:read", {"sm": 80, "dependent": False}),
    Job("tests.bench.builders:copy", {"sm": 80, "dependent": False}),
]
JOBS = [*READ.values(), *COPY.values(), *ON_AMPERE]

pytestmark = [pytest.mark.compile, pytest.mark.parametrize("triton", TRITONS)]


def test_all_compile(triton):
    for job, built in compile_all(JOBS, triton).items():
        assert built.ok, f"{job}: {built.error}"
        assert built.spills == 0


def test_the_read_kernel_loads_sixteen_bytes_at_a_time(triton):
    built = compile_all(JOBS, triton)[READ[False]]
    assert built.ok, built.error
    wide = sum(n for name, n in built.sass.items() if name.startswith("LDG") and ".128" in name)
    assert wide >= 8  # 4096 words a step, 128 threads, 4 words a load


def test_dependent_launch_is_in_the_chain_only(triton):
    built = compile_all(JOBS, triton)
    for jobs, waits in ((READ, True), (COPY, False)):
        assert "griddepcontrol" not in built[jobs[False]].ptx
        assert "griddepcontrol.launch_dependents" in built[jobs[True]].ptx
        assert ("griddepcontrol.wait" in built[jobs[True]].ptx) == waits
