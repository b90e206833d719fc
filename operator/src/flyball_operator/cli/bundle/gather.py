"""Reads what goes into a support bundle. Nothing is written to the cluster, and no Secret or ConfigMap is in it.

What may not be read is noted, and the rest is read all the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from flyball_operator import __version__
from flyball_operator.api import names
from flyball_operator.api.objects import ROUTE_KINDS, Kind, Object
from flyball_operator.api.status import ConditionType
from flyball_operator.cli.bundle.redaction import redacted, text
from flyball_operator.cli.cluster import expect_namespace
from flyball_operator.cli.doctor.collect import Scope, collect
from flyball_operator.cli.doctor.examine import examine
from flyball_operator.cli.doctor.findings import as_json, text_lines
from flyball_operator.cli.doctor.installation import Installation, Operator, Tenant, Unread, operator_container
from flyball_operator.kube.api import KubeApi
from flyball_operator.kube.errors import ClusterError, NotFoundError
from flyball_operator.kube.resources import EVENTS, OWNED, PODS, Resource, labelled, selector

#: Of each pod of an operator: some hours where little happens, minutes where much does.
LOG_LINES: Final = 5000
_LOG_BYTES: Final = 4_000_000
#: Newest events of a namespace.
_EVENTS: Final = 1000
#: Of all files together, before compression: what a mail or a ticket takes once they are packed.
_BYTES: Final = 200_000_000
_COLUMNS: Final = 100
_WHAT_IT_IS: Final = """\
A support bundle of Flyball: services, the objects that they own, their events, the operator's logs, and what flyball
doctor found. It has no Secret, no ConfigMap and no engine log. Values of environment variables and headers, annotations
of others, attributes of volumes, arguments that speak of a key, and what looks like a credential are redacted.
Read it before you hand it on: names, images, addresses and log lines are as they were.
"""


@dataclass
class Bundle:
    """Files by path, and what could not be read."""

    files: dict[str, str] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    bytes: int = 0

    def add(self, path: str, content: str) -> None:
        """A file, unless there is no room for it any more."""
        size = len(content.encode())
        if self.bytes + size > _BYTES:
            self.unread.append(f"{path}: left out, the bundle has {_BYTES:,} bytes already")
            return
        self.files[path] = content
        self.bytes += size

    def add_object(self, path: str, found: object) -> None:
        """An object, redacted."""
        self.add(f"{path}.yaml", yaml.safe_dump(redacted(found), sort_keys=False, allow_unicode=True))


async def gather(api: KubeApi, scope: Scope) -> Bundle:
    """All that goes into the bundle.

    Raises `ClusterError` where the API server cannot be asked at all, `NotHadError` where there is no such namespace.
    """
    installation = await collect(api, scope)
    if not installation.tenants:
        await expect_namespace(api, scope.namespace)
    bundle = Bundle()
    bundle.add("README.txt", _WHAT_IT_IS)
    bundle.add("versions.json", _json(_versions(installation)))
    findings = examine(installation)
    bundle.add("doctor.json", text(_json(as_json(findings))))
    bundle.add("doctor.txt", text("\n".join(line for one in findings for line in text_lines(one, _COLUMNS)) + "\n"))
    for what, found in (("operators", installation.operators), ("services", installation.tenants)):
        if isinstance(found, Unread):
            bundle.unread.append(f"{what}: {found.why}")
    if not isinstance(installation.operators, Unread):
        for operator in installation.operators:
            await _operator(api, bundle, operator)
    if not isinstance(installation.tenants, Unread):
        for tenant in installation.tenants:
            await _tenant(api, bundle, tenant)
    bundle.unread = [text(why) for why in bundle.unread]
    if bundle.unread:
        bundle.files["unread.txt"] = "\n".join(bundle.unread) + "\n"
    return bundle


def _versions(installation: Installation) -> Mapping[str, Any]:
    server = installation.server
    return {
        "flyball": __version__,
        "server": server.why if isinstance(server, Unread) else server,
        "operators": [
            {"name": one.where, "image": (operator_container(one.deployment) or {}).get("image")}
            for one in ([] if isinstance(installation.operators, Unread) else installation.operators)
        ],
    }


async def _operator(api: KubeApi, bundle: Bundle, operator: Operator) -> None:
    folder = f"operators/{operator.where}"
    bundle.add_object(f"{folder}/deployment", operator.deployment)
    if isinstance(operator.leases, Mapping):
        for name, lease in operator.leases.items():
            bundle.add_object(f"{folder}/lease-{name}", lease)
    labels = (operator.deployment["spec"].get("selector") or {}).get("matchLabels") or {}
    container = (operator_container(operator.deployment) or {}).get("name", "")
    if not labels:
        return
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    for pod in await _listed(api, bundle, PODS, operator.namespace, selector=selector):
        name = pod["metadata"]["name"]
        bundle.add_object(f"{folder}/pod-{name}", pod)
        for previous in (False, True) if _was_restarted(pod) else (False,):
            path = f"{folder}/{name}{'.previous' if previous else ''}.log"
            try:
                log = await api.log(
                    operator.namespace, name, container, lines=LOG_LINES, most=_LOG_BYTES, previous=previous
                )
            except ClusterError as error:
                bundle.unread.append(f"{path}: {error}")
            else:
                bundle.add(path, text(log))


def _was_restarted(pod: Object) -> bool:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return any(one.get("restartCount") for one in statuses)


async def _tenant(api: KubeApi, bundle: Bundle, tenant: Tenant) -> None:
    folder = f"namespaces/{tenant.name}"
    known = set()
    for service in tenant.services:
        known.add(service["metadata"].get("uid"))
        bundle.add_object(f"{folder}/inferenceservices/{service['metadata']['name']}", service)
        known |= await _unwatched(api, bundle, tenant.name, service)
    for resource in labelled(network_policies=True):
        for found in await _listed(api, bundle, resource, tenant.name, selector=selector(resource)):
            known.add(found["metadata"].get("uid"))
            bundle.add_object(f"{folder}/{resource.plural}/{found['metadata']['name']}", found)
    events = await _listed(api, bundle, EVENTS, tenant.name)
    about = [one for one in events if _is_about(one, known)]
    newest = sorted(about, key=lambda one: str(one.get("lastTimestamp") or one.get("eventTime") or ""))[-_EVENTS:]
    bundle.add(f"{folder}/events.txt", text("".join(f"{line}\n" for line in map(_event, newest))))


async def _unwatched(api: KubeApi, bundle: Bundle, namespace: str, service: Object) -> set[Any]:
    """What a service has of kinds that a cluster may lack; another's may be in the way. Returns their UIDs.

    Routes and pools of one that names gateways, or did; the LeaderWorkerSet of one over several nodes.
    """
    conditions = (service.get("status") or {}).get("conditions") or ()
    routed = any(one.get("type") == ConditionType.ROUTED for one in conditions)
    name, known = service["metadata"]["name"], set[Any]()
    spec = service.get("spec") or {}
    kinds = ROUTE_KINDS if routed or "gateway" in spec else ()
    if (spec.get("parallelism") or {}).get("nodes", 1) > 1:
        kinds = (*kinds, Kind.LEADER_WORKER_SET)
    for resource in (OWNED[kind] for kind in kinds):
        try:
            found = await api.get(resource, namespace, name)
        except NotFoundError:
            continue
        except ClusterError as error:
            bundle.unread.append(f"{resource.plural} {name} in namespace {namespace}: {error}")
        else:
            known.add(found["metadata"].get("uid"))
            bundle.add_object(f"namespaces/{namespace}/{resource.plural}/{name}", found)
    return known


def _is_about(event: Object, known: set[Any]) -> bool:
    involved = event.get("involvedObject") or {}
    uid = involved.get("uid")
    return (uid is not None and uid in known) or involved.get("kind") == names.KIND


def _event(event: Object) -> str:
    involved = event.get("involvedObject") or {}
    when = event.get("lastTimestamp") or event.get("eventTime") or "-"
    what = f"{involved.get('kind')}/{involved.get('name')}"
    message = " ".join(str(event.get("message") or "").split())
    return f"{when} {event.get('type')} {event.get('reason')} {what} x{event.get('count') or 1}: {message}"


async def _listed(
    api: KubeApi, bundle: Bundle, resource: Resource, namespace: str, *, selector: str = ""
) -> list[Object]:
    try:
        found, _ = await api.list(resource, namespace, selector=selector)
    except ClusterError as error:
        bundle.unread.append(f"{resource.plural} in namespace {namespace}: {error}")
        return []
    return found


def _json(document: object) -> str:
    return json.dumps(document, indent=2) + "\n"
