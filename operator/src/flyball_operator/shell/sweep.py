"""Lists everything now and then: what watches missed is found, ghosts vanish, and every service is looked at again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from flyball_operator.cluster.api import KubeApi
from flyball_operator.cluster.cache import Cache
from flyball_operator.cluster.errors import ClusterError
from flyball_operator.cluster.reader import Key
from flyball_operator.cluster.resources import INFERENCE_SERVICES, PODS, Resource
from flyball_operator.plan.objects import Object
from flyball_operator.shell.kopf_glue import OURS
from flyball_operator.shell.queue import KeyQueue
from flyball_operator.shell.telemetry import Metrics

_RETRY_SECONDS = 5.0

log = logging.getLogger(__name__)


class Sweeper:
    """Keeps the cache true and the queue filled."""

    def __init__(
        self,
        api: KubeApi,
        *,
        watched: Sequence[str | None],
        cache: Cache,
        queue: KeyQueue[Key],
        metrics: Metrics,
        clock: Callable[[], float],
        jitter: Callable[[], float],
    ) -> None:
        self._api = api
        self._watched = watched
        self._cache = cache
        self._queue = queue
        self._metrics = metrics
        self._clock = clock
        self._jitter = jitter
        self._last: float | None = None
        self._tried: float | None = None
        self._sweeping = asyncio.Lock()
        self.synced = asyncio.Event()

    def age(self) -> float:
        """Seconds since the last whole sweep; 0 before the first."""
        return 0.0 if self._last is None else self._clock() - self._last

    def idle(self) -> float:
        """Seconds since a sweep last began; 0 before the first. An API server that is away leaves it small."""
        return 0.0 if self._tried is None else self._clock() - self._tried

    async def run(self, every: float) -> None:
        """Sweep for ever, every so many seconds ± 10 %."""
        while True:
            await self.until_swept()
            await asyncio.sleep(every * (0.9 + 0.2 * self._jitter()))

    async def until_swept(self) -> None:
        """Sweep, again and again until the API server lets us."""
        while True:
            self._tried = self._clock()
            try:
                async with self._sweeping:
                    await self.sweep()
            except ClusterError as error:
                log.warning("the services could not be listed: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return

    async def sweep(self) -> None:
        """List services and pods, replace the cache, and have every service looked at. Raises `ClusterError`."""
        services, version = await self._list(INFERENCE_SERVICES, "")
        missed = self._cache.replace_services(services, version)
        pods, version = await self._list(PODS, OURS)
        missed_pods = self._cache.replace_pods(pods, version)
        if self.synced.is_set():
            self._metrics.missed("InferenceService", missed)
            self._metrics.missed("Pod", missed_pods)
        self.look_at_all()
        self._last = self._clock()
        self.synced.set()

    def look_at_all(self) -> None:
        """Have every known service looked at."""
        for desire in self._cache.services:
            self._queue.add(Key(desire.meta.namespace, desire.meta.name))

    async def _list(self, resource: Resource, selector: str) -> tuple[list[Object], int]:
        """All objects, and the oldest version among the lists of the namespaces."""
        found: list[Object] = []
        versions: list[int] = []
        for namespace in self._watched:
            items, version = await self._api.list(resource, namespace, selector=selector)
            found += items
            versions.append(int(version or 0))
        return found, min(versions, default=0)
