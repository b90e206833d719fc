"""kopf: it connects, watches and ends cleanly. Its handlers only feed the cache and put keys into our queue.

No indices, timers, daemons or change handlers: they keep ghosts, write annotations and finalizers, and coalesce
nothing. What a handler misses, the next list finds.

`kopf.run_tasks` is not used: when one of kopf's tasks ends it cancels every other task of the loop, ours too. Here
kopf's own tasks are awaited, and they alone are ended.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, NoReturn

import aiohttp
import kopf
from kubernetes.aio import client
from pydantic_core import from_json

from flyball_operator.api import names
from flyball_operator.api.log_events import LogEvent, logged
from flyball_operator.api.objects import Object, version_of
from flyball_operator.api.service_key import Key
from flyball_operator.kube.api import PAGE
from flyball_operator.kube.cache import Cache
from flyball_operator.kube.configuration import UNCOMPRESSED
from flyball_operator.kube.errors import UnauthorizedError, UnavailableError, of_status
from flyball_operator.kube.resources import (
    DEPLOYMENTS,
    INFERENCE_SERVICES,
    PODS,
    REPLICA_SETS,
    Resource,
    labelled,
    selector,
)
from flyball_operator.reconcile.queue import Keys
from flyball_operator.supervision import EndedError, ended, first

#: Seconds that kopf's tasks get to end. Its workers take two at most.
END_SECONDS: Final = 4.0
#: Seconds beyond a stream's own time-out in which a watch must have asked again: kopf's backoffs, or a server's
#: `Retry-After`.
SPARE_SECONDS: Final = 120.0
#: Seconds that kopf keeps the task of an object after an event, and with it that event whole: of the first list, all
#: pods that were handled in that time. With kopf's own 5 s an operator of 150 services had 188 MiB, with this 153.
IDLE_SECONDS: Final = 0.2

log = logging.getLogger(__name__)


class Watch:
    """The watches of one namespace, None for all: what they see goes to the `WatchHandlers`.

    `listen` puts our signal handlers back, which kopf takes over as it starts, and would end by. `network_policies`:
    whether these are watched too.
    """

    def __init__(
        self,
        namespace: str | None,
        *,
        configuration: client.Configuration,
        instance: str,
        clock: Callable[[], float],
        listen: Callable[[], None],
        network_policies: bool = False,
    ) -> None:
        self._namespace = namespace
        self._configuration = configuration
        self._instance = instance
        self._clock = clock
        self._listen = listen
        self._labelled = labelled(network_policies=network_policies)
        self._heard: dict[str, float] = {}
        self._streams: set[asyncio.Task[Any]] = set()

    def silent(self) -> tuple[str, ...]:
        """Kinds whose watch stands still; none while it does not run.

        A stream ends after `client_timeout` at the latest, whatever the server does, and then the next request is made.
        So the age of the last request has a bound, while the API server is away, too.
        """
        limit = float(settings().watching.client_timeout or 0.0) + SPARE_SECONDS
        now = self._clock()
        return tuple(f"{kind} for {now - at:.0f} s" for kind, at in self._heard.items() if now - at > limit)

    async def run(self, watcher: WatchHandlers) -> NoReturn:
        """Watch for ever. Raises `ClusterError` where an answer of the API server ends it, and what else does."""
        stop = asyncio.Event()
        sessions = Sessions(self._configuration, self._trace())
        self._heard = dict.fromkeys(_kinds(self._labelled), self._clock())
        # A task of its own: cancelled in its midst, kopf would leave the tasks that it has begun to run.
        spawning = asyncio.create_task(self._spawn(watcher, sessions, stop))
        try:
            await first(tasks := await asyncio.shield(spawning))
            done = [task for task in tasks if task.done()]
        finally:
            self._heard = {}
            # Before the tasks are cancelled: else kopf sets a timer that kills the process.
            stop.set()
            # Where one stream fails, kopf leaves the others to run.
            await _end({*await spawning, *self._streams})
            self._streams.clear()
            await sessions.close()
        raise _cause(done)

    async def _spawn(
        self, watcher: WatchHandlers, sessions: Sessions, stop: asyncio.Event
    ) -> Collection[asyncio.Task[Any]]:
        tasks: Collection[asyncio.Task[Any]] = await kopf.spawn_tasks(
            registry=registry(watcher, sessions.connect, self._labelled),
            settings=settings(self._labelled),
            clusterwide=self._namespace is None,
            namespaces=[self._namespace] if self._namespace is not None else [],
            # Named, since kopf would look the user up, and an unprivileged uid has no entry in the image.
            identity=self._instance,  # type: ignore[arg-type]  # a NewType of str that kopf does not export
            stop_flag=stop,
        )
        # In the same turn of the loop, so that no signal finds kopf's.
        self._listen()
        return tasks

    def _trace(self) -> aiohttp.TraceConfig:
        async def heard(_session: aiohttp.ClientSession, _context: SimpleNamespace, request: Any) -> None:
            kind = request.url.path.rsplit("/", 1)[-1]
            stream = asyncio.current_task()
            if kind in self._heard and stream is not None:
                self._heard[kind] = self._clock()
                self._streams.add(stream)

        trace = aiohttp.TraceConfig()
        trace.on_request_start.append(heard)
        return trace


async def _end(tasks: Collection[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    done, pending = await asyncio.wait(tasks, timeout=END_SECONDS)
    for task in done:
        if not task.cancelled():
            # Looked at, or else it would be logged: one cause is enough.
            task.exception()
    if pending:
        log.warning(
            "kopf has not ended after %g s: %s",
            END_SECONDS,
            ", ".join(sorted(t.get_name() for t in pending)),
            extra=logged(LogEvent.SHUTDOWN_SLOW),
        )


def _cause(done: Collection[asyncio.Task[Any]]) -> Exception:
    """Why kopf ended: what the API server answers, or that it cannot be reached, is to be told from a bug.

    Errors of kopf's HTTP client have a status. An answer of 401 is not among them: kopf asks for a token, gets the one
    that was refused, and says that it has none.
    """
    for task in done:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, kopf.LoginError):
            return UnauthorizedError(f"the API server does not take the token: {error.__cause__ or 'HTTP 401'}")
        if isinstance(error, Exception):
            status = getattr(error, "status", None)
            if isinstance(status, int):
                return of_status(status, str(error.args[0] if error.args else error))
            # An ERROR that is sent in a watch: whatever its code, the namespace is looked at and listed anew. kopf
            # exports no name for it.
            sent = type(error).__name__ == "WatchingError"
            if sent or isinstance(error, (aiohttp.ClientError, TimeoutError, OSError)):
                return UnavailableError(f"{type(error).__name__}: {error}")
            return error
    return EndedError(f"kopf {ended(done)}")


_LABELLED: Final = labelled(network_policies=False)


def _kinds(resources: Collection[Resource]) -> tuple[str, ...]:
    """As the API server's paths name them."""
    return (INFERENCE_SERVICES.plural, *(resource.plural for resource in resources))


