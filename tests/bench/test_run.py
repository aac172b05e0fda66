"""A whole run on the CPU: real GEMMs, checked for real, on a clock that is simulated; and the rules of the results file."""

import json

import pytest
import torch

from bench import check, ours, peers, record, roof, run, sections, session, shapes, table
from bench.check import Judge
from bench.shapes import Point
from tests.bench.sample import sample_results

SPEC = "int4 g128 x bf16"


class TickingCpu:
    """Backend that runs calls when warmed and says 10 us a call when replayed."""

    def warm(self, calls):
        for call in calls:
            call()

    def capture(self, calls):
        return list(calls)

    def replay_us(self, graph):
        return 10.0 * len(graph)


@pytest.fixture
def start(monkeypatch, tmp_path):
    """A function of command-line words that returns the session, run on the CPU with cuBLAS's adapter as the one peer."""
    monkeypatch.setattr(ours, "copies_for", lambda nbytes: 2)
    monkeypatch.setattr(peers, "copies_for", lambda nbytes: 2)

    def go(*words):
        options = run.parse(
            ["--sections", "dense", "--peers", "cublas", "--out", str(tmp_path / "r.json"), "--samples", "3", *words]
        )
        todo = run.plan_points(options)
        made = session.Session(options, todo, device="cpu", backend=TickingCpu(), writer=lambda x: lambda: None)
        made.roof = roof.Roof(read_us={s: [(0.0, 1.0), (1e6, 2.0)] for s in ("plain", "chain")}, tera_ops={"bf16": 1.0})
        made.run()
        return made

    return go


def test_a_run_writes_checked_rows_of_the_documented_shape(start):
    made = start("--specs", f"{SPEC},e4m3 channel x e4m3 token", "--shapes", "48x256", "--ms", "1,17", "--settings", "plain")
    assert made.failures == []
    data = json.loads(made.record.path.read_text())
    assert len(data["rows"]) == 4
    assert {"device", "driver", "cuda", "torch", "triton", "python", "commit", "dirty", "date", "peers"} <= set(data["meta"])
    for row in data["rows"]:
        assert {"problem", "spec", "n", "k", "m", "experts", "top_k", "routing", "setting", "us", "us_p10", "us_p90"} <= set(row)
        assert row["us"] == 10.0 and row["peers"] == {"cublas": 10.0} and row["ratios"] == {"cublas": 1.0}
        assert 0 < row["err_l2"] < 1e-2
        assert row["plan"].startswith("torch.gemm_dequant") and row["roof_us"] > 0


def test_a_wrong_gemm_leaves_no_row_and_fails_the_run(start, monkeypatch):
    right = ours.hh.gemm

    def planted(x, qweight, *, out, **rest):
        right(x, qweight, out=out, **rest)
        if x.shape[0] == 17:
            out[3, 5] += 100
        return out

    monkeypatch.setattr(ours.hh, "gemm", planted)
    made = start("--specs", SPEC, "--shapes", "48x256", "--ms", "1,17", "--settings", "plain")
    assert [row["m"] for row in made.record.rows] == [1]
    assert len(made.failures) == 1 and "M=17" in made.failures[0] and "twice torch's" in made.failures[0]
    assert "FAILED" in made.summary()


def test_an_unwritten_output_fails(start, monkeypatch):
    monkeypatch.setattr(ours.hh, "gemm", lambda x, qweight, *, out, **rest: out)
    made = start("--specs", SPEC, "--shapes", "48x256", "--ms", "4", "--settings", "plain")
    assert made.record.rows == []
    assert "192 outputs were not written" in made.failures[0]


def test_a_spec_that_we_cannot_run_is_a_failure_not_a_gap(start, monkeypatch):
    def refuse(weight, spec):
        raise ours.hh.HybridHummingError("not today")

    monkeypatch.setattr(ours.hh, "quantize", refuse)
    made = start("--specs", SPEC, "--shapes", "48x256", "--ms", "4", "--settings", "plain")
    assert "not today" in made.failures[0]


def test_a_wrong_peer_is_left_out_and_named(start, monkeypatch):
    build = peers.Cublas.build
    monkeypatch.setattr(peers.Cublas, "build", lambda self, spec, weight: build(self, spec, weight * 3))
    made = start("--specs", SPEC, "--shapes", "48x256", "--ms", "4", "--settings", "plain")
    assert made.record.rows[0]["peers"] == {}
    assert any(note.startswith("cublas") and "left out" in note for note in made.notes)


