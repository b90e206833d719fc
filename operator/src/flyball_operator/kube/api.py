"""Calls to the Kubernetes API over the official client's asyncio side, in plain JSON.

The client brings what is hard (kubeconfig, service-account tokens that rotate, TLS). Its typed calls are not used: they
turn an answer of 201 into None and parse lists twenty times slower. Every call has a time-out as a float: the client's
own is five minutes, and a tuple crashes it. Each writer has a client with a user agent of its own, so that the audit
log tells reconciler, tuner and election apart, and the replicas.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Literal, Protocol
from urllib.parse import urlencode

import aiohttp
from aiohttp.http import HttpProcessingError
from kubernetes.aio import client, config
from pydantic_core import from_json

from flyball_operator import __version__
from flyball_operator.api.objects import Object
from flyball_operator.kube.errors import (
    NotLeadingError,
    UnavailableError,
    from_response,
    of_status,
)
from flyball_operator.kube.resources import Resource

READ_SECONDS: Final = 10.0
WRITE_SECONDS: Final = 5.0
#: Objects of a page. A pod takes some 50 KB in memory until `part` has taken what is kept of it. With 500 an operator
#: of 150 services had 172 MiB, with 100 it has 153: what is freed stays with the process.
PAGE: Final = 100

_JSON: Final = "application/json"
#: Of each object its metadata alone: a third of the bytes of a list of Deployments, a tenth of one of revisions.
_METADATA: Final = f"{_JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{_JSON}"
_YAML: Final = "application/yaml"
_APPLY: Final = "application/apply-patch+yaml"
_JSON_PATCH: Final = "application/json-patch+json"
_MERGE_PATCH: Final = "application/merge-patch+json"
#: Nothing is stored, and a field that the schema does not know is an error, as kubectl has it.
_DRY: Final = {"dryRun": "All", "fieldValidation": "Strict"}

#: What the client raises where the API server, or the token to ask it with, cannot be reached, or the answer not read:
#: a line that is too long is no ClientError.
_AWAY: Final = (aiohttp.ClientError, HttpProcessingError, TimeoutError, OSError, config.ConfigException)

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


def _whole(found: Object) -> Object:
    return found


class Fence(Protocol):
    """Says whether this process may write."""

    def seconds_left(self) -> float:
        """Seconds for which the lease is surely ours; 0 or less when it is not."""
        ...


class Unfenced:
    """For writes that need no lease: the election's own."""

    def seconds_left(self) -> float:
        """For ever."""
        return float("inf")


class NeverLeading:
    """For readers: refuses every write."""

    def seconds_left(self) -> float:
        """Never."""
        return 0.0


