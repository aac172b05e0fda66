"""The kernels for 8-bit activations against float64 of the quantized operands: some cases of bench.a8_check."""

import pytest
import torch

from bench.a8_cases import BLOCK, FP8, INT4_FP8, INT4_INT8, INT8, MX, Case, allowed, decoded, kernel_of, pair, tile
from bench.a8_check import check

if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs an sm_90 GPU", allow_module_level=True)

WHOLE = (tile(16, 64, 8, 2), tile(128, 128, 6), tile(256, 128, 4, 1, False, 8), pair(tile(128, 128, 6, 1, False, 8)))
NARROW = (decoded(16, 64, 6, 4), decoded(64, 128, 8, 1), pair(decoded(64, 128, 8, 1, False, 4)))


@pytest.mark.parametrize("spec", [FP8, BLOCK, INT8, MX, INT4_FP8, INT4_INT8, "nvfp4 x e4m3 token", "uint4 g64 zp x int8 token"])
def test_errors_are_those_of_one_rounding_and_repeats_are_equal(spec):
    kernel = kernel_of(spec)
    for one in WHOLE if kernel == "w8a8" else NARROW:
        for m, n, k in ((5, 200, 1920), (300, 712, 4096)):
            case = Case(spec, n, k, m, kernel, one)
            if allowed(case):
                row = check(case)
                assert row["ok"], row


def test_folded_exponents_change_nothing():
    for one in NARROW:
        row = check(Case(MX, 328, 1280, 7, "w4a8", one, folded=True))
        assert row["ok"], row


def test_a_zero_point_of_x_is_exact():
    for one in WHOLE[:2]:
        row = check(Case(INT8, 328, 1280, 70, "w8a8", one, out_dtype="fp32", zero=True))
        assert row["ok"], row
