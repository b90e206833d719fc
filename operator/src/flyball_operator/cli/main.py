"""Arguments and subcommands of `flyball`. Each subcommand is a function from parsed arguments to an exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, Final

import yaml

from flyball_operator import __version__
from flyball_operator.api import crd
from flyball_operator.cli import bench, completion, diff, explain, pause, replay, size, top, watch, why
from flyball_operator.cli.bundle import command as support_bundle
from flyball_operator.cli.doctor import command as doctor
from flyball_operator.cli.output import EXIT_CODES
from flyball_operator.cli.plan import command as plan


class _Parser(argparse.ArgumentParser):
    """It tells where it cannot write."""

    def print_help(self, file: Any = None) -> None:
        """Write the help. The method of argparse drops errors, so that a help that nobody got ended with 0."""
        (file or sys.stdout).write(self.format_help())


#: Of the program and, so, of its commands.
_CLASS: Final[type[argparse.ArgumentParser]] = _Parser


def run(arguments: Sequence[str] | None) -> int:
    """Run one subcommand; returns the exit code. `entry.main` tells how it ended."""
    options, unknown = parser().parse_known_args(arguments)
    if unknown:
        # argparse would show the usage of `flyball` alone, which has none of the options that the command takes.
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    code: int = options.run(options)
    return code


def parser() -> argparse.ArgumentParser:
    """The parser; each command has its function in `run`."""
    program = _CLASS(
        prog="flyball",
        description="Flyball: InferenceServices that keep their batching tuned.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    program.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = program.add_subparsers(required=True, metavar="command")
    show = commands.add_parser("crd", help="print the CustomResourceDefinition that this version serves")
    show.add_argument("--hash", action="store_true", help="print the hash of its schema instead")
    show.set_defaults(run=_crd, parser=show)
    bench.add_to(commands)
    completion.add_to(commands, parser)
    diff.add_to(commands)
    doctor.add_to(commands)
    explain.add_to(commands)
    pause.add_to(commands)
    plan.add_to(commands)
    replay.add_to(commands)
    size.add_to(commands)
    support_bundle.add_to(commands)
    top.add_to(commands)
    watch.add_to(commands)
    why.add_to(commands)
    return program


def _crd(options: argparse.Namespace) -> int:
    print(f"{crd.schema_hash()}\n" if options.hash else to_yaml(crd.custom_resource_definition()), end="")
    return 0


def to_yaml(document: object) -> str:
    """YAML as Flyball commits it: fields in the order given, no aliases, no lines folded."""
    return yaml.dump(document, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, width=1_000_000)


class _PlainDumper(yaml.SafeDumper):
    def ignore_aliases(self, _data: object) -> bool:
        """Write shared parts out: readers of manifests do not expect anchors."""
        return True
