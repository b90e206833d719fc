"""`flyball explain`: what the operator sees of one service, what it did and why, from the object's status."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from flyball_operator.cli.cluster import JSON, NotHadError, add_output, namespace_lease, one_service, reading
from flyball_operator.cli.explanation import explanation
from flyball_operator.cli.found_service import unattended_since
from flyball_operator.cli.output import NOT_HAD, WRONG_INPUT
from flyball_operator.cli.services import (
    WrongServiceError,
    add_options,
    contradiction,
    parsed,
    raw_service,
)
from flyball_operator.cli.terminal import fitting

if TYPE_CHECKING:
    from flyball_operator.api.v1alpha1 import InferenceService
    from flyball_operator.kube.api import KubeApi

#: `unattended_since` is empty while an operator looks after the namespace, and where that is not known.
_SHAPE: Final = '{"namespace", "name", "unattended_since", "spec": {"objectives", "tuning"}, "status"}'


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "explain",
        help="what the operator sees of a service, what it did and why",
        description="Shows from an InferenceService's status how its objectives are met, the step-time model and "
        "its error, the limits in force, what binds them, and what the last changes did. It needs get of "
        "inferenceservices.serving.flyball.dev, unless --file is given; with get of leases it also says where no "
        "operator runs. Exit code 1: there is no such service.",
    )
    add_options(
        parser, file_help="explain the object in this file, as `kubectl get -o yaml` prints it; -: standard input"
    )
    add_output(parser, shape=_SHAPE)
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Print the explanation; returns the exit code."""
    if (options.name is None) == (options.file is None):
        options.parser.error("give the NAME of a service, or a file with --file")
    if (refused := contradiction(options)) is not None:
        options.parser.error(refused)
    try:
        raw, unattended = _read(options)
        service = parsed(raw)
        if options.output == JSON:
            print(json.dumps(_document(service, unattended), indent=2))
        else:
            print(fitting(explanation(service, unattended=unattended)))
    except WrongServiceError as error:
        print(f"flyball explain: {error}", file=sys.stderr)
        return WRONG_INPUT
    except NotHadError as error:
        print(f"flyball explain: {error}", file=sys.stderr)
        return NOT_HAD
    return 0


def _document(service: InferenceService, unattended: str) -> dict[str, Any]:
    """The document of `-o json`: what the text is made of."""
    dumped = service.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {
        "namespace": service.metadata.namespace,
        "name": service.metadata.name,
        "unattended_since": unattended,
        "spec": {key: dumped["spec"][key] for key in ("objectives", "tuning")},
        "status": dumped["status"],
    }


def _read(options: argparse.Namespace) -> tuple[Mapping[str, Any], str]:
    """The object, and since when no operator looks after its namespace; empty where one does, or it is not known."""
    if options.file is not None:
        return raw_service(options, asking="flyball-explain"), ""

    async def read(api: KubeApi, current: str) -> tuple[Mapping[str, Any], str]:
        namespace = options.namespace or current
        raw = await one_service(api, namespace, options.name)
        return raw, unattended_since(await namespace_lease(api, namespace), datetime.now(UTC))

    return asyncio.run(reading(options, "flyball-explain", read))
