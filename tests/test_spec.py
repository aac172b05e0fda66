"""Spec, Problem and PackLayout: one line in and out, and every impossible combination refused with its reason."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid_humming.dtypes import format_names, parse_format
from hybrid_humming.errors import LayoutError, ShapeError, SpecError
from hybrid_humming.spec import (
    ACTIVATION_FORMATS,
    OUT_DTYPES,
    SCALE_FORMATS,
    SHORTHANDS,
    ZERO_POINT_FORMATS,
    PackLayout,
    Problem,
    Spec,
)

LINES = [
    "int4 g128 x bf16", "uint4 g64 zp x fp16", "uint4 g64 zp:bf16 x bf16", "int3 channel x bf16", "mxfp4 x bf16", "nvfp4 x bf16",
    "e3m2 g32 x bf16", "e4m3 channel x bf16", "e4m3 b128x128 x bf16", "int8 g128 x bf16", "mxint4 x bf16", "e0m3 g128 x bf16",
    "mxfp4 x e4m3 token", "int4 g128 x e4m3 token", "int4 g128 x int8 token", "nvfp4 x e4m3 token", "int4 channel x int4 token",
    "e4m3 b128x128 x e4m3 g128", "e4m3 channel x e4m3 token", "int8 channel x int8 token", "mxfp8 x mxfp8", "nvfp4 x nvfp4",
    "mxfp4 x mxfp4", "mxfp4 x mxfp8", "int4 g128:fp32+channel x bf16 -> fp32", "e4m3 tensor x e4m3 tensor", "mxfp6 x mxfp6",
    "uint1 g32 zp:fp16 x fp16", "e4m3 b1x128:e8m0+tensor x e4m3 g128:e8m0 -> fp16",
]  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_line_prints_as_it_was_read(line):
    spec = Spec.parse(line)
    assert str(spec) == line
    assert Spec.parse(str(spec)) == spec
    assert Spec.from_json(spec.to_json()) == spec
    assert spec in {Spec.from_json(spec.to_json())}


@pytest.mark.parametrize("name", SHORTHANDS)
def test_shorthand_is_its_long_form(name):
    fmt, group, scale, secondary = SHORTHANDS[name]
    long = f"{fmt} g{group}:{scale}{f'+{secondary}' if secondary else ''}"
    assert Spec.parse(f"{name} x bf16") == Spec.parse(f"{long} x bf16")
    assert str(Spec.parse(f"{long} x bf16")) == f"{name} x bf16"
    if fmt in ACTIVATION_FORMATS:
        assert Spec.parse(f"int4 g128 x {name}") == Spec.parse(f"int4 g128 x {long}")


def test_other_spellings_of_one_spec():
    assert Spec.parse("fp8 channel x fp8 token") == Spec.parse("e4m3 channel:fp32 x e4m3 token:fp32 -> bf16")
    assert Spec.parse("  int4   g128  x  bf16 ") == Spec(weight="int4", group_size=128, activation="bf16")
    assert Spec.parse("uint4 g64 zp x bf16") == Spec(weight="uint4", group_size=64, zero_point=True)
    assert Spec(weight="e4m3", block=(128, 128)).granularity == "block"
    assert Spec.parse(Spec.parse("mxfp4 x bf16")) == Spec.parse("mxfp4 x bf16")


def test_default_scale_follows_the_activation():
    assert Spec.parse("int4 g128 x fp16").scale == "fp16"
    assert Spec.parse("int4 g128 x bf16").scale == "bf16"
    assert Spec.parse("int4 g128 x int8 token").scale == "fp32"
    assert str(Spec.parse("int4 g128 x bf16").replace(activation="fp16")) == "int4 g128 x fp16"
    assert str(Spec.parse("int4 g128:fp32 x bf16").replace(activation="fp16")) == "int4 g128:fp32 x fp16"


WEIGHT_NAMES = [n for n in format_names() if parse_format(n).kind in ("int", "uint", "float")]


@st.composite
def specs(draw):
    groups = st.integers(1, 64).map(lambda i: 8 * i)
    weight = draw(st.sampled_from(WEIGHT_NAMES))
    granularity = draw(st.sampled_from(["tensor", "channel", "group", "block"]))
    activation = draw(st.sampled_from(ACTIVATION_FORMATS))
    fields = {"weight": weight, "granularity": granularity, "activation": activation}
    if activation == "fp16" and parse_format(weight).largest > 65504:
        fields["activation"] = activation = "bf16"
    if granularity == "group":
        fields["group_size"] = draw(groups)
    if granularity == "block":
        fields["block"] = (draw(st.integers(1, 256)), draw(groups))
    fields["scale"] = draw(st.none() | st.sampled_from(SCALE_FORMATS))
    allowed = {"tensor": [None], "channel": [None, "tensor"]}.get(granularity, [None, "tensor", "channel"])
    fields["secondary"] = draw(st.sampled_from(allowed))
    if weight.startswith("uint"):
        fields["zero_point"] = draw(st.sampled_from(["int", *ZERO_POINT_FORMATS]))
    if not parse_format(activation).is_wide:
        fields["activation_granularity"] = draw(st.sampled_from(["tensor", "token", "group"]))
        fields["activation_scale"] = draw(st.none() | st.sampled_from(SCALE_FORMATS))
        if fields["activation_granularity"] == "group":
            fields["activation_group_size"] = draw(groups)
            fields["activation_secondary"] = draw(st.sampled_from([None, "tensor"]))
    fields["out_dtype"] = draw(st.none() | st.sampled_from(OUT_DTYPES))
    return Spec(**fields)


@settings(max_examples=400, deadline=None)
@given(specs())
def test_every_constructible_spec_round_trips(spec):
    assert Spec.parse(str(spec)) == spec
    assert Spec.from_json(spec.to_json()) == spec
    assert hash(Spec.parse(str(spec))) == hash(spec)
    assert spec.replace() == spec


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="intufpemxgbzch0123456789:+-> ", max_size=40))
def test_any_text_is_read_or_refused_with_a_spec_error(text):
    try:
        spec = Spec.parse(text)
    except SpecError:
        return
    assert Spec.parse(str(spec)) == spec


REFUSED = {
    "int4 g128": "expected 'weight x activation",
    "int4 g128 x bf16 ->": "expected 'weight x activation",
    "int4 x bf16": "int4 needs a granularity",
    "int4 g128 g64 x bf16": "'g64' is left over in the weight half",
    "int4 q128 x bf16": "can't read 'q128'.*expected tensor, channel, token, gG or bNxK",
    "int4 g128 x e4m3 b128x128": "block is a granularity of weights",
    "intx g128 x bf16": "unknown element format 'intx'.*Did you mean 'int",
    "int4 g128 x int3 token": "activation format 'int3': allowed are fp16, bf16, e4m3",
    "bf16 channel x bf16": "bf16 is no weight format; allowed are int1..int8",
    "e8m0 channel x bf16": "e8m0 is no weight format",
    "int4 token x bf16": "weight granularity 'token'.*token is a granularity of activations",
    "int4 g-1 x bf16": "group_size=-1: must be a positive multiple of 8.*per-channel is 'channel', not -1",
    "int4 g12 x bf16": "group_size=12: must be a positive multiple of 8",
    "int4 g0 x bf16": "group_size=0",
    "e4m3 b0x128 x bf16": "the N extent must be at least 1",
    "e4m3 b128x12 x bf16": "block K=12: must be a positive multiple of 8",
    "int4 g128:e2m1 x bf16": "scale format 'e2m1': allowed are bf16, fp16, fp32",
    "int4 g128+row x bf16": "secondary scale 'row': allowed are tensor and channel",
    "int4 channel+channel x bf16": "channel secondary scale on top of a channel scale adds nothing",
    "int4 tensor+tensor x bf16": "adds nothing; multiply the two into one",
    "int4 g128 zp x bf16": "int4 takes no zero point.*write uint4",
    "e2m1 g32 zp x bf16": "e2m1 takes no zero point",
    "uint4 g128 x bf16": "uint4 needs a zero point; write 'uint4 ... zp'",
    "uint4 g128 zp:e4m3 x bf16": "zero point format 'e4m3': allowed are int and bf16, fp16, fp32",
    "e6m1 channel x fp16": r"e6m1 weights \(up to 6.*don't fit fp16",
    "e5m0 channel x fp16": r"e5m0 weights \(up to 65536\) don't fit fp16",
    "int4 g128 x bf16 token": "bf16 activations carry no scale",
    "int4 g128 x e4m3 channel": "channel is a granularity of weights",
    "int4 g128 x e4m3 g12": "activation group_size=12",
    "int4 g128 x e4m3 token:int8": "activation scale format 'int8'",
    "int4 g128 x e4m3 g128+channel": "secondary activation scale 'channel': only tensor is allowed",
    "int4 g128 x e4m3 token+tensor": "a secondary activation scale needs groups, not token",
    "int4 g128 x bf16 -> int8": "out_dtype 'int8': allowed are fp16, bf16, fp32",
    "mxfp4 g64 x bf16": "mxfp4 means group 32; write 'e2m1' with a granularity of your own",
    "mxfp4 channel x bf16": "mxfp4 means group 32",
    "int4 g128 x mxfp8 g64": "mxfp8 means group 32; write 'e4m3'",
    "int4 g128 x mxfp8 token": "mxfp8 means group 32",
}


@pytest.mark.parametrize("line", REFUSED)
def test_impossible_line_is_refused_with_the_reason(line):
    with pytest.raises(SpecError, match=REFUSED[line]):
        Spec.parse(line)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"granularity": "group"}, "a group needs a group_size, others take none"),
        ({"granularity": "channel", "group_size": 64}, "granularity channel with group_size=64"),
        ({"granularity": "block"}, r"a block needs \(N, K\), others take none"),
        ({"granularity": "tensor", "block": (8, 8)}, "granularity tensor with block"),
        ({"activation": "e4m3", "activation_granularity": "group"}, "a group needs a size, others take none"),
        ({"activation": "e4m3", "activation_granularity": "token", "activation_group_size": 64}, "token with group size 64"),
    ],
)
def test_impossible_fields_are_refused_with_the_reason(fields, text):
    with pytest.raises(SpecError, match=text):
        Spec(weight="int4", **fields)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"weight": "int4", "colour": 1}', "unknown Spec fields in JSON: colour; written by a newer version"),
        ("int4 g128", "can't read spec 'int4 g128': expected the JSON object"),
        ("3", "can't read spec '3'"),
    ],
)
def test_other_json_is_refused(text, message):
    with pytest.raises(SpecError, match=message):
        Spec.from_json(text)


def test_spec_is_frozen():
    with pytest.raises(AttributeError):
        Spec.parse("mxfp4 x bf16").weight = "int4"


@pytest.mark.parametrize(
    ("line", "n", "k", "shape"),
    [
        ("int4 g128 x bf16", 72, 256, (72, 2)),
        ("int4 channel x bf16", 72, 250, (72, 1)),
        ("e4m3 tensor x bf16", 72, 256, (1, 1)),
        ("e4m3 b128x128 x bf16", 192, 576, (2, 5)),
    ],
)
def test_scale_shape(line, n, k, shape):
    assert Spec.parse(line).scale_shape(n, k) == shape


def test_weight_bytes_count_codes_scales_and_zero_points():
    assert Spec.parse("int4 g128 x bf16").weight_bytes(256, 256) == 256 * 128 + 512 * 2
    assert Spec.parse("uint3 g64 zp x bf16").weight_bytes(64, 64) == 64 * 24 + 64 * 2 + 24
    assert Spec.parse("nvfp4 x bf16").weight_bytes(64, 64) == 64 * 32 + 64 * 4 + 4


def test_shapes_that_a_spec_cannot_carry():
    with pytest.raises(ShapeError, match=r"K=10944 is not a multiple of group_size=128 \(85\.5 groups\); pad K to 11008"):
        Spec.parse("int4 g128 x bf16").check_shape(2048, 10944)
    with pytest.raises(ShapeError, match="K=96 is not a multiple of activation group_size=64"):
        Spec.parse("int4 g32 x e4m3 g64").check_shape(8, 96)
    with pytest.raises(ShapeError, match="K=33 is odd; int4 activations are stored two a byte: pad K to 34"):
        Spec.parse("int4 channel x int4 token").check_shape(8, 33)
    with pytest.raises(ShapeError, match=r"weight \[0, 128\]: N and K must be at least 1"):
        Spec.parse("int4 g128 x bf16").check_shape(0, 128)
    with pytest.raises(ShapeError, match="m=-1"):
        Problem(spec=Spec.parse("int4 g128 x bf16"), m=-1, n=8, k=128)


def test_problem_prints_what_changes_the_answer():
    problem = Problem(spec=Spec.parse("int4 g128 x bf16"), m=1, n=8, k=128, bias=True, experts=4)
    assert str(problem) == "int4 g128 x bf16 [M=1 N=8 K=128] +bias experts=4"
    assert problem.replace(m=2) != problem
    assert {problem: 1}[problem.replace()] == 1


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 9999), st.integers(1, 9999), st.integers(0, 99), st.integers(0, 99), st.integers(0, 300), st.integers(1, 9))
def test_layout_round_trips(n, k, more_n, more_k, experts, version):
    layout = PackLayout(
        family="portable", encoding="e0m3", n=n, k=k, padded_n=n + more_n, padded_k=k + more_k, version=version, experts=experts
    )
    assert PackLayout.parse(str(layout)) == layout


def test_broken_layouts_are_refused():
    with pytest.raises(LayoutError, match="can't read layout 'portable'; expected family"):
        PackLayout.parse("portable")
    with pytest.raises(LayoutError, match=r"padded size \[8, 64\] is smaller than \[8, 128\]"):
        PackLayout(family="portable", encoding="int4", n=8, k=128, padded_n=8, padded_k=64)


@pytest.mark.parametrize(("fields", "text"), [
    ({"group_size": "128"}, "group_size='128' is str; it must be an integer"),
    ({"group_size": 128.0}, "group_size=128.0 is float"),
    ({"block": 5}, "block=5: must be two integers"),
    ({"block": (128, 128, 3)}, r"block=\(128, 128, 3\): must be two integers"),
    ({"weight": ["int4"]}, r"weight=\['int4'\]: must be the name of an element format"),
    ({"activation": None}, "activation=None: must be the name"),
])  # fmt: skip
def test_fields_of_the_wrong_type_are_refused(fields, text):
    with pytest.raises(SpecError, match=text):
        Spec(**({"weight": "int4"} | fields))


def test_unknown_fields_and_empty_json_are_refused():
    with pytest.raises(SpecError, match=r"no field 'groupsize'.*Did you mean 'group_size'"):
        Spec.parse("int4 g128 x bf16").replace(groupsize=64)
    with pytest.raises(SpecError, match="names no weight format"):
        Spec.from_json("{}")
