"""The editor of a pair's PTX: what it writes at each mark, and what it refuses."""

import pytest

from hybrid_humming.errors import CompileError
from hybrid_humming.triton_kernels.hopper.a8.edit import BOTH, CLUSTER, RELEASE, digest, edit

LOAD = "\t@%p1 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2, %r3}], [%r4];"
OTHER = LOAD.replace("%r1]", "%r9]")
ARRIVE = "\t@%p2 mbarrier.arrive.shared::cta.b64 _, [%r5];"


def kernel(*lines: str) -> str:
    head = (".visible .entry k()", ".reqntid 384", "{", "\t.reg .b32 %r<9>;", "$L__func_begin0:", "\tsetp.lt.u32 \t%p9, %r8, 8;")
    return "\n".join((*head, *lines, "\tret;", "}"))


def marked(**without: str) -> str:
    parts = {
        "cluster": f"\t// {CLUSTER}",
        "load": OTHER,
        "both": f"\t// {BOTH}",
        "x": LOAD,
        "release": f"\t// {RELEASE}",
        "arrive": ARRIVE,
    }
    return kernel(*(line for name, line in (parts | without).items() if line))


def test_each_mark_gets_its_instructions():
    text = edit(marked())
    assert text.index(".reqntid 384") < text.index(".explicitcluster\n.reqnctapercluster 2, 1, 1") < text.index("{")
    assert OTHER in text and LOAD not in text, "only the marked box goes to both"
    assert "@%p1 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r1], " in text
    assert "[%rd1, {%r2, %r3}], [%r4], pair;" in text and "mov.b16 pair, 3;" in text
    assert ARRIVE not in text
    for rank in (0, 1):
        assert f"mapa.shared::cluster.u32 there, %r5, {rank};\n@%p2 mbarrier.arrive.shared::cluster.b64 _, [there];" in text
    assert text.count("barrier.cluster.wait") == 1 and text.count("barrier.cluster.arrive") == 2
    assert "setp.lt.u32 first, thread, 256;" in text, "the warps behind the consumers arrive as they begin"


@pytest.mark.parametrize(
    "without, said",
    [({"cluster": ""}, "one cluster mark"), ({"both": ""}, "one cluster mark and some of each"), ({"release": ""}, "some of each"),
     ({"x": ARRIVE}, "is followed by"), ({"arrive": LOAD}, "is followed by"), ({"arrive": ""}, "is followed by 'ret;'"),
     ({"load": f"\t// {CLUSTER}"}, "one cluster mark")],
)  # fmt: skip
def test_a_kernel_that_is_not_as_expected_is_refused(without, said):
    with pytest.raises(CompileError, match=said):
        edit(marked(**without))


def test_a_kernel_without_roles_is_refused():
    with pytest.raises(CompileError, match="roles"):
        edit(marked().replace("setp.lt", "setp.gt"))


def test_the_editor_has_a_name_of_its_own():
    assert len(digest()) == 16
