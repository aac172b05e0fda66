"""The sweep of tiles: what it would time, and that its rows come back as the same tiles in the planner's table."""

import json

import hybrid_humming as hh
from bench.hopper_check import problem_of
from bench.sweep import candidates, planned
from bench.tuned_from_check import measured, table
from hybrid_humming.ops import load_catalogs
from hybrid_humming.plan import Tile, check_plan

SPEC, N, K = "int4 g128 x bf16", 5120, 25600


def test_every_tile_of_the_sweep_is_legal_and_timed_once():
    load_catalogs()
    for m in (1, 16, 64, 1024):
        cases = [case for case, _ in candidates(SPEC, N, K, m)]
        assert len(cases) >= 5 and len({case.label() for case in cases}) == len(cases)
        assert {case.kernel for case in cases} == ({"wgmma", "stream"} if m <= 256 else {"wgmma"})
        for case in cases:
            problem, layout, plan = problem_of(case)
            if case.kernel == "stream":  # in the planner's catalog
                check_plan(plan, problem, layout, hh.DeviceInfo.named("h200"))


def test_the_planners_choice_is_among_them():
    for m in (1, 16):
        kernel, tile, _ = planned(SPEC, N, K, m)
        assert any(case.kernel == kernel and case.tile == tile for case, _ in candidates(SPEC, N, K, m))


def test_the_fastest_right_tile_becomes_a_row_of_the_table():
    lines, fastest = [], {}
    for m in (8, 16, 1024):
        cases = [case for case, _ in candidates(SPEC, N, K, m)]
        for i, case in enumerate(cases):
            row = {"kind": "time", "n": N, "k": K, "m": m, "case": case.label(), "us": 50.0 - i, "err": 0.002}
            lines.append(json.dumps(row | ({"err": 0.5} if case is cases[-1] else {})))  # the very fastest is wrong
        fastest[m] = cases[-2]
    rows = {row["m"]: row for row in table(measured(lines))}
    for m, case in fastest.items():
        assert rows[m]["kernel"] == f"gluon.gemm_{case.kernel}"
        assert Tile(**rows[m]["tile"]) == Tile(**case.tile)
