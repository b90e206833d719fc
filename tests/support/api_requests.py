"""What the API server has, asked and changed in this process.

Tests that wait look ten times a second, and a kubectl for each look takes forty times as much of the processors as a
request: engines and operators lack it.
"""

from __future__ import annotations

import json
import os
from functools import cache
from typing import Any

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from flyball_operator.kube import resources
from flyball_operator.kube.resources import Resource

Object = dict[str, Any]

#: Kinds that tests look at.
_RESOURCES = (
    resources.INFERENCE_SERVICES,
    resources.DEPLOYMENTS,
    resources.LEADER_WORKER_SETS,
    resources.SERVICES,
    resources.DISRUPTION_BUDGETS,
    resources.NETWORK_POLICIES,
    resources.HTTP_ROUTES,
    resources.INFERENCE_POOLS,
    resources.REVISIONS,
    resources.VOLUME_CLAIMS,
    resources.JOBS,
    resources.REPLICA_SETS,
    resources.PODS,
    resources.ENDPOINT_SLICES,
    resources.EVENTS,
    resources.LEASES,
    resources.CRDS,
    resources.NAMESPACES,
    resources.CONFIG_MAPS,
    Resource("", "v1", "resourcequotas"),
    Resource("", "v1", "secrets"),
)
#: Those outside a namespace, which are asked for without one.
_OF_THE_CLUSTER = (resources.CRDS, resources.NAMESPACES)
_SINGULAR = {"customresourcedefinitions": "crd", "networkpolicies": "networkpolicy"}


def _spellings(resource: Resource) -> tuple[str, ...]:
    """How kubectl's users name it."""
    plural = resource.plural
    return plural, f"{plural}.{resource.group}", _SINGULAR.get(plural, plural.removesuffix("s"))


_BY_NAME = {spelling: resource for resource in _RESOURCES for spelling in _spellings(resource)}


class RequestError(Exception):
    """The API server did not answer, or not with what was asked for. The message is what it said."""


@cache
def api() -> client.ApiClient:
    """Connections to the API server that KUBECONFIG names."""
    configuration = client.Configuration()
    # Named here: the library looks at the variable as it is imported.
    config.load_kube_config(os.environ["KUBECONFIG"], client_configuration=configuration)  # type: ignore[no-untyped-call]
    return client.ApiClient(configuration)


def read(kind: str, namespace: str, name: str | None = None, *, selector: str = "") -> Object | None:
    """An object, or the list of all where `name` is absent; None if there is none. Raises `RequestError`."""
    path = _path(kind, namespace, name)
    status, body = _ask("GET", path, {"labelSelector": selector} if selector else {})
    if status == 404 and name is not None:
        return None
    if status != 200:
        raise RequestError(f"{path}: {status} {body}")
    found: Object = json.loads(body)
    return found


def merge(kind: str, namespace: str, name: str, change: Object, *, subresource: str = "") -> None:
    """JSON merge patch, as kubectl makes it. Raises `RequestError`."""
    path = _path(kind, namespace, name) + (f"/{subresource}" if subresource else "")
    _change(path, {"fieldManager": "kubectl-patch"}, change, "application/merge-patch+json")


def apply(kind: str, namespace: str, manifest: Object) -> None:
    """Server-side apply. Raises `RequestError`."""
    path = _path(kind, namespace, manifest["metadata"]["name"])
    _change(path, {"fieldManager": "test", "force": "true"}, manifest, "application/apply-patch+yaml")


def _path(kind: str, namespace: str, name: str | None) -> str:
    resource = _BY_NAME[kind]
    return resource.path(None if resource in _OF_THE_CLUSTER else namespace, name)


def _change(path: str, query: dict[str, str], body: Object, content: str) -> None:
    status, said = _ask("PATCH", path, query, body, content)
    if status not in (200, 201):
        raise RequestError(f"{path}: {status} {said}")


def _ask(
    method: str, path: str, query: dict[str, str], body: Object | None = None, content: str = ""
) -> tuple[int, str]:
    """Status and body of the answer. Raises `RequestError` where there is none."""
    headers = {"Accept": "application/json"} | ({"Content-Type": content} if content else {})
    try:
        request = api().param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        answer = api().call_api(*request, _request_timeout=30.0)
        return answer.status, answer.read().decode(errors="replace")  # type: ignore[no-untyped-call]
    except (ApiException, HTTPError) as error:
        raise RequestError(f"{path}: {error}") from error
