"""kopf: it connects, watches and ends cleanly. Its handlers only feed the cache and put keys into our queue.

No indices, timers, daemons or change handlers: they keep ghosts, write annotations and finalizers, and coalesce nothing
(`docs/design.md` has the measurements). What a handler misses, the next list finds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import kopf
from kubernetes.aio import client

from flyball_operator.api import names
from flyball_operator.cluster.cache import Cache, read_service
from flyball_operator.cluster.reader import Key
from flyball_operator.cluster.resources import (
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    ENDPOINT_SLICES,
    INFERENCE_SERVICES,
    PODS,
    REVISIONS,
    SERVICES,
    Resource,
)
from flyball_operator.plan.objects import Object
from flyball_operator.shell.queue import KeyQueue

#: Only ours are sent by the API server. EndpointSlices carry the labels of their Service.
OURS: Final = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
_LABELLED: Final = (DEPLOYMENTS, SERVICES, DISRUPTION_BUDGETS, REVISIONS, PODS, ENDPOINT_SLICES)


class Watcher:
    """What watch events do."""

    def __init__(self, cache: Cache, queue: KeyQueue[Key]) -> None:
        self._cache = cache
        self._queue = queue

    def service(self, event: Mapping[str, Any]) -> None:
        """A service changed: a new generation ends every wait for it."""
        found: Object = event["object"]
        metadata = found["metadata"]
        known = self._cache.services.get(metadata["uid"])
        self._cache.observe_service(found, deleted=event["type"] == "DELETED")
        key = Key(metadata["namespace"], metadata["name"])
        if known is None or known.meta.generation != metadata.get("generation", 0) or read_service(found) is None:
            self._queue.urge(key)
        else:
            self._queue.add(key)

    def owned(self, event: Mapping[str, Any]) -> None:
        """Something of a service changed."""
        metadata = event["object"]["metadata"]
        name = (metadata.get("labels") or {}).get(names.LABEL_SERVICE)
        if name:
            self._queue.add(Key(metadata["namespace"], name))

    def pod(self, event: Mapping[str, Any]) -> None:
        """A pod of a service changed."""
        self._cache.observe_pod(event["object"], deleted=event["type"] == "DELETED")
        self.owned(event)


def registry(watcher: Watcher, connection: Callable[[], Any]) -> kopf.OperatorRegistry:
    """Kopf's handlers."""
    made = kopf.OperatorRegistry()

    async def log_in(**_: Any) -> kopf.ConnectionInfo:
        return await connection()  # type: ignore[no-any-return]

    kopf.on.login(registry=made)(log_in)
    _handle(made, INFERENCE_SERVICES, watcher.service)
    for resource in _LABELLED:
        _handle(made, resource, watcher.pod if resource is PODS else watcher.owned)
    return made


def _handle(made: kopf.OperatorRegistry, resource: Resource, act: Callable[[Mapping[str, Any]], None]) -> None:
    async def handler(event: Mapping[str, Any], **_: Any) -> None:
        act(event)

    kopf.on.event(resource.group, resource.version, resource.plural, registry=made, id=resource.plural)(handler)


def settings() -> kopf.OperatorSettings:
    """Kopf's settings: no peering, no scanning, no finalizers; streams that notice their own silence."""
    made = kopf.OperatorSettings()
    made.peering.standalone = True
    made.scanning.disabled = True
    made.posting.enabled = False
    made.posting.level = logging.CRITICAL
    made.networking.connect_timeout = 5
    made.networking.request_timeout = 30
    made.networking.error_backoffs = (0.5, 1, 2, 4, 8)
    made.watching.connect_timeout = 5
    made.watching.server_timeout = 300
    made.watching.client_timeout = 310
    made.watching.inactivity_timeout = 70
    made.watching.reconnect_backoff = 1
    made.watching.chunk_size = 500
    for resource in _LABELLED:
        made.watching.label_selectors[resource.group, resource.version, resource.plural] = OURS
    made.process.ultimate_exiting_timeout = 25
    return made


async def connection(configuration: client.Configuration) -> kopf.ConnectionInfo:
    """The same way to the API server as everybody else's; asked for again when a token has expired."""
    header = await configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
    scheme, _, token = (header or "").partition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        scheme=scheme or None,
        token=token or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        proxy_url=configuration.proxy,
    )
