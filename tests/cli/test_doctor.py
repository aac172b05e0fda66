import json

import pytest
import torch

from hybrid_humming.cli import main
from hybrid_humming.cli.doctor import Report, examine, show
from hybrid_humming.device import DeviceInfo


@pytest.fixture
def clean(monkeypatch, tmp_path):
    monkeypatch.setenv("HYBRID_HUMMING_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.delenv("HYBRID_HUMMING_LOG", raising=False)


def test_json_holds_versions_and_caches(clean, capsys, tmp_path):
    (tmp_path / "kernel.cubin").write_bytes(b"x" * 2_000_000)
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["versions"]["torch"] == torch.__version__
    assert report["caches"]["hybrid_humming"] == {"path": str(tmp_path), "files": 1, "mb": 2.0}
    assert report["problems"] == []


def test_without_a_gpu_it_says_what_will_not_run(clean, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "CPU backend" in out
    assert "Will not run here, and why" in out


def test_a_mistyped_variable_is_a_problem_and_exit_code_1(clean, monkeypatch, capsys):
    monkeypatch.setenv("HYBRID_HUMMING_CACHEDIR", "/x")
    assert main(["doctor"]) == 1
    assert "Did you mean 'HYBRID_HUMMING_CACHE_DIR'?" in capsys.readouterr().out


def test_a_wrong_value_is_a_problem(clean, monkeypatch):
    monkeypatch.setenv("HYBRID_HUMMING_LOG", "plan,cals")
    [problem] = examine().problems
    assert "'cals'" in problem
    assert "Did you mean 'calls'?" in problem


def test_the_interpreter_switch_is_a_problem(clean, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert any("TRITON_INTERPRET" in problem for problem in examine().problems)


def test_an_unwritable_cache_is_a_problem(clean, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HYBRID_HUMMING_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert any("can't be written" in problem for problem in examine().problems)


def test_an_old_gpu_is_a_problem(clean, monkeypatch):
    class Volta:
        major, minor, name, multi_processor_count, total_memory = 7, 0, "V100", 80, 16e9

    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Volta)
    report = examine()
    assert report.gpus == [{"index": 0, "name": "V100", "sm": 70, "sm_count": 80, "memory_gb": 16.0}]
    assert any("sm_70" in problem and "sm_75" in problem for problem in report.problems)


def test_a_gpu_says_which_formats_others_stand_in_for(clean, monkeypatch):
    class Ada:
        major, minor, name, multi_processor_count, total_memory = 8, 9, "NVIDIA L40S", 142, 48e9

    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Ada)
    monkeypatch.setattr(DeviceInfo, "of", lambda device: DeviceInfo.named("l40s"))
    [limit] = [line for line in examine().limits if line.startswith("GPU 0")]
    assert "e2m1 as e4m3" in limit
    assert "e4m3 as" not in limit


def test_names_are_printed_as_they_are(capsys):
    """A path with square brackets is not taken for colour markup."""
    show(Report(problems=["the folder /tmp/[red]x can't be written"]))
    assert "/tmp/[red]x" in capsys.readouterr().out
