"""Faults that others met with quantized activations, on the CPU; tests/gpu/test_edges_quantized.py has them on a GPU."""

import pytest
import torch

import hybrid_humming as hh
from hybrid_humming.errors import ShapeError, SpecError, ValueRangeError
from hybrid_humming.reference import dequantize_input

from . import edges_quantized as edges

DEVICE = "cpu"


@pytest.mark.parametrize("m", [1, 5])
def test_each_group_size_of_weights_and_of_inputs_is_used_as_it_is(m):
    edges.every_group_size_counts(DEVICE, m)


@pytest.mark.parametrize("m", [1, 130])
def test_scales_of_batches_lie_as_those_of_one_matrix(m):
    edges.batches_that_no_block_of_rows_divides(DEVICE, m)


def test_scales_in_another_layout_than_the_spec_reads_are_refused():
    qweight, x = edges.weight_of("nvfp4 x nvfp4", DEVICE), edges.sample(8, 384)
    made = hh.quantize_input(x, qweight)
    twice = made.scale.view(torch.uint8).view(torch.int32)  # words, as packed scales are
    with pytest.raises(ShapeError, match=r"torch.int32 \[8, 6\].*needs torch.float8_e4m3fn \[8, 24\]"):
        hh.gemm(made.values, qweight, x_scale=twice, x_global_scale=made.global_scale)
    with pytest.raises(SpecError, match="holds four e8m0 scales a word"):
        hh.quantize_input(x, qweight, scale_layout="packed")


def test_zero_points_count_beside_every_activation():
    edges.zero_points_count_beside_every_activation(DEVICE, 5)


def test_e8m0_scales_of_inputs_are_powers_of_two_and_nan():
    edges.scale_bytes_of_e8m0(DEVICE, 1)


def test_every_e4m3_scale_of_nvfp4_inputs_is_decoded():
    edges.every_e4m3_scale_of_nvfp4_inputs(DEVICE, 1)


def test_subnormal_scales_of_nvfp4_inputs_keep_their_groups_exact():
    edges.small_scales_of_nvfp4_inputs(DEVICE, 9)


def test_a_static_scale_of_nvfp4_inputs_multiplies():
    """x = codes * group scale * global scale: the largest x then takes the largest code and the largest group scale."""
    x, spec = edges.sample(4, 384, dtype=torch.float32), hh.Spec.parse("nvfp4 x nvfp4")
    multiplier = (x.abs().max() / (6 * 448)).reshape(1)
    made = hh.quantize_input(x, spec, input_scale=multiplier)
    assert made.scale.float().max() == 448 and torch.equal(made.global_scale, multiplier)
    assert (dequantize_input(made, spec) - x).norm() < 0.15 * x.norm()
    assert all(torch.equal(edges.bits(a), edges.bits(b)) for a, b in zip(made, hh.quantize_input(x, spec), strict=True))


@pytest.mark.parametrize("m", [1, 6])
def test_zeros_stay_zeros_and_an_infinity_stays_in_its_group(m):
    edges.zeros_and_one_infinity(DEVICE, m)


def test_a_nan_scale_of_inputs_stays_in_its_row():
    edges.nan_scales_stay_in_their_row(DEVICE, 4)


def test_what_is_not_finite_is_refused_with_its_index_when_asked():
    x = edges.sample(4, 384)
    x[2, 7] = float("nan")
    with pytest.raises(ValueRangeError, match=r"x\[2, 7\] is nan \(1 of 1536"):
        hh.quantize_input(x, "e4m3 channel x e4m3 token", check_finite=True)


@pytest.mark.parametrize("m", [1, 6])
def test_strided_inputs_are_what_their_copies_are(m):
    edges.strides_of_every_kind(DEVICE, m)
