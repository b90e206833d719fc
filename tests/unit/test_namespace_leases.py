"""Two releases and one namespace, second by second: which of them acts, and when the other takes over."""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import suppress
from datetime import UTC, datetime
from typing import cast

import pytest

from flyball_lab.harness.virtual_time import in_virtual_time
from flyball_operator.api import names
from flyball_operator.kube.api import KubeApi
from flyball_operator.kube.errors import (
    ClusterError,
    ForbiddenError,
    InvalidObjectError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
)
from flyball_operator.kube.namespace_leases import HELD_SECONDS, LEASE_SECONDS, NamespaceLeases
from flyball_operator.kube.resources import Resource
from flyball_operator.reconcile.reconciler import RECONCILE_SECONDS
from support.election import LeaseClient, LeaseServer, Object, Way

TEAM = "team"


class Client(LeaseClient):
    """A release's way to the API server; `error`: what it answers to writes, or to everything."""

    def __init__(self, server: LeaseServer) -> None:
        super().__init__(server)
        self.error: ClusterError | None = None
        self.reads_too = False
        self.writes = 0

    async def get(self, resource: Resource, namespace: str, name: str, *, within: float) -> Object:
        if self.error is not None and self.reads_too:
            raise self.error
        return await super().get(resource, namespace, name, within=within)

    async def create(self, resource: Resource, namespace: str, body: Object, *, within: float) -> Object:
        self._begin()
        return await super().create(resource, namespace, body, within=within)

    async def replace(self, resource: Resource, namespace: str, body: Object, *, within: float) -> Object:
        self._begin()
        return await super().replace(resource, namespace, body, within=within)

    def _begin(self) -> None:
        self.writes += 1
        if self.error is not None:
            raise self.error


