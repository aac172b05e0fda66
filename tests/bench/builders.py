"""The bench's own kernels, for the compile harness."""

from tests.compile.harness import Source


def read(sm, dependent):
    from bench.read_kernel import read_kernel

    return Source(
        read_kernel,
        {"buffer_ptr": "*i32", "sink_ptr": "*i32", "words": "i32", "words_per_program": "i32"},
        {"BLOCK": 1024, "UNROLL": 4, "DEPENDENT": dependent},
        sm,
        divisible=("buffer_ptr", "sink_ptr", "words", "words_per_program"),
        options={"launch_pdl": True} if dependent else {},
    )


def copy(sm, dependent):
    from bench.writer import copy_kernel

    return Source(
        copy_kernel,
        {"source_ptr": "*i32", "target_ptr": "*i32", "count": "i32"},
        {"DEPENDENT": dependent, "BLOCK": 2048},
        sm,
        divisible=("source_ptr", "target_ptr", "count"),
    )
