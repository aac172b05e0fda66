"""What a launch would launch can be compiled where there is no GPU."""

import pytest
import torch

from hybrid_humming.errors import CompileError
from hybrid_humming.jit import launch as launching
from hybrid_humming.jit.offline import compiling_for
from tests.compile.harness import TRITONS, Job, compile_all
from tests.jit import probe

JOBS = [Job("tests.jit.probe:compiled", {"sm": sm}) for sm in (80, 90)]


@pytest.mark.compile
@pytest.mark.parametrize("triton", TRITONS)
def test_each_triton_compiles_the_launch_for_the_gpu_named(triton):
    built = compile_all(JOBS, triton)
    for job, mma in zip(JOBS, ("HMMA", "HGMMA"), strict=True):
        assert built[job].ok, built[job].error
        assert built[job].sass_count(mma) > 0


@pytest.mark.compile
def test_nothing_runs_and_the_state_is_put_back():
    from triton.runtime.driver import driver

    before = driver._active
    with compiling_for(90) as compiled:
        out = probe.launch()
    assert torch.isnan(out).all()
    assert [c.sm for c in compiled] == [90]
    assert driver._active is before
    assert launching.offline is None


@pytest.mark.compile
def test_the_key_follows_what_triton_specialises_on():
    """Same launch, same key; another alignment of an integer, dtype or GPU, another one."""
    with compiling_for(90) as compiled:
        probe.launch()
        probe.launch()
        probe.launch(k=136)
        probe.launch(dtype=torch.bfloat16)
    with compiling_for(80) as other:
        probe.launch()
    keys = [c.key for c in compiled + other]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4


@pytest.mark.compile
def test_a_kernel_that_does_not_compile_is_a_typed_error():
    with compiling_for(90), pytest.raises(CompileError, match=r"matmul_kernel does not compile for sm_90"):
        launching.launch_triton(probe.matmul_kernel, (1, 1, 1), 1, 2, 3, 4, constants={"BLOCK": 48})
    assert launching.offline is None
