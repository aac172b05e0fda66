"""The key of a compiled kernel: each thing that changes the code changes it, and nothing of this machine is in it."""

import os

import pytest

from hybrid_humming.jit import compile as compiling
from tests.jit import probe

BASE = {
    "signature": {"a_ptr": "*fp16", "K": "i32"},
    "constants": {"BLOCK": 64},
    "attrs": {(0,): [["tt.divisibility", 16]]},
    "sm": 90,
    "launch": {"num_warps": 4, "num_stages": 3},
}
CHANGES = {
    "signature": {"a_ptr": "*bf16", "K": "i32"},
    "constants": {"BLOCK": 32},
    "attrs": {},
    "sm": 80,
    "launch": {"num_warps": 8, "num_stages": 3},
}


@pytest.mark.parametrize("part", CHANGES)
def test_each_part_changes_the_key(part):
    key = compiling.kernel_key(probe.matmul_kernel, **BASE)
    assert key == compiling.kernel_key(probe.matmul_kernel, **BASE)
    assert key != compiling.kernel_key(probe.matmul_kernel, **(BASE | {part: CHANGES[part]}))


def test_the_versions_of_triton_and_ptxas_change_the_key(monkeypatch):
    import triton

    keys = {compiling.kernel_key(probe.matmul_kernel, **BASE)}
    monkeypatch.setattr(compiling, "ptxas_version", lambda: "0.0.1")
    keys.add(compiling.kernel_key(probe.matmul_kernel, **BASE))
    monkeypatch.setattr(triton, "__version__", "0.0.1")
    keys.add(compiling.kernel_key(probe.matmul_kernel, **BASE))
    assert len(keys) == 3


class _Kernel:
    """Stands for a kernel whose source changed."""

    def __init__(self, cache_key):
        self.cache_key = cache_key


def test_the_source_changes_the_key():
    assert compiling.kernel_key(_Kernel("one"), **BASE) != compiling.kernel_key(_Kernel("two"), **BASE)


def test_nothing_of_this_machine_is_in_the_key(monkeypatch, tmp_path):
    """What is hashed holds no path, process id or host name."""
    seen = []
    real = compiling.hashlib.sha256
    monkeypatch.setattr(compiling.hashlib, "sha256", lambda data: seen.append(data.decode()) or real(data))
    compiling.kernel_key(probe.matmul_kernel, **BASE)
    [text] = seen
    assert not any(word in text for word in (os.getcwd(), os.path.expanduser("~"), str(os.getpid()), os.uname().nodename, "/tmp"))
