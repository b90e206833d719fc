"""What replicas export of services: each service is one replica's, and goes from its series once it is another's."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import cast

from prometheus_client import generate_latest

from flyball_lab.harness.manifests import good
from flyball_lab.harness.virtual_time import in_virtual_time
from flyball_operator.api.shards import Shard
from flyball_operator.app.exported import export_services, led_services, tuner_metrics
from flyball_operator.kube.namespace_leases import NamespaceLeases
from flyball_operator.reconcile.metrics import Metrics
from flyball_operator.tuning.metrics import TunerMetrics
from support.election import Way
from support.replicas import Replica, Replicas

FIRST, SECOND = Shard(0, 2), Shard(1, 2)
UIDS = {FIRST: "00-first", SECOND: "ff-second"}
NAMES = {FIRST: "first", SECOND: "second"}
READY = {"type": "Ready", "status": "True", "reason": "Serving", "message": "all serve"}
OBJECTIVES = [{"name": "first", "metric": "TimeToFirstToken", "threshold": "500ms", "target": "99"}]


class Exporting:
    """What one replica exports. It knows both services, as a standby does."""

    def __init__(self, replica: Replica, foreign: tuple[str, ...] = ()) -> None:
        self.metrics, cache = Metrics(), replica.process.cache
        leases = cast("NamespaceLeases", SimpleNamespace(foreign=lambda: foreign))
        for shard, uid in UIDS.items():
            found = good(metadata__namespace="team", metadata__name=NAMES[shard], metadata__uid=uid)
            found["spec"]["objectives"] = OBJECTIVES
            cache.observe_service(found | {"status": {"conditions": [READY]}}, deleted=False)
        led = lambda: led_services(cache, replica.shards, leases)  # noqa: E731 - as main has it
        export_services(self.metrics, led)
        self.tuners: TunerMetrics = tuner_metrics(self.metrics, led)
        for name in NAMES.values():
            self.tuners.paused("team", name, False)
            self.tuners.push_failed("team", name, "Unreachable")

    def series(self) -> dict[str, set[str]]:
        """Services by the name of what is exported of them."""
        found: dict[str, set[str]] = {}
        text = generate_latest(self.metrics.registry).decode()
        for name, service in re.findall(r'^(\w+)\{.*service="(\w+)"', text, flags=re.MULTILINE):
            found.setdefault(name, set()).add(service)
        return found

    def services(self) -> set[str]:
        """Services of which anything is exported; of each the same."""
        series = self.series()
        assert {frozenset(services) for services in series.values()} <= {frozenset(set().union(*series.values()))}
        return set().union(*series.values())


@in_virtual_time
async def test_each_service_is_exported_by_the_replica_that_leads_it_and_by_no_standby() -> None:
    async with Replicas("a", "b", shards=2) as world:
        exporting = {replica.name: Exporting(replica) for replica in world}
        assert all(not one.series() for one in exporting.values()), "nobody leads yet"
        await world.until(lambda: world.all_held() and world.spread() == [1, 1])
        for replica in world:
            assert exporting[replica.name].services() == {NAMES[shard] for shard in replica.held}
        assert exporting["a"].series().keys() >= {
            "flyball_operator_condition",
            "flyball_operator_objective_target_ratio",
            "flyball_operator_tuning_paused",
            "flyball_operator_pushes_total",
        }


@in_virtual_time
async def test_series_go_at_the_moment_at_which_a_replica_may_write_no_more() -> None:
    async with Replicas("a", "b", shards=2) as world:
        await world.until(lambda: world.all_held() and world.spread() == [1, 1])
        lost, other = Exporting(world["a"]), Exporting(world["b"])
        (shard,) = world["a"].held
        world["a"].client.way = Way.HANGING
        await world.until(lambda: not world["a"].held)
        assert world["a"].shards._terms[shard].elector.leading.is_set(), "its term has not ended yet"
        assert not lost.services()
        await world.until(world.all_held)
        assert other.services() == set(NAMES.values())


@in_virtual_time
async def test_what_another_release_looks_after_is_not_exported() -> None:
    async with Replicas("a", shards=2) as world:
        await world.until(world.all_held)
        assert Exporting(world["a"]).services() == set(NAMES.values())
        assert not Exporting(world["a"], foreign=("team",)).services()
