"""The cluster in memory as a running operator sees it: watches, lists and the queue between them and the reconciler."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Any, cast

from flyball_operator.api.service_key import Key
from flyball_operator.app.kopf_glue import WatchHandlers
from flyball_operator.kube.api import KubeApi
from flyball_operator.kube.resources import (
    DEPLOYMENTS,
    INFERENCE_SERVICES,
    PODS,
    REPLICA_SETS,
    Resource,
    labelled,
)
from flyball_operator.reconcile.metrics import Metrics
from flyball_operator.reconcile.queue import KeyQueue
from flyball_operator.reconcile.resync import Resyncer, Shared
from support.memory_api import Object
from support.memory_cluster import NAMESPACE, MemoryCluster, service

#: Far beyond what the reconciler waits for by itself while nothing is wrong.
_QUIET_SECONDS = 120.0


class WatchedCluster(MemoryCluster):
    """Services that serve, and have been looked at. The queue's clock is the cluster's."""

    def __init__(self, services: int = 1, **changes: Any) -> None:
        super().__init__()
        self.queue: KeyQueue[Key] = KeyQueue(clock=self._clock, jitter=lambda: 0.5)
        self.watches = WatchHandlers(self.cache, self.queue)
        shared = Shared(cache=self.cache, queue=self.queue, metrics=Metrics(), clock=self._clock, jitter=lambda: 0.5)
        self.resyncer = Resyncer(cast("KubeApi", self.api), NAMESPACE, shared)
        self._seen: dict[tuple[str, str, str], Object] = {}
        for number in range(services):
            self.api.put(INFERENCE_SERVICES, service(f"chat-{number}", **changes))
        self.run()
        # What is held back for a minute is due.
        self.now_passes(_QUIET_SECONDS)
        self.run()
        for number in range(services):
            assert self.condition("Ready", f"chat-{number}") == ("True", "Serving")

    def _clock(self) -> float:
        return self.now.timestamp()

    def now_passes(self, seconds: float) -> None:
        """Let time pass, and nothing happen."""
        self.now = self.now.fromtimestamp(self.now.timestamp() + seconds, self.now.tzinfo)

    def run(self) -> None:
        """Let operator and controllers act on what watches show until nothing changes."""
        for _ in range(30):
            before = self._versions()
            self.show()
            self.work()
            self.controllers()
            if self._versions() == before:
                self.show()
                self.work()
                return
        raise AssertionError("the cluster did not settle")

    def show(self) -> None:
        """Let watches show what has changed since they last did."""
        handlers = {
            INFERENCE_SERVICES: self.watches.service,
            DEPLOYMENTS: self.watches.deployment,
            REPLICA_SETS: self.watches.replica_set,
            PODS: self.watches.pod,
        }
        for resource in (INFERENCE_SERVICES, *labelled(network_policies=False)):
            act = handlers.get(resource) or partial(self.watches.owned, resource)
            for kind, found in self._changes(resource):
                act({"type": kind, "object": found})

    def miss(self) -> None:
        """Let watches miss what has changed since they last showed anything."""
        for resource in (INFERENCE_SERVICES, *labelled(network_policies=False)):
            self._changes(resource)

    def _changes(self, resource: Resource) -> list[tuple[str, Object]]:
        there = {key: found for key, found in self.api.objects.items() if key[0] == resource.plural}
        known = {key: found for key, found in self._seen.items() if key[0] == resource.plural}
        gone = [
            ("DELETED", found) for key, found in known.items() if key not in there or _uid(there[key]) != _uid(found)
        ]
        changed = [("MODIFIED", found) for key, found in there.items() if known.get(key) is not found]
        self._seen = {key: found for key, found in self._seen.items() if key[0] != resource.plural} | there
        return [*gone, *changed]

    def work(self) -> None:
        """Let workers do all that is due."""
        while (key := self.queue._schedule.take(self._clock())) is not None:
            asyncio.run(self.reconciler._work_on(key, self.queue))
            self.queue.done(key)

    def resync(self) -> None:
        """Let the operator list everything, and do what it then finds to do."""
        asyncio.run(self.resyncer.resync())
        self.work()

    def counted(self) -> tuple[Counter[tuple[str, str]], int]:
        """Reads and writes since this was last asked for."""
        reads, writes = self.api.reads.copy(), self.api.writes
        self.api.reads.clear()
        self.api.writes = 0
        return reads, writes


def _uid(found: Object) -> str:
    return str(found["metadata"]["uid"])
