"""What the adapters say without the peers: how a spec reads in their words, what they cover, what is missing."""

import pytest

from bench import peers, shapes
from bench.peer_humming import Humming, dtype_name, input_config, weight_config
from hybrid_humming.dtypes import parse_format
from hybrid_humming.spec import Spec


@pytest.mark.parametrize(
    ("line", "weight", "activation"),
    [
        ("int4 g128 x bf16", {"dtype": "int4", "group_size": 128}, None),
        ("uint4 g128 zp x bf16", {"dtype": "int4", "group_size": 128, "has_zero_point": True}, None),
        ("mxfp4 x bf16", {"dtype": "float4e2m1", "scale_dtype": "float8e8m0", "group_size": 32}, None),
        (
            "nvfp4 x bf16",
            {"dtype": "float4e2m1", "scale_dtype": "float8e4m3", "group_size": 16, "scale_2_type": "tensor"},
            None,
        ),
        ("e3m2 g128 x bf16", {"dtype": "float6e3m2", "group_size": 128}, None),
        ("e4m3 channel x e4m3 token", {"dtype": "float8e4m3"}, {"dtype": "float8e4m3"}),
        (
            "e4m3 b128x128 x e4m3 g128",
            {"dtype": "float8e4m3", "group_size": 128, "group_size_n": 128},
            {"dtype": "float8e4m3", "group_size": 128},
        ),
        ("int8 channel x int8 token", {"dtype": "int8"}, {"dtype": "int8"}),
        ("int4 g128 x e4m3 token", {"dtype": "int4", "group_size": 128}, {"dtype": "float8e4m3"}),
    ],
)
def test_a_spec_in_humming_s_words(line, weight, activation):
    spec = Spec.parse(line)
    assert weight_config(spec) == weight
    assert input_config(spec) == activation


def test_format_names():
    assert [dtype_name(parse_format(name)) for name in ("uint3", "e2m3", "e8m0")] == ["int3", "float6e2m3", "float8e8m0"]


def test_every_spec_of_the_suites_has_humming_and_cublas_beside_it():
    for line in shapes.SUITES["all"]:
        assert Humming().covers(Spec.parse(line), 8192, 8192) == "", line
        assert peers.Cublas().covers(Spec.parse(line), 8192, 8192) == "", line


def test_fp8_libraries_cover_their_own_spec_only():
    blocks, rows = Spec.parse("e4m3 b128x128 x e4m3 g128"), Spec.parse("e4m3 channel x e4m3 token")
    assert peers.DeepGemm().covers(blocks, 256, 256) == "" and peers.CublasLt().covers(rows, 256, 256) == ""
    assert str(blocks) in peers.DeepGemm().covers(rows, 256, 256)
    assert "multiples of 16" in peers.CublasLt().covers(rows, 100, 256)


def test_a_missing_peer_says_why():
    assert "nothing-here: ModuleNotFoundError" in peers._import_error("nothing-here", lambda: __import__("nothing_here"))


def test_marlin_is_a_published_ratio():
    assert peers.Marlin.ratio("int4 g128 x bf16", 8192, 8192, 1) == pytest.approx(15.9 / 15.0, abs=1e-3)
    assert peers.Marlin.ratio("int4 g128 x bf16", 8192, 8192, 3) is None
    assert peers.Marlin.ratio("int1 g128 x bf16", 8192, 8192, 1) is None
    for line in peers.Marlin.table():
        assert str(Spec.parse(line)) == line


def test_a_peer_process_that_fails_says_so():
    if peers.torch.cuda.is_available():
        pytest.skip("needs a machine without a GPU, where the process fails")
    with pytest.raises(RuntimeError, match=r"deepgemm 128x128: \w+"):
        peers._warm_deep_gemm(128, 128, [1])
