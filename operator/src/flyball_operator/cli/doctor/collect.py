"""Reads an installation from the API server. Nothing is written, and no Secret is read.

What may not be read is said so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeVar

from flyball_operator.api import names
from flyball_operator.api.objects import Object
from flyball_operator.app.startup import Right, attributes, needed
from flyball_operator.cli.doctor.checks import election
from flyball_operator.cli.doctor.installation import Installation, Operator, Tenant, Unread, operator_container
from flyball_operator.kube.api import KubeApi
from flyball_operator.kube.errors import ForbiddenError, NotFoundError
from flyball_operator.kube.resources import (
    CONFIG_MAPS,
    CRDS,
    DEPLOYMENTS,
    EVENTS,
    INFERENCE_SERVICES,
    LEASES,
    NAMESPACES,
    NETWORK_POLICIES,
    PODS,
    Resource,
    selector,
    watched,
)

A = TypeVar("A")
T = TypeVar("T")

#: Calls under way at the same time.
_PARALLEL: Final = 8
#: As the chart labels what is the operator's.
_OPERATORS: Final = "app.kubernetes.io/component=operator"
POLICIES: Final = Resource("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", ("list",))
BINDINGS: Final = Resource("admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings", ("list",))
_REVIEWS: Final = Resource("authorization.k8s.io", "v1", "subjectaccessreviews")


@dataclass(frozen=True)
class Scope:
    """Where to look: for services in one namespace or all (None), for operators likewise; `services`: at them, too."""

    namespace: str | None
    operator_namespace: str | None
    services: bool = True


async def collect(api: KubeApi, scope: Scope) -> Installation:
    """Everything that the checks judge. Raises `ClusterError` where the API server cannot be asked at all."""
    server = await api.discover("/version")
    searched = scope.operator_namespace
    tenants = await _tenants(api, scope.namespace) if scope.services else []
    places = [] if isinstance(tenants, Unread) else [one.name for one in tenants]
    operators = await _operators(api, searched, places)
    homes = set() if isinstance(operators, Unread) else {one.namespace for one in operators}
    return Installation(
        now=datetime.now(UTC),
        server=server,
        crd=await _one(api, CRDS, None, names.CRD_NAME),
        operators=operators,
        tenants=tenants,
        admission=await _all(api, POLICIES, None, _OPERATORS),
        bindings=await _all(api, BINDINGS, None),
        namespace_labels={
            home: found["metadata"].get("labels") or {}
            for home in sorted(homes)
            if isinstance(found := await _one(api, NAMESPACES, None, home), dict)
        },
        searched=searched,
        searched_exists=searched is None or await _one(api, NAMESPACES, None, searched) is not None,
        services_asked=scope.services,
    )


async def _tenants(api: KubeApi, namespace: str | None) -> list[Tenant] | Unread:
    found = await _all(api, INFERENCE_SERVICES, namespace)
    if isinstance(found, Unread):
        return found
    by_namespace: dict[str, list[Object]] = {}
    for service in found:
        by_namespace.setdefault(service["metadata"]["namespace"], []).append(service)

    async def tenant(name: str) -> Tenant:
        return await _tenant(api, name, by_namespace[name])

    return await bounded(tenant, sorted(by_namespace))


async def _tenant(api: KubeApi, name: str, services: Sequence[Object]) -> Tenant:
    return Tenant(
        name,
        services,
        pods=await _all(api, PODS, name, selector(PODS)),
        policies=await _all(api, NETWORK_POLICIES, name),
        keys=await _one(api, CONFIG_MAPS, name, names.PUBLIC_KEYS),
        lease=await _one(api, LEASES, name, names.NAMESPACE_LEASE),
    )


async def _operators(api: KubeApi, namespace: str | None, places: Sequence[str]) -> list[Operator] | Unread:
    found = await _all(api, DEPLOYMENTS, namespace, _OPERATORS)
    if isinstance(found, Unread):
        return found
    return [await _operator(api, one, places) for one in found if operator_container(one) is not None]


async def _operator(api: KubeApi, deployment: Object, places: Sequence[str]) -> Operator:
    bare = Operator(deployment, {}, ())
    leases: dict[str, Object] = {}
    unread: Unread | None = None
    for name in election(bare):
        lease = await _one(api, LEASES, bare.namespace, name)
        if isinstance(lease, Unread):
            unread = lease
        elif lease is not None:
            leases[name] = lease
    pods, events = await _pods(api, bare)
    return Operator(deployment, unread or leases, await _denied(api, bare, places), pods, events)


async def _pods(api: KubeApi, operator: Operator) -> tuple[Sequence[Object], Sequence[Object]]:
    """Its pods and the events beside them, where some are not Ready: they say why."""
    if operator.rolled_out:
        return (), ()
    chosen = operator.deployment["spec"]["selector"]["matchLabels"]
    pods = await _all(api, PODS, operator.namespace, ",".join(f"{key}={chosen[key]}" for key in sorted(chosen)))
    events = await _all(api, EVENTS, operator.namespace)
    return (() if isinstance(pods, Unread) else pods), (() if isinstance(events, Unread) else events)


async def _denied(api: KubeApi, operator: Operator, places: Sequence[str]) -> list[str] | Unread:
    """Rights that the operator's account lacks, by its settings."""
    account = operator.deployment["spec"]["template"]["spec"].get("serviceAccountName") or "default"
    user = f"system:serviceaccount:{operator.namespace}:{account}"
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{operator.namespace}", "system:authenticated"]

    async def lacks(right: Right) -> str | None:
        spec = {"user": user, "groups": groups, "resourceAttributes": attributes(right)}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        answer = await api.ask(_REVIEWS, review)
        return None if answer["status"].get("allowed") else str(right)

    try:
        answers = await bounded(lacks, _rights(operator, places))
    except ForbiddenError as error:
        return Unread(str(error), str(Right("create", _REVIEWS, None)))
    return [one for one in answers if one is not None]


