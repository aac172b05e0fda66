"""Faults that others met with quantized activations, on a GPU, by whatever kernel the planner takes for each M."""

import pytest

from tests.kernels import edges_quantized as edges


@pytest.mark.parametrize("m", [1, 17, 130])
@pytest.mark.parametrize("fault", edges.ALL, ids=lambda f: f.__name__)
def test_faults(fault, m):
    fault("cuda", m)
