"""The evaluator against numpy, ml_dtypes and plain integers."""

import ml_dtypes
import numpy as np
import pytest

from tests.ptx.evaluator import execute, round16, run

RNG = np.random.default_rng(0)


def words(*values):
    return [np.array([v], np.uint32) for v in values]


def test_bit_operations():
    a, b, c = (RNG.integers(0, 2**32, 100, dtype=np.uint32) for _ in range(3))
    assert (execute("lop3.b32", [a, b, c, *words(0xEA)]) == (a & b | c)).all()
    assert (execute("lop3.b32", [a, b, c, *words(0xE4)]) == (a & c | b & ~c)).all()
    assert (execute("lop3.b32", [a, b, c, *words(0xAE)]) == (~a & b | c)).all()
    assert execute("prmt.b32", words(0x33221100, 0x77665544, 0x7041))[0] == 0x77004411
    assert execute("shf.r.wrap.b32", words(0x80000001, 0x80000001, 4))[0] == 0x18000000
    assert execute("shf.l.wrap.b32", words(0x80000001, 0x80000001, 4))[0] == 0x00000018
    assert execute("shr.u32", words(0x80000001, 4))[0] == 0x08000000
    assert execute("shl.b32", words(0x80000001, 4))[0] == 0x00000010


def test_rounding_to_sixteen_bits_is_to_nearest_even_with_subnormals():
    wide = np.concatenate([RNG.normal(size=4000) * 2.0 ** RNG.integers(-28, 17, 4000), [0.0, -0.0, np.inf, -np.inf, np.nan]])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(round16(wide, np.float16), wide.astype(np.float16))
    exact = RNG.normal(size=4000).astype(np.float32).astype(np.float64) * 2.0 ** RNG.integers(-132, 100, 4000)
    single = exact[exact == exact.astype(np.float32)]
    np.testing.assert_array_equal(round16(single, ml_dtypes.bfloat16), single.astype(np.float32).astype(ml_dtypes.bfloat16))


def test_a_product_of_subnormals_is_kept():
    # 1.5 * 2**-126 as a bf16 pair, low half subnormal 2**-127
    [out] = run("{\n.reg .b32 c;\nmov.b32 c, 0x7e807e80;\nmul.rn.bf16x2 $0, $1, c;\n}", words(0x00C00040), 1)
    assert out[0] == 0x3FC03F00  # 1.5, 0.5


@pytest.mark.parametrize("op", ["mul.rz.bf16x2", "ex2.approx.f32", "add.rn.f32"])
def test_what_no_decoder_uses_is_refused(op):
    with pytest.raises(NotImplementedError):
        execute(op, words(1, 2))
