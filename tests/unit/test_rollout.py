"""Which rollouts are given up, and when: a shortage never ends one, what the template breaks does."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from flyball_engine.contract import SETPOINT_WAIT_SECONDS
from flyball_engine.control.readiness import Readiness
from flyball_operator.api import names
from flyball_operator.api.objects import timestamp
from flyball_operator.kube.resources import DEPLOYMENTS, EVENTS, INFERENCE_SERVICES
from flyball_operator.reconcile.plan.pod import ENGINE_STARTS, PROGRESS_MARGIN
from support.memory_api import Object
from support.memory_cluster import NAMESPACE, MemoryCluster, service

GOOD, NEXT = "engine:good", "engine:next"
#: `spec.rollout.startupTimeout` of these services, and what the Deployment's deadline adds.
STARTUP, MARGIN = 600, PROGRESS_MARGIN + ENGINE_STARTS * SETPOINT_WAIT_SECONDS
DAYS = 3 * 86_400.0


def unscheduled(message: str = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.") -> Object:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"conditions": [condition]}


def waiting(reason: str, message: str) -> Object:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"containerStatuses": [{"name": "engine", "ready": False, "state": state}]}


def crashed(*, scheduled: datetime | None = None) -> Object:
    """A pod whose engine ended; `scheduled`: since when it has a node."""
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": "no kernel for this device"}}
    status: Object = {"containerStatuses": [{"name": "engine", "ready": False, "state": ended}]}
    if scheduled is not None:
        since = timestamp(scheduled)
        status["conditions"] = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": since}]
    return status


REFUSED_CONNECTION = "failed to do request: dial tcp 10.0.0.1:443: connect: connection refused"
#: Its kubelet has reported nothing of it.
UNTOUCHED = {"conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}
SHORTAGES = [
    ("Unschedulable", unscheduled()),
    ("RegistryUnavailable", waiting("ErrImagePull", REFUSED_CONNECTION)),
    ("NodeUnavailable", {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}),
    ("NodeUnavailable", UNTOUCHED),
]


@pytest.mark.parametrize("governed", [True, False])
def test_a_rollout_waits_for_every_start_of_an_engine_to_end_its_wait_for_a_setpoint(governed: bool) -> None:
    # What an engine spends besides its start-up time where no operator writes, by its own word.
    clock = [0.0]
    for _ in range(ENGINE_STARTS if governed else 0):
        readiness = Readiness(lambda: clock[0])
        readiness.expect_answer()
        readiness.expect_setpoint(lambda: False)
        readiness.answered()
        while readiness.lacks() is not None:
            clock[0] += 1
    mode = {} if governed else {"spec__tuning": {"mode": "Disabled"}}
    world = serving(spec__engine__governed=governed, **mode)
    spec = world.api.one(DEPLOYMENTS, "chat")["spec"]
    assert spec["progressDeadlineSeconds"] == STARTUP + clock[0] + PROGRESS_MARGIN
    probe = spec["template"]["spec"]["containers"][0]["startupProbe"]
    assert spec["progressDeadlineSeconds"] >= probe["periodSeconds"] * probe["failureThreshold"] + PROGRESS_MARGIN


def serving(**spec: Any) -> MemoryCluster:
    """A service that serves."""
    world = MemoryCluster()
    rollout = {"startupTimeout": f"{STARTUP}s"}
    world.apply(service(spec__engine__image=GOOD, spec__rollout=rollout, **spec))
    return world


def edit(world: MemoryCluster, image: str = NEXT) -> None:
    world.change(lambda found: found["spec"]["engine"].update(image=image))


def history(world: MemoryCluster) -> Object:
    """What is noted of templates."""
    kept: Object = world.api.one(DEPLOYMENTS, "chat")["metadata"]["annotations"]
    return kept


def expect_waiting(world: MemoryCluster, reason: str) -> None:
    assert world.image() == NEXT
    assert world.condition("Progressing") == ("True", reason)
    assert world.condition("Ready") == ("False", reason)
    assert "goes on by itself" in world.message("Ready")
    assert "Stalled" not in world.conditions()


def expect_rolled_back(world: MemoryCluster, reason: str) -> None:
    assert world.image() == GOOD
    assert world.condition("Progressing") == ("False", "RolledBack")
    assert world.condition("Stalled") == ("True", "RolledBack")
    assert reason in world.message("Progressing")


@pytest.mark.parametrize(("reason", "status"), SHORTAGES)
def test_a_shortage_is_waited_for_however_long_and_the_rollout_then_goes_on(reason: str, status: Object) -> None:
    world = serving()
    world.held = status
    edit(world)
    expect_waiting(world, reason)
    assert world.condition("Available") == ("True", "EarlierRevisionServes")
    world.wait(DAYS)
    world.restart()
    world.settle()
    expect_waiting(world, reason)
    world.held = None
    world.settle()
    assert world.condition("Ready") == ("True", "Serving")
    assert names.ANNOTATION_SHORTAGE not in history(world)


def test_a_first_rollout_that_waits_is_not_stalled() -> None:
    world = MemoryCluster()
    world.held = unscheduled()
    world.apply(service(spec__engine__image=NEXT))
    world.wait(DAYS)
    expect_waiting(world, "Unschedulable")
    assert world.condition("Available") == ("False", "Unschedulable")


def test_pods_have_their_start_up_time_anew_once_a_shortage_is_over() -> None:
    world = serving()
    world.held = unscheduled()
    edit(world)
    world.wait(DAYS)
    world.held = crashed()
    world.settle()
    # The Deployment has said for days that its deadline is over.
    assert world.condition("Progressing") == ("True", "RollingOut")
    assert world.message("Ready").startswith("EngineFailed: ")
    world.restart()
    world.wait(STARTUP - 120)
    assert world.condition("Progressing") == ("True", "RollingOut")
    left = world.look()
    assert left is not None, "nobody else tells when the time is over"
    world.wait(left)
    expect_rolled_back(world, "EngineFailed")


def test_a_shortage_that_ended_while_no_operator_looked_is_seen_in_when_the_pod_got_its_node() -> None:
    world = serving()
    # Never seen without a node.
    world.held = crashed(scheduled=world.now + timedelta(seconds=STARTUP))
    edit(world)
    assert world.condition("Progressing") == ("True", "RollingOut")
    world.wait(2 * STARTUP + MARGIN)
    expect_rolled_back(world, "EngineFailed")


def test_a_shortage_that_comes_again_begins_the_time_again() -> None:
    world = serving()
    for _ in range(3):
        world.held = unscheduled()
        edit(world) if world.image() == GOOD else world.settle()
        world.held = waiting("ContainerCreating", "")
        world.wait(STARTUP - 60)
        assert world.image() == NEXT
    world.wait(STARTUP + MARGIN)
    expect_rolled_back(world, "NotReadyInTime")


def test_what_cannot_help_is_given_up_at_once_after_a_shortage_too() -> None:
    world = serving()
    world.held = unscheduled()
    edit(world)
    world.held = waiting("InvalidImageName", "couldn't parse image reference")
    world.settle()
    expect_rolled_back(world, "InvalidImageName")


@pytest.mark.parametrize("replicas", [3, 50])
def test_one_bad_pod_beside_ready_ones_rolls_nothing_back_and_is_named(replicas: int) -> None:
    world = serving(spec__replicas=replicas)
    world.held, world.ready_beside = crashed(), replicas - 1
    edit(world)
    world.wait(DAYS)
    assert world.image() == NEXT
    assert world.condition("Progressing") == ("True", "RollingOut")
    assert "Stalled" not in world.conditions()
    assert "EngineFailed: pod chat-" in world.message("Ready")


def test_a_template_of_which_no_pod_is_ready_any_more_is_rolled_back() -> None:
    world = serving(spec__replicas=3)
    world.held, world.ready_beside = crashed(), 1
    edit(world)
    world.wait(DAYS)
    assert world.image() == NEXT
    world.ready_beside = 0
    world.settle()
    expect_rolled_back(world, "EngineFailed")


def test_a_shortage_that_comes_and_goes_is_nobody_elses_change() -> None:
    world = serving()
    world.held = unscheduled()
    edit(world)
    for _ in range(4):
        world.held = waiting("ContainerCreating", "")
        world.wait(2)
        assert world.condition("Ready") == ("False", "RollingOut")
        world.held = unscheduled()
        world.wait(2)
        expect_waiting(world, "Unschedulable")


def test_an_edit_ends_the_wait() -> None:
    world = serving()
    world.held = unscheduled()
    edit(world)
    edit(world, GOOD)
    assert world.condition("Ready") == ("True", "Serving")


def test_a_blocked_rollout_is_written_once() -> None:
    world = serving()
    world.held = unscheduled()
    edit(world)
    writes = world.api.writes
    for _ in range(5):
        world.wait(600)
    assert world.api.writes == writes


def test_why_a_pod_waits_in_silence_is_read_from_its_events() -> None:
    world = serving()
    world.held, world.node = waiting("ContainerCreating", ""), "node-1"
    world.api.edit(INFERENCE_SERVICES, "chat", lambda found: found["spec"]["engine"].update(image=NEXT))
    world.wait(0)
    pod = next(pod for pod in world.api.objects.values() if pod.get("status") == world.held)
    message = 'Multi-Attach error for volume "pvc-1"'
    world.api.put(
        EVENTS,
        {
            "metadata": {"name": "e1", "namespace": NAMESPACE},
            "involvedObject": {"kind": "Pod", "uid": pod["metadata"]["uid"]},
            "reason": "FailedAttachVolume",
            "message": message,
            "lastTimestamp": timestamp(world.now),
        },
    )
    assert world.look() == 20, "a short wait is nothing to ask about"
    world.wait(20)
    expect_waiting(world, "VolumeUnavailable")
    assert message in world.message("Ready")
    assert world.look() == 60