class WatchHandlers:
    """What watch events do."""

    def __init__(self, cache: Cache, queue: Keys[Key]) -> None:
        self._cache = cache
        self._queue = queue
        self._ended = False

    def end(self) -> None:
        """Take no more events: one that is still on its way must not bring back what is forgotten."""
        self._ended = True

    def service(self, event: Mapping[str, Any]) -> None:
        """A service changed: a new generation ends every wait for it."""
        if self._ended:
            return
        found: Object = event["object"]
        metadata = found["metadata"]
        entry = self._cache.services.entry(metadata["uid"])
        if entry is not None and entry.version == version_of(found) > 0 and event["type"] != "DELETED":
            # Whoever listed it before the watch began had it looked at.
            return
        known = entry.value if entry is not None else None
        seen = self._cache.observe_service(found, deleted=event["type"] == "DELETED")
        key = Key(metadata["namespace"], metadata["name"], metadata["uid"])
        if known is None or seen is None or known.meta.generation != seen.meta.generation:
            self._queue.urge(key)
        else:
            self._queue.add(key)

    def owned(self, resource: Resource, event: Mapping[str, Any]) -> None:
        """Something of a service changed."""
        if self._ended:
            return
        self._cache.versions.observe(resource, event["object"], deleted=event["type"] == "DELETED")
        self._look_at_owner(event)

    def _look_at_owner(self, event: Mapping[str, Any]) -> None:
        metadata = event["object"]["metadata"]
        labels = metadata.get("labels") or {}
        if name := labels.get(names.LABEL_SERVICE):
            # Of an earlier service of the name, it may be what the present one waits for.
            uid = labels.get(names.LABEL_SERVICE_UID, "")
            known = self._cache.services.get(uid) is not None
            self._queue.add(Key(metadata["namespace"], name, uid if known else ""))

    def deployment(self, event: Mapping[str, Any]) -> None:
        """A Deployment of a service changed."""
        if self._ended:
            return
        self._cache.observe_deployment(event["object"], deleted=event["type"] == "DELETED")
        self._look_at_owner(event)

    def replica_set(self, event: Mapping[str, Any]) -> None:
        """What lies between a Deployment and its pods changed. What the reconciler looks at changes with its pods."""
        if self._ended:
            return
        self._cache.observe_replica_set(event["object"], deleted=event["type"] == "DELETED")

    def pod(self, event: Mapping[str, Any]) -> None:
        """A pod of a service changed."""
        if self._ended:
            return
        self._cache.observe_pod(event["object"], deleted=event["type"] == "DELETED")
        self._look_at_owner(event)


