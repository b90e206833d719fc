"""`flyball why`: one paragraph on why a service is as it is, and what to do next."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from flyball_operator.api import names
from flyball_operator.api.objects import Object
from flyball_operator.api.parse import InvalidSpecError, ParseError, parse_service
from flyball_operator.cli.cluster import (
    JSON,
    NotHadError,
    add_name,
    add_options,
    add_output,
    asked_in,
    namespace_lease,
    one_service,
)
from flyball_operator.cli.found_service import Found
from flyball_operator.cli.pods_owner import pods_owner
from flyball_operator.cli.terminal import wrapped
from flyball_operator.cli.why_sentences import why

if TYPE_CHECKING:
    from flyball_operator.kube.api import KubeApi
    from flyball_operator.kube.resources import Resource

_SHAPE: Final = '{"namespace", "name", "sentences": [{"about", "text"}]}'


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "why",
        help="why a service is as it is, in one paragraph, and what to do next",
        description="Says why a service has its limits, why requests wait or are refused, why pods were replaced or "
        "not, what was decided last, and what to do next. It needs get of inferenceservices.serving.flyball.dev; "
        "with get of deployments (leaderworkersets where nodes is above 1) and leases and list of pods and events in "
        "the namespace it says more. Exit code 1: there is no such service.",
    )
    add_name(parser)
    add_options(parser, namespace_help="its namespace: that of the kubeconfig's context")
    add_output(parser, shape=_SHAPE)
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Print the paragraph; returns the exit code."""

    async def work(api: KubeApi, namespace: str) -> int:
        found = await _found(api, namespace, options.name)
        sentences = why(found)
        if options.output == JSON:
            said = [{"about": one.about.value, "text": one.text} for one in sentences]
            print(json.dumps({"namespace": namespace, "name": options.name, "sentences": said}, indent=2))
        else:
            print(wrapped(" ".join(one.text for one in sentences)))
        return 0

    return asked_in(options, work)


async def _found(api: KubeApi, namespace: str, name: str) -> Found:
    # With the client, which takes a second to import.
    from flyball_operator.kube.errors import ForbiddenError  # noqa: PLC0415 – see above
    from flyball_operator.kube.resources import EVENTS, PODS  # noqa: PLC0415

    raw = await one_service(api, namespace, name)
    uid = str(raw["metadata"].get("uid"))

    async def listed(resource: Resource, *, selector: str = "", fields: str = "") -> list[Object]:
        try:
            return (await api.list(resource, namespace, selector=selector, fields=fields))[0]
        except ForbiddenError:
            return []

    pods = await listed(PODS, selector=f"{names.LABEL_SERVICE_UID}={uid}")
    events = await listed(EVENTS, fields=f"involvedObject.uid={uid}")
    return parsed(
        raw,
        deployment=await pods_owner(api, raw),
        pods=pods,
        events=[one for one in events if (one.get("involvedObject") or {}).get("uid") == uid],
        lease=await namespace_lease(api, namespace),
        now=datetime.now(UTC),
    )


def parsed(
    raw: Object,
    *,
    deployment: Object | None,
    pods: list[Object],
    events: list[Object],
    lease: Object | None,
    now: datetime,
) -> Found:
    """What was read, with the service parsed; a spec that is wrong is told, not raised. Raises `NotHadError`."""
    error = ""
    try:
        service = parse_service(raw)
        meta, spec, status = service.metadata, service.spec, service.status
    except InvalidSpecError as wrong:
        meta, spec, status, error = wrong.metadata, None, wrong.status, "; ".join(wrong.errors)
    except ParseError as wrong:
        raise NotHadError(f"this is no InferenceService: {wrong}") from wrong
    return Found(meta, spec, status, error, deployment, pods, events, lease, now)
