"""Lists one namespace now and then: what watches missed is found, ghosts vanish, every service is looked at again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NoReturn

from flyball_operator.api.log_events import LogEvent, logged
from flyball_operator.api.objects import Object
from flyball_operator.api.service_key import Key
from flyball_operator.api.shards import Shard
from flyball_operator.kube.api import KubeApi
from flyball_operator.kube.cache import Cache, metadata_part, pod_part, service_part
from flyball_operator.kube.epochs import highest_of
from flyball_operator.kube.errors import ClusterError, ForbiddenError, NotFoundError, UnauthorizedError
from flyball_operator.kube.resources import (
    DEPLOYMENTS,
    INFERENCE_SERVICES,
    PODS,
    REPLICA_SETS,
    Resource,
    labelled,
    selector,
)
from flyball_operator.reconcile.metrics import Metrics
from flyball_operator.reconcile.queue import Keys

RETRY_SECONDS: Final = 5.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shared:
    """What the lists of all namespaces share.

    `epochs`: of our leadership in each shard, 0 while not leading. `led_after`: told a shard, and why, where a status
    shows that somebody led in it after us. `foreign`: namespaces that other releases look after. `labelled`: kinds of
    objects that services have.
    """

    cache: Cache
    queue: Keys[Key]
    metrics: Metrics
    clock: Callable[[], float]
    jitter: Callable[[], float]
    epochs: Callable[[], Mapping[Shard, int]] = dict
    led_after: Callable[[Shard, str], None] = lambda *_: None
    foreign: Callable[[], Collection[str]] = lambda: ()
    labelled: Sequence[Resource] = field(default_factory=lambda: labelled(network_policies=False))


def refuses(error: ClusterError) -> bool:
    """Whether the API server says that a namespace is not there for us, and not that it cannot answer."""
    return isinstance(error, (ForbiddenError, NotFoundError)) and not isinstance(error, UnauthorizedError)


class Resyncer:
    """Keeps the cache true and the queue filled, in one namespace; None is all of them."""

    def __init__(self, api: KubeApi, namespace: str | None, shared: Shared) -> None:
        self._api = api
        self._namespace = namespace
        self._shared = shared
        self._last: float | None = None
        self._tried = shared.clock()
        self._sweeping = asyncio.Lock()
        self._soon = asyncio.Event()

    def age(self) -> float:
        """Seconds since the last resync; 0 before the first."""
        return 0.0 if self._last is None else self._shared.clock() - self._last

    def idle(self) -> float:
        """Seconds since a resync last began. An API server that is away leaves it small."""
        return self._shared.clock() - self._tried

    async def run(self, every: float) -> NoReturn:
        """List for ever, every so many seconds ± 10 %. Raises the `ClusterError` that refuses it."""
        while True:
            self._soon.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._soon.wait(), every * (0.9 + 0.2 * self._shared.jitter()))
            while True:
                if await self._try():
                    break
                await asyncio.sleep(RETRY_SECONDS)

    def hurry(self) -> None:
        """List now."""
        self._soon.set()

    async def _try(self) -> bool:
        """One resync. True if it succeeded; raises the `ClusterError` that refuses it."""
        try:
            await self.resync()
        except ClusterError as error:
            if refuses(error):
                raise
            log.warning(
                "%s could not be listed: %s",
                titled(self._namespace),
                error,
                extra=logged(LogEvent.LIST_FAILED, self._namespace),
            )
            return False
        return True

    async def resync(self) -> None:
        """List services and what they have, replace the cache, and have every service looked at.

        Raises `ClusterError`.
        """
        self._tried = self._shared.clock()
        async with self._sweeping:
            metrics = self._shared.metrics
            missed = await self._list_services()
            missed_pods = 0
            for kind in self._shared.labelled:
                missed_pods += await self._list(kind)
            if self._last is not None:
                metrics.missed("InferenceService", missed)
                metrics.missed("Pod", missed_pods)
            self._look_at(self._shared.queue.add)
            self._last = self._shared.clock()

    async def resync_services(self, concerns: Callable[[str], bool]) -> None:
        """List the services alone, and have those of UIDs that `concerns` has looked at. Raises `ClusterError`.

        Of others those that have changed, too: a watch that tells of them later tells of nothing new.
        """
        async with self._sweeping:
            before = {uid: entry.version for uid, entry in self._shared.cache.services.entries()}
            await self._list_services()
            changed = {uid for uid, one in self._shared.cache.services.entries() if before.get(uid) != one.version}
            self._look_at(self._shared.queue.add, lambda uid: concerns(uid) or uid in changed)

    async def _list_services(self) -> int:
        """List the services. Returns how many were missed before."""
        services, version = await self._api.list(INFERENCE_SERVICES, self._namespace, part=service_part)
        self._check_epoch(services)
        return self._shared.cache.replace_services(services, int(version or 0), namespace=self._namespace)

    async def _list(self, kind: Resource) -> int:
        """List a kind. Returns how many pods were missed before."""
        cache, namespace = self._shared.cache, self._namespace
        pods, chosen = kind is PODS, selector(kind)
        part = pod_part if pods else metadata_part
        found, text = await self._api.list(kind, namespace, selector=chosen, metadata_only=not pods, part=part)
        version = int(text or 0)
        if pods:
            return cache.replace_pods(found, version, namespace=namespace)
        if kind is DEPLOYMENTS:
            cache.replace_deployments(found, version, namespace=namespace)
        elif kind is REPLICA_SETS:
            cache.replace_replica_sets(found, version, namespace=namespace)
        else:
            cache.versions.replace(kind, found, version, namespace)
        return 0

    @property
    def listed(self) -> bool:
        """Whether all services are known: nothing was forgotten since the last list."""
        return self._last is not None

    def forget_services(self, concerns: Callable[[str], bool]) -> None:
        """Drop the services whose UIDs `concerns` has: they could not be listed for a new leader."""
        self._last = None
        self._shared.cache.forget_services(self._namespace, concerns)

    def forget(self) -> None:
        """Drop what is known of the namespace: what happens there can be seen no more."""
        self._last = None
        self._shared.cache.forget(self._namespace)

    def look_at_all(self, *, at_once: bool = False) -> None:
        """Have every known service looked at; `at_once`: also those that wait because a look failed."""
        self._look_at(self._shared.queue.urge if at_once else self._shared.queue.add)

    def _look_at(self, look: Callable[[Key], None], concerns: Callable[[str], bool] = lambda _: True) -> None:
        for desire in self._shared.cache.services:
            if self._namespace in (None, desire.meta.namespace) and concerns(desire.meta.uid):
                look(Key(desire.meta.namespace, desire.meta.name, desire.meta.uid))

    def _check_epoch(self, services: Sequence[Object]) -> None:
        # Leaders of other releases count epochs of their own.
        foreign = set(self._shared.foreign())
        counted = [one for one in services if one["metadata"]["namespace"] not in foreign]
        for shard, ours in self._shared.epochs().items():
            found = highest_of((one for one in counted if shard.has(one["metadata"]["uid"])), ours)
            if 0 < ours < found:
                self._shared.led_after(
                    shard,
                    f"a status in {titled(self._namespace)} has epoch {found}, ours is {ours}: somebody led after us",
                )


def titled(namespace: str | None) -> str:
    """A watched namespace in a sentence."""
    return f"namespace {namespace}" if namespace is not None else "the whole cluster"
