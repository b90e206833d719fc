"""Applies whose result others change: after how many they end, when they begin again, and who is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from flyball_lab.harness.manifests import Object, good
from flyball_operator.api import names
from flyball_operator.api.desire import read_desire
from flyball_operator.api.objects import Kind
from flyball_operator.reconcile.plan import settling
from flyball_operator.reconcile.plan.fields import Item, Path, differences, spelt
from flyball_operator.reconcile.plan.intents import Apply
from flyball_operator.reconcile.plan.snapshot import Config, Snapshot

RESYNC = 60.0
START = datetime(2026, 1, 1, tzinfo=UTC)
TOLERATIONS: Path = ("spec", "template", "spec", "tolerations")
REPLICAS: Path = ("spec", "replicas")


def snapshot(*, owners: Mapping[str, Object] | None = None) -> Snapshot:
    fields = [
        {"manager": manager, "operation": "Update", "fieldsV1": owned} for manager, owned in (owners or {}).items()
    ]
    live = {"metadata": {"name": "chat", "managedFields": fields}}
    desire = read_desire(good(metadata__namespace="ns", metadata__uid="u", metadata__generation=1))
    return Snapshot(desire, START, Config(resync_seconds=RESYNC), {Kind.DEPLOYMENT: live})


def apply(*fields: Path, replicas: int = 1) -> Apply:
    return Apply(Kind.DEPLOYMENT, {"spec": {"replicas": replicas}}, fields)


def applied(before: Snapshot, intent: Apply) -> Snapshot:
    """The next look, a second after this apply."""
    attempts = {intent.kind: settling.attempt(before, intent)}
    return replace(before, attempts=attempts, now=before.now + timedelta(seconds=1))


def given_up() -> Snapshot:
    seen = applied(applied(snapshot(), apply(TOLERATIONS)), apply(TOLERATIONS))
    assert settling.futile(seen, [apply(TOLERATIONS)])
    return seen


def test_two_equal_results_end_it() -> None:
    seen, tries = snapshot(), 0
    while not settling.futile(seen, [apply(TOLERATIONS)]):
        seen, tries = applied(seen, apply(TOLERATIONS)), tries + 1
    assert tries == 2
    assert settling.looks(seen, [apply(TOLERATIONS)]) == [RESYNC - 1]


def test_what_came_before_the_first_apply_is_no_result_of_it() -> None:
    seen = applied(snapshot(), apply(("spec", "template", "spec", "containers"), TOLERATIONS))
    seen = applied(seen, apply(TOLERATIONS))
    assert settling.futile(seen, [apply(TOLERATIONS)])


def later(seen: Snapshot, seconds: float) -> Snapshot:
    return replace(seen, now=seen.now + timedelta(seconds=seconds))


def another_generation(seen: Snapshot) -> Snapshot:
    meta = seen.desire.meta.model_copy(update={"generation": 2})
    return replace(seen, desire=replace(seen.desire, meta=meta))


@pytest.mark.parametrize(
    ("seen", "intent"),
    [
        (given_up(), apply(REPLICAS)),
        (given_up(), apply(TOLERATIONS, replicas=2)),
        (another_generation(given_up()), apply(TOLERATIONS)),
        (later(given_up(), RESYNC), apply(TOLERATIONS)),
        (later(given_up(), -RESYNC), apply(TOLERATIONS)),
    ],
    ids=["other fields", "another intent", "another generation", "the resync", "a clock set back"],
)
def test_it_begins_again_with(seen: Snapshot, intent: Apply) -> None:
    assert not settling.futile(seen, [intent])


def test_a_note_in_between_does_not_begin_it_again() -> None:
    """That its pods are ready is noted in annotations, once; nothing else has changed."""
    noted = applied(given_up(), apply(("metadata", "annotations", names.ANNOTATION_GOOD), TOLERATIONS))
    assert settling.futile(noted, [apply(TOLERATIONS)])


def owned(*path: str) -> Object:
    node: Object = {}
    for step in reversed(path):
        node = {step: node}
    return node


ENGINE = Item("name", "engine")
IMAGE: Path = ("spec", "containers", ENGINE, "image")


@pytest.mark.parametrize(
    ("path", "owners", "who"),
    [
        (REPLICAS, {"scaler": owned("f:spec", "f:replicas")}, "by field manager scaler."),
        (REPLICAS, {"scaler": owned("f:spec", "f:paused")}, "probably by an admission policy or webhook"),
        (
            REPLICAS,
            {names.MANAGER_RECONCILER: owned("f:spec", "f:replicas")},
            "probably by an admission policy or webhook",
        ),
        (
            IMAGE,
            {"other": owned("f:spec", "f:containers", 'k:{"name":"engine"}', "f:image")},
            "by field manager other.",
        ),
        (
            IMAGE,
            {"other": owned("f:spec", "f:containers", 'k:{"name":"side"}', "f:image")},
            "probably by an admission policy",
        ),
        (("spec", "nodeSelector", "gpu"), {"other": owned("f:spec", "f:nodeSelector")}, "by field manager other."),
    ],
)
def test_who_is_named(path: Path, owners: Mapping[str, Object], who: str) -> None:
    said = settling.words(snapshot(owners=owners), [apply(path)], [], routes=False)
    assert who in said
    assert f"Deployment chat: {spelt(path)} changed after each apply" in said
    assert "every 60s" in said


def test_many_fields_are_counted() -> None:
    said = settling.words(snapshot(), [apply(*(("spec", f"field{number}") for number in range(7)))], [], routes=False)
    assert "spec.field4, 2 more changed" in said


@pytest.mark.parametrize(
    ("live", "wanted", "fields"),
    [
        ({"spec": {"replicas": 2}}, {"spec": {"replicas": 3}}, ["spec.replicas"]),
        ({"spec": {}}, {"spec": {"replicas": 3, "empty": []}}, ["spec.replicas"]),
        ({"spec": {"tolerations": [{"key": "a"}]}}, {"spec": {"tolerations": []}}, ["spec.tolerations"]),
        (
            {"containers": [{"name": "side"}, {"name": "engine", "image": "b"}]},
            {"containers": [{"name": "engine", "image": "a"}]},
            ["containers[engine].image"],
        ),
        ({"containers": [{"name": "side"}]}, {"containers": [{"name": "engine"}]}, ["containers[engine]"]),
        ({"annotations": {}}, {"annotations": {"a.b/c": "1"}}, ["annotations[a.b/c]"]),
        ({"limits": {"cpu": "1", "memory": "2"}}, {"limits": {"cpu": "1000m", "memory": "1"}}, ["limits.memory"]),
    ],
)
def test_which_fields_differ(live: Any, wanted: Any, fields: list[str]) -> None:
    assert [spelt(path) for path in differences(live, wanted)] == fields
