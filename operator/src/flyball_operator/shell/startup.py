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
from flyball_operator.api.crd import schema_hash
from flyball_operator.cluster.api import KubeApi
from flyball_operator.cluster.errors import ClusterError, ForbiddenError, NotFoundError
from flyball_operator.cluster.resources import ACCESS_REVIEWS, CRDS, LEASES, NAMESPACES, WATCHED, Resource
from flyball_operator.plan.objects import annotation

RETRY_SECONDS: Final = 5.0
_PARALLEL: Final = 8


@dataclass(frozen=True)
class Right:
    """A verb on a resource in a namespace; None is all namespaces."""

    verb: str
    resource: Resource
    namespace: str | None

    def __str__(self) -> str:
        where = f"in namespace {self.namespace}" if self.namespace else "in all namespaces"
        return f"{self.verb} {self.resource.plural}.{self.resource.group or 'core'} {where}"


def needed(watched: Sequence[str | None], own_namespace: str) -> Iterator[Right]:
    """Every right this operator uses."""
    for namespace in watched:
        for resource in WATCHED:
            for verb in resource.verbs:
                yield Right(verb, resource, namespace)
    for verb in LEASES.verbs:
        yield Right(verb, LEASES, own_namespace)


async def missing(api: KubeApi, watched: Sequence[str | None], own_namespace: str) -> tuple[str, ...]:
    """What is missing, in words; empty if nothing is."""
    try:
        problems = [*await _check_crd(api), *await _check_namespaces(api, watched)]
        problems += await _check_rights(api, needed(watched, own_namespace))
    except ClusterError as error:
        return (f"the API server cannot be asked: {error}",)
    return tuple(problems)


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
    found = annotation(crd, names.ANNOTATION_SCHEMA_HASH) or "none"
    if found != schema_hash():
        return [
            f"{names.CRD_NAME} has schema {found}, this operator has {schema_hash()}: upgrade CRD and operator together"
        ]
    return []


async def _check_namespaces(api: KubeApi, watched: Sequence[str | None]) -> list[str]:
    problems = []
    for namespace in watched:
        if namespace is None:
            continue
        try:
            await api.get(NAMESPACES, None, namespace)
        except NotFoundError:
            problems.append(f"namespace {namespace} is to be watched, but does not exist")
        except ForbiddenError:
            # Not worth a cluster-wide right: where namespaces cannot be read, rights are granted in those that exist.
            continue
    return problems


async def _check_rights(api: KubeApi, rights: Iterable[Right]) -> list[str]:
    limit = asyncio.Semaphore(_PARALLEL)

    async def denied(right: Right) -> str | None:
        async with limit:
            return None if await _allowed(api, right) else f"not granted: {right}"

    return [problem for problem in await asyncio.gather(*map(denied, rights)) if problem is not None]


async def _allowed(api: KubeApi, right: Right) -> bool:
    resource, _, subresource = right.resource.plural.partition("/")
    attributes = {
        "verb": right.verb,
        "group": right.resource.group,
        "version": right.resource.version,
        "resource": resource,
        "subresource": subresource,
        "namespace": right.namespace or "",
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {key: value for key, value in attributes.items() if value}},
    }
    answer = await api.ask(ACCESS_REVIEWS, review)
    return bool(answer["status"].get("allowed"))
