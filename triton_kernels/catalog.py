"""What the Triton kernels support, as data; imports no Triton."""

from hybrid_humming.plan import KernelEntry, LayoutEntry

KERNELS: tuple[KernelEntry, ...] = ()
LAYOUTS: tuple[LayoutEntry, ...] = (LayoutEntry(family="portable", preference=0, reject=lambda spec, n, k, device: None),)