class KubeApi:
    """Calls as one writer: its field manager, its user agent, its fence."""

    def __init__(self, configuration: client.Configuration, manager: str, fence: Fence, *, instance: str) -> None:
        self.manager = manager
        self._fence = fence
        self._under_way = 0
        self._settled = asyncio.Event()
        self._settled.set()
        self.cut_off = False
        """Whether a write was cancelled on its way, so that nobody knows whether it arrives."""
        self._client = client.ApiClient(configuration)
        self._client.user_agent = f"flyball/{__version__} {manager} ({instance})"

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()  # type: ignore[no-untyped-call]

    # Reads

    async def get(
        self, resource: Resource, namespace: str | None, name: str, *, within: float = READ_SECONDS
    ) -> Object:
        """One object, as the API server holds it now. Raises `NotFoundError` and the rest of the tree."""
        return await self._call("GET", resource.path(namespace, name), within=within)

    async def list(
        self,
        resource: Resource,
        namespace: str | None,
        *,
        selector: str = "",
        fields: str = "",
        metadata_only: bool = False,
        part: Callable[[Object], Object] = _whole,
        within: float = READ_SECONDS,
    ) -> tuple[list[Object], str]:
        """All objects of a kind that carry these labels and field values, and the resource version of the list.

        `metadata_only`: nothing else of each is needed, so that nothing else need be sent. `part`: what is kept
        of each, page by page, so that thousands of objects are never in memory whole.
        """
        items: list[Object] = []
        query = {"limit": str(PAGE), "labelSelector": selector, "fieldSelector": fields}
        accept = _METADATA if metadata_only else _JSON
        while True:
            page = await self._call("GET", resource.path(namespace), query=query, accept=accept, within=within)
            items += map(part, page.get("items") or ())
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                return items, str(metadata.get("resourceVersion", ""))
            query["continue"] = metadata["continue"]

    async def watch(
        self, resource: Resource, *, namespace: str | None = None, selector: str, version: str, seconds: int
    ) -> AsyncGenerator[Object]:
        """Events of a kind from a version on, until `seconds` are over; of all namespaces where `namespace` is absent.

        Raises `ClusterError`.
        """
        query = {"watch": "true", "labelSelector": selector, "resourceVersion": version}
        query |= {"timeoutSeconds": str(seconds)}
        call, path = f"watch {resource.plural}", resource.path(namespace)
        response = await self._send("GET", path, query=query, within=seconds + READ_SECONDS)
        try:
            if response.status >= 300:
                raise from_response(response.status, await response.read())
            async for line in response.response.content:
                event = _object(line, call)
                if event.get("type") == "ERROR":
                    status = event.get("object") or {}
                    raise of_status(int(status.get("code") or 0), str(status.get("message") or ""))
                yield event
        except _AWAY as error:
            raise UnavailableError(f"{call}: {_why(error)}") from error
        finally:
            response.response.close()

    async def log(
        self, namespace: str, pod: str, container: str, *, lines: int, most: int, previous: bool = False
    ) -> str:
        """The last lines of a container, `most` bytes at most; `previous`: of the one before. Raises `ClusterError`."""
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/log"
        query = {"container": container, "tailLines": str(lines), "limitBytes": str(most)}
        query |= {"previous": "true"} if previous else {}
        answer = await self._answer("GET", path, query=query, within=READ_SECONDS, accept="*/*")
        return answer.decode(errors="replace")

    async def discover(self, path: str) -> Object:
        """A document of the API's own description, such as `/apis/<group>/<version>`."""
        return await self._call("GET", path, within=READ_SECONDS)

    # Writes

    async def create(
        self, resource: Resource, namespace: str | None, body: Object, *, within: float = WRITE_SECONDS
    ) -> Object:
        """POST. Raises `AlreadyExistsError` where an object of the name is there.

        Sent as YAML, which the API server turns into its own JSON. A ControllerRevision keeps the bytes of its data as
        they came and may not change them. In another's spelling of JSON any later patch would change them, the garbage
        collector's too. Then `--cascade=orphan` would never end.
        """
        query = {"fieldManager": self.manager}
        return await self._write(
            "POST", resource.path(namespace), body=json.dumps(body), query=query, content=_YAML, within=within
        )

    async def replace(
        self, resource: Resource, namespace: str, body: Object, *, within: float = WRITE_SECONDS
    ) -> Object:
        """PUT, to the resource version in the body. Raises `ConflictError` where the object has moved on."""
        path = resource.path(namespace, body["metadata"]["name"])
        return await self._write("PUT", path, body=body, query={"fieldManager": self.manager}, within=within)

    async def apply(self, resource: Resource, body: Object, *, subresource: str | None = None) -> Object:
        """Server-side apply, taking over fields of other managers.

        The body must carry the UID of the object it is for: without it, an apply makes a missing object, and takes over
        a foreign one.
        """
        path, query = self._apply_call(resource, body, subresource)
        return await self._write("PATCH", path, body=body, query=query, content=_APPLY)

    async def dry_apply(self, resource: Resource, body: Object) -> Object:
        """What a server-side apply would leave, after admission. Nothing is stored, so no lease is needed."""
        path, query = self._apply_call(resource, body, None)
        query["dryRun"] = "All"
        return await self._call("PATCH", path, body=body, query=query, content=_APPLY, within=WRITE_SECONDS)

    async def dry_create(self, resource: Resource, namespace: str, body: Object) -> Object:
        """What a POST would leave, after validation and admission. Nothing is stored, so no lease is needed."""
        return await self._call("POST", resource.path(namespace), body=body, query=_DRY, within=WRITE_SECONDS)

    async def dry_merge(self, resource: Resource, namespace: str, name: str, patch: Object) -> Object:
        """What an RFC 7386 patch would leave, likewise."""
        path = resource.path(namespace, name)
        return await self._call("PATCH", path, body=patch, query=_DRY, content=_MERGE_PATCH, within=WRITE_SECONDS)

    async def dry_apply_as(self, manager: str, resource: Resource, body: Object) -> Object:
        """What a server-side apply of this field manager would leave, likewise."""
        path, query = self._apply_call(resource, body, None)
        query |= {**_DRY, "fieldManager": manager}
        return await self._call("PATCH", path, body=body, query=query, content=_APPLY, within=WRITE_SECONDS)

    def _apply_call(self, resource: Resource, body: Object, subresource: str | None) -> tuple[str, dict[str, str]]:
        metadata = body["metadata"]
        if "uid" not in metadata:
            raise ValueError("an apply without the object's UID could take over a foreign object")
        path = resource.path(metadata["namespace"], metadata["name"], subresource)
        return path, {"fieldManager": self.manager, "force": "true"}

    async def json_patch(
        self, resource: Resource, namespace: str, name: str, patch: Sequence[Mapping[str, Any]]
    ) -> Object:
        """RFC 6902 patch."""
        query = {"fieldManager": self.manager}
        path = resource.path(namespace, name)
        return await self._write("PATCH", path, body=list(patch), query=query, content=_JSON_PATCH)

    async def delete(self, resource: Resource, namespace: str, name: str, *, uid: str) -> None:
        """Delete the object with this name and UID.

        Raises `ConflictError` where the name is another object's by now.
        """
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        await self._write("DELETE", resource.path(namespace, name), body=body)

    async def _write(
        self,
        method: Method,
        path: str,
        *,
        body: Any,
        query: Mapping[str, str] | None = None,
        content: str = _JSON,
        within: float = WRITE_SECONDS,
    ) -> Object:
        # Asked immediately before the write, and the write may not outlive the answer.
        left = self._fence.seconds_left()
        if left <= 0:
            raise NotLeadingError(f"{method} {path} was not sent: this process does not lead")
        self._under_way += 1
        self._settled.clear()
        try:
            return await self._call(method, path, body=body, query=query, content=content, within=min(within, left))
        except asyncio.CancelledError:
            self.cut_off = True
            raise
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._settled.set()

    async def settled(self) -> None:
        """Return once no write is under way."""
        await self._settled.wait()

    async def ask(self, resource: Resource, body: Object) -> Object:
        """POST a review: an answer, nothing is stored, so no lease is needed."""
        return await self._call("POST", resource.path(), body=body, within=READ_SECONDS)

    async def _call(
        self,
        method: Method,
        path: str,
        *,
        within: float,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        content: str = _JSON,
        accept: str = _JSON,
    ) -> Object:
        answer = await self._answer(method, path, within=within, body=body, query=query, content=content, accept=accept)
        return _object(answer, f"{method} {path}")

    async def _answer(self, method: Method, path: str, **how: Any) -> bytes:
        """The body of a response, asked for as `_send` does. Raises `ClusterError` where it is a refusal."""
        response = await self._send(method, path, **how)
        try:
            answer = await response.read()
        except _AWAY as error:
            raise UnavailableError(f"{method} {path}: {_why(error)}") from error
        if response.status >= 300:
            raise from_response(response.status, answer)
        return bytes(answer)

    async def _send(
        self,
        method: Method,
        path: str,
        *,
        within: float,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        content: str = _JSON,
        accept: str = _JSON,
    ) -> Any:
        """The response, of which only the head was read."""
        url = path + ("?" + urlencode({k: v for k, v in query.items() if v}) if query else "")
        headers = {"Accept": accept, "Content-Type": content}
        try:
            request = await self._client.param_serialize(
                method, url, header_params=headers, body=body, auth_settings=["BearerToken"]
            )
            return await self._client.call_api(*request, _request_timeout=float(within))
        except _AWAY as error:
            raise UnavailableError(f"{method} {path}: {_why(error)}") from error


