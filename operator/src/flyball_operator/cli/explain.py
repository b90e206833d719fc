"""`flyball explain`: what the operator sees of one service, what it did and why, from the object's status."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from flyball_operator.api.parse import InvalidSpecError, ParseError, parse_service
from flyball_operator.cli.explanation import explanation

#: Exit codes: it could not be had; what was given is wrong, as argparse has it.
NOT_HAD: Final = 1
WRONG_INPUT: Final = 2
#: An object in etcd has a megabyte at most.
_MOST_BYTES: Final = 4_000_000


class _NotHadError(Exception):
    """There is no service to explain; the message says why."""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "explain",
        help="what the operator sees of a service, what it did and why",
        description="Tells from an InferenceService's status: its objectives and how they are met, the step-time "
        "model and its error, the limits in force, what binds them, and what the last changes did.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="of the InferenceService")
    parser.add_argument("-n", "--namespace", metavar="NAME", help="its namespace: that of the kubeconfig's context")
    parser.add_argument("--context", metavar="NAME", help="of the kubeconfig: the current one")
    parser.add_argument(
        "-f",
        "--file",
        metavar="FILE",
        help="explain the object in this file, as `kubectl get -o yaml` prints it; -: standard input",
    )
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Print the explanation; returns the exit code."""
    if (options.name is None) == (options.file is None):
        options.parser.error("give the NAME of a service, or a file with --file")
    if options.file is not None and (options.namespace or options.context):
        options.parser.error("--file asks no cluster: it goes with neither --namespace nor --context")
    try:
        raw = _from_file(options.file) if options.file is not None else asyncio.run(_from_cluster(options))
        print(explanation(parse_service(raw)))
    except InvalidSpecError as error:
        print(f"flyball explain: the spec is wrong: {'; '.join(error.errors)}", file=sys.stderr)
        return WRONG_INPUT
    except ParseError as error:
        print(f"flyball explain: this is no InferenceService: {error}", file=sys.stderr)
        return WRONG_INPUT
    except _NotHadError as error:
        print(f"flyball explain: {error}", file=sys.stderr)
        return NOT_HAD
    return 0


def _from_file(name: str) -> Mapping[str, Any]:
    try:
        with sys.stdin if name == "-" else Path(name).open(encoding="utf-8") as file:
            text = file.read(_MOST_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise _NotHadError(f"--file {name}: {getattr(error, 'strerror', None) or error}") from error
    if len(text) > _MOST_BYTES:
        raise _NotHadError(f"--file {name}: more than {_MOST_BYTES:,} characters are no InferenceService")
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise _NotHadError(f"--file {name}: neither YAML nor JSON: {str(error).splitlines()[0]}") from error
    if not isinstance(found, Mapping) or found.get("kind") != "InferenceService":
        kind = found.get("kind") if isinstance(found, Mapping) else type(found).__name__
        raise _NotHadError(f"--file {name}: kind is {kind!r}, accepted: InferenceService, one object")
    return found


async def _from_cluster(options: argparse.Namespace) -> Mapping[str, Any]:
    # The client takes a second to import, which other commands do not want to pay.
    from flyball_operator.cluster.api import KubeApi, NeverLeading, kubeconfig  # noqa: PLC0415 – see above
    from flyball_operator.cluster.errors import ClusterError, NotFoundError  # noqa: PLC0415
    from flyball_operator.cluster.resources import INFERENCE_SERVICES  # noqa: PLC0415

    try:
        configuration, namespace = await kubeconfig(options.context)
        api = KubeApi(configuration, "flyball-explain", NeverLeading(), instance=f"pid {os.getpid()}")
        wanted = options.namespace or namespace
        try:
            return await api.get(INFERENCE_SERVICES, wanted, options.name)
        except NotFoundError as error:
            raise _NotHadError(f"no InferenceService {options.name} in namespace {wanted}: {error}") from error
        finally:
            await api.close()
    except ClusterError as error:
        raise _NotHadError(str(error)) from error
