"""What the CUDA kernels support, as data; imports no compiler."""

from hybrid_humming.plan import KernelEntry, LayoutEntry

KERNELS: tuple[KernelEntry, ...] = ()
LAYOUTS: tuple[LayoutEntry, ...] = ()
