"""What is written of a service whose namespace is not watched: nothing is made up, and nothing said before is lost."""

from __future__ import annotations

from datetime import UTC, datetime

from flyball_operator.api.v1alpha1 import RECONCILER_CONDITIONS, TUNER_FIELDS, InferenceServiceStatus
from flyball_operator.kube.resources import INFERENCE_SERVICES
from flyball_operator.reconcile.plan.unwatched import unwatched
from support.memory_api import Object
from support.world import World, service

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def read() -> Object:
    """A service that serves, with something of the tuner's in its status."""
    world = World()
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
    assert {item["type"] for item in part["conditions"]} == set(RECONCILER_CONDITIONS)
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
