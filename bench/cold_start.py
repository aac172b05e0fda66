"""One fresh process: from importing a library to its first right GEMM. Run by `sections.cold_start` with empty caches.

    python -m bench.cold_start ours|humming SPEC      prints {"us": ..., "err_l2": ...}

The float weight, x and the CUDA context exist before the clock starts: every user has them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import torch

COLD_SHAPE = (8192, 8192)


def main() -> int:
    """Print the microseconds to the first result and its error against the float weight."""
    side, line = sys.argv[1:]
    generator = torch.Generator("cuda").manual_seed(0)
    weight = torch.randn(*COLD_SHAPE, device="cuda", dtype=torch.bfloat16, generator=generator).mul_(0.02)
    x = torch.randn(16, COLD_SHAPE[1], device="cuda", dtype=torch.bfloat16, generator=generator)
    want = x.float() @ weight.float().T
    first_result = _ours if side == "ours" else _humming()
    torch.cuda.synchronize()
    began = time.perf_counter()
    y = first_result(x, weight, line)
    torch.cuda.synchronize()
    us = (time.perf_counter() - began) * 1e6
    error = float((y.float() - want).norm() / want.norm())
    if not error < 0.5:
        print(f"{side} {line}: error {error:.2e} against the float weight", file=sys.stderr)
        return 1
    print(json.dumps({"us": us, "err_l2": error}))
    return 0


def _ours(x: torch.Tensor, weight: torch.Tensor, line: str) -> torch.Tensor:
    import hybrid_humming as hh

    qweight = hh.quantize(weight, line)
    return hh.gemm(x, qweight, qweight.spec)


def _humming() -> Callable[[torch.Tensor, torch.Tensor, str], torch.Tensor]:
    """Return its first result as a function; our adapter is loaded here, its package only inside."""
    from bench.peer_humming import Humming
    from hybrid_humming.spec import Spec

    return lambda x, weight, line: Humming().first_result(Spec.parse(line), x, weight)


if __name__ == "__main__":
    sys.exit(main())
