"""CUDA C++ to a Compiled with NVRTC: what it holds, its key, and a typed error for each thing that can be missing."""

import builtins
import re

import pytest

from hybrid_humming.errors import CompileError, MissingDependency
from hybrid_humming.jit import nvrtc
from hybrid_humming.jit.nvrtc import compile_cuda

pytest.importorskip("cuda.bindings", reason="cuda-bindings and NVRTC come with the extra cuda13")
SOURCE = """
#include "scale.cuh"
extern "C" __global__ void k(float *p) { p[threadIdx.x] *= SCALE * FACTOR; }
"""


@pytest.fixture
def source(tmp_path):
    (tmp_path / "scale.cuh").write_text("#define SCALE 2\n")
    (tmp_path / "k.cu").write_text(SOURCE)
    return tmp_path / "k.cu"


@pytest.mark.parametrize("sm", [80, 90, 100, 103, 120, 121])
def test_a_kernel_compiles_for_a_gpu_that_is_not_there(source, sm):
    built = compile_cuda(source, "k", sm=sm, defines={"FACTOR": 3}, signature=(("p", "*fp32"),), shared_bytes=64)
    assert built.cubin[:4] == b"\x7fELF" and (built.entry, built.sm, built.shared_bytes) == ("k", sm, 64)
    assert re.search(rf"\.target sm_{sm}{'a' if sm >= 90 else ''}\b", built.asm["ptx"]) and ".entry k(" in built.asm["ptx"]
    assert built.registers > 0 and built.spill_bytes == 0 and built.seconds < 10


def test_the_key_covers_source_includes_macros_target_and_version_and_no_path(source, tmp_path, monkeypatch):
    def key(**changes):
        return compile_cuda(**{"path": source, "entry": "k", "sm": 90, "defines": {"FACTOR": 3}, **changes}).key

    first = key()
    assert first == key() and len(first) == 64
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for name in ("k.cu", "scale.cuh"):
        (folder / name).write_text((tmp_path / name).read_text())
    assert key(path=folder / "k.cu") == first
    assert key(sm=100) != first != key(defines={"FACTOR": 4})
    (folder / "scale.cuh").write_text("#define SCALE 3\n")
    assert key(path=folder / "k.cu") != first
    monkeypatch.setattr(nvrtc, "nvrtc_version", lambda: (99, 0))
    assert key() != first


def test_a_source_that_does_not_compile_gives_the_compilers_log(source):
    with pytest.raises(CompileError, match=r"k\.cu for sm_100a.*FACTOR"):
        compile_cuda(source, "k", sm=100)


def test_an_instruction_that_the_target_lacks_is_refused_by_name(tmp_path):
    (tmp_path / "k.cu").write_text('extern "C" __global__ void k() { asm volatile("tcgen05.wait::ld.sync.aligned;"); }')
    assert compile_cuda(tmp_path / "k.cu", "k", sm=100).cubin
    with pytest.raises(CompileError, match="sm_120a.*tcgen05"):
        compile_cuda(tmp_path / "k.cu", "k", sm=120)


def test_an_nvrtc_that_is_too_old_says_what_it_knows(source, monkeypatch):
    monkeypatch.setattr(nvrtc, "supported_sms", lambda: (75, 80, 90))
    with pytest.raises(CompileError, match=r"sm_75, sm_80, sm_90, not for sm_100; install a newer nvidia-cuda-nvrtc.*cuda13"):
        compile_cuda(source, "k", sm=100, defines={"FACTOR": 3})


def test_without_cuda_bindings_the_error_names_the_extra(source, monkeypatch):
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.startswith("cuda"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *args, **kwargs)

    nvrtc.nvrtc_version.cache_clear()
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(MissingDependency, match=r"hybrid_humming\[cuda13\]"):
        compile_cuda(source, "k", sm=90)


def test_bindings_without_the_library_name_the_extra(source, monkeypatch):
    class NoLibrary:
        @staticmethod
        def nvrtcVersion():
            raise RuntimeError('Failure finding "libnvrtc.so"')

    nvrtc.nvrtc_version.cache_clear()
    monkeypatch.setattr(nvrtc, "_bindings", NoLibrary)
    with pytest.raises(MissingDependency, match=r"libnvrtc.*hybrid_humming\[cuda13\]"):
        compile_cuda(source, "k", sm=90)
