"""What these kernels use of Gluon, under one set of names for Triton 3.6 to 3.9.

3.6.0 calls the block barrier `thread_barrier`, a view of shared memory `_reinterpret`, and the copies
`async_copy_global_to_shared`; 3.9.0 renamed them. Kernels import everything from here.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    mma_v2,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

barrier = getattr(gl, "barrier", None) or gl.thread_barrier
copy_async = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
load_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared


@gluon.constexpr_function
def extents(*sizes):
    """A shape as one constant, for `view`."""
    return sizes


if hasattr(gl.shared_memory_descriptor, "reinterpret"):

    @gluon.jit
    def view(buffer, DTYPE: gl.constexpr, SHAPE: gl.constexpr, LAYOUT: gl.constexpr):
        """The same shared bytes as another type, shape and layout."""
        return buffer.reinterpret(DTYPE, SHAPE, LAYOUT)
else:

    @gluon.jit
    def view(buffer, DTYPE: gl.constexpr, SHAPE: gl.constexpr, LAYOUT: gl.constexpr):
        """The same shared bytes as another type, shape and layout."""
        return buffer._reinterpret(DTYPE, SHAPE, LAYOUT)


__all__ = [
    "async_copy", "barrier", "copy_async", "extents", "fence_async_shared", "gdc_launch_dependents", "gdc_wait", "gl", "gluon",
    "load_tile", "mbarrier", "mma_v2", "tma", "view", "warpgroup_mma", "warpgroup_mma_init", "warpgroup_mma_wait",
]  # fmt: skip