def test_chain_subtracts_the_writers(start):
    made = start("--specs", SPEC, "--shapes", "48x256", "--ms", "4", "--settings", "chain")
    (row,) = made.record.rows
    assert row["setting"] == "chain"
    assert row["us"] == pytest.approx(10.0)


def test_the_worst_points_of_an_earlier_run_come_first(start, tmp_path):
    earlier = start("--specs", SPEC, "--shapes", "48x256", "--ms", "1,2,4", "--settings", "plain").record
    for row, us in zip(earlier.rows, (9.0, 2.0, 5.0), strict=True):
        row["peers"]["cublas"] = us
    earlier.path = tmp_path / "earlier.json"
    earlier.flush()
    options = run.parse(["--previous", str(earlier.path), "--specs", SPEC, "--shapes", "48x256", "--ms", "1,2,4,8"])
    by_m = {row["m"]: row["us"] / row["peers"]["cublas"] for row in earlier.rows}
    assert [p.m for p in run.plan_points(options)] == [8, *sorted(by_m, key=lambda m: -by_m[m])]


def test_the_smaller_sections_write_rows_too(start, monkeypatch):
    monkeypatch.setattr(sections, "HOST_SHAPE", (32, 128))
    monkeypatch.setattr(sections, "host_us", lambda call: (call() is None, 2.0, 3.0))
    made = start("--specs", "e4m3 channel x e4m3 token", "--shapes", "48x256", "--ms", "1,17", "--sections", "quantize_input,host")
    assert made.failures == []
    assert [(row["problem"], row["m"]) for row in made.record.rows] == [("quantize_input", 1), ("quantize_input", 17), ("host", 1)]


def test_a_peer_that_did_not_compile_in_time_is_left_out_and_named(start, monkeypatch):
    monkeypatch.setattr(peers._CublasWeight, "ready", lambda self, m, setting: False)
    made = start("--specs", SPEC, "--shapes", "48x256", "--ms", "4", "--settings", "plain")
    assert made.record.rows[0]["peers"] == {}
    assert any("not compiled in time" in note for note in made.notes)


def test_a_compile_job_that_fails_is_noted_and_stops_nothing(start, monkeypatch):
    def fail():
        raise OSError("no compiler")

    monkeypatch.setattr(peers._CublasWeight, "jobs", lambda self, ms, settings: [fail])
    made = start("--specs", SPEC, "--shapes", "48x256", "--ms", "4", "--settings", "plain")
    assert len(made.record.rows) == 1
    assert any("1 compile jobs failed, the first: no compiler" in note for note in made.notes)


def test_a_run_without_time_says_so_and_still_writes_its_file(start):
    late = start("--specs", SPEC, "--shapes", "48x256", "--ms", "1", "--seconds", "0")
    assert late.record.rows == [] and "dense: no time left" in late.notes
    assert json.loads(late.record.path.read_text())["meta"]["notes"] == late.notes


