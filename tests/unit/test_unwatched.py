"""What is written of a service whose namespace is not watched: nothing is made up, and nothing said before is lost."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from flyball_operator.api.service_key import Key
from flyball_operator.api.v1alpha1 import RECONCILER_CONDITIONS, TUNER_FIELDS, ConditionType, InferenceServiceStatus
from flyball_operator.kube.resources import DEPLOYMENTS, INFERENCE_SERVICES
from flyball_operator.reconcile.plan.unwatched import unwatched
from flyball_operator.reconcile.queue import KeyQueue
from support.memory_api import MemoryApi, Object
from support.memory_cluster import NAMESPACE, MemoryCluster, service

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def read() -> Object:
    """A service that serves, with something of the tuner's in its status."""
    world = MemoryCluster()
    world.apply(service(spec__replicas=2))
    found = world.api.one(INFERENCE_SERVICES, "chat")
    tuned = {"type": "Tuned", "status": "True", "reason": "Applied"}
    status = found["status"]
    return {**found, "status": {**status, "tuning": {"mode": "Auto"}, "conditions": [*status["conditions"], tuned]}}


def test_the_figures_stay_and_the_conditions_of_the_reconciler_are_unknown() -> None:
    raw = read()
    part = unwatched(raw, "not granted: list pods.core in namespace ns", epoch=8, now=NOW)
    assert part is not None
    kept = ("observedGeneration", "replicas", "readyReplicas", "selector", "url")
    assert [part[field] for field in kept] == [raw["status"][field] for field in kept]
    assert part["epoch"] == 8
    assert {item["type"] for item in part["conditions"]} == RECONCILER_CONDITIONS - {ConditionType.ROUTED}
    raw["status"]["conditions"].append({"type": "Routed", "status": "True"})
    named = unwatched(raw, "not granted: list pods.core in namespace ns", epoch=8, now=NOW)
    assert named is not None
    assert {item["type"] for item in named["conditions"]} == RECONCILER_CONDITIONS, "it names a gateway"
    assert {(item["status"], item["reason"]) for item in part["conditions"]} == {("Unknown", "NamespaceNotWatched")}
    assert all("list pods.core in namespace ns" in item["message"] for item in part["conditions"])


def test_it_is_said_once() -> None:
    raw = read()
    part = unwatched(raw, "gone", epoch=8, now=NOW)
    assert part is not None
    again = {**raw, "status": {**raw["status"], **part}}
    assert unwatched(again, "gone", epoch=9, now=NOW) is None
    assert unwatched(again, "something else", epoch=9, now=NOW) is not None


def test_the_two_writers_share_no_field() -> None:
    raw = read()
    part = unwatched(raw, "gone", epoch=8, now=NOW)
    assert part is not None
    assert not set(part) & TUNER_FIELDS
    known = {field.alias or name for name, field in InferenceServiceStatus.model_fields.items()}
    assert known > TUNER_FIELDS
    assert set(part) <= known - TUNER_FIELDS


async def look_once(world: MemoryCluster) -> None:
    """Have the reconciler look at the service as its queue has it."""
    queue: KeyQueue[Key] = KeyQueue(clock=lambda: 0.0, jitter=lambda: 0.5)
    queue.add(Key(NAMESPACE, "chat"))
    working = asyncio.create_task(world.reconciler.work(queue))
    async with asyncio.timeout(60):
        while len(queue):  # noqa: ASYNC110 - nothing announces that a key was taken
            await asyncio.sleep(0)
        await queue.idle()
    working.cancel()


@pytest.mark.parametrize("why", [None, "not granted: list pods.core in namespace ns", ""])
@pytest.mark.parametrize("held", [True, False])
async def test_nothing_is_written_where_another_release_looks_after_the_services(why: str | None, held: bool) -> None:
    async def hold(_: str) -> bool:
        return held

    world = MemoryCluster(MemoryApi())
    world.api.put(INFERENCE_SERVICES, service())
    world.restart(why_unwatched=lambda _: why, hold=hold)
    await look_once(world)
    made = bool(world.api.find(DEPLOYMENTS))
    told = "status" in world.api.one(INFERENCE_SERVICES, "chat")
    assert (made, told) == (held and why is None, held and why != "")
