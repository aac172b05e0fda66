"""Every environment variable of hybrid_humming: the only file that reads the environment.

A variable is read when it is asked for, so setting it after the import works. `docs/env.md` is this table.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hybrid_humming.errors import SettingError, did_you_mean

PREFIX = "HYBRID_HUMMING_"
LOG_TOPICS = ("plan", "calls", "stats")


@dataclass(frozen=True, kw_only=True)
class Variable:
    """One environment variable, as the documentation and `hybrid-humming doctor` show it."""

    name: str
    values: str
    default: str
    effect: str


VARIABLES = (
    Variable(
        name="HYBRID_HUMMING_CACHE_DIR",
        values="a folder",
        default="`${XDG_CACHE_HOME:-~/.cache}/hybrid_humming`",
        effect="Where compiled kernels are kept, in a folder for each Triton, unless TRITON_CACHE_DIR is set. Safe to share "
        "between processes, to copy to other machines and to delete (`hybrid-humming cache`).",
    ),
    Variable(
        name="HYBRID_HUMMING_DEVICES",
        values="a JSON file",
        default="none",
        effect="Devices to plan for that `devices.json` lacks, or other numbers for those that it has: [devices](devices.md).",
    ),
    Variable(
        name="HYBRID_HUMMING_HIDDEN_FORMATS",
        values="`0`, `1`",
        default="`1`",
        effect="`0`: no kernel uses the tensor-core types that NVIDIA does not document (e3m4, e0m3 on Blackwell); another format "
        "multiplies in their place, and `explain` says so.",
    ),
    Variable(
        name="HYBRID_HUMMING_LOG",
        values="`plan`, `calls`, `stats`, separated by commas",
        default="nothing",
        effect="What goes to the Python logger `hybrid_humming` and to stderr: each plan the first time it is made, each "
        "call with its shapes, or counts at exit.",
    ),
    Variable(
        name="HYBRID_HUMMING_TRIAL",
        values="`0`, `1`",
        default="`0`",
        effect="`1`: weights may be packed and calls planned for kernels on trial: compiled and checked without a GPU, not run on "
        "one yet, on a GPU that has other kernels which were. `explain` names them either way, and a `plan=` of one is obeyed.",
    ),
)
# Variables of other projects that change what our kernels do; doctor shows those that are set.
FOREIGN = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_HOME",
    "NO_COLOR",
    "TRITON_CACHE_DIR",
    "TRITON_INTERPRET",
    "TRITON_PTXAS_PATH",
    "TRITON_ALWAYS_COMPILE",
    "TORCHINDUCTOR_CACHE_DIR",
    "XDG_CACHE_HOME",
)


def cache_dir() -> Path:
    """The folder of compiled kernels; it need not exist yet."""
    if given := os.environ.get("HYBRID_HUMMING_CACHE_DIR"):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "hybrid_humming"


def triton_cache_dir() -> Path | None:
    """The folder that the user gave Triton for its compiled kernels, which then holds ours too; None if none was given."""
    given = os.environ.get("TRITON_CACHE_DIR")
    return Path(given) if given else None


def devices_file() -> Path | None:
    """The user's own table of devices."""
    given = os.environ.get("HYBRID_HUMMING_DEVICES")
    return Path(given).expanduser() if given else None


def hidden_formats() -> bool:
    """Whether undocumented tensor-core types may be used."""
    value = os.environ.get("HYBRID_HUMMING_HIDDEN_FORMATS", "1")
    if value not in ("0", "1"):
        raise SettingError(f"HYBRID_HUMMING_HIDDEN_FORMATS is {value!r}; it takes 0 (never use hidden types) or 1 (the default)")
    return value == "1"


def trial_kernels() -> bool:
    """Whether kernels on trial may be planned."""
    value = os.environ.get("HYBRID_HUMMING_TRIAL", "0")
    if value not in ("0", "1"):
        raise SettingError(f"HYBRID_HUMMING_TRIAL is {value!r}; it takes 0 (the default) or 1 (kernels on trial may be planned)")
    return value == "1"


def log_topics() -> frozenset[str]:
    """What HYBRID_HUMMING_LOG asks for: a subset of LOG_TOPICS."""
    topics = frozenset(t.strip() for t in os.environ.get("HYBRID_HUMMING_LOG", "").split(",") if t.strip())
    for topic in sorted(topics - set(LOG_TOPICS)):
        raise SettingError(
            f"HYBRID_HUMMING_LOG names {topic!r}; it takes {', '.join(LOG_TOPICS)}, separated by commas."
            + did_you_mean(topic, LOG_TOPICS)
        )
    return topics


def interpreting() -> bool:
    """Whether Triton runs its kernels in the interpreter, as tests ask it to."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def no_color() -> bool:
    """Whether the user asks for output without colours (https://no-color.org)."""
    return bool(os.environ.get("NO_COLOR"))


def set_variables() -> dict[str, str]:
    """The variables that are set now and matter here, ours first, by name."""
    ours = sorted(name for name in os.environ if name.startswith(PREFIX))
    return {name: os.environ[name] for name in (*ours, *FOREIGN) if name in os.environ}


def unknown_variables() -> list[str]:
    """Names that are set, start with our prefix, and mean nothing: a typing mistake, most likely."""
    known = {variable.name for variable in VARIABLES}
    return [name for name in set_variables() if name.startswith(PREFIX) and name not in known]


def table() -> str:
    """The variables as a Markdown table."""
    rows = [f"| `{v.name}` | {v.values} | {v.default} | {v.effect} |" for v in VARIABLES]
    return "\n".join(["| variable | values | default | effect |", "|---|---|---|---|", *rows])