def test_without_a_gpu_the_run_says_what_it_skipped(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run.main(["--specs", "w4a16", "--ms", "1,2"]) == 0
    assert "skipped roof, dense, quantize_input, host, cold_start: 24 points of 4 specs" in capsys.readouterr().out
    assert run.main(["--require-gpu"]) == 3


@pytest.mark.parametrize("words", [["--settings", "fast"], ["--sections", "nope"], ["--peers", "marlin"]])
def test_an_unknown_word_is_refused(words, capsys):
    with pytest.raises(SystemExit):
        run.parse(words)
    assert "allowed are" in capsys.readouterr().err


def test_no_row_without_a_passed_check(tmp_path):
    kept = record.Record(tmp_path / "r.json", {})
    point = Point(spec=SPEC, n=8, k=128, m=1)
    kept.passed(point, "plan a", 1e-3)
    with pytest.raises(record.UncheckedRow, match=r"plan b.*no passed check"):
        kept.add(point, {"problem": "dense", "us": 1.0, "plan": "plan b"})
    kept.add(point, {"problem": "dense", "us": 1.0, "plan": "plan a"})
    kept.flush()
    (row,) = record.load(kept.path)["rows"]
    assert row["err_l2"] == 1e-3 and row["spec"] == SPEC


def test_an_empty_file_can_be_read_back(tmp_path):
    kept = record.Record(tmp_path / "r.json", {"device": "x"})
    kept.flush()
    assert record.load(kept.path)["rows"] == []


@pytest.mark.parametrize("named", ["abc123", "abc123 dirty"])
def test_the_commit_can_be_named_where_there_is_no_git(monkeypatch, named):
    monkeypatch.setenv("BENCH_COMMIT", named)
    meta = record.environment({}, "cpu")
    assert (meta["commit"], meta["dirty"]) == ("abc123", named.endswith("dirty"))


def test_the_judge_wants_more_than_a_good_average():
    """One wrong row, or one wrong output, is seen even outside the rows that the float64 truth looks at."""
    torch.manual_seed(0)
    weight, x = torch.randn(1024, 64).bfloat16(), torch.randn(1200, 64).bfloat16()
    judge = Judge(weight.double(), weight)
    y = x @ weight.T
    assert judge.ours(y, x).passed
    unseen = next(r for r in range(1200) if r not in check._rows(1200, x.device).tolist())
    wrong_row, wrong_output = y.clone(), y.clone()
    wrong_row[unseen] = 0
    wrong_output[unseen, 7] += 2  # of a row whose root mean square is 8
    assert f"row {unseen} is" in judge.ours(wrong_row, x).reason
    assert f"y[{unseen}, 7] is" in judge.ours(wrong_output, x).reason


def test_the_table_names_the_point_furthest_behind():
    rows = [
        {
            "problem": "dense",
            "spec": SPEC,
            "n": 8,
            "k": 128,
            "m": m,
            "setting": "plain",
            "us": 10.0,
            "plan": "p",
            "peers": {"humming": us},
        }
        for m, us in ((1, 12.0), (16, 7.0))
    ]
    text = table.render({"meta": {}, "rows": rows})
    worst = text[text.index("Furthest behind") :].splitlines()[1]
    assert "0.70x humming" in worst and "M=16" in worst
    assert "1.20" in text and "0.917x" in text


def test_the_short_table_is_a_line_a_spec_and_setting():
    text = table.short(sample_results())
    (line,) = [line for line in text.splitlines() if line.startswith("int4 g128 x bf16, plain")]
    row = sample_results()["rows"][0]
    humming, cublas = (row["peers"][name] / row["us"] for name in ("humming", "cublas"))
    first = f"{humming:.2f}/{100 * row['roof_us'] / row['us']:.0f}%/{cublas:.2f}"
    assert line.split()[-6] == first
    assert len(text) < 12_000 and table.short({"rows": []}) == "no dense rows"


def test_roof_is_the_larger_of_reading_and_multiplying():
    made = roof.Roof(read_us={"plain": [(10e6, 4.0), (20e6, 6.0)]}, tera_ops={"bf16": 700.0, "e4m3": 1400.0})
    assert made.read(5e6, "plain") == 4.0
    assert made.read(15e6, "plain") == 5.0
    assert made.read(40e6, "plain") == 10.0
    assert made.gemm(10e6, 1e6, "bf16", "plain") == 4.0
    assert made.gemm(10e6, 14e9, "e4m3", "plain") == pytest.approx(10.0)
    assert roof.Roof.from_json(json.loads(json.dumps(made.to_json()))) == roof.Roof.from_json(made.to_json())


def test_bytes_of_a_problem():
    weight, other = shapes.io_bytes(SPEC, 8192, 8192, 16)
    assert weight == 8192 * 8192 // 2 + 8192 * 64 * 2  # 34.6 MB
    assert other == 16 * 8192 * 2 * 2
    assert shapes.io_bytes("e4m3 b128x128 x e4m3 g128", 256, 512, 3)[1] == 3 * 512 + 3 * 4 * 4 + 3 * 256 * 2


def test_shapes_and_specs_by_name():
    assert shapes.parse_shapes("llama-3-70b:o,64x128,8192x8192") == ((8192, 8192), (64, 128))
    assert shapes.parse_specs("w4a8")[0] == "mxfp4 x e4m3 token"
    with pytest.raises(SystemExit, match="llama-3-70b"):
        shapes.parse_shapes("llama-4")
    assert len(shapes.points(("int4 g128 x bf16",), ((64, 192), (64, 256)), (1,))) == 1


def test_first_one_m_of_each_regime():
    todo = shapes.in_order(shapes.points((SPEC, "mxfp4 x bf16"), ((64, 128),), shapes.MS))
    assert [(p.m, p.spec) for p in todo[:4]] == [(1, SPEC), (1, "mxfp4 x bf16"), (16, SPEC), (16, "mxfp4 x bf16")]
    assert len(todo) == 28
