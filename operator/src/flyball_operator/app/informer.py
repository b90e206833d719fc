"""Keeps what is known of each watched namespace true, and each namespace's trouble to itself.

A namespace that is missing or not granted is not watched, and what was known of it is forgotten. The status of its
services says so where the API server lets us. It is tried again, further and further apart, at most a minute; when it
is back, it is listed and watched as at the start. Whatever else ends a watch or a resync ends the process.

What is known of a namespace that is out is forgotten, because it can no longer be true: a user may have paused the
tuning there. To the tuner its services are then gone, and when they come back it takes over from their status and
engines, as a new leader does. Engines keep their setpoint. An API server that cannot answer is another thing: it says
nothing of the namespace, so what is known is kept, as it is while a watch is silent.

A namespace that another release holds (`kube.namespace_leases`) is watched all the same. Nothing is written there, not
even that it is so: the other release writes the status of its services.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, NoReturn

from flyball_operator.api.log_events import LogEvent, logged
from flyball_operator.api.service_key import Key
from flyball_operator.app import startup
from flyball_operator.app.kopf_glue import Watch, WatchHandlers
from flyball_operator.kube.api import READ_SECONDS, KubeApi
from flyball_operator.kube.errors import ClusterError
from flyball_operator.kube.resources import INFERENCE_SERVICES, WATCHED, Resource
from flyball_operator.reconcile.resync import RETRY_SECONDS, Resyncer, Shared, refuses, titled
from flyball_operator.supervision import EndedError, ended, first

LONGEST_RETRY_SECONDS: Final = 60.0
#: Seconds that a look at a namespace and the wait for the next one take at most: all of its requests may time out.
LOOK_SECONDS: Final = 240.0
#: Namespaces that are looked at or listed at the same time.
PARALLEL: Final = 4

log = logging.getLogger(__name__)


class Informer:
    """Watches and lists one namespace, None for all of them. It is followed where all `resources` are granted."""

    def __init__(
        self,
        api: KubeApi,
        namespace: str | None,
        *,
        shared: Shared,
        watch: Watch,
        gate: asyncio.Semaphore,
        resources: Sequence[Resource] = WATCHED,
    ) -> None:
        self.namespace = namespace
        self.resyncer = Resyncer(api, namespace, shared)
        #: Why it is not watched, None if it is.
        self.why_unwatched: str | None = f"{titled(namespace)} has not been listed yet"
        #: Whether the API server said so, so that its services are to be told.
        self.refused = False
        self._tried = asyncio.Event()
        self._api = api
        self._shared = shared
        self._watch = watch
        self._gate = gate
        self._resources = resources
        self._looked = shared.clock()
        self._following = False

    def standing_still(self, resync_seconds: float, look_seconds: float) -> tuple[str, ...]:
        """What shows no sign of life, and for how long."""
        where, idle = titled(self.namespace), self._shared.clock() - self._looked
        if not self._following:
            return (f"{where}: it has not been tried for {idle:.0f} s",) if idle > look_seconds else ()
        found = [f"{where}: the watch of {silent}" for silent in self._watch.silent()]
        if self.resyncer.idle() > 3 * resync_seconds + 60:
            found.append(f"{where}: nothing has been tried to list for {self.resyncer.idle():.0f} s")
        return tuple(found)

    async def run(self, resync_seconds: float) -> NoReturn:
        """Follow the namespace while it can be, try it again while it cannot. Raises what is no such trouble."""
        tries = ends = 0
        while True:
            self._looked = self._shared.clock()
            entered = await self._enter()
            self._tried.set()
            if entered:
                began, tries = self._shared.clock(), 0
                error = await self._follow(resync_seconds)
                log.warning(
                    "%s: its watch ended: %s",
                    titled(self.namespace),
                    error,
                    extra=logged(LogEvent.WATCH_ENDED, self.namespace),
                )
                ends = ends + 1 if self._shared.clock() - began < LONGEST_RETRY_SECONDS else 1
                # At first at once: it may be out, and that should be known.
                waits = ends - 1
            else:
                waits = tries = tries + 1
            if waits:
                delay = min(LONGEST_RETRY_SECONDS, RETRY_SECONDS * 2.0 ** min(waits - 1, 10))
                await asyncio.sleep(delay * (0.9 + 0.2 * self._shared.jitter()))

    async def refresh(self, concerns: Callable[[str], bool] = lambda _: True) -> bool:
        """List its services anew, as a new leader does. True unless they could not be listed.

        The last leader may have written their status since. What else it wrote is read live before anything is done.

        `concerns`: whether to have the service of a UID looked at. Where it could not be listed, these services are
        forgotten. Those of other shards stay: their leader, which may be this process, tunes them meanwhile.
        """
        await self._tried.wait()
        if self.why_unwatched is not None:
            if self.refused:
                async with self._gate:
                    await self._requeue()
            return True
        try:
            async with self._gate:
                await self.resyncer.resync_services(concerns)
        except ClusterError as error:
            log.warning(
                "%s could not be listed: %s",
                titled(self.namespace),
                error,
                extra=logged(LogEvent.LIST_FAILED, self.namespace),
            )
            self.resyncer.forget_services(concerns)
            self.resyncer.hurry()
            return refuses(error)
        return True

    @property
    def listed(self) -> bool:
        """Whether all services that are looked after are known: none are where the API server refuses it."""
        return self.refused or (self.why_unwatched is None and self.resyncer.listed)

    def give_up(self) -> None:
        """Forget what is known of it: it is to be watched no more."""
        self.why_unwatched, self.refused = f"{titled(self.namespace)} is not selected", False
        self.resyncer.forget()
        # Whoever waits for its first look waits no more.
        self._tried.set()

    async def _enter(self) -> bool:
        """Whether it can be followed now. Where the API server cannot say, it stays in or out as it is."""
        try:
            async with self._gate:
                if lacking := await startup.lacking(self._api, self.namespace, self._resources):
                    await self._leave(startup.summary(lacking))
                    return False
                await self.resyncer.resync()
        except ClusterError as error:
            if refuses(error):
                await self._leave(str(error))
            elif self.why_unwatched is not None:
                self.why_unwatched = f"the API server cannot be asked: {error}"
            return False
        if self.why_unwatched is not None:
            self.why_unwatched, self.refused = None, False
            log.info("%s is watched", titled(self.namespace), extra=logged(LogEvent.NAMESPACE_WATCHED, self.namespace))
            self.resyncer.look_at_all(at_once=True)
        return True

    async def _leave(self, reason: str) -> None:
        if reason != self.why_unwatched:
            log.warning(
                "%s is not watched: %s",
                titled(self.namespace),
                reason,
                extra=logged(LogEvent.NAMESPACE_NOT_WATCHED, self.namespace),
            )
        self.why_unwatched, self.refused = reason, True
        self.resyncer.forget()
        await self._requeue()

    async def _requeue(self) -> None:
        """Queue its services, as far as they can be listed: their status shall say that it is not watched."""
        try:
            services, _ = await self._api.list(INFERENCE_SERVICES, self.namespace)
        except ClusterError:
            return
        for found in services:
            metadata = found["metadata"]
            self._shared.queue.add(Key(metadata["namespace"], metadata["name"], metadata["uid"]))

    async def _follow(self, resync_seconds: float) -> ClusterError:
        """Watch and resync until an answer of the API server ends one of them. Raises what else does."""
        watcher = WatchHandlers(self._shared.cache, self._shared.queue)
        tasks = (
            asyncio.create_task(self._watch.run(watcher), name="watch"),
            asyncio.create_task(self.resyncer.run(resync_seconds), name="resync"),
        )
        self._following = True
        try:
            task = await first(tasks)
        finally:
            self._following = False
            self._looked = self._shared.clock()
            watcher.end()
            for one in tasks:
                one.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, ClusterError):
            return error
        raise error or EndedError(f"{titled(self.namespace)}: ended unasked: {task.get_name()}")


class Informers:
    """Those of all watched namespaces, which may come and go.

    `namespaces`: None while it is not known which these are. `why_not_held`: why this release does not act in one,
    empty if it does.
    """

    def __init__(
        self,
        made: Callable[[str | None], Informer],
        namespaces: Collection[str | None] | None,
        *,
        why_not_held: Callable[[str], str] = lambda _: "",
    ) -> None:
        self._made = made
        self._why_not_held = why_not_held
        self._all: dict[str | None, Informer] = {}
        self._known = asyncio.Event()
        self._changed = asyncio.Event()
        if namespaces is not None:
            self.cover(namespaces)

    def __iter__(self) -> Iterator[Informer]:
        return iter(list(self._all.values()))

    def cover(self, namespaces: Collection[str | None]) -> None:
        """Have these namespaces watched and no others. What is known of others is forgotten."""
        for gone in [namespace for namespace in self._all if namespace not in namespaces]:
            self._all.pop(gone).give_up()
            log.info(
                "%s is looked after no more: it is not selected",
                titled(gone),
                extra=logged(LogEvent.NAMESPACE_DESELECTED, gone),
            )
        for namespace in namespaces:
            if namespace not in self._all:
                self._all[namespace] = self._made(namespace)
        self._known.set()
        self._changed.set()

    async def run(self, resync_seconds: float) -> NoReturn:
        """Run all there are, and those that come. Raises what one of them raises."""
        running: dict[asyncio.Task[NoReturn], Informer] = {}
        leaving: set[asyncio.Task[NoReturn]] = set()
        try:
            while True:
                self._changed.clear()
                for task, informer in running.items():
                    if task not in leaving and self._all.get(informer.namespace) is not informer:
                        leaving.add(task)
                        task.cancel()
                # One of a namespace that comes back waits for the end of the one before, which forgets what it knew.
                busy = {informer.namespace for informer in running.values()}
                for informer in self:
                    if informer.namespace not in busy:
                        name = f"informer of {titled(informer.namespace)}"
                        running[asyncio.create_task(informer.run(resync_seconds), name=name)] = informer
                await self._until_changed(running)
                for task in [task for task in running if task.done()]:
                    informer = running.pop(task)
                    if task in leaving:
                        leaving.discard(task)
                        informer.resyncer.forget()
                        await asyncio.gather(task, return_exceptions=True)
                    elif task.cancelled():
                        raise EndedError(ended([task]))
                    else:
                        await task
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _until_changed(self, running: Collection[asyncio.Task[NoReturn]]) -> None:
        """Return once other namespaces are to be watched, or one of the informers has ended."""
        changed = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait([changed, *running], return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()

    def why_unwatched(self, namespace: str) -> str | None:
        """Why a namespace is out, None if it is not; empty while that is not known, or it is not selected."""
        informer = self._of(namespace)
        if informer is None:
            return ""
        return informer.why_unwatched if informer.why_unwatched is None or informer.refused else ""

    async def take_over(self, namespace: str) -> None:
        """List a namespace where another release acted. Raises `ClusterError`, and what `Resyncer.resync` does."""
        informer = self._of(namespace)
        if informer is not None and informer.why_unwatched is None:
            await informer.resyncer.resync()

    def _of(self, namespace: str) -> Informer | None:
        return self._all.get(namespace) or self._all.get(None)

    def why_left(self, informer: Informer) -> str | None:
        """Why nobody of this release looks after what an informer covers, None if it does."""
        if informer.why_unwatched is not None or informer.namespace is None:
            return informer.why_unwatched
        return self._why_not_held(informer.namespace) or None

    @property
    def missing(self) -> tuple[str, ...]:
        """Why none of them is looked after; empty if one is, or none is to be."""
        if not self._known.is_set():
            return ("the namespaces have not been listed yet",)
        reasons = [why for informer in self if (why := self.why_left(informer)) is not None]
        return tuple(reasons) if len(reasons) == len(self._all) else ()

    @property
    def listed(self) -> bool:
        """Whether all services that are looked after are known, in all namespaces."""
        return self._known.is_set() and all(informer.listed for informer in self)

    def age(self) -> float:
        """Seconds since the namespace that was listed longest ago was listed, of those that are watched."""
        return max((informer.resyncer.age() for informer in self if informer.why_unwatched is None), default=0.0)

    def standing_still(self, resync_seconds: float) -> tuple[str, ...]:
        """What shows no sign of life, in any namespace."""
        look = self._look_seconds
        return tuple(message for informer in self for message in informer.standing_still(resync_seconds, look))

    @property
    def _look_seconds(self) -> float:
        """Seconds that a look at any namespace takes at most, with all the others before it."""
        return LOOK_SECONDS + 2 * READ_SECONDS * len(self._all) / PARALLEL

    @property
    def refresh_seconds(self) -> float:
        """Seconds that a round of `refresh` takes at most: it waits for the first look at each, and then lists each."""
        return 2 * self._look_seconds

    async def refresh(
        self, begins: Callable[[], None] = lambda: None, concerns: Callable[[str], bool] = lambda _: True
    ) -> None:
        """List the services of all that can be listed anew; again and again while the API server lists none.

        `begins`: called in each round. `concerns`: whether to have the service of a UID looked at.
        """
        await self._known.wait()
        while True:
            begins()
            if not self._all or any(await asyncio.gather(*(informer.refresh(concerns) for informer in self))):
                return
            await asyncio.sleep(RETRY_SECONDS)
