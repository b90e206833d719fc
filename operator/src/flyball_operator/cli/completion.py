"""`flyball completion`: a script that lets a shell complete commands, options and their values."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from flyball_operator.cli.completions import SHELLS, commands_of


def add_to(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], whole: Callable[[], argparse.ArgumentParser]
) -> None:
    """Register the subcommand; `whole` makes the parser that is completed."""
    parser = commands.add_parser(
        "completion",
        help="a script that lets a shell complete commands and options",
        description="Prints the script. bash: source <(flyball completion bash). zsh, after compinit: "
        "source <(flyball completion zsh). fish: flyball completion fish | source.",
    )
    parser.add_argument("shell", choices=tuple(SHELLS), metavar="SHELL", help=f"one of {', '.join(SHELLS)}")

    def run(options: argparse.Namespace) -> int:
        print(SHELLS[options.shell](commands_of(whole())), end="")
        return 0

    parser.set_defaults(run=run, parser=parser)