class Release:
    """The leader of one release, that is asked to look after the namespace every few seconds."""

    def __init__(self, name: str, server: LeaseServer) -> None:
        self.client = Client(server)
        self.used = {TEAM}
        self.entered: list[float] = []
        self.entering: Exception | None = None
        self.leases = NamespaceLeases(
            cast("KubeApi", self.client),
            name,
            used=lambda: self.used,
            enter=self._enter,
            clock=asyncio.get_running_loop().time,
            now=lambda: datetime(2026, 1, 1, tzinfo=UTC),
            jitter=random.Random(1).random,
        )
        self.running = asyncio.create_task(self.leases.run())
        self._tasks = [self.running, asyncio.create_task(self._ask())]

    async def _enter(self, namespace: str) -> None:
        assert not self.leases.held(namespace), "before it acts"
        if self.entering is not None:
            raise self.entering
        self.entered.append(asyncio.get_running_loop().time())

    async def _ask(self) -> None:
        while True:
            for namespace in self.used:
                with suppress(ClusterError):
                    await self.leases.hold(namespace)
            await asyncio.sleep(3)

    @property
    def acts(self) -> bool:
        return self.leases.held(TEAM)

    async def die(self) -> None:
        """Uninstalled, or killed: nothing is given back."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def seconds_until_it_acts(release: Release, within: float = 1000) -> float:
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(within):
        while not release.acts:  # noqa: ASYNC110 - time is virtual
            await asyncio.sleep(0.1)
    return asyncio.get_running_loop().time() - began


async def never_both(one: Release, other: Release, seconds: float) -> None:
    for _ in range(int(seconds * 2)):
        assert not (one.acts and other.acts)
        await asyncio.sleep(0.5)


@in_virtual_time
async def test_the_release_that_comes_first_acts_and_the_other_says_whose_it_is() -> None:
    server = LeaseServer()
    first = Release("one/flyball", server)
    await asyncio.sleep(1)
    second = Release("two/flyball", server)
    await never_both(first, second, 2000)
    assert first.acts
    assert second.leases.foreign() == (TEAM,)
    assert second.leases.why_not_held(TEAM) == "namespace team belongs to release one/flyball"
    assert server.read(names.NAMESPACE_LEASE)["spec"]["leaseTransitions"] == 0
    assert second.client.writes == 0
    assert 19 <= first.client.writes <= 24, "nothing but the renewals"
    await asyncio.gather(first.die(), second.die())


@in_virtual_time
async def test_when_the_first_is_gone_the_other_takes_over_once_the_lease_has_run_out() -> None:
    server = LeaseServer()
    first, second = Release("one/flyball", server), Release("two/flyball", server)
    await asyncio.sleep(500)
    gone, other = (first, second) if first.acts else (second, first)
    await gone.die()
    assert LEASE_SECONDS - 120 <= await seconds_until_it_acts(other) <= LEASE_SECONDS + 30
    assert len(other.entered) == 1
    assert other.leases.foreign() == ()
    assert server.read(names.NAMESPACE_LEASE)["spec"]["leaseTransitions"] == 1
    await other.die()


@in_virtual_time
async def test_a_lease_that_is_given_up_is_taken_at_once() -> None:
    server = LeaseServer()
    first = Release("one/flyball", server)
    await asyncio.sleep(1)
    second = Release("two/flyball", server)
    await asyncio.sleep(10)
    await first.die()
    lease = server.read(names.NAMESPACE_LEASE)
    server.replace({**lease, "spec": {**lease["spec"], "holderIdentity": ""}})
    assert await seconds_until_it_acts(second) < 30
    await second.die()


@in_virtual_time
async def test_a_new_leader_of_the_release_goes_on_at_once() -> None:
    server = LeaseServer()
    first = Release("one/flyball", server)
    await asyncio.sleep(1)
    other = Release("two/flyball", server)
    await asyncio.sleep(250)
    await first.die()
    await asyncio.sleep(100)
    successor = Release("one/flyball", server)
    assert await seconds_until_it_acts(successor) < 5
    assert successor.entered == []
    await never_both(successor, other, 1000)
    assert successor.acts
    assert server.read(names.NAMESPACE_LEASE)["spec"]["leaseTransitions"] == 0
    await asyncio.gather(successor.die(), other.die())


@pytest.mark.parametrize("way", [Way.HANGING, Way.REFUSED, Way.ANSWERS_LOST])
@in_virtual_time
async def test_a_holder_that_cannot_renew_stops_before_another_begins(way: Way) -> None:
    server = LeaseServer()
    first = Release("one/flyball", server)
    await asyncio.sleep(1)
    second = Release("two/flyball", server)
    await asyncio.sleep(150)
    first.client.way = way
    await never_both(first, second, 1000)
    assert second.acts
    assert "could not be kept" in first.leases.why_not_held(TEAM)
    await asyncio.gather(first.die(), second.die())


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(8, 20))])
@in_virtual_time
async def test_whatever_becomes_of_calls_two_never_act(seed: int) -> None:
    chance, server = random.Random(seed), LeaseServer()
    first, second = Release("one/flyball", server), Release("two/flyball", server)
    for _ in range(30):
        for release in (first, second):
            release.client.way = chance.choice([*Way, Way.OPEN, Way.OPEN])
        await never_both(first, second, chance.uniform(5, 400))
    first.client.way = second.client.way = Way.OPEN
    await never_both(first, second, 700)
    assert first.acts or second.acts
    await asyncio.gather(first.die(), second.die())


@in_virtual_time
async def test_it_acts_only_after_what_the_other_left_was_seen() -> None:
    server = LeaseServer()
    first = Release("one/flyball", server)
    await asyncio.sleep(1)
    second = Release("two/flyball", server)
    second.entering = UnavailableError("the services could not be listed")
    await asyncio.sleep(10)
    await first.die()
    await asyncio.sleep(600)
    assert not second.acts
    assert "could not be listed" in second.leases.why_not_held(TEAM)
    second.entering = None
    assert await seconds_until_it_acts(second) < 20
    await second.die()


@in_virtual_time
async def test_what_fails_on_the_way_and_is_no_answer_of_the_server_is_raised() -> None:
    server = LeaseServer()
    first = Release("one/flyball", server)
    await asyncio.sleep(1)
    second = Release("two/flyball", server)
    second.entering = RuntimeError("a bug")
    await asyncio.sleep(10)
    await first.die()
    with pytest.raises(RuntimeError, match="a bug"):
        await second.running
    assert not second.acts
    await second.die()


@pytest.mark.parametrize("error", [ForbiddenError("no right"), InvalidObjectError("a policy says no")])
@pytest.mark.parametrize("reads_too", [True, False])
@in_virtual_time
async def test_without_the_right_it_acts_as_before_and_says_so_once(
    error: ClusterError, reads_too: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        release = Release("one/flyball", LeaseServer())
        release.used = {TEAM, "other"}
        release.client.error, release.client.reads_too = error, reads_too
        await asyncio.sleep(2000)
    assert release.acts
    assert release.leases.held("other")
    assert [str(error) in record.getMessage() for record in caplog.records] == [True]
    release.client.error = None
    await asyncio.sleep(200)
    assert release.client.server.read(names.NAMESPACE_LEASE)["spec"]["holderIdentity"] == "one/flyball", (
        "granted meanwhile"
    )
    await release.die()


@in_virtual_time
async def test_a_right_that_is_taken_away_frees_nothing_that_another_holds() -> None:
    server = LeaseServer()
    first = Release("one/flyball", server)
    await asyncio.sleep(1)
    second = Release("two/flyball", server)
    await asyncio.sleep(10)
    second.client.error, second.client.reads_too = ForbiddenError("no"), True
    await never_both(first, second, 1000)
    assert first.acts
    await asyncio.gather(first.die(), second.die())


@pytest.mark.parametrize("error", [UnavailableError("later"), UnauthorizedError("who?")])
@in_virtual_time
async def test_where_nobody_can_say_whose_it_is_nothing_is_done(error: ClusterError) -> None:
    release = Release("one/flyball", LeaseServer())
    release.client.error = error
    await asyncio.sleep(60)
    assert not release.acts
    assert str(error) in release.leases.why_not_held(TEAM)
    release.client.error = None
    assert await seconds_until_it_acts(release) < 15
    await release.die()


@in_virtual_time
async def test_in_a_namespace_that_is_gone_there_is_nothing_to_hold() -> None:
    release = Release("one/flyball", LeaseServer())
    release.client.error = NotFoundError("namespaces team not found")
    await asyncio.sleep(60)
    assert not await release.leases.hold(TEAM)
    await release.die()


@in_virtual_time
async def test_a_namespace_without_services_is_renewed_no_more() -> None:
    server = LeaseServer()
    first = Release("one/flyball", server)
    await asyncio.sleep(1)
    second = Release("two/flyball", server)
    await asyncio.sleep(100)
    first.used = set()
    await never_both(first, second, 3 * LEASE_SECONDS)
    assert second.acts
    await asyncio.gather(first.die(), second.die())


@in_virtual_time
async def test_of_a_namespace_that_is_left_nothing_is_asked_or_said(caplog: pytest.LogCaptureFixture) -> None:
    release = Release("one/flyball", LeaseServer())
    await asyncio.sleep(85)
    await release.leases.hold(TEAM)
    release.used = set()
    release.client.error, release.client.reads_too = ForbiddenError("its RoleBinding is gone"), True
    await asyncio.sleep(300)
    assert not caplog.records
    await release.die()


def test_a_look_that_is_under_way_ends_before_another_release_begins() -> None:
    assert HELD_SECONDS + RECONCILE_SECONDS <= LEASE_SECONDS
