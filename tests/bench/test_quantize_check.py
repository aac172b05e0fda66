"""bench.quantize_check without a GPU: its cases, its judge, its cases in the interpreter."""

import json

import pytest
import torch

from bench import quantize_check
from bench.quantize_cases import Case, arguments, bit_cases, differences, expected, moved_bytes, nearly, poison, time_cases

EVERY = list(bit_cases())


def test_every_format_is_checked_with_every_input_type_m_and_a_ragged_k():
    plain = [c for c in EVERY if not c.prologue and not c.stored]
    for activation in {c.activation for c in plain}:
        mine = [c for c in plain if c.activation == activation]
        assert {c.dtype for c in mine} == {"bf16", "fp16", "fp32"} and {1, 7, 64, 300, 4096} <= {c.m for c in mine}
        assert any(c.k % 512 for c in mine)
    assert len({c.prologue for c in EVERY}) == 13 and len({c.label() for c in EVERY}) == len(EVERY)


def test_times_are_those_of_the_issue():
    grid = {(c.m, c.k) for c in time_cases() if c.activation == "e4m3 token" and not c.prologue}
    assert grid == {(m, k) for m in (1, 16, 64, 256, 1024, 4096, 16384) for k in (4096, 8192)}


def test_bytes_moved_are_those_of_x_codes_and_scales():
    assert moved_bytes(Case("e4m3 token", 16, 4096)) == 16 * (4096 * 3 + 4)
    assert moved_bytes(Case("mxfp4", 16, 4096)) == 16 * (4096 * 2 + 2048 + 128)
    assert moved_bytes(Case("e4m3 g128", 16, 4096, prologue="silu")) == 16 * (4096 * 5 + 32 * 4)


def test_one_wrong_byte_is_found_and_named():
    args = arguments(Case("e4m3 token", 7, 256), "cpu")
    want = expected(args, "cpu")
    args.values.copy_(want.values)
    args.scale.copy_(want.scale)
    assert not differences(args, want)
    args.values.view(torch.uint8)[0, 5] ^= 1
    found = differences(args, want)
    assert found["values"] == 1 and (found["first"]["row"], found["first"]["column"]) == (0, 5)
    assert nearly(args, want) == {} or "values" in nearly(args, want)
    poison(args)
    assert nearly(args, want)["scale"] == 7


@pytest.mark.compile
def test_a_case_compiles_ahead():
    assert quantize_check.precompile((Case("e4m3 token", 7, 512, prologue="rows, silu"), None)) == ""


def test_the_table_reads_what_the_parts_write(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(quantize_check, "OUT", tmp_path / "rows.jsonl")
    emit = quantize_check.emitter()

    def broken():
        raise ValueError("a reason")

    quantize_check.guarded(
        [("a", lambda: {"kind": "bits", "case": "a", "ok": False, "wrong": {"scale": 3}}), ("b", broken)], 60, emit
    )
    quantize_check.guarded([("late", broken)], -1, emit)
    emit({"kind": "time", "case": "c", "us": 2.0, "share": 0.5, "gbps": 100.0, "cold": False, "tile": ""})
    quantize_check.table()
    said = capsys.readouterr().out
    assert "bits: 1 run, 1 failed" in said and '{"wrong": {"scale": 3}}' in said and "errors 1, skipped 1" in said
    assert "ERROR b: ValueError: a reason" in said and "2.00 us    50 % of a copy" in said and "x in L2" in said
    assert all(json.loads(line) for line in quantize_check.OUT.read_text().splitlines())


SMALL = [c for c in EVERY if c.m <= 7 and c.k <= 4096][::9]


@pytest.mark.interpret
@pytest.mark.parametrize("case", SMALL, ids=Case.label)
def test_cases_hold_in_the_interpreter(case):
    from hybrid_humming.triton_kernels.quantize.launch import quantize

    args = arguments(case, "cpu")
    quantize(args)
    want = expected(args, "cpu")
    assert not (nearly(args, want) if case.close else differences(args, want))
