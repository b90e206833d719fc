"""What a service that is left alone costs the API server: a list of each kind at a resync, whatever writes its status.

Whatever else changes is looked at, be it shown by a watch or by a list alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from flyball_operator.api import names
from flyball_operator.api.desire import Desire
from flyball_operator.api.objects import timestamp
from flyball_operator.api.service_key import Key
from flyball_operator.kube.resources import (
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    ENDPOINT_SLICES,
    INFERENCE_SERVICES,
    PODS,
    REVISIONS,
    SERVICES,
    Resource,
    labelled,
)
from flyball_operator.reconcile.adoptions import Adoptions
from flyball_operator.reconcile.plan.adoption import AdoptionPolicy
from flyball_operator.reconcile.plan.intents import Plan
from flyball_operator.reconcile.reader import Observed
from support.memory_api import Object
from support.memory_cluster import NAMESPACE, PULL_FAILED, service
from support.watched_cluster import WatchedCluster

Change = Callable[[WatchedCluster], None]
ONE_LIST_OF_EACH = {("list", kind.plural): 1 for kind in (INFERENCE_SERVICES, *labelled(network_policies=False))}


def tuner_writes(world: WatchedCluster, capacity: str = "3.1") -> None:
    """The tuner writes its part of the status of a service."""

    def change(found: Object) -> None:
        status = found["status"]
        tuned = {"type": "Tuned", "status": "True", "reason": "Applied", "message": f"carries {capacity}"}
        kept = [item for item in status["conditions"] if item["type"] != "Tuned"]
        found["status"] = {**status, "tuning": {"capacity": capacity}, "conditions": [*kept, tuned]}

    world.api.edit(INFERENCE_SERVICES, "chat-0", change)


def edit(resource: Resource, name: str, change: Callable[[Object], None]) -> Change:
    return lambda world: world.api.edit(resource, name, change)


def edit_first(resource: Resource, change: Callable[[Object], None]) -> Change:
    return lambda world: world.api.edit(resource, world.api.find(resource)[0]["metadata"]["name"], change)


def label(found: Object) -> None:
    found["metadata"]["labels"] = {**found["metadata"]["labels"], "seen": "yes"}


def without_conditions(found: Object) -> None:
    found["status"] = {**found["status"], "conditions": []}


def one_replica_more(found: Object) -> None:
    found["spec"] = {**found["spec"], "replicas": 2}


def scaled_by_the_tuner(found: Object) -> None:
    found["status"] = {**found["status"], "scaling": {"replicas": 2}}


def annotated(found: Object) -> None:
    found["metadata"]["annotations"] = {names.ANNOTATION_ADOPT: "1"}


def failing(found: Object) -> None:
    found["status"] = PULL_FAILED


def replaced(world: WatchedCluster) -> None:
    world.api.remove(INFERENCE_SERVICES, "chat-0")
    world.api.put(INFERENCE_SERVICES, service("chat-0"))


CHANGES: dict[str, Change] = {
    "a new spec": edit(INFERENCE_SERVICES, "chat-0", one_replica_more),
    "an annotation": edit(INFERENCE_SERVICES, "chat-0", annotated),
    "a status that somebody else has emptied": edit(INFERENCE_SERVICES, "chat-0", without_conditions),
    "another service of the name": replaced,
    "the Deployment": edit(DEPLOYMENTS, "chat-0", label),
    "the Service": edit(SERVICES, "chat-0", label),
    "the disruption budget": edit(DISRUPTION_BUDGETS, "chat-0", label),
    "a revision": edit_first(REVISIONS, label),
    "endpoints": edit_first(ENDPOINT_SLICES, label),
    "a pod that fails": edit_first(PODS, failing),
    "pods that the tuner wants": edit(INFERENCE_SERVICES, "chat-0", scaled_by_the_tuner),
    "a pod that is gone": lambda world: world.api.remove(PODS, world.api.find(PODS)[0]["metadata"]["name"]),
    "a Service that is gone": lambda world: world.api.remove(SERVICES, "chat-0"),
}


def is_looked_at(world: WatchedCluster, *, lists: int = 0) -> bool:
    """Whether a service was read since reads were last counted, beside so many lists of all."""
    return world.api.reads["list", REVISIONS.plural] > lists


@pytest.mark.parametrize("services", [1, 7])
def test_a_resync_of_services_that_are_left_alone_lists_each_kind_once_and_writes_nothing(services: int) -> None:
    world = WatchedCluster(services)
    world.counted()
    for _ in range(12):
        world.now_passes(300)
        world.resync()
        assert world.counted() == (ONE_LIST_OF_EACH, 0)


def test_what_the_operator_wrote_itself_calls_for_no_look() -> None:
    world = WatchedCluster()
    world.api.edit(INFERENCE_SERVICES, "chat-0", one_replica_more)
    world.run()
    assert world.condition("Ready", "chat-0") == ("True", "Serving")
    world.counted()
    world.run()
    assert world.counted() == ({}, 0)


def test_a_status_write_of_the_tuner_costs_no_read() -> None:
    world = WatchedCluster(2)
    world.counted()
    for number in range(5):
        tuner_writes(world, capacity=f"{number}")
        world.show()
        world.work()
    assert world.counted() == ({}, 0)
    assert [desire.status.tuning.capacity for desire in world.cache.services] == ["4", ""], "the tuner sees them"


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_that_a_watch_shows_is_looked_at(change: Change) -> None:
    world = WatchedCluster()
    world.counted()
    change(world)
    world.show()
    world.work()
    assert is_looked_at(world)
    world.run()
    assert world.condition("Ready", "chat-0") == ("True", "Serving")


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_that_watches_missed_is_looked_at_after_the_next_list(change: Change) -> None:
    world = WatchedCluster()
    change(world)
    world.miss()
    world.work()
    world.now_passes(300)
    world.counted()
    world.resync()
    assert is_looked_at(world, lists=1)


def test_a_change_while_a_look_reads_is_looked_at_once_more() -> None:
    world = WatchedCluster()
    world.api.edit(DEPLOYMENTS, "chat-0", label)
    world.show()
    look = world.reconciler._report

    async def report(seen: Observed, plan: Plan) -> Desire:
        world.reconciler._report = look  # type: ignore[method-assign]
        world.api.edit(SERVICES, "chat-0", label)
        world.show()
        return await look(seen, plan)

    world.reconciler._report = report  # type: ignore[method-assign]
    world.counted()
    world.work()
    assert world.api.reads["list", REVISIONS.plural] == 2


def test_a_service_whose_template_is_not_old_enough_to_be_replaced_is_looked_at_once_it_is() -> None:
    world = WatchedCluster()
    for found in world.api.find(REVISIONS):
        found["metadata"]["creationTimestamp"] = timestamp(world.now)
        world.api.put(REVISIONS, found)
    world.config = replace(world.config, plugin_image="flyball/plugin:2")
    policy = AdoptionPolicy(max_concurrent=1, after="720h")
    world.restart(adoptions=Adoptions(policy, lambda: [Key(NAMESPACE, "chat-0", "")]))
    world.resync()
    assert world.condition("TemplateOutdated", "chat-0") == ("True", "NotOldEnough")
    world.counted()
    world.now_passes(300)
    world.resync()
    assert world.counted() == (ONE_LIST_OF_EACH, 0)
    world.now_passes(30 * 86_400)
    world.resync()
    assert is_looked_at(world, lists=1)


def test_what_a_policy_changes_is_asked_for_again_at_each_resync() -> None:
    world = WatchedCluster()

    def mutate(found: Object) -> None:
        found["spec"]["template"]["spec"]["containers"][0]["image"] = "mirror/engine"

    world.api.policies.append((DEPLOYMENTS, mutate))
    world.api.edit(DEPLOYMENTS, "chat-0", mutate)
    world.run()
    for _ in range(3):
        world.now_passes(300)
        world.counted()
        world.resync()
        assert is_looked_at(world, lists=1), "nobody tells when the policy goes"


def test_a_service_that_waits_for_a_foreign_object_is_looked_at_at_each_resync() -> None:
    world = WatchedCluster()
    foreign = {"kind": "Service", "metadata": {"name": "late", "namespace": "ns"}, "spec": {}}
    world.api.put(SERVICES, foreign)
    world.api.put(INFERENCE_SERVICES, service("late"))
    world.show()
    world.work()
    assert world.condition("Accepted", "late") == ("False", "NameConflict")
    world.api.remove(SERVICES, "late")
    world.now_passes(300)
    world.resync()
    world.run()
    assert world.condition("Ready", "late") == ("True", "Serving")


def test_a_process_that_starts_looks_at_every_service() -> None:
    world = WatchedCluster(3)
    world.restart()
    world.counted()
    world.resync()
    assert world.counted()[0]["list", REVISIONS.plural] == 1 + 3
