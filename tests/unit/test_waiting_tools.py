"""What tools that wait for a rollout make of a service, by their own libraries: done, failed, or not yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flyball_operator.api.crd import schema
from flyball_operator.kube.resources import INFERENCE_SERVICES
from support.health import DONE, FAILED, WAITED_FOR, Health, health
from support.memory_api import Object
from support.memory_cluster import MemoryCluster, service

GOOD, NEXT, BAD = "engine:good", "engine:next", "engine:bad"
NO_NODE = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}]}


def serving(**spec: Any) -> MemoryCluster:
    """A service that serves."""
    world = MemoryCluster()
    world.apply(service(spec__engine__image=GOOD, **spec))
    return world


def found(world: MemoryCluster) -> Object:
    """The service as the API server gives it."""
    kept: Object = world.api.one(INFERENCE_SERVICES, "chat")
    default = schema()["properties"]["status"]["default"]
    return {**kept, "status": kept.get("status", default)}


def edited(world: MemoryCluster, **spec: Any) -> MemoryCluster:
    """After an edit that the operator has seen."""
    world.change(lambda one: one["spec"].update(spec))
    return world


def nobody_has_looked() -> MemoryCluster:
    world = MemoryCluster()
    world.api.put(INFERENCE_SERVICES, service())
    return world


def an_edit_that_nobody_has_seen() -> MemoryCluster:
    world = serving()
    world.api.edit(INFERENCE_SERVICES, "chat", lambda one: one["spec"]["engine"].update(image=NEXT))
    return world


def a_shortage() -> MemoryCluster:
    world = serving()
    world.held = NO_NODE
    return edited(world, engine={"image": NEXT})


def a_shortage_that_is_over() -> MemoryCluster:
    world = a_shortage()
    world.held = None
    world.settle()
    return world


def a_rollback() -> MemoryCluster:
    return edited(serving(), engine={"image": BAD})


def another_edit_after_a_rollback() -> MemoryCluster:
    return edited(a_rollback(), tuning={"mode": "Recommend"})


def a_good_edit_after_a_rollback() -> MemoryCluster:
    return edited(a_rollback(), engine={"image": NEXT})


def a_first_template_that_fails() -> MemoryCluster:
    world = MemoryCluster()
    world.apply(service(spec__engine__image=BAD))
    world.wait(3600)
    return world


def a_spec_that_is_wrong() -> MemoryCluster:
    return edited(serving(), tuning={"mode": "Auto", "overload": "Shed"}, objectives=[])


def scaled_to_zero() -> MemoryCluster:
    return edited(serving(), replicas=0)


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        (nobody_has_looked, WAITED_FOR),
        (serving, DONE),
        (an_edit_that_nobody_has_seen, WAITED_FOR),
        (a_shortage, WAITED_FOR),
        (a_shortage_that_is_over, DONE),
        (a_rollback, FAILED),
        (another_edit_after_a_rollback, FAILED),
        (a_good_edit_after_a_rollback, DONE),
        (a_first_template_that_fails, FAILED),
        (a_spec_that_is_wrong, FAILED),
        (scaled_to_zero, DONE),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_tools_see_what_became_of_the_generation_asked_for(
    scenario: Callable[[], MemoryCluster], expected: Health
) -> None:
    assert health(found(scenario())) == expected
