"""Checks before anything is watched or written: a wrong installation is told in readiness, not found out by failing.

Without these, kopf is silent for ever when the CRD is missing, and takes a missing right for a busy server for a
minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from flyball_operator.api import names
from flyball_operator.api.served_schema import lacked
from flyball_operator.kube.api import KubeApi
from flyball_operator.kube.errors import ClusterError, ForbiddenError, NotFoundError, UnauthorizedError
from flyball_operator.kube.resources import ACCESS_REVIEWS, CRDS, LEASES, NAMESPACES, SECRETS, WATCHED, Resource

RETRY_SECONDS: Final = 5.0
_PARALLEL: Final = 8
#: Rights that a sentence names; with a whole RoleBinding, dozens are missing.
_MOST_NAMED: Final = 2


@dataclass(frozen=True)
class Right:
    """A verb on a resource in a namespace; None is all namespaces. `name`: on the object of this name alone."""

    verb: str
    resource: Resource
    namespace: str | None
    name: str = ""

    def __str__(self) -> str:
        where = f"in namespace {self.namespace}" if self.namespace else "in all namespaces"
        which = f" {self.name}" if self.name else ""
        return f"{self.verb} {self.resource.plural}.{self.resource.group or 'core'}{which} {where}"


def needed(
    watched: Sequence[str | None],
    own_namespace: str,
    leases: Sequence[str],
    resources: Sequence[Resource] = WATCHED,
    *,
    selected: bool = False,
    secret: str = "",
) -> Iterator[Right]:
    """Every right this operator must have: on `resources` where it watches, and on the Leases of its election.

    `selected`: namespaces are selected by their labels. `secret`: in which it keeps the signing key; empty if in none.
    """
    if selected:
        for verb in NAMESPACES.verbs:
            yield Right(verb, NAMESPACES, None)
    for namespace in watched:
        yield from _needed_in(namespace, resources)
    for verb in LEASES.verbs:
        # What is created has no name yet as far as rights go.
        for lease in ("",) if verb == "create" else leases:
            yield Right(verb, LEASES, own_namespace, lease)
    for verb in SECRETS.verbs if secret else ():
        yield Right(verb, SECRETS, own_namespace, secret)


def _needed_in(namespace: str | None, resources: Sequence[Resource]) -> Iterator[Right]:
    for resource in resources:
        for verb in resource.verbs:
            yield Right(verb, resource, namespace)


async def missing(
    api: KubeApi,
    watched: Sequence[str | None],
    own_namespace: str,
    leases: Sequence[str],
    resources: Sequence[Resource] = WATCHED,
    *,
    selected: bool = False,
    secret: str = "",
) -> tuple[str, ...]:
    """What keeps this operator from its work, in words; empty if nothing does.

    One namespace that can be watched is enough: the others are watched as soon as they can be.
    """
    try:
        rights = needed((), own_namespace, leases, selected=selected, secret=secret)
        problems = [*await _check_crd(api), *await _check_rights(api, rights)]
        problems += await _in_all(api, watched, resources)
    except ClusterError as error:
        return (f"the API server cannot be asked: {error}",)
    return tuple(problems)


async def _in_all(api: KubeApi, watched: Sequence[str | None], resources: Sequence[Resource]) -> list[str]:
    """What each namespace lacks; nothing if one lacks nothing."""
    problems: list[str] = []
    for namespace in watched:
        found = await lacking(api, namespace, resources)
        if not found:
            return []
        problems += found
    return problems


async def lacking(api: KubeApi, namespace: str | None, resources: Sequence[Resource] = WATCHED) -> tuple[str, ...]:
    """Why a namespace cannot be watched, in words: it does not exist, or rights are not granted there.

    Raises `ClusterError` where the API server cannot be asked.
    """
    exists = None if namespace is None else await _exists(api, namespace)
    if exists is False:
        return (f"namespace {namespace} does not exist",)
    rights = tuple(_needed_in(namespace, resources))
    problems = await _check_rights(api, rights)
    if namespace is not None and len(problems) == len(rights):
        # Where a namespace is gone, so is its RoleBinding, and often nobody may ask which of the two it is.
        gone = "" if exists else "it is gone, or "
        return (f"no right is granted in namespace {namespace}: {gone}it has no RoleBinding for this operator",)
    return tuple(problems)


def summary(problems: Sequence[str]) -> str:
    """What is missing in one sentence: a namespace that is gone, or its RoleBinding, is dozens of rights."""
    more = len(problems) - _MOST_NAMED
    return "; ".join(problems[:_MOST_NAMED]) + (f"; and {more} more rights" if more > 0 else "")


async def _check_crd(api: KubeApi) -> list[str]:
    try:
        served = await api.discover(f"/apis/{names.GROUP}/{names.VERSION}")
    except NotFoundError:
        return [f"the custom resource definition {names.CRD_NAME} is not served: install the chart's CRDs"]
    if not any(item.get("name") == names.PLURAL for item in served.get("resources") or ()):
        return [f"{names.API_VERSION} serves no {names.PLURAL}"]
    try:
        crd = await api.get(CRDS, None, names.CRD_NAME)
    except ForbiddenError:
        return [f"get customresourcedefinitions {names.CRD_NAME} is not granted: its schema cannot be checked"]
    lacks = lacked(crd, most=_MOST_NAMED + 1)
    if not lacks:
        return []
    fields = ", ".join(lacks[:_MOST_NAMED]) + (" and others" if len(lacks) > _MOST_NAMED else "")
    return [f"{names.CRD_NAME} does not have, or has otherwise: {fields}; upgrade the CRD to this operator's version"]


async def _exists(api: KubeApi, namespace: str) -> bool | None:
    """Whether the namespace exists; None where that may not be asked.

    That is not worth a cluster-wide right: rights in a namespace are granted where it exists.
    """
    try:
        await api.get(NAMESPACES, None, namespace)
    except UnauthorizedError:
        raise
    except NotFoundError:
        return False
    except ForbiddenError:
        return None
    return True


async def _check_rights(api: KubeApi, rights: Iterable[Right]) -> list[str]:
    limit = asyncio.Semaphore(_PARALLEL)

    async def denied(right: Right) -> str | None:
        async with limit:
            return None if await _allowed(api, right) else f"not granted: {right}"

    return [problem for problem in await asyncio.gather(*map(denied, rights)) if problem is not None]


async def _allowed(api: KubeApi, right: Right) -> bool:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes(right)},
    }
    answer = await api.ask(ACCESS_REVIEWS, review)
    return bool(answer["status"].get("allowed"))


def attributes(right: Right) -> dict[str, str]:
    """The right as a review of access names it."""
    resource, _, subresource = right.resource.plural.partition("/")
    named = {
        "verb": right.verb,
        "group": right.resource.group,
        "version": right.resource.version,
        "resource": resource,
        "subresource": subresource,
        "namespace": right.namespace or "",
        "name": right.name,
    }
    return {key: value for key, value in named.items() if value}
