"""Edge values and shapes of public fault reports, on a GPU, by whatever kernel the planner takes for each M."""

import pytest

from tests.kernels import edges
from tests.kernels.test_edges import LINES, VALUES

DEVICE = "cuda"


@pytest.mark.parametrize("m", [1, 17, 70, 300])
@pytest.mark.parametrize("value", VALUES, ids=lambda v: v.__name__)
def test_values(value, m):
    value(DEVICE, m)


@pytest.mark.parametrize("line", LINES)
def test_every_m_with_one_warm_cache(line):
    edges.every_m_with_one_warm_cache(DEVICE, line)


def test_columns_beside_a_tiles_edge():
    edges.columns_beside_a_tiles_edge(DEVICE)
