"""kopf's watches of one namespace, as a part of ours that may end without ending anything else.

`kopf.run_tasks` is not used: when one of kopf's tasks ends it cancels every other task of the loop, ours too. Here
kopf's own tasks are awaited, and they alone are ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any, Final, NoReturn

import aiohttp
import kopf
from kubernetes.aio import client

from flyball_operator.app import kopf_glue
from flyball_operator.kube.errors import UnauthorizedError, UnavailableError, of_status
from flyball_operator.supervision import EndedError, ended, first

#: Seconds that kopf's tasks get to end. Its workers take two at most.
END_SECONDS: Final = 4.0
#: Seconds beyond a stream's own time-out in which a watch must have asked again: kopf's backoffs, or a server's
#: `Retry-After`.
SPARE_SECONDS: Final = 120.0

log = logging.getLogger(__name__)


class Watch:
    """The watches of one namespace, None for all: what they see goes to the `WatchHandlers`.

    `listen` puts our signal handlers back, which kopf takes over as it starts, and would end by.
    """

    def __init__(
        self,
        namespace: str | None,
        *,
        configuration: client.Configuration,
        instance: str,
        clock: Callable[[], float],
        listen: Callable[[], None],
    ) -> None:
        self._namespace = namespace
        self._configuration = configuration
        self._instance = instance
        self._clock = clock
        self._listen = listen
        self._heard: dict[str, float] = {}
        self._streams: set[asyncio.Task[Any]] = set()

    def silent(self) -> tuple[str, ...]:
        """Kinds whose watch stands still; none while it does not run.

        A stream ends after `client_timeout` at the latest, whatever the server does, and then the next request is made.
        So the age of the last request has a bound, while the API server is away, too.
        """
        limit = float(kopf_glue.settings().watching.client_timeout or 0.0) + SPARE_SECONDS
        now = self._clock()
        return tuple(f"{kind} for {now - at:.0f} s" for kind, at in self._heard.items() if now - at > limit)

    async def run(self, watcher: kopf_glue.WatchHandlers) -> NoReturn:
        """Watch for ever. Raises `ClusterError` where an answer of the API server ends it, and what else does."""
        stop = asyncio.Event()
        sessions = kopf_glue.Sessions(self._configuration, self._trace())
        self._heard = dict.fromkeys(kopf_glue.WATCHED_KINDS, self._clock())
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
        self, watcher: kopf_glue.WatchHandlers, sessions: kopf_glue.Sessions, stop: asyncio.Event
    ) -> Collection[asyncio.Task[Any]]:
        tasks: Collection[asyncio.Task[Any]] = await kopf.spawn_tasks(
            registry=kopf_glue.registry(watcher, sessions.connect),
            settings=kopf_glue.settings(),
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
        log.warning("kopf has not ended after %g s: %s", END_SECONDS, ", ".join(sorted(t.get_name() for t in pending)))


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
            if isinstance(error, (aiohttp.ClientError, TimeoutError, OSError)):
                return UnavailableError(f"{type(error).__name__}: {error}")
            return error
    return EndedError(f"kopf {ended(done)}")
