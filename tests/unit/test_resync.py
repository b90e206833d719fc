"""The lists of namespaces: one that fails delays no other, what one lists says nothing of another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from flyball_lab.harness import virtual_time
from flyball_lab.harness.manifests import Object, good
from flyball_operator.api.epochs import LARGEST_EPOCH
from flyball_operator.api.service_key import Key
from flyball_operator.api.shards import Shard
from flyball_operator.kube.api import KubeApi
from flyball_operator.kube.cache import Cache
from flyball_operator.kube.epochs import highest_epoch
from flyball_operator.kube.errors import (
    ClusterError,
    ForbiddenError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
)
from flyball_operator.kube.resources import INFERENCE_SERVICES, Resource
from flyball_operator.reconcile.metrics import Metrics
from flyball_operator.reconcile.queue import KeyQueue
from flyball_operator.reconcile.resync import Resyncer, Shared


@dataclass
class Lister:
    """An API server that lists the services of some namespaces, and answers for others with an error."""

    services: dict[str, list[Object]] = field(default_factory=dict)
    errors: dict[str, ClusterError] = field(default_factory=dict)

    def put(self, namespace: str, *, epoch: int = 0) -> None:
        found = good(metadata__namespace=namespace) | {"status": {"epoch": epoch}}
        found["metadata"] |= {"uid": f"uid-{namespace}", "resourceVersion": "1", "generation": 1}
        self.services[namespace] = [found]

    async def list(self, resource: Resource, namespace: str, **_: Any) -> tuple[list[Any], str]:
        if namespace in self.errors:
            raise self.errors[namespace]
        return self.services.get(namespace, []) if resource is INFERENCE_SERVICES else [], "1"


def shared(*, epoch: Callable[[], int] = lambda: 0, told: dict[Shard, str] | None = None) -> Shared:
    """`told`: is given the shards in which somebody led after us."""
    clock = asyncio.get_running_loop().time
    queue: KeyQueue[Key] = KeyQueue(clock=clock, jitter=lambda: 0.5)
    epochs = lambda: {Shard(): epoch()}  # noqa: E731 - of the only shard
    led_after = ({} if told is None else told).__setitem__
    return Shared(
        cache=Cache(),
        queue=queue,
        metrics=Metrics(),
        clock=clock,
        jitter=lambda: 0.5,
        epochs=epochs,
        led_after=led_after,
    )


def resyncer(api: Lister, what: Shared, namespace: str = "team") -> Resyncer:
    return Resyncer(cast("KubeApi", api), namespace, what)


def known(what: Shared) -> set[str]:
    return {desire.meta.namespace for desire in what.cache.services}


def test_an_api_server_that_is_away_is_asked_again_and_is_no_standing_still() -> None:
    async def story() -> None:
        server = Lister(errors={"team": UnavailableError("connection refused")})
        made = resyncer(server, what := shared())
        running = asyncio.create_task(made.run(300.0))
        await asyncio.sleep(3600)
        assert made.idle() < 10
        server.errors.clear()
        server.put("team")
        await asyncio.sleep(10)
        assert known(what) == {"team"}
        running.cancel()

    virtual_time.run(story())


@pytest.mark.parametrize("error", [ForbiddenError("no"), NotFoundError("no")])
def test_a_refusal_ends_the_sweeps_of_that_namespace(error: ClusterError) -> None:
    async def story() -> None:
        made = resyncer(Lister(errors={"team": error}), shared())
        with pytest.raises(type(error)):
            await made.run(300.0)

    virtual_time.run(story())


def test_an_expired_token_says_nothing_of_a_namespace() -> None:
    async def story() -> None:
        made = resyncer(Lister(errors={"team": UnauthorizedError("who?")}), shared())
        running = asyncio.create_task(made.run(300.0))
        await asyncio.sleep(1000)
        assert not running.done()
        running.cancel()

    virtual_time.run(story())


def test_what_one_namespace_lists_or_forgets_leaves_the_others() -> None:
    async def story() -> None:
        server, what = Lister(), shared()
        one, other = resyncer(server, what, "one"), resyncer(server, what, "other")
        server.put("one")
        server.put("other")
        await one.resync()
        await other.resync()
        assert known(what) == {"one", "other"}
        server.services["one"] = []
        await one.resync()
        assert known(what) == {"other"}
        server.put("one")
        await one.resync()
        other.forget()
        assert known(what) == {"one"}

    virtual_time.run(story())


def test_a_status_of_a_later_leader_tells_that_somebody_led_after_us() -> None:
    async def story() -> None:
        server = Lister()
        server.put("team", epoch=8)
        told: dict[Shard, str] = {}
        await resyncer(server, shared(epoch=lambda: 8, told=told)).resync()
        await resyncer(server, shared(epoch=lambda: 0, told=told)).resync()
        assert not told
        await resyncer(server, what := shared(epoch=lambda: 7, told=told)).resync()
        assert "epoch 8, ours is 7" in told[Shard()]
        assert known(what) == {"team"}, "what is watched is known all the same"

    virtual_time.run(story())


def test_what_another_release_has_counted_to_ends_no_leadership() -> None:
    async def story() -> None:
        told: dict[Shard, str] = {}
        server, what = Lister(), replace(shared(epoch=lambda: 7, told=told), foreign=lambda: ("team",))
        server.put("team", epoch=8)
        await resyncer(server, what).resync()
        assert known(what) == {"team"}
        assert not told
        await resyncer(server, replace(what, foreign=lambda: ("another",))).resync()
        assert told

    virtual_time.run(story())


def test_an_epoch_that_only_a_forged_status_led_to_keeps_nobody_from_leading() -> None:
    async def story() -> None:
        server = Lister()
        server.put("team", epoch=LARGEST_EPOCH)
        first = 1 + await highest_epoch(cast("KubeApi", server), ["team"], 0)
        server.put("team", epoch=first)
        second = 1 + await highest_epoch(cast("KubeApi", server), ["team"], first)
        assert second == first + 1, "what the leader wrote is believed"
        told: dict[Shard, str] = {}
        await resyncer(server, shared(epoch=lambda: first, told=told)).resync()
        assert not told

    virtual_time.run(story())


def test_a_namespace_that_may_not_be_read_hides_leaders_but_keeps_nobody_from_leading() -> None:
    async def story() -> None:
        server = Lister(errors={"gone": ForbiddenError("no")})
        assert await highest_epoch(cast("KubeApi", server), ["team"], 0) == 0
        assert await highest_epoch(cast("KubeApi", server), ["gone", "team"], 0) == 1, "not 0: nobody knows"
        server.put("team", epoch=5)
        assert await highest_epoch(cast("KubeApi", server), ["gone", "team"], 0) == 5
        server.errors["gone"] = UnavailableError("later")
        with pytest.raises(UnavailableError):
            await highest_epoch(cast("KubeApi", server), ["gone", "team"], 0)

    virtual_time.run(story())
