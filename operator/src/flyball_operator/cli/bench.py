"""`flyball bench`: the same as `flyball-bench`, which has options and help of its own."""

from __future__ import annotations

import argparse
import os
import sys


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "bench",
        help="how fast an engine is, and where its knee is: flyball-bench",
        description="Runs flyball-bench with these arguments. flyball bench --help has its options. It writes its "
        "results as JSON, too.",
        # No argument is an option here: flyball-bench reads them all.
        prefix_chars="\0",
        add_help=False,
    )
    parser.add_argument(
        "arguments", nargs="*", default=[], metavar="ARGUMENT", help="of flyball-bench, such as run or report"
    )
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Become that program: signals and the exit code are its own."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "flyball_lab.benchmark", *options.arguments])  # noqa: S606
