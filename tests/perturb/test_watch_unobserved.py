"""Watch events get lost, come twice or come late: after the next list everything is as it is, and is looked at."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from flyball_operator.api import names
from flyball_operator.api.service_key import Key
from flyball_operator.app.kopf_glue import WatchHandlers
from flyball_operator.kube.api import KubeApi
from flyball_operator.kube.cache import Cache
from flyball_operator.kube.resources import INFERENCE_SERVICES, PODS, Resource
from flyball_operator.reconcile.metrics import Metrics
from flyball_operator.reconcile.queue import KeyQueue
from flyball_operator.reconcile.resync import Resyncer, Shared
from support.memory_api import MemoryApi, Object
from support.memory_cluster import NAMESPACE, service

Event = dict[str, Any]


class Stream:
    """A cluster in which things happen, and a watch on it that is not to be trusted."""

    def __init__(self) -> None:
        self.api = MemoryApi()
        self.cache = Cache()
        self.queue: KeyQueue[Key] = KeyQueue(clock=lambda: 0.0, jitter=lambda: 0.5)
        self.watcher = WatchHandlers(self.cache, self.queue)
        self.late: list[Event] = []
        self.resyncer = Resyncer(
            cast("KubeApi", self.api),
            NAMESPACE,
            Shared(cache=self.cache, queue=self.queue, metrics=Metrics(), clock=lambda: 0.0, jitter=lambda: 0.5),
        )

    def happen(self, what: str, resource: Resource, name: str, fate: str) -> None:
        exists = (resource.plural, NAMESPACE, name) in self.api.objects
        if what == "delete":
            if exists:
                gone = self.api.one(resource, name)
                self.api.remove(resource, name)
                self._tell(resource, {"type": "DELETED", "object": gone}, fate)
            return
        put = self.api.put(resource, _body(resource, name))
        self._tell(resource, {"type": "MODIFIED" if exists else "ADDED", "object": put}, fate)

    def _tell(self, resource: Resource, event: Event, fate: str) -> None:
        if fate == "late":
            self.late.append({**event, "resource": resource})
        for _ in range({"lost": 0, "late": 0, "twice": 2}.get(fate, 1)):
            self._deliver(resource, event)

    def _deliver(self, resource: Resource, event: Event) -> None:
        (self.watcher.pod if resource is PODS else self.watcher.service)(event)

    def deliver_late(self) -> None:
        for event in self.late:
            self._deliver(event["resource"], event)

    def known(self) -> tuple[set[str], set[str]]:
        return {desire.meta.uid for desire in self.cache.services}, {pod.link.uid for pod in self.cache.pods}

    def there(self) -> tuple[set[str], set[str]]:
        services, pods = (
            {found["metadata"]["uid"] for found in self.api.find(resource)} for resource in (INFERENCE_SERVICES, PODS)
        )
        return services, pods


def _body(resource: Resource, name: str) -> Object:
    if resource is INFERENCE_SERVICES:
        return service(name)
    labels = {
        names.LABEL_MANAGED_BY: names.MANAGED_BY,
        names.LABEL_SERVICE: name,
        names.LABEL_SERVICE_UID: f"uid-of-{name}",
    }
    owner = {"kind": "ReplicaSet", "name": name, "uid": f"replicas-of-{name}", "controller": True}
    metadata = {"name": name, "namespace": NAMESPACE, "labels": labels, "ownerReferences": [owner]}
    return {"metadata": metadata, "status": {"phase": "Running"}}


happenings = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "delete"]),
        st.sampled_from([INFERENCE_SERVICES, PODS]),
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["seen", "lost", "twice", "late"]),
    ),
    max_size=25,
)


@settings(max_examples=60)
@given(happenings)
def test_after_a_list_nothing_is_missing_and_nothing_is_a_ghost(steps: list[tuple[str, Resource, str, str]]) -> None:
    async def story() -> None:
        stream = Stream()
        for step in steps:
            stream.happen(*step)
        await stream.resyncer.resync()
        assert stream.known() == stream.there()
        # What was held up arrives after the list: it is older, and changes nothing but what is gone for sure.
        stream.deliver_late()
        known, there = stream.known(), stream.there()
        assert known[0] <= there[0]
        assert known[1] <= there[1]
        waiting = {found["metadata"]["name"] for found in stream.api.find(INFERENCE_SERVICES)}
        taken = {(await stream.queue.get()).name for _ in range(len(stream.queue))}
        assert waiting <= taken

    asyncio.run(story())
