"""The timer finds the times that a simulated GPU was given, through noise, drift and the subtraction of a chain."""

import pytest

from bench import timer
from bench.timer import Library, Spread, TimerError, copies_for, time_interleaved
from tests.bench.simulation import SimulatedGpu


def library(gpu, us, copies=8, writer=None):
    return Library(calls=[gpu.kernel(us) for _ in range(copies)], writer=writer)


def test_plain_finds_the_time_of_a_call():
    gpu = SimulatedGpu()
    found = time_interleaved({"ours": library(gpu, 15.0), "humming": library(gpu, 18.0, copies=5)}, gpu)
    assert found.times["ours"].us == pytest.approx(15.0)
    assert found.times["humming"].us == pytest.approx(18.0)
    assert found.ratios["humming"].us == pytest.approx(1.2)


def test_chain_takes_the_writers_out():
    gpu = SimulatedGpu()
    writer, other = gpu.kernel(2.0), gpu.kernel(3.5)
    libraries = {"ours": library(gpu, 15.0, writer=writer), "cublas": library(gpu, 34.0, copies=3, writer=other)}
    found = time_interleaved(libraries, gpu)
    assert found.times["ours"].us == pytest.approx(15.0)
    assert found.times["cublas"].us == pytest.approx(34.0)


def test_each_call_of_a_chain_stands_behind_its_writer():
    gpu = SimulatedGpu()
    writer = gpu.kernel(2.0)
    side = library(gpu, 15.0, writer=writer)
    time_interleaved({"ours": side}, gpu)
    longest = max(gpu.graphs, key=lambda graph: sum(k is not writer for k in graph))
    assert longest[0::2] == [writer] * (len(longest) // 2)
    assert set(longest[1::2]) == set(side.calls)


def test_a_rotation_touches_every_copy_before_it_repeats():
    gpu = SimulatedGpu()
    side = library(gpu, 3.0, copies=40)
    time_interleaved({"ours": side}, gpu)
    graph = gpu.graphs[-1]
    assert len(graph) * 3.0 >= timer.TARGET_US
    for start in range(0, len(graph) - 39, 40):
        assert graph[start : start + 40] == side.calls


def test_long_calls_are_cut_but_never_to_one():
    gpu = SimulatedGpu()
    time_interleaved({"ours": library(gpu, 20_000.0)}, gpu)
    assert len(gpu.graphs[-1]) == 2


def test_replays_alternate():
    gpu = SimulatedGpu()
    sides = {"ours": library(gpu, 600.0, copies=2), "a": library(gpu, 700.0, copies=2), "b": library(gpu, 800.0, copies=2)}
    time_interleaved(sides, gpu, samples=5)
    order = [graph[0].us for graph in gpu.replayed[-15:]]
    assert order == [600.0, 700.0, 800.0] * 5


def test_drift_of_the_clock_moves_the_times_but_not_the_ratio():
    gpu = SimulatedGpu(drift=0.002)
    found = time_interleaved({"ours": library(gpu, 20.0), "humming": library(gpu, 25.0)}, gpu)
    assert found.times["ours"].us_p90 > 1.05 * found.times["ours"].us_p10
    assert found.ratios["humming"].us == pytest.approx(1.25, rel=0.005)


def test_noise_is_reported_as_spread():
    gpu = SimulatedGpu(noise=0.03)
    spread = time_interleaved({"ours": library(gpu, 20.0)}, gpu, samples=301).times["ours"]
    assert spread.us == pytest.approx(20.0, rel=0.02)
    assert (spread.us_p90 - spread.us_p10) / spread.us == pytest.approx(2.563 * 0.03, rel=0.25)


def test_calls_run_once_before_the_capture():
    gpu = SimulatedGpu()
    side = library(gpu, 5.0)
    time_interleaved({"ours": side}, gpu)
    assert gpu.warmed[:2] == side.calls[:2]


def test_a_time_that_is_none_is_refused():
    gpu = SimulatedGpu()
    with pytest.raises(TimerError, match="writers alone"):
        time_interleaved({"ours": library(gpu, 0.0, writer=gpu.kernel(2.0))}, gpu)


@pytest.mark.parametrize(("ours", "peer", "writers"), [(0, 4, 0), (4, 4, 1)])
def test_a_side_without_calls_or_half_a_chain_is_refused(ours, peer, writers):
    gpu = SimulatedGpu()
    writer = gpu.kernel(1.0) if writers else None
    sides = {"ours": library(gpu, 5.0, copies=ours), "peer": library(gpu, 5.0, copies=peer, writer=writer)}
    with pytest.raises(TimerError, match="ours, peer"):
        time_interleaved(sides, gpu)


@pytest.mark.parametrize(("nbytes", "copies"), [(34_600_000, 8), (1, 512), (10**9, 2), (800_000, 320)])
def test_copies_are_enough_for_a_cold_l2(nbytes, copies):
    assert copies_for(nbytes) == copies


def test_spread_is_of_the_sorted_samples():
    assert Spread.of([float(v) for v in range(31, 0, -1)]) == Spread(us=16.0, us_p10=4.0, us_p90=28.0)
