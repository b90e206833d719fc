"""How `flyball` begins. What it imports takes more than a second, in which Ctrl-C is no traceback either."""

from __future__ import annotations

from collections.abc import Sequence

from flyball_operator.cli.output import written


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit code."""
    return written(lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    from flyball_operator.cli.main import run  # noqa: PLC0415 – this is what takes so long

    return run(arguments)
