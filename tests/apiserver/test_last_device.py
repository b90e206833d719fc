"""One replica on the last device, with the real scheduler and Deployment controller: the earlier pod goes first."""

from __future__ import annotations

from typing import Any

import pytest

from flyball_lab.harness.waiting import eventually
from support.cluster import apply, patch
from support.devices import end_deleted_pods, expect_placed, on_device
from support.kubelet import UNREADABLE, play_kubelet, play_trouble
from support.operators import (
    IMAGE,
    RESOURCE,
    OperatorProcess,
    condition,
    expect_condition,
    made,
    one,
    serve,
    ungoverned_service,
)

NEXT = "vllm/next:1"
SURGE, IN_PLACE = {"maxSurge": 1, "maxUnavailable": 0}, {"maxSurge": 0, "maxUnavailable": 1}


def steps(place: str) -> dict[str, Any]:
    """How the Deployment lets pods follow one another."""
    found: dict[str, Any] = one("deployment", place)["spec"]["strategy"]["rollingUpdate"]
    return found


@pytest.fixture
def replacing(place: str, running: OperatorProcess, device_node: str) -> str:
    """The namespace of a service that served from the only device, and whose next pod is about to have it."""
    apply(ungoverned_service(spec__replicas=1, **on_device(device_node)), namespace=place)
    made(place)
    expect_placed(place, device_node, IMAGE)
    serve(place)
    assert steps(place) == SURGE
    patch(RESOURCE, "chat", {"spec": {"engine": {"image": NEXT}}}, namespace=place)
    assert "an earlier pod ends first: after 60s" in expect_condition(place, "Progressing", "True", "Unschedulable")
    assert condition(place, "Available")[:2] == ("True", "EarlierRevisionServes")
    message = expect_condition(place, "Progressing", "True", "ReplacingInPlace")
    assert "the earlier pod ends first" in message
    assert condition(place, "Ready")[:2] == ("False", "ReplacingInPlace")
    assert steps(place) == IN_PLACE
    expect_placed(place, device_node, NEXT)
    return place


@pytest.mark.long
def test_the_earlier_pod_gives_the_last_device_to_the_next_one_by_itself(replacing: str) -> None:
    serve(replacing, image=NEXT)
    eventually(lambda: steps(replacing) == SURGE, expecting="the next rollout to begin as ever")


def test_a_template_that_fails_there_gives_the_device_back(replacing: str, device_node: str) -> None:
    play_trouble(replacing, image=NEXT, state=UNREADABLE)
    expect_condition(replacing, "Progressing", "False", "RolledBack")
    expect_placed(replacing, device_node, IMAGE)

    def serves() -> bool:
        end_deleted_pods(replacing)
        play_kubelet(replacing, image=IMAGE)
        return condition(replacing, "Available")[:2] == ("True", "EarlierRevisionServes")

    eventually(serves, expecting="the earlier template to serve", every=0.5)
    assert condition(replacing, "Ready")[:2] == ("False", "RolledBack")
    eventually(lambda: steps(replacing) == SURGE, expecting="the next rollout to begin as ever")
