"""The parts of bench.hatch_check that need no GPU: the store of cubins, and reading back what an LDSM code does."""

import json

import numpy as np
import pytest

from bench import hatch_check, hatch_cubins, hatch_ldmatrix
from hybrid_humming.cuda_kernels.patch import EDITS, count_edits
from hybrid_humming.jit.compile import Compiled

pytest.importorskip("cuda.bindings", reason="cuda-bindings and NVRTC come with the extra cuda13")


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setattr(hatch_cubins, "STORE", {})
    from hybrid_humming.cuda_kernels.sm100 import launch

    monkeypatch.setattr(launch, "compile_cuda", launch.compile_cuda)
    launch.compile_gemm.cache_clear()
    launch.compile_small.cache_clear()
    yield hatch_cubins.STORE
    launch.compile_gemm.cache_clear()
    launch.compile_small.cache_clear()


def test_what_one_machine_compiled_another_launches(store, tmp_path, monkeypatch, capsys):
    hatch_cubins.use(None)
    hatch_check.build(tmp_path / "cubins.pkl")
    assert "cubins" in capsys.readouterr().out
    built = dict(store)
    assert len(built) >= 10 and all(isinstance(one, Compiled) and one.sm == 90 for one in built.values())
    store.clear()
    hatch_cubins.use(tmp_path / "cubins.pkl")
    monkeypatch.setattr(hatch_cubins.nvrtc, "compile_cuda", None)  # nothing may be compiled any more
    from hybrid_humming.cuda_kernels.sm100 import launch

    launch.compile_gemm.cache_clear()
    launch.compile_small.cache_clear()
    hatch_check.build(tmp_path / "again.pkl")
    assert set(store) == set(built)


def test_the_probe_has_the_one_instruction_that_the_editor_knows(store):
    for stride in hatch_ldmatrix.STRIDES:
        cubin = hatch_ldmatrix.build("x4", stride).cubin
        assert count_edits(cubin, EDITS["ldsm_s4_to_s8"]) == (1, 0) == count_edits(cubin, EDITS["ldsm_s2_to_s4"])


@pytest.mark.parametrize("signed", [True, False])
def test_the_source_of_every_result_byte_is_read_back(signed):
    order = np.random.default_rng(0).permutation(8192)[:512]

    def run(data: np.ndarray) -> np.ndarray:
        nibbles = np.stack([data & 15, data >> 4], -1).reshape(-1)[order].astype(np.int64)
        return (np.where(nibbles > 7, nibbles - 16, nibbles) if signed else nibbles).astype(np.uint8)

    found = hatch_ldmatrix.explain(run, 4, half=False)
    assert found["source_of_lane0"] == order[:16].tolist() and found["source_of_lane1"] == order[16:32].tolist()
    assert found["all_fields_come_from_memory"] and found["distinct_sources"] == 512
    assert (found["sign_extended"], found["zero_extended"]) == (signed, not signed)


def test_a_part_that_fails_is_a_row_with_its_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(hatch_check, "OUT", tmp_path / "out.jsonl")
    monkeypatch.setattr(hatch_check.sys, "argv", ["hatch_check", "--parts", "ldmatrix", "--budget", "0.5"])
    assert hatch_check.main() == 0  # an experiment that fails is no failure
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(rows) == 6 and all(row["ok"] is False and row["error"] for row in rows)
