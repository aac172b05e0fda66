"""The emulator itself: what small kernels compute, and that it faults on what hardware faults on or waits for ever."""

import numpy as np
import pytest

from tests.emulation.machine import Pointer, run
from tests.emulation.memory import Block, Fault, Map, swizzled
from tests.emulation.ptx import parse

HEAD = ".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry k(.param .u64 out, .param .u32 n)\n.maxntid 64\n{\n"
DECLARED = ".reg .pred %p<9>; .reg .b32 %r<99>; .reg .f32 %f<9>; .reg .b64 %rd<19>; .shared .align 8 .b8 bars[64];\n"
START = "ld.param.u64 %rd0, [out]; cvta.to.global.u64 %rd0, %rd0; ld.param.u32 %r90, [n]; mov.u32 %r0, %tid.x;\n"


def result(body: str, n: int = 5, threads: int = 64, words: int = 64) -> list[int]:
    out = np.zeros(words, np.uint32)
    run(HEAD + DECLARED + START + body + "ret;\n}", [Pointer(out), n.to_bytes(4, "little")], grid=(1, 1), threads=threads)
    return out.tolist()


STORE = "mul.wide.u32 %rd1, %r0, 4; add.s64 %rd2, %rd0, %rd1; st.global.u32 [%rd2], %r9;\n"


def test_lanes_part_at_a_branch_and_meet_behind_it():
    body = (
        "and.b32 %r1, %r0, 1; setp.eq.u32 %p1, %r1, 0; mov.u32 %r9, 7; @%p1 bra even; add.s32 %r9, %r0, 100; bra.uni both;\n"
        "even: mul.lo.s32 %r9, %r0, 3;\n both: add.s32 %r9, %r9, 1;\n" + STORE
    )
    assert result(body) == [3 * i + 1 if i % 2 == 0 else i + 101 for i in range(64)]


def test_a_loop_runs_as_often_as_each_lane_asks():
    body = "mov.u32 %r9, 0; mov.u32 %r2, 0;\nloop: add.s32 %r9, %r9, %r90; add.s32 %r2, %r2, 1;\n"
    body += "setp.le.u32 %p1, %r2, %r0; @%p1 bra loop;\n"
    assert result(body + STORE) == [5 * (i + 1) for i in range(64)]


def test_integers_are_signed_where_the_type_says_so():
    body = "mov.s32 %r1, -7; div.s32 %r2, %r1, 2; rem.s32 %r3, %r1, 2; shr.s32 %r4, %r1, 1; shr.u32 %r5, %r1, 28;\n"
    body += "setp.lt.s32 %p1, %r1, 0; selp.u32 %r6, 1, 0, %p1; add.s32 %r9, %r2, %r3; add.s32 %r9, %r9, %r4;\n"
    body += "add.s32 %r9, %r9, %r5; add.s32 %r9, %r9, %r6;\n"
    assert result(body + STORE)[0] == (-3 - 1 - 4 + 15 + 1) & 0xFFFFFFFF


def test_registers_of_inline_assembly_are_its_own():
    body = "mov.u32 %r1, 1; { .reg .pred p; setp.eq.u32 p, %r1, 1; selp.u32 %r2, 10, 20, p; }\n"
    body += "{ .reg .pred p; setp.eq.u32 p, %r1, 2; selp.u32 %r3, 10, 20, p; } add.s32 %r9, %r2, %r3;\n"
    assert result(body + STORE)[0] == 30


BARRIER = "setp.eq.u32 %p1, %r0, 0; @%p1 mbarrier.init.shared::cta.b64 [%r1], 1; bar.sync 0;\n"
WAIT = "wait: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0; @!%p2 bra wait;\n"


def test_a_barrier_opens_when_its_arrivals_are_there():
    arrive = "setp.eq.u32 %p3, %r0, 40; @%p3 mbarrier.arrive.shared::cta.b64 _, [%r1];\n"
    assert result("mov.u32 %r1, bars; mov.u32 %r9, 3;\n" + BARRIER + arrive + WAIT + STORE) == [3] * 64


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("mov.u32 %r1, bars;\n" + BARRIER + WAIT, "deadlock"),
        ("mov.u32 %r1, bars;\n" + WAIT, "no barrier was made"),
        ("mov.u32 %r1, bars;\n" + BARRIER + "mbarrier.arrive.shared::cta.b64 _, [%r1+8];\n", "no barrier was made"),
        ("add.s32 %r9, %r8, 1;\n", "read before it is written"),
        ("mov.u64 %rd2, 64; st.global.u32 [%rd2], %r0;\n", "inside no array"),
        ("add.s64 %rd2, %rd0, 2; st.global.u32 [%rd2], %r0;\n", "misaligned"),
        ("add.s64 %rd2, %rd0, 256; st.global.u32 [%rd2], %r0;\n", "inside no array"),
    ],
)
def test_what_never_ends_or_faults_is_said(body, message):
    with pytest.raises(Fault, match=message):
        result(body)


def test_an_unknown_instruction_is_no_result():
    with pytest.raises(NotImplementedError, match="brev"):
        result("brev.b32 %r9, %r0;\n")


def test_parameters_lie_where_the_abi_says():
    kernel = parse(".visible .entry k(\n.param .align 64 .b8 a[128],\n.param .u32 b,\n.param .u64 .ptr .align 1 c\n)\n{ ret; }")
    assert kernel.params == {"a": (0, 128), "b": (128, 4), "c": (136, 8)}


def test_the_swizzle_keeps_rows_and_exchanges_chunks():
    address = np.arange(1024)
    moved = swizzled(address, True)
    assert sorted(moved) == list(address) and (moved // 128 == address // 128).all()
    assert moved[16] == 16 and moved[128 + 16] == 128 and moved[7 * 128] == 7 * 128 + 112


def test_a_box_is_zero_outside_its_tensor_and_spreads_narrow_codes():
    data = np.arange(1, 97, dtype=np.uint8)
    box = Map(data, 8, 30, 3, 32, 16, 4, slots=False, swizzled=True).box(16, 1)
    assert box[:2, :14].tolist() == [list(range(49, 63)), list(range(81, 95))] and not box[:, 14:].any() and not box[2:].any()
    narrow = Map(np.tile(data, 2), 6, 128, 2, 96, 128, 2, slots=True, swizzled=True).box(0, 0)
    assert narrow.shape == (2, 128) and narrow[0, :12].tolist() == data[:12].tolist() and not narrow[:, 12:16].any()
    assert narrow[0, 16:28].tolist() == data[12:24].tolist()


@pytest.mark.parametrize("changes", [{"stride_bytes": 40}, {"box_rows": 300}, {"box_columns": 256}, {"slots": True, "bits": 4}])
def test_a_map_that_tma_refuses_is_refused(changes):
    fields = {
        "bits": 8,
        "columns": 64,
        "rows": 4,
        "stride_bytes": 64,
        "box_columns": 128,
        "box_rows": 4,
        "slots": False,
        "swizzled": True,
    }
    with pytest.raises(Fault):
        Map(np.zeros(1024, np.uint8), **(fields | changes))


def test_a_descriptor_with_other_fields_than_ours_faults():
    block = Block(rank=0, cluster=[])
    good = 64 << 32 | 1 << 46 | 2 << 61
    assert block.operand(good, 8).shape == (8, 32)
    for bad in (good ^ 1 << 46, good ^ 1 << 49, good ^ 3 << 61):
        with pytest.raises(Fault, match="descriptor"):
            block.operand(bad, 8)