def registry(
    watcher: WatchHandlers, connection: Callable[[], Any], labelled: Collection[Resource]
) -> kopf.OperatorRegistry:
    """Kopf's handlers."""
    made = kopf.OperatorRegistry()

    async def log_in(**_: Any) -> kopf.ConnectionInfo:
        return await connection()  # type: ignore[no-any-return]

    kopf.on.login(registry=made)(log_in)
    _handle(made, INFERENCE_SERVICES, watcher.service)
    known = {DEPLOYMENTS: watcher.deployment, REPLICA_SETS: watcher.replica_set, PODS: watcher.pod}
    for resource in labelled:
        _handle(made, resource, known.get(resource) or partial(watcher.owned, resource))
    return made


def _handle(made: kopf.OperatorRegistry, resource: Resource, act: Callable[[Mapping[str, Any]], None]) -> None:
    async def handler(event: Mapping[str, Any], **_: Any) -> None:
        act(event)

    kopf.on.event(resource.group, resource.version, resource.plural, registry=made, id=resource.plural)(handler)


class _NothingKept(kopf.DiffBaseStorage):
    """Kopf's memory of what handlers saw of an object, which ours need not: else each event costs two deep copies."""

    def build(self, **_: Any) -> Any:
        """The same for all objects."""
        return {}

    def fetch(self, **_: Any) -> None:
        """Nothing was kept."""

    def store(self, **_: Any) -> None:
        """Nothing is kept."""


def settings(labelled: Collection[Resource] = _LABELLED) -> kopf.OperatorSettings:
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
    made.watching.chunk_size = PAGE
    made.persistence.diffbase_storage = _NothingKept()
    for resource in labelled:
        made.watching.label_selectors[resource.group, resource.version, resource.plural] = selector(resource)
    # Handlers take no time; what they have not seen the next list finds.
    made.queueing.exit_timeout = 0.5
    made.queueing.idle_timeout = IDLE_SECONDS
    # It would kill the process; we end kopf ourselves.
    made.process.ultimate_exiting_timeout = None
    return made


class _Response(aiohttp.ClientResponse):
    """Lists are read by pydantic's parser of JSON: of 5,000 pods Python's own takes three times as long."""

    async def json(self, **how: Any) -> Any:
        """The body. Raises Python's error where it is no JSON, which kopf knows."""
        return await super().json(loads=_parsed, **how)


def _parsed(text: str) -> Any:
    try:
        return from_json(text)
    except ValueError:
        return json.loads(text)


class Sessions:
    """kopf's way to the API server, the same as everybody else's; asked for again when a token has expired.

    A session is made here and not by kopf, so that its requests can be traced.
    """

    def __init__(self, configuration: client.Configuration, trace: aiohttp.TraceConfig) -> None:
        self._configuration = configuration
        self._trace = trace
        self._made: tuple[str, kopf.AiohttpSession] | None = None

    async def connect(self) -> kopf.AiohttpSession:
        """A session; the same again where the token is the same, by which kopf knows that it was refused before."""
        configuration = self._configuration
        header = await configuration.get_api_key_with_prefix("BearerToken", alias="authorization") or ""
        if self._made is not None and self._made[0] == header:
            return self._made[1]
        scheme, _, token = header.partition(" ")
        way = kopf.ConnectionInfo(
            server=configuration.host,
            ca_path=configuration.ssl_ca_cert,
            insecure=not configuration.verify_ssl,
            scheme=scheme or None,
            token=token or None,
            certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
        )
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=way.as_ssl_context()),
            headers={**UNCOMPRESSED, **way.as_http_headers()},
            proxy=configuration.proxy,
            response_class=_Response,
            trace_configs=[self._trace],
        )
        self._made = (header, kopf.AiohttpSession(server=configuration.host, aiohttp_session=session))
        return self._made[1]

    async def close(self) -> None:
        """Close the last one; kopf closes those it has dropped."""
        if self._made is not None:
            await self._made[1].aiohttp_session.close()