def _rights(operator: Operator, places: Sequence[str]) -> Iterator[Right]:
    """Those that its start asks for, and those on public keys; of selected namespaces, where there are services."""
    settings = operator.settings
    selected = bool(settings.get("FLYBALL_WATCH_NAMESPACE_SELECTOR"))
    spaces: Sequence[str | None] = [None] if "*" in operator.namespaces else operator.namespaces
    spaces, secret = places if selected else spaces, settings.get("FLYBALL_SIGNING_KEY_SECRET", "")
    yield from needed(
        spaces,
        operator.namespace,
        election(operator),
        watched(network_policies="FLYBALL_NETWORK_POLICY" in settings),
        selected=selected,
        secret=secret,
    )
    # It starts without these: then services that it makes from now on are not tuned.
    for space in spaces if secret else ():
        for verb in CONFIG_MAPS.verbs:
            # What is created has no name yet as far as rights go.
            yield Right(verb, CONFIG_MAPS, space, "" if verb == "create" else names.PUBLIC_KEYS)


async def _one(api: KubeApi, resource: Resource, namespace: str | None, name: str) -> Object | Unread | None:
    try:
        return await api.get(resource, namespace, name)
    except NotFoundError:
        return None
    except ForbiddenError as error:
        return Unread(str(error), str(Right("get", resource, namespace, name)))


async def _all(api: KubeApi, resource: Resource, namespace: str | None, selector: str = "") -> list[Object] | Unread:
    try:
        found, _ = await api.list(resource, namespace, selector=selector)
    except NotFoundError:
        # The kind is not served: there is none of it.
        return []
    except ForbiddenError as error:
        return Unread(str(error), str(Right("list", resource, namespace)))
    return found


async def bounded(ask: Callable[[A], Awaitable[T]], each: Iterable[A]) -> list[T]:
    """Ask of each, so many at a time. The first error ends all calls, and is raised once none is under way."""
    limit = asyncio.Semaphore(_PARALLEL)

    async def one(about: A) -> T:
        async with limit:
            return await ask(about)

    calls = [asyncio.ensure_future(one(about)) for about in each]
    try:
        return await asyncio.gather(*calls)
    finally:
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
