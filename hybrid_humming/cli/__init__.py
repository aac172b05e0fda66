"""The command `hybrid-humming`: one file a command, listed in COMMANDS.

A command's module defines a function of the command's name; its docstring is the help text and its annotations are the
options. It imports torch and the rest of the library inside the function, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from hybrid_humming.errors import HybridHummingError

# In the order that --help lists them.
COMMANDS: tuple[str, ...] = ("doctor", "explain", "inspect", "convert", "bench", "cache")

EXIT_OK, EXIT_PROBLEM, EXIT_USAGE = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 1 a problem was found, 2 wrong usage."""
    try:
        import rich  # noqa: F401
        import typer
    except ImportError as missing:
        print(
            f"hybrid-humming needs the package {missing.name}, which the extra `cli` brings: pip install 'hybrid-humming[cli]'",
            file=sys.stderr,
        )
        return EXIT_USAGE
    app = typer.Typer(
        name="hybrid-humming",
        help="Quantized GEMM for LLM inference. Example: hybrid-humming doctor",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_top)
    for name in COMMANDS:
        app.command(name)(getattr(import_module(f"hybrid_humming.cli.{name}"), name))
    try:
        return int(app(args=argv, standalone_mode=True) or 0)
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else EXIT_PROBLEM
    except HybridHummingError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_PROBLEM


def _top() -> None:
    """Quantized GEMM for LLM inference. Example: hybrid-humming doctor."""
