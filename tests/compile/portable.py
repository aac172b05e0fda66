"""What the compile matrix of the portable kernels builds: a launch of a named tile on a problem of ordinary size."""

from typing import Any

from hybrid_humming.device import DeviceInfo
from hybrid_humming.jit.compile import Compiled
from hybrid_humming.jit.offline import compiling_for
from hybrid_humming.plan import Tile
from hybrid_humming.triton_kernels.portable.catalog import ENTRIES
from tests.kernels.problems import case, run


def build(kernel: str, line: str, m: int, sm: int, device: str, tile: dict[str, Any], n: int = 256, k: int = 768) -> Compiled:
    """The first kernel that launching `tile` compiles for `sm` (the second, if any, reduces slices of K)."""
    entry = next(e for e in ENTRIES if e.name == kernel)
    made = case(line, m, n, k, strided=False)
    info = DeviceInfo.named(device).replace(sm=sm)
    with compiling_for(sm) as compiled:
        run(entry, made, Tile().replace(**tile), info)
    return compiled[0]
