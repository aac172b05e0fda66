"""The command line as a user meets it: help, exit codes, colours, and a plain sentence when an extra is missing."""

import subprocess
import sys

import pytest

from hybrid_humming.cli import COMMANDS, main


def run(*args: str, **env: str) -> subprocess.CompletedProcess:
    import os

    return subprocess.run(
        [sys.executable, "-m", "hybrid_humming", *args],
        capture_output=True, text=True, timeout=120, env={**os.environ, **env},
    )  # fmt: skip


def test_help_lists_every_command():
    done = run("--help")
    assert done.returncode == 0
    for name in COMMANDS:
        assert f"  {name} " in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command_shows_an_example(name, capsys):
    assert main([name, "--help"]) == 0
    assert f"Example: hybrid-humming {name}" in capsys.readouterr().out


def test_an_unknown_command_is_wrong_usage(capsys):
    assert main(["no-such-command"]) == 2
    assert "no-such-command" in capsys.readouterr().err


def test_without_the_extra_it_says_so_in_a_sentence(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "typer", None)
    assert main(["doctor"]) == 2
    assert "pip install 'hybrid-humming[cli]'" in capsys.readouterr().err


def test_an_error_of_the_library_is_one_line_and_exit_code_1(monkeypatch, capsys):
    from hybrid_humming.cli import doctor
    from hybrid_humming.errors import SpecError

    def fail():
        raise SpecError("asked, allowed, do")

    monkeypatch.setattr(doctor, "examine", fail)
    assert main(["doctor"]) == 1
    captured = capsys.readouterr()
    assert captured.err == "error: [HH002] asked, allowed, do\n"


def test_help_imports_no_torch():
    code = "import sys; from hybrid_humming.cli import main; main(['--help']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, "the help text imported torch"


def test_no_color_gives_plain_text():
    done = run("doctor", NO_COLOR="1", FORCE_COLOR="1")
    assert "\x1b[3" not in done.stdout
