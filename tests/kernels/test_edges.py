"""Edge values and shapes of public fault reports, on the CPU; tests/gpu/test_edges.py has them on a GPU."""

import pytest

from . import edges

VALUES = [
    edges.scale_bytes_of_e8m0, edges.smallest_e8m0_scale_times_large_values, edges.fp16_sums_beyond_the_fp16_range,
    edges.every_group_size_counts,
]  # fmt: skip
LINES = ["int4 g128 x bf16", "uint4 g64 zp x fp16", "nvfp4 x bf16", "e4m3 channel x bf16"]
DEVICE = "cpu"


@pytest.mark.parametrize("m", [1, 17])
@pytest.mark.parametrize("value", VALUES, ids=lambda v: v.__name__)
def test_values(value, m):
    value(DEVICE, m)


@pytest.mark.parametrize("line", LINES[:2])
def test_every_m_with_one_warm_cache(line):
    edges.every_m_with_one_warm_cache(DEVICE, line)


def test_columns_beside_a_tiles_edge():
    edges.columns_beside_a_tiles_edge(DEVICE, (32, 33))
