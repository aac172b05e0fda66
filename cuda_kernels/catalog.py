"""What the CUDA kernels support, as data; imports no compiler."""

from hybrid_humming.cuda_kernels.sm100.catalog import ENTRIES as SM100
from hybrid_humming.cuda_kernels.sm100.catalog import LAYOUT as UMMA_LAYOUT
from hybrid_humming.plan import KernelEntry, LayoutEntry, QuantizerEntry

KERNELS: tuple[KernelEntry, ...] = SM100
LAYOUTS: tuple[LayoutEntry, ...] = (UMMA_LAYOUT,)
QUANTIZERS: tuple[QuantizerEntry, ...] = ()
