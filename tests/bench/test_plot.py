"""plot: PNG, SVG and CSV of the same rows; the same data gives the same bytes."""

import csv
import itertools
import json

import pytest

from bench import plot
from tests.bench.sample import sample_results

pytest.importorskip("matplotlib")
from matplotlib.text import Text


@pytest.fixture
def results(tmp_path):
    path = tmp_path / "r.json"
    path.write_text(json.dumps(sample_results()))
    return path


def test_pictures_and_data_beside_them(results, capsys):
    assert plot.main([str(results), "--specs", "int4 g128 x bf16"]) == 0
    names = {path.name for path in results.parent.iterdir()}
    assert {"r.csv", "r-plain.png", "r-plain.svg"} <= names
    svg = (results.parent / "r-plain.svg").read_text()
    assert svg.lstrip().startswith("<?xml")
    with (results.parent / "r.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert {line["library"] for line in lines} == {"ours", "humming", "cublas", "marlin"}
    assert {line["source"] for line in lines if line["library"] == "marlin"} == {"published ratio to humming"}


def test_the_footer_says_machine_and_commit():
    figure = plot.draw(sample_results(), "plain")
    text = figure._supxlabel.get_text()
    assert "NVIDIA H200" in text and "commit 0123abc (with local changes)" in text and "humming 0.1.20" in text


def test_lines_are_labelled_where_they_end_and_labels_do_not_overlap():
    figure = plot.draw(sample_results(), "plain")
    latency = figure.axes[0]
    figure.canvas.draw()
    labels = [text for text in latency.texts if text.get_text()]
    assert {label.get_text() for label in labels} == {"ours", "humming", "cuBLAS bf16", "marlin (published)", "roof"}
    extents = [Text.get_window_extent(label) for label in labels]  # of the words, without the line that leads to them
    boxes = sorted((extent.y0, extent.y1) for extent in extents)
    for (_, top), (bottom, _) in itertools.pairwise(boxes):
        assert bottom >= top - 2
    assert latency.get_xscale() == "log"


def test_nothing_to_draw_is_said(tmp_path, capsys):
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"meta": {}, "rows": []}))
    assert plot.main([str(path)]) == 1
    assert "no dense rows" in capsys.readouterr().err
