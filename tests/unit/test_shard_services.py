"""What a replica does of services whose shards it does not hold: nothing."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flyball_lab.harness.manifests import Object, good
from flyball_lab.harness.virtual_time import in_virtual_time, now
from flyball_operator.api import names
from flyball_operator.api.service_key import Key
from flyball_operator.api.shards import Shard, shards
from flyball_operator.app.cached_services import CachedServices
from flyball_operator.app.informer import Informers
from flyball_operator.app.kopf_glue import WatchHandlers
from flyball_operator.app.shards import Refresher, SharedFloor
from flyball_operator.kube.api import KubeApi
from flyball_operator.kube.cache import Cache
from flyball_operator.kube.resources import SERVICES
from flyball_operator.reconcile.metrics import Metrics
from flyball_operator.reconcile.queue import KeyQueue
from flyball_operator.reconcile.reader import SnapshotReader
from flyball_operator.reconcile.resync import Resyncer, Shared
from flyball_operator.tuning.tuner import Tuner
from support.memory_cluster import CONFIG
from support.replicas import Replicas

FIRST, SECOND = shards(2)
#: One of each shard.
UIDS = {FIRST: "00aa", SECOND: "ffaa"}


def service(shard: Shard, *, epoch: int = 0) -> Object:
    found = good(f"chat-{shard.number}", metadata__namespace="team") | {"status": {"epoch": epoch}}
    found["metadata"] |= {"uid": UIDS[shard], "resourceVersion": "1", "generation": 1}
    return found


class Server:
    """Has a service of each shard."""

    def __init__(self, *, epoch: int = 0) -> None:
        self.services = [service(shard, epoch=epoch) for shard in UIDS]

    async def get(self, _resource: Any, _namespace: str, name: str) -> Object:
        return next(one for one in self.services if one["metadata"]["name"] == name)

    async def list(self, resource: Any, *_: Any, **__: Any) -> tuple[list[Object], str]:
        return (self.services if resource.plural == names.PLURAL else []), "1"


class Looks:
    """A queue that only keeps what it was given."""

    def __init__(self) -> None:
        self.keys: list[Key] = []

    def add(self, key: Key) -> None:
        self.keys.append(key)

    urge = add


async def test_a_service_of_another_shard_is_not_there() -> None:
    reader = SnapshotReader(cast("KubeApi", Server()), CONFIG, FIRST)
    assert await reader.service(Key("team", "chat-0")) is not None
    assert await reader.service(Key("team", "chat-1", UIDS[FIRST])) is None, "by its UID now, not by that of an event"


def test_only_services_of_the_shard_are_tuned() -> None:
    cache = Cache()
    for shard in UIDS:
        accepted = [{"type": "Accepted", "status": "True", "reason": "Accepted", "observedGeneration": 1}]
        cache.observe_service(service(shard) | {"status": {"conditions": accepted}}, deleted=False)
    everyone = CachedServices(cache).all()
    assert [one.metadata.uid for one in CachedServices(cache, shard=SECOND).all()] == [
        one.metadata.uid for one in everyone if one.metadata.uid == UIDS[SECOND]
    ]


def event(kind: str, found: Object) -> Object:
    return {"type": kind, "object": found}


def test_an_event_names_the_service_by_its_uid_and_one_of_an_earlier_service_by_none() -> None:
    looks, cache = Looks(), Cache()
    watched = WatchHandlers(cache, looks)
    watched.service(event("ADDED", service(FIRST)))
    labels = {names.LABEL_SERVICE: "chat-0", names.LABEL_SERVICE_UID: UIDS[FIRST]}
    owned = {"metadata": {"namespace": "team", "name": "chat-0", "uid": "x", "labels": labels}}
    watched.owned(SERVICES, event("MODIFIED", owned))
    labels[names.LABEL_SERVICE_UID] = "ee-gone"
    watched.owned(SERVICES, event("DELETED", owned))
    assert [key.uid for key in looks.keys] == [UIDS[FIRST], UIDS[FIRST], ""]
    assert len(set(looks.keys)) == 1


def known() -> Cache:
    """What a replica knows that has watched for a while."""
    made = Cache()
    for shard in UIDS:
        made.observe_service(service(shard), deleted=False)
    return made


@in_virtual_time
async def test_a_list_for_a_new_leader_of_a_shard_has_no_other_looked_at() -> None:
    looks = Looks()
    shared = Shared(cache=known(), queue=looks, metrics=Metrics(), clock=now, jitter=lambda: 0.5)
    await Resyncer(cast("KubeApi", Server()), "team", shared).resync_services(SECOND.has)
    assert [key.uid for key in looks.keys] == [UIDS[SECOND]]


@in_virtual_time
async def test_a_service_of_another_shard_that_has_changed_is_looked_at_too() -> None:
    looks, server = Looks(), Server()
    server.services[0]["metadata"] |= {"resourceVersion": "2", "generation": 2}
    shared = Shared(cache=known(), queue=looks, metrics=Metrics(), clock=now, jitter=lambda: 0.5)
    await Resyncer(cast("KubeApi", server), "team", shared).resync_services(SECOND.has)
    assert sorted(key.uid for key in looks.keys) == sorted(UIDS.values()), "its watch tells of nothing new"
    WatchHandlers(shared.cache, looks).service(event("MODIFIED", server.services[0]))
    assert len(looks.keys) == len(UIDS)


@pytest.mark.parametrize(
    ("held", "lost"),
    [({FIRST: 9}, []), ({FIRST: 9, SECOND: 7}, [SECOND]), ({SECOND: 7}, [SECOND]), ({FIRST: 7, SECOND: 9}, [FIRST])],
)
@in_virtual_time
async def test_a_newer_leader_is_found_out_and_told_of_its_shard_alone(
    held: dict[Shard, int], lost: list[Shard]
) -> None:
    queue: KeyQueue[Key] = KeyQueue(clock=now, jitter=lambda: 0.5)
    told: dict[Shard, str] = {}
    shared = Shared(
        cache=Cache(),
        queue=queue,
        metrics=Metrics(),
        clock=now,
        jitter=lambda: 0.5,
        epochs=lambda: held,
        led_after=told.__setitem__,
    )
    await Resyncer(cast("KubeApi", Server(epoch=8)), "team", shared).resync()
    assert list(told) == lost
    assert all("epoch 8, ours is 7" in why for why in told.values())


@in_virtual_time
async def test_not_all_services_are_known_while_a_namespace_is_not_listed() -> None:
    async with Replicas("a", shards=2) as world:
        await world.until(world.all_held)
        process, term = world["a"].process, world["a"].shards._terms[FIRST]
        for shard in UIDS:
            process.cache.observe_service(service(shard), deleted=False)
        term.tuner = cast("Tuner", object())
        vars(process.informers).update(listed=True)
        assert term._looked_after() == [Key("team", "chat-0")]
        vars(process.informers).update(listed=False)
        assert term._looked_after() is None, "what is missing may be at its adoption, or have failed at it"
        term.tuner = None


@in_virtual_time
async def test_new_leaders_of_several_shards_are_listed_for_together() -> None:
    rounds: list[list[bool]] = []

    async def refresh(begins: Any, concerns: Any) -> None:
        begins()
        rounds.append([concerns(uid) for uid in UIDS.values()])
        await asyncio.sleep(5)

    refresher, begun = Refresher(cast("Informers", SimpleNamespace(refresh=refresh))), []
    first = asyncio.create_task(refresher.refresh(FIRST, lambda: begun.append(FIRST)))
    await asyncio.sleep(1)
    # Too late for that round: what was listed before they led does not count.
    later = [refresher.refresh(shard, lambda shard=shard: begun.append(shard)) for shard in UIDS]  # type: ignore[misc]
    await asyncio.gather(first, *later)
    assert rounds == [[True, False], [True, True]]
    assert begun == [FIRST, FIRST, SECOND]


@in_virtual_time
async def test_the_statuses_are_read_once_for_all_that_ask_before_a_read_begins() -> None:
    reads: list[float] = []

    async def read(_: int) -> int:
        reads.append(now())
        await asyncio.sleep(3)
        return len(reads)

    floor = SharedFloor(read, now)
    first = asyncio.create_task(floor.read(0))
    await asyncio.sleep(1)
    assert await asyncio.gather(*(floor.read(reached) for reached in (1, 2, 3))) == [2, 2, 2]
    assert await first == 1
    assert len(reads) == 2
