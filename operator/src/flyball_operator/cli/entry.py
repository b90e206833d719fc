"""How `flyball` begins. What it imports takes more than a second, in which Ctrl-C is no traceback either."""

from __future__ import annotations

from flyball_operator.cli.output import written


def main() -> int:
    """Run one subcommand; returns the exit code."""
    return written(_command)


def _command() -> int:
    from flyball_operator.cli.main import main as command  # noqa: PLC0415 – this is what takes so long

    return command()
