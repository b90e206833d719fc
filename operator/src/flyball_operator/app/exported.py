"""What the process exports of itself, of its shards and of the services that it leads.

Series of a service come from the one replica that leads its shard. A standby has none: two replicas would tell of one
service at once, and what a standby knows may be old. Each scrape asks anew who leads, so that the series are gone as
soon as the replica may not write any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from flyball_operator.api.desire import Desire
from flyball_operator.app import service_metrics
from flyball_operator.app.informer import Informers
from flyball_operator.app.settings import ALL_NAMESPACES
from flyball_operator.app.shards import Shards
from flyball_operator.kube.cache import Cache
from flyball_operator.kube.namespace_leases import NamespaceLeases
from flyball_operator.reconcile.metrics import Metrics
from flyball_operator.tuning.metrics import TunerMetrics


def led_services(cache: Cache, shards: Shards, leases: NamespaceLeases) -> list[Desire]:
    """Services in the shards that this replica holds, but for those of other releases."""
    held, foreign = shards.held(), set(leases.foreign())
    return [
        each
        for each in cache.services
        if each.meta.namespace not in foreign and any(shard.has(each.meta.uid) for shard in held)
    ]


def export(metrics: Metrics, *, shards: Shards, informers: Informers, leases: NamespaceLeases) -> None:
    """Export what the process knows of itself."""
    watch = metrics.watch
    watch("flyball_operator_queue_depth", "Services waiting to be looked at.", lambda: len(shards))
    watch("flyball_operator_leader", "1 while this process may write.", shards.may_act)
    watch("flyball_operator_epoch", "Epoch of this leadership; 0 while not leading.", shards.epoch)
    metrics.watch_each(
        "flyball_operator_shard_held",
        "1 while this process may write for the services of the shard, 0 while it may not.",
        ["shard"],
        lambda: {(str(shard.number),): float(shard in shards.held()) for shard in shards.all},
    )
    watch("flyball_operator_tasks", "Tasks of the process' event loop.", lambda: len(asyncio.all_tasks()))
    watch(
        "flyball_operator_resync_age_seconds",
        "Seconds since the watched namespace that was listed longest ago was listed.",
        informers.age,
    )
    metrics.watch_each(
        "flyball_operator_namespace_watched",
        "1 while the namespace is watched, 0 while it is missing, not granted or another release's; * is all"
        " namespaces.",
        ["namespace"],
        lambda: _watched(informers, leases),
    )
    metrics.watch_each(
        "flyball_operator_services_by_template",
        "Services by how far they have come with this operator's pod template: current, outdated, unsettled,"
        " adopting, waiting or failed. An unsettled one is outdated, and not all of its pods serve, or a newer operator"
        " made them. A shortage holds up a waiting one for long.",
        ["standing"],
        lambda: {(standing,): number for standing, number in shards.standings().items()},
    )


def export_services(metrics: Metrics, led: Callable[[], Collection[Desire]]) -> None:
    """Export what is known of each service. `led`: those that this replica leads."""
    metrics.watch_each(
        "flyball_operator_condition",
        "Always 1: a condition of a service as its status has it. Only the replica that leads the service exports it.",
        ["namespace", "service", "condition", "status", "reason"],
        lambda: service_metrics.conditions(led()),
    )
    metrics.watch_each(
        "flyball_operator_objective_target_ratio",
        "Share of requests that an objective asks to be within its threshold. `objective` is its id in the engines'"
        " metrics, `name` that in the spec. Only the replica that leads the service exports it.",
        ["namespace", "service", "serving_flyball_dev_service_uid", "objective", "name"],
        lambda: service_metrics.targets(led()),
    )


def tuner_metrics(metrics: Metrics, led: Callable[[], Collection[Desire]]) -> TunerMetrics:
    """The tuners' metrics of all shards. Of a service that this replica leads no more, nothing is exported at once."""
    registry = CollectorRegistry()
    metrics.registry.register(_Led(registry, led))
    return TunerMetrics(registry)


class _Led(Collector):
    """What a registry has, but for services that are not led."""

    def __init__(self, registry: CollectorRegistry, led: Callable[[], Collection[Desire]]) -> None:
        self._registry = registry
        self._led = led

    def describe(self) -> Iterator[Metric]:
        """Nothing is told when it is registered: names are checked in the registry itself."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """The series as they are now."""
        led = {(each.meta.namespace, each.meta.name) for each in self._led()}
        for found in self._registry.collect():
            found.samples = [
                sample
                for sample in found.samples
                if "service" not in sample.labels or (sample.labels["namespace"], sample.labels["service"]) in led
            ]
            yield found


def _watched(informers: Informers, leases: NamespaceLeases) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {
        (one.namespace or ALL_NAMESPACES,): float(informers.why_left(one) is None) for one in informers
    }
    foreign = leases.foreign() if (ALL_NAMESPACES,) in found else ()
    return found | {(namespace,): 0.0 for namespace in foreign}
