"""What the CUDA kernels support, as data; imports no compiler."""

from hybrid_humming.plan import KernelEntry, LayoutEntry, QuantizerEntry

KERNELS: tuple[KernelEntry, ...] = ()
LAYOUTS: tuple[LayoutEntry, ...] = ()
QUANTIZERS: tuple[QuantizerEntry, ...] = ()
