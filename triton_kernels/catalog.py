"""What the Triton kernels support, as data; imports no Triton."""

from hybrid_humming.plan import KernelEntry, LayoutEntry
from hybrid_humming.triton_kernels.portable.catalog import ENTRIES as PORTABLE

KERNELS: tuple[KernelEntry, ...] = PORTABLE
LAYOUTS: tuple[LayoutEntry, ...] = (LayoutEntry(family="portable", preference=0, reject=lambda spec, n, k, device: None),)
