import pytest

from tests.compile.harness import SIDE_VERSIONS, TRITONS, Job, compile_all

PROBE = "tests.compile.probe"
HOPPER = Job(f"{PROBE}:matmul", {"sm": 90})
AMPERE = Job(f"{PROBE}:matmul", {"sm": 80})
COMPILED = Job(f"{PROBE}:matmul_compiled")
WRONG = Job(f"{PROBE}:wrong")
CRASH = Job(f"{PROBE}:crash")
JOBS = [HOPPER, AMPERE, WRONG, CRASH, COMPILED]

pytestmark = [pytest.mark.compile, pytest.mark.parametrize("triton", TRITONS)]


def test_each_triton_compiles_for_each_gpu(triton):
    built = compile_all(JOBS, triton)
    for job, mma in ((HOPPER, "HGMMA"), (AMPERE, "HMMA"), (COMPILED, "HGMMA")):
        result = built[job]
        assert result.ok, result.error
        assert result.sass_count(mma) > 0
        assert result.registers > 16
        assert result.shared_bytes > 0
        assert result.spills == 0
        assert ".entry matmul_kernel" in result.ptx
        assert triton not in SIDE_VERSIONS or result.triton == triton
    assert built[AMPERE].sass_count("HGMMA") == 0


def test_a_refusal_is_a_result(triton):
    result = compile_all(JOBS, triton)[WRONG]
    assert not result.ok
    assert "power of 2" in result.error


def test_a_crash_is_the_result_of_its_own_job(triton):
    result = compile_all(JOBS, triton)[CRASH]
    assert not result.ok
    assert "exit 7" in result.error
