"""`hybrid-humming explain`: what would run, on any GPU, without one."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def explain(
    spec: Annotated[str, typer.Argument(help='A spec line in quotes, such as "int4 g128 x bf16".')],
    m: Annotated[list[int] | None, typer.Option("--m", "-m", min=0, help="Rows of x; give it again for more. Required.")] = None,
    n: Annotated[int | None, typer.Option("--n", "-n", min=1, help="Output features. Required.")] = None,
    k: Annotated[int | None, typer.Option("--k", "-k", min=1, help="Reduction size. Required.")] = None,
    device: Annotated[str, typer.Option(help="A GPU's name (h200, a100, b200 ...), cuda, or cpu.")] = "h200",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line instead.")] = False,
) -> None:
    """Say which kernel and tile run a problem, the runners-up, and why each other kernel was rejected.

    Needs no GPU: the device is a name.

    Example: hybrid-humming explain "int4 g128 x bf16" -m 16 -n 8192 -k 8192 --device h200
    """
    missing = [f"-{name}" for name, value in (("m", m), ("n", n), ("k", k)) if not value and value != 0]
    if missing or m is None or n is None or k is None:
        raise typer.BadParameter(
            f'the sizes are missing: {", ".join(missing)}. Example: hybrid-humming explain "{spec}" -m 16 -n 8192 -k 8192'
        )
    import hybrid_humming as hh

    for i, rows in enumerate(m):
        explanation = hh.explain(spec, m=rows, n=n, k=k, device=device)
        if as_json:
            print(json.dumps(explanation.to_dict(), sort_keys=True))
        else:
            print(("\n" if i else "") + str(explanation))
