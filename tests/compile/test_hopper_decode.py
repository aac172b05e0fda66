"""Decoders inside a wgmma loop: nothing between the words' load and the multiplication but the decoder's own instructions."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.compile.harness import TRITONS, Job, compile_all

BUILD = "tests.compile.decode_probe:build"

# Instructions for 8 weights, all that the loop has on the arithmetic pipes: the decoder's and a few constants made anew
# in each round. Measured with Triton 3.6.0; a decoder that needs more has lost something.
CEILINGS = {
    ("int1", "bf16", None, False): 10.75,
    ("int2", "bf16", None, False): 10.5,
    ("int3", "bf16", None, False): 13.0,
    ("int4", "bf16", None, False): 11.5,
    ("int4", "fp16", None, False): 10.25,
    ("int5", "bf16", None, False): 16.0,
    ("int6", "bf16", None, False): 15.75,
    ("int7", "bf16", None, False): 19.75,
    ("int8", "bf16", None, False): 14.25,
    ("int8", "fp16", None, False): 8.5,
    ("uint4", "bf16", "int", False): 12.0,
    ("uint8", "bf16", "int", False): 19.0,
    ("e2m1", "bf16", None, False): 12.0,
    ("e2m1", "bf16", None, True): 8.0,
    ("e2m1", "fp16", None, True): 9.0,
    ("e0m3", "fp16", None, True): 7.0,
    ("e0m3", "bf16", None, False): 13.0,
    ("e3m2", "bf16", None, False): 15.25,
    ("e2m3", "bf16", None, False): 19.25,
    ("e3m4", "bf16", None, False): 14.0,
    ("e4m3", "fp16", None, False): 4.0,
    ("e4m3", "bf16", None, False): 16.0,
}
PIPES = ("LOP3", "SHF", "PRMT", "HFMA2", "HADD2", "HMUL2", "F2FP", "IMAD", "MOV")
FOREIGN = ("STS", "SHFL", "LDL", "STL")  # a round trip through shared memory, a shuffle, a spill


def job(encoding, operand, zero_point, raw, **tile) -> Job:
    return Job(BUILD, {"encoding": encoding, "operand": operand, "zero_point": zero_point, "raw": raw, **tile})


CEILING_JOBS = [job(*key) for key in CEILINGS]
# One job for each combination of planes, on a tile with several blocks each way and two warpgroups; and the half tile.
TILE_JOBS = [job(f"int{bits}", "bf16", None, False, BN=256, BK=128, BM=16, num_warps=8) for bits in (1, 2, 3, 4, 5, 7, 8)] + [
    job("int3", "fp16", None, False, HALVES=True),
    job("uint5", "bf16", "float_pair", False, BN=128, BK=128, num_warps=8),
]


def loop_of(folder: str) -> Counter:
    """Opcodes of the longest loop, without their suffixes."""
    lines = re.findall(r"^\s+/\*([0-9a-f]{4,5})\*/\s+(.*?);", (Path(folder) / "kernel.sass").read_text(), re.M)
    code = [(int(address, 16), re.sub(r"^@!?U?P\w+\s+", "", text)) for address, text in lines]
    loops = []
    for address, text in code:
        back = re.match(r"BRA\b.*?(0x[0-9a-f]+)", text)
        if back and int(back[1], 16) < address:
            loops.append((address - int(back[1], 16), int(back[1], 16), address))
    _, begin, end = max(loops)
    return Counter(re.split(r"[.\s]", text)[0] for address, text in code if begin <= address <= end)


@pytest.mark.compile
@pytest.mark.parametrize("key", CEILINGS, ids=str)
def test_instructions_stay_under_the_ceiling(key):
    built = compile_all(CEILING_JOBS, "3.6.0")[job(*key)]
    assert built.ok, built.error
    loop = loop_of(built.folder)
    assert loop["HGMMA"] == 4 and not built.spills
    assert not any(loop[op] for op in FOREIGN), loop
    per_8 = sum(loop[op] for op in PIPES) / 4  # a lane decodes 32 weights a round
    assert per_8 <= CEILINGS[key], loop


@pytest.mark.compile
@pytest.mark.parametrize("triton", TRITONS)
@pytest.mark.parametrize("tile", TILE_JOBS, ids=str)
def test_every_combination_of_planes_reaches_the_tensor_cores_in_registers(tile, triton):
    built = compile_all(TILE_JOBS, triton)[tile]
    assert built.ok, built.error
    loop = loop_of(built.folder)
    assert loop["HGMMA"] > 0 and not built.spills
    assert not any(loop[op] for op in FOREIGN), loop
    assert re.search(r"HGMMA\S* R\d+, R\d+, gdesc", (Path(built.folder) / "kernel.sass").read_text())  # A from registers
