"""The command line of the operator process: it takes no arguments, and says by --help what it takes instead."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from flyball_operator.app.settings import ENV_PREFIX, Settings

_WIDTH: Final = 100
_INDENT: Final = " " * 4


def check(arguments: Sequence[str]) -> None:
    """Return if there are none. Ends the process with code 0 after --help, and with 2 upon anything else."""
    parser = argparse.ArgumentParser(
        prog="python3 -m flyball_operator",
        description="The operator process of Flyball: it makes InferenceServices run and keeps their batching tuned.\n"
        "It needs the API server of a cluster: that of the pod it runs in, or of a kubeconfig.",
        epilog="\n".join(["environment variables:", *_variables()]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(arguments)


def _variables() -> Iterator[str]:
    """Name and meaning of each setting."""
    for name, field in Settings.model_fields.items():
        yield f"  {ENV_PREFIX}{name.upper()}{_default(field.default)}"
        yield from textwrap.wrap(field.description or "", _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)


def _default(value: object) -> str:
    """Where it is empty, the meaning says what that does."""
    return "" if value in ("", (), None) else f" ({value})"
