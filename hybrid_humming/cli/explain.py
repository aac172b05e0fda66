"""`hybrid-humming explain`: what would run, on any GPU, without one."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def explain(
    spec: Annotated[str, typer.Argument(help='A spec line in quotes, such as "int4 g128 x bf16".')],
    m: Annotated[list[int], typer.Option("--m", "-m", min=0, help="Rows of x; give it again for more.")],
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="Output features.")],
    k: Annotated[int, typer.Option("--k", "-k", min=1, help="Reduction size.")],
    device: Annotated[str, typer.Option(help="A GPU's name (h200, a100, b200 ...), cuda, or cpu.")] = "h200",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line instead.")] = False,
) -> None:
    """Say which kernel and tile run a problem, the runners-up, and why each other kernel was rejected.

    Needs no GPU: the device is a name.

    Example: hybrid-humming explain "int4 g128 x bf16" -m 16 -n 8192 -k 8192 --device h200
    """
    import hybrid_humming as hh

    for i, rows in enumerate(m):
        explanation = hh.explain(spec, m=rows, n=n, k=k, device=device)
        if as_json:
            print(json.dumps(explanation.to_dict(), sort_keys=True))
        else:
            print(("\n" if i else "") + str(explanation))
