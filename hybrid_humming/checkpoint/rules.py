"""Which rule of a config a module falls under, exactly as the writers mean it: never a hit on a part of a name.

dynamic  GPTQModel: ordered {"+:regex" | "-:regex" | "regex": overrides}; anchored at the start, the first hit counts
target   compressed-tensors: "re:regex" anchored at the start, else a whole module name, else a class name
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from hybrid_humming.errors import CheckpointMismatch

# Class names that stand for every quantized weight matrix; the files don't say which class a module has.
LINEAR_CLASSES = ("Linear", "LinearBase", "ReplicatedLinear", "Conv1D")


def dynamic_override(dynamic: Mapping[str, Any] | None, name: str) -> Mapping[str, Any] | Literal[False] | None:
    """Return the overrides of the first rule that hits `name`, False if that rule excludes it, None if none hits."""
    for pattern, overrides in (dynamic or {}).items():
        if _regex(pattern.removeprefix("+:").removeprefix("-:"), pattern).match(name):
            if overrides is not None and not isinstance(overrides, Mapping):
                raise CheckpointMismatch(f"rule {pattern!r} of the quantization config is {overrides!r}; an object is expected")
            return False if pattern.startswith("-:") else (overrides or {})
    return None


def names(name: str, target: str) -> bool:
    """Return whether a target names the module itself: "re:..." anchored at its start, else its whole name."""
    if target.startswith("re:"):
        return _regex(target.removeprefix("re:"), target).match(name) is not None
    return target == name


def best_target(name: str, targets: Iterable[str]) -> str | None:
    """Return the most specific target of a weight matrix called `name`: its own name, then a regex, then a linear class."""
    ordered = sorted(targets, key=lambda target: (target.startswith("re:"), target))
    hit = next((target for target in ordered if names(name, target)), None)
    return hit or next((target for target in ordered if target in LINEAR_CLASSES), None)


def _regex(pattern: str, rule: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise CheckpointMismatch(f"rule {rule!r} of the quantization config is no regular expression: {error}") from None
