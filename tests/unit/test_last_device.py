"""One replica on the last device: the earlier pod goes first, by itself, and only where nothing forbids it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from flyball_operator.api import names
from flyball_operator.api.objects import Kind, timestamp
from flyball_operator.kube.resources import DEPLOYMENTS, EVENTS, INFERENCE_SERVICES, PODS
from flyball_operator.reconcile.plan.in_place import PATIENCE_SECONDS, PROVISION_SECONDS
from flyball_operator.reconcile.plan.rollout import decide
from support.memory_api import Object
from support.memory_cluster import NAMESPACE, MemoryCluster, service

GOOD, NEXT, BAD = "engine:good", "engine:next", "engine:bad"
SURGE, IN_PLACE = (1, 0), (0, 1)


def serving(**spec: Any) -> MemoryCluster:
    """A service that serves from the only device there is."""
    world = MemoryCluster()
    world.one_device = True
    changes: dict[str, Any] = {"spec__engine__image": GOOD, "spec__accelerator": {"resourceName": "nvidia.com/gpu"}}
    world.apply(service(**changes | spec))
    assert steps(world) == SURGE
    return world


def edit(world: MemoryCluster, image: str = NEXT, **spec: Any) -> None:
    """Ask for another template, and let a second pass."""

    def change(found: Object) -> None:
        found["spec"]["engine"]["image"] = image
        found["spec"].update(spec)

    world.api.edit(INFERENCE_SERVICES, "chat", change)
    world.wait(1)


def steps(world: MemoryCluster) -> tuple[int, int]:
    """`maxSurge` and `maxUnavailable` that the Deployment has."""
    strategy = world.api.one(DEPLOYMENTS, "chat")["spec"]["strategy"]["rollingUpdate"]
    return strategy["maxSurge"], strategy["maxUnavailable"]


def expect_waiting(world: MemoryCluster, advice: str) -> None:
    assert world.condition("Progressing") == ("True", "Unschedulable")
    assert world.condition("Available") == ("True", "EarlierRevisionServes")
    assert steps(world) == SURGE
    assert advice in world.message("Progressing")


def test_a_cordoned_node_keeps_the_earlier_pod_for_the_new_one_could_not_follow_it() -> None:
    world = serving()
    world.no_device = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) were unschedulable."
    edit(world)
    world.wait(PATIENCE_SECONDS + 60)
    assert steps(world) == SURGE
    assert world.condition("Available") == ("True", "EarlierRevisionServes")


def test_the_earlier_pod_goes_first_once_no_device_is_free_for_both_and_the_condition_says_so() -> None:
    world = serving()
    edit(world)
    expect_waiting(world, "an earlier pod ends first: after 60s")
    world.wait(PATIENCE_SECONDS - 2)
    expect_waiting(world, "an earlier pod ends first: after 60s")
    # What comes of it is seen in between: the new pod takes its time to start.
    world.held = {"containerStatuses": []}
    world.wait(2)
    assert steps(world) == IN_PLACE
    assert world.condition("Progressing") == ("True", "ReplacingInPlace")
    assert world.condition("Ready") == ("False", "ReplacingInPlace")
    assert world.condition("Available")[0] == "False"
    assert "the earlier pod ends first" in world.message("Ready")
    assert ("Normal", "ReplacingInPlace") in told(world)
    assert "Stalled" not in world.conditions()
    world.held = None
    world.settle()
    assert world.condition("Ready") == ("True", "Serving")
    assert world.image() == NEXT
    assert steps(world) == SURGE, "the next rollout begins as ever"
    assert names.ANNOTATION_IN_PLACE not in world.api.one(DEPLOYMENTS, "chat")["metadata"]["annotations"]


def told(world: MemoryCluster) -> list[tuple[str, str]]:
    """Type and reason of the events of the service."""
    return [(event["type"], event["reason"]) for event in world.api.find(EVENTS)]


def test_nothing_about_it_changes_until_the_rollout_is_over_whoever_restarts() -> None:
    world = serving()
    edit(world)
    world.held = {"containerStatuses": []}
    world.wait(PATIENCE_SECONDS)
    assert steps(world) == IN_PLACE
    writes = world.api.writes
    for _ in range(5):
        world.restart()
        world.wait(300)
        assert steps(world) == IN_PLACE
    assert world.api.writes == writes


def test_a_template_that_fails_in_its_place_gives_the_device_back() -> None:
    world = serving()
    edit(world, BAD)
    world.wait(PATIENCE_SECONDS)
    assert (world.image(), steps(world)) == (BAD, IN_PLACE)
    world.wait(world.api.one(DEPLOYMENTS, "chat")["spec"]["progressDeadlineSeconds"] + 30)
    assert world.image() == GOOD
    assert world.condition("Progressing") == ("False", "RolledBack")
    assert world.condition("Stalled") == ("True", "RolledBack")
    assert world.condition("Available") == ("True", "EarlierRevisionServes")
    assert steps(world) == SURGE, "the rollout is over"
    assert names.ANNOTATION_IN_PLACE not in world.api.one(DEPLOYMENTS, "chat")["metadata"]["annotations"]
    assert world.condition("Progressing") == ("False", "RolledBack"), "what failed is not tried again"


@pytest.mark.parametrize("rollout", [{"maxSurge": 1}, {"maxUnavailable": 0}], ids=str)
def test_who_would_rather_wait_for_a_device_in_the_midst_of_it_is_told_of_that_alone(rollout: Object) -> None:
    world = serving()
    edit(world)
    world.held = {"containerStatuses": []}
    world.wait(PATIENCE_SECONDS)
    assert world.condition("Progressing") == ("True", "ReplacingInPlace")
    world.change(lambda found: found["spec"].update(rollout=rollout))
    assert steps(world) == SURGE
    assert world.condition("Progressing")[1] != "ReplacingInPlace"
    assert "the earlier pod ends first" not in world.message("Ready")


def test_the_operator_asks_to_look_again_when_the_time_is_over() -> None:
    world = serving()
    edit(world)
    left = world.look()
    assert left == pytest.approx(PATIENCE_SECONDS, abs=5)


@pytest.mark.parametrize(
    "asked",
    [
        {"rollout": {"maxSurge": 1}},
        {"rollout": {"maxUnavailable": 0}},
        {"podDisruptionBudget": {"maxUnavailable": 0}},
        {"podDisruptionBudget": {"maxUnavailable": "0%"}},
    ],
    ids=str,
)
def test_who_says_that_no_pod_may_be_missing_is_obeyed_and_advised(asked: Object) -> None:
    world = serving(**{f"spec__{field}": value for field, value in asked.items()})
    edit(world)
    world.wait(3 * 86_400)
    expect_waiting(world, "set spec.rollout: {maxSurge: 0, maxUnavailable: 1}")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"parallelism": {"tensor": 2}}, "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."),
        (
            {"podTemplate": {"resources": {"requests": {"memory": "64Gi"}}}},
            "0/1 nodes are available: 1 Insufficient memory, 1 Insufficient nvidia.com/gpu.",
        ),
        (
            {"podTemplate": {"nodeSelector": {"pool": "large"}}},
            "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't match the selector.",
        ),
    ],
    ids=["more devices", "more memory", "other nodes"],
)
def test_a_pod_that_may_not_fit_in_the_earlier_ones_place_ends_none(spec: Object, message: str) -> None:
    world = serving(spec__podTemplate={"resources": {"requests": {"memory": "32Gi"}}})
    world.no_device = message
    edit(world, **spec)
    world.wait(3 * 86_400)
    expect_waiting(world, "set spec.rollout: {maxSurge: 0, maxUnavailable: 1}")


def test_what_the_pod_needs_more_of_and_nothing_lacks_is_no_hindrance() -> None:
    world = serving(spec__podTemplate={"resources": {"requests": {"memory": "32Gi"}}})
    edit(world, podTemplate={"resources": {"requests": {"memory": "64Gi"}}})
    world.wait(PATIENCE_SECONDS)
    world.settle()
    assert world.condition("Ready") == ("True", "Serving")


def test_a_shortage_of_something_else_ends_no_pod() -> None:
    world = serving()
    world.no_device = "0/1 nodes are available: 1 Insufficient memory."
    edit(world)
    world.wait(3 * 86_400)
    assert world.condition("Progressing") == ("True", "Unschedulable")
    assert steps(world) == SURGE


@pytest.mark.parametrize("reason", ["TriggeredScaleUp", "Nominated"])
def test_a_node_that_an_autoscaler_adds_is_waited_for_and_not_for_ever(reason: str) -> None:
    world = serving()
    edit(world)
    say(world, reason)
    world.wait(PROVISION_SECONDS - 60)
    expect_waiting(world, "after 15m where an autoscaler adds a node")
    world.wait(60)
    world.settle()
    assert world.condition("Ready") == ("True", "Serving")


def test_pods_of_less_priority_that_the_scheduler_ends_for_it_are_waited_for_too() -> None:
    world = serving()
    edit(world)
    seen = world.snapshot()
    wanted = seen.desire.service
    assert wanted is not None
    later = replace(seen, now=seen.now + timedelta(seconds=PATIENCE_SECONDS))
    assert decide(wanted, later).history.in_place
    for pod in seen.pods:
        pod["status"]["nominatedNodeName"] = "node-2"
    assert not decide(wanted, later).history.in_place


def say(world: MemoryCluster, reason: str) -> None:
    """An event about the pod that waits."""
    (pod,) = (pod for pod in world.api.find(PODS) if not pod["spec"].get("nodeName"))
    about = {"kind": "Pod", "uid": pod["metadata"]["uid"]}
    metadata = {"name": "e1", "namespace": NAMESPACE}
    event = {"metadata": metadata, "involvedObject": about, "reason": reason, "lastTimestamp": timestamp(world.now)}
    world.api.put(EVENTS, event)


@pytest.mark.parametrize(("exceeded", "due"), [("nvidia.com/gpu", True), ("memory", False)])
def test_the_last_device_of_a_quota_is_given_up_too(exceeded: str, *, due: bool) -> None:
    world = serving()
    edit(world)
    seen = world.snapshot()
    wanted, deployment = seen.desire.service, seen.own(Kind.DEPLOYMENT)
    assert wanted is not None
    assert deployment is not None
    refused = {
        "type": "ReplicaFailure",
        "status": "True",
        "lastTransitionTime": timestamp(world.now),
        "message": f'pods "chat-1" is forbidden: exceeded quota: tight, requested: requests.{exceeded}=1, '
        f"used: requests.{exceeded}=1, limited: requests.{exceeded}=1",
    }
    deployment["status"]["conditions"].append(refused)
    placed = tuple(pod for pod in seen.pods if pod["spec"].get("nodeName"))
    at_first = decide(wanted, replace(seen, pods=placed))
    assert at_first.history.in_place == ""
    assert at_first.cause is not None
    assert ("an earlier pod ends first" in at_first.cause.message) is due
    later = seen.now + timedelta(seconds=PATIENCE_SECONDS)
    assert bool(decide(wanted, replace(seen, pods=placed, now=later)).history.in_place) is due


def test_a_canary_has_nothing_to_be_compared_with_where_the_earlier_pod_gave_it_the_device() -> None:
    world = serving(spec__rollout={"canary": {"duration": "10m"}})
    edit(world)
    assert world.api.one(DEPLOYMENTS, "chat")["spec"]["minReadySeconds"] > 600
    expect_waiting(world, "an earlier pod ends first")
    world.wait(60)
    assert world.condition("Ready") == ("True", "Serving")
    assert "minReadySeconds" not in world.api.one(DEPLOYMENTS, "chat")["spec"]
