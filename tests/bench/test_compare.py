"""compare: equal runs pass twenty times, a planted slow-down of 5 % fails, and the words say which row."""

import copy
import json
import random

import pytest

from bench import compare
from bench.record import load
from bench.timer import Spread

MS = (1, 4, 16, 64, 256, 1024)
SPECS = ("int4 g128 x bf16", "mxfp4 x bf16", "e4m3 channel x e4m3 token")


def results(*, seed, noise=0.008, drift=1.0, slow=lambda row: 1.0, samples=31):
    """A run of 54 rows whose true times never change: `noise` is each sample's, `drift` the machine's that day."""
    rng = random.Random(seed)

    def spread(true):
        return Spread.of([true * drift * (1 + abs(rng.gauss(0, noise))) for _ in range(samples)])

    rows = []
    for spec in SPECS:
        for n, k in ((8192, 8192), (28672, 4096), (4096, 14336)):
            for m in MS:
                row = {
                    "problem": "dense",
                    "spec": spec,
                    "n": n,
                    "k": k,
                    "m": m,
                    "setting": "plain",
                    "plan": "p",
                    "samples": samples,
                }
                ours = spread((10 + n * k * 2e-7 + m * 0.2) * slow(row))
                row |= {"us": ours.us, "us_p10": ours.us_p10, "us_p90": ours.us_p90}
                rows.append(row | {"peers": {"cublas": spread(30 + m * 0.2).us}, "err_l2": 1e-3})
    meta = {"device": "NVIDIA H200", "commit": f"c{seed}", "date": "2026-12-01"}
    return {"meta": meta, "rows": rows}


@pytest.fixture
def run(tmp_path, capsys):
    def go(a, b, *arguments):
        paths = []
        for name, data in (("a", a), ("b", b)):
            paths.append(tmp_path / f"{name}.json")
            paths[-1].write_text(json.dumps(data))
        code = compare.main([*map(str, paths), *arguments])
        caught = capsys.readouterr()
        return code, caught.out + caught.err

    return go


def test_equal_runs_pass_twenty_times(run):
    for rerun in range(20):
        code, text = run(results(seed=0), results(seed=rerun + 1))
        assert code == 0, text
        assert "0 slower" in text


def test_a_file_against_itself_has_no_change(run):
    same = results(seed=3)
    code, text = run(same, same)
    assert code == 0
    assert "54 within noise" in text and "1.000" in text


@pytest.mark.parametrize("seed", range(5))
def test_five_percent_everywhere_fails(run, seed):
    code, text = run(results(seed=0), results(seed=seed + 1, slow=lambda row: 1.05))
    assert code == 1
    assert "verdict: slower" in text


@pytest.mark.parametrize("seed", range(5))
def test_five_percent_in_one_row_fails_and_names_it(run, seed):
    def slow(row):
        return 1.05 if (row["spec"], row["n"], row["m"]) == (SPECS[1], 4096, 16) else 1.0

    code, text = run(results(seed=0), results(seed=seed + 1, slow=slow))
    assert code == 1
    (line,) = [line for line in text.splitlines() if line.startswith("slower ")]
    assert "mxfp4 x bf16 4096x14336 M=16 plain" in line


def test_five_percent_everywhere_fails_where_each_row_alone_is_too_noisy(run):
    noise = 0.15
    code, text = run(results(seed=0, noise=noise), results(seed=1, noise=noise, slow=lambda row: 1.05))
    assert code == 1
    assert "0 slower" in text


def test_a_slow_machine_is_not_a_slow_commit(run):
    code, text = run(results(seed=0), results(seed=1, drift=1.12))
    assert code == 0, text
    assert "peers moved by +1" in text


def test_a_slow_commit_shows_through_a_slow_machine(run):
    assert run(results(seed=0), results(seed=1, drift=1.12, slow=lambda row: 1.05))[0] == 1


def test_faster_is_said_and_passes(run):
    code, text = run(results(seed=0), results(seed=1, slow=lambda row: 0.9 if row["m"] == 1 else 1.0))
    assert code == 0
    assert "9 faster" in text


def test_noisy_rows_have_wide_bands():
    quiet, loud = (compare.compare(results(seed=0, noise=n), results(seed=1, noise=n)) for n in (0.005, 0.1))
    assert max(c.band for c in quiet.changes) < 0.03 < min(c.band for c in loud.changes)


def test_only_changed_rows_are_shown_unless_asked(run):
    a, b = results(seed=0), results(seed=1)
    assert "M=1024" not in run(a, b)[1]
    assert run(a, b, "--all")[1].count("M=1024") == 9


def test_a_changed_plan_is_named(run):
    a = results(seed=0)
    b = copy.deepcopy(a)
    b["rows"][0] |= {"us": a["rows"][0]["us"] * 1.5, "plan": "q"}
    assert "plan was p, is q" in run(a, b)[1]


def test_rows_of_one_side_are_counted(run):
    a = results(seed=0)
    b = {"meta": a["meta"], "rows": a["rows"][2:]}
    assert "Only in A: 2 rows" in run(a, b)[1]


@pytest.mark.parametrize(
    ("change", "words"),
    [({"meta": {"device": "NVIDIA H100"}}, "A ran on NVIDIA H200, B on NVIDIA H100"), ({"rows": []}, "no row is in both")],
)
def test_what_cannot_be_compared_is_refused(run, change, words):
    a = results(seed=0)
    code, text = run(a, a | change)
    assert code == 2
    assert words in text


def test_another_file_is_refused(run):
    code, text = run(results(seed=0), ["not", "results"])
    assert code == 2
    assert "no results file" in text


def test_no_colour_where_none_is_wanted(run, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    a, b = results(seed=0), results(seed=1, slow=lambda row: 1.05)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\033" not in run(a, b)[1]
    monkeypatch.delenv("NO_COLOR")
    assert "\033" in run(a, b)[1]


def test_load_names_the_file(tmp_path):
    with pytest.raises(SystemExit, match=r"gone\.json is no results file"):
        load(tmp_path / "gone.json")
