"""Two replicas that share services by shards on the real API server: no service is written by both at a time."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from flyball_lab.harness.waiting import eventually
from flyball_operator.api.shards import Shard, shards
from flyball_operator.kube.shares import replica_of
from support.audit import Audit
from support.cluster import apply, get, kubectl, namespace
from support.operators import RESOURCE, idle_service
from support.tenants import Release, granted

SHARDS = shards(4)
SERVICES = tuple(f"chat-{number}" for number in range(12))


@pytest.fixture
def release(crd: Path) -> Iterator[Release]:
    """A release in a namespace of the test's own, which it looks after."""
    with namespace("flyball-shards") as name, granted(name, (name,)) as made:
        yield made


def holders(place: str) -> dict[Shard, str]:
    """Which operator holds which shard."""
    found = {shard: get("lease", shard.lease("flyball-operator"), namespace=place) or {} for shard in SHARDS}
    return {shard: replica_of((lease.get("spec") or {}).get("holderIdentity") or "") for shard, lease in found.items()}


def spread(place: str) -> dict[str, int]:
    """How many shards each operator holds."""
    held = list(holders(place).values())
    return {name: held.count(name) for name in held}


def shard_of(place: str, service: str) -> Shard:
    found = get(RESOURCE, service, namespace=place)
    assert found is not None
    return next(shard for shard in SHARDS if shard.has(found["metadata"]["uid"]))


def scale(place: str, replicas: int) -> None:
    """Give whoever has a service something to write."""
    change = json.dumps({"spec": {"replicas": replicas}})
    kubectl("patch", RESOURCE, *SERVICES, "-n", place, "--type=merge", "-p", change)


def writers(audit: Audit, place: str) -> dict[str, list[str]]:
    """Who wrote objects of each service, each as often as its writes were not another's."""
    found: dict[str, list[str]] = {service: [] for service in SERVICES}
    for write in audit.writes(place):
        if write.code < 300 and write.name in found:
            found[write.name].append(write.writer.partition("(")[2].rstrip(")"))
    return {service: [name for name, _ in groupby(names)] for service, names in found.items()}


def holder_of_each(place: str) -> dict[str, str]:
    """Which operator looks after which service."""
    held = holders(place)
    return {service: held[shard_of(place, service)] for service in SERVICES}


def expect_writers(audit: Audit, place: str, by: dict[str, list[str]]) -> None:
    """Wait until each service was written by these operators, one after the other."""
    eventually(lambda: all(writers(audit, place).values()), expecting="writes of all services")
    eventually(lambda: writers(audit, place) == by, expecting=f"writes by {by}")


def test_of_a_killed_replica_its_services_move_and_it_gets_as_many_back(release: Release, tmp_path: Path) -> None:
    place = release.own
    settings: dict[str, Any] = {"shards": str(len(SHARDS)), "replicas": "2"}
    running = [release.process(tmp_path, name=name, **settings) for name in ("first", "second")]
    first, second = running
    try:
        for one in running:
            one.expect_ready()
        eventually(lambda: spread(place) == {first.name: 2, second.name: 2}, expecting="two shards for each")
        audit = Audit()
        every = [idle_service(name) for name in SERVICES]
        apply({"apiVersion": "v1", "kind": "List", "items": every}, namespace=place)
        before = holder_of_each(place)
        expect_writers(audit, place, {service: [name] for service, name in before.items()})

        first.send(signal.SIGKILL)
        first.expect_exit()
        eventually(lambda: spread(place) == {second.name: 4}, expecting="the second to hold all")
        scale(place, 2)
        expect_writers(
            audit, place, {service: list(dict.fromkeys([name, second.name])) for service, name in before.items()}
        )

        audit = Audit()
        third = release.process(tmp_path, name="third", **settings)
        running.append(third)
        eventually(lambda: spread(place) == {third.name: 2, second.name: 2}, expecting="a share given back")
        scale(place, 3)
        last = holder_of_each(place)
        eventually(
            lambda: all(names[-1:] == [last[service]] for service, names in writers(audit, place).items()),
            expecting="writes of whoever has each service now",
        )
        # The second may have written before it gave a shard back, and never again.
        assert all(names in ([last[one]], [second.name, last[one]]) for one, names in writers(audit, place).items())
        assert not second.trouble()
        assert 'flyball_operator_shard_held{shard="0"}' in second.metrics()
    finally:
        for one in running:
            one.stop()