def _why(error: Exception) -> str:
    """Why the API server could not be asked. What the HTTP library says names its own classes, or is empty."""
    match error:
        case TimeoutError():
            return "no answer in time"
        case aiohttp.ClientConnectorDNSError():
            return f"the name {error.host} cannot be looked up: {error.os_error.strerror or error.os_error}"
        case aiohttp.ClientConnectorCertificateError():
            why = getattr(error.certificate_error, "verify_message", "") or error.certificate_error
            return f"the certificate of {error.host}:{error.port} is not accepted: {why}"
        case aiohttp.ClientConnectorSSLError():
            # Its number is OpenSSL's own.
            why = getattr(error.os_error, "reason", None) or error.os_error
            return f"TLS with {error.host}:{error.port} failed: {why}"
        case aiohttp.ClientConnectorError():
            # asyncio has words of its own for an error number.
            why = os.strerror(error.os_error.errno) if error.os_error.errno else error.os_error
            return f"{error.host}:{error.port} cannot be reached: {why}"
        case _:
            return f"{type(error).__name__}: {error}"


def _object(answer: bytes, call: str) -> Object:
    """The JSON object in an answer; what stands between us and the API server may have answered for it."""
    try:
        # As answers of Prometheus: objects, too, are large and repeat a few short texts.
        return dict(from_json(answer, cache_strings="all"))
    except (ValueError, TypeError) as error:
        raise UnavailableError(f"{call}: the answer is no JSON object: {answer[:100]!r}") from error


@asynccontextmanager
async def connected(
    configuration: client.Configuration, manager: str, fence: Fence, *, instance: str
) -> AsyncIterator[KubeApi]:
    """A `KubeApi` that is closed at the end."""
    api = KubeApi(configuration, manager, fence, instance=instance)
    try:
        yield api
    finally:
        await api.close()
