"""What the Triton kernels support, as data; imports no Triton."""

from hybrid_humming.plan import KernelEntry, LayoutEntry, QuantizerEntry
from hybrid_humming.triton_kernels.ampere.catalog import ENTRIES as AMPERE
from hybrid_humming.triton_kernels.ampere.catalog import LAYOUT as AMPERE_LAYOUT
from hybrid_humming.triton_kernels.hopper.a8.catalog import ENTRIES as HOPPER_A8
from hybrid_humming.triton_kernels.hopper.a8.catalog import LAYOUT as HOPPER_A8_LAYOUT
from hybrid_humming.triton_kernels.hopper.catalog import ENTRIES as HOPPER
from hybrid_humming.triton_kernels.hopper.catalog import LAYOUT as HOPPER_LAYOUT
from hybrid_humming.triton_kernels.portable.catalog import ENTRIES as PORTABLE
from hybrid_humming.triton_kernels.quantize.catalog import QUANTIZER

KERNELS: tuple[KernelEntry, ...] = HOPPER + HOPPER_A8 + AMPERE + PORTABLE
LAYOUTS: tuple[LayoutEntry, ...] = (
    HOPPER_LAYOUT,
    HOPPER_A8_LAYOUT,
    AMPERE_LAYOUT,
    LayoutEntry(family="portable", preference=0, reject=lambda spec, n, k, device: None),
)
QUANTIZERS: tuple[QuantizerEntry, ...] = (QUANTIZER,)
