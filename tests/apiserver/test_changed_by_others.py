"""Somebody changes an object after each apply: it is said, with the field and who; writes end; and it heals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from flyball_lab.harness.waiting import eventually
from flyball_operator.api import names
from flyball_operator.reconcile.plan.objects import annotation
from support.cluster import Object, apply, get, items, kubectl, namespace, patch, throughout
from support.kubelet import play_kubelet
from support.operators import Audit, Write, expect_condition, idle_service, operator
from support.policies import MIRRORED, TOLERATES_MORE, USES_THE_MIRROR, mutating, remove

RESOURCE = names.CRD_NAME
ASKED = {"key": "test/asked", "operator": "Exists"}
TEMPLATE = "Deployment chat: spec.template.spec"
#: Creating, claiming the fields of the creation, two applies with equal results, and noting that its pods are ready.
WRITES = ["create", "patch", "patch", "patch", "patch"]


@pytest.fixture
def place(crd: Path) -> Iterator[str]:
    """A namespace of the test's own."""
    with namespace("flyball-others") as name:
        yield name


def writes_to_the_deployment(audit: Audit, place: str) -> list[Write]:
    """But for those that were late: the Deployment had changed since it was read."""
    return [write for write in audit.writes(place) if write.resource == "deployments" and write.code < 300]


def tell_events(place: str) -> list[str]:
    found = items("events", namespace=place)
    return [event["message"] for event in found if event["reason"] == "ChangedByOthers" and event["type"] == "Warning"]


@pytest.mark.parametrize(
    ("patches", "field"),
    [(TOLERATES_MORE, "tolerations"), (USES_THE_MIRROR, "containers[engine].image")],
    ids=["tolerations", "image"],
)
def test_a_policy_that_changes_each_apply_is_told_and_ends_the_writes(
    place: str, tmp_path: Path, patches: str, field: str
) -> None:
    with mutating(place, patches), operator(place, tmp_path):
        audit = Audit()
        apply(idle_service(spec__podTemplate__tolerations=[ASKED]), namespace=place)
        message = expect_condition(place, "Accepted", "False", "ChangedByOthers")
        assert f"{TEMPLATE}.{field} changed after each apply" in message
        assert "probably by an admission policy or webhook (no field manager is recorded)" in message
        eventually(lambda: tell_events(place) == [message], expecting="one event with the same words")
        expect_condition(place, "Ready", "False", "ChangedByOthers")

        # What becomes of pods changes the Deployment, and nothing of what others changed.
        image = deployment(place)["spec"]["template"]["spec"]["containers"][0]["image"]
        eventually(lambda: play_kubelet(place, image=image), expecting="a pod")
        eventually(lambda: columns(place)[1:5] == ["False", "True", "1", "1"], expecting="the columns to be filled")
        eventually(lambda: annotation(deployment(place), names.ANNOTATION_GOOD), expecting="the rollout to be noted")
        throughout(lambda: bool(columns(place)), expecting="time to pass", seconds=5)
        assert [write.verb for write in writes_to_the_deployment(audit, place)] == WRITES

        # A changed spec is applied at once.
        remove(place)
        patch(RESOURCE, "chat", {"spec": {"replicas": 2}}, namespace=place)
        expect_condition(place, "Accepted", "True", "Accepted")


def deployment(place: str) -> Object:
    found = get("deployment", "chat", namespace=place)
    assert found is not None
    return found


def columns(place: str) -> list[str]:
    return kubectl("get", RESOURCE, "chat", "-n", place, "--no-headers").split()


def test_a_policy_that_goes_away_is_noticed_at_the_resync(place: str, tmp_path: Path) -> None:
    with mutating(place, USES_THE_MIRROR), operator(place, tmp_path, resync_seconds="5"):
        apply(idle_service(), namespace=place)
        expect_condition(place, "Accepted", "False", "ChangedByOthers")
        remove(place)
        expect_condition(place, "Accepted", "True", "Accepted")
        assert deployment(place)["spec"]["template"]["spec"]["containers"][0]["image"] != MIRRORED


def test_another_controller_is_named(place: str, tmp_path: Path) -> None:
    with operator(place, tmp_path):
        apply(idle_service(spec__replicas=1), namespace=place)
        expect_condition(place, "Accepted", "True", "Accepted")
        audit = Audit()

        def told() -> bool:
            """What another controller does: whenever there is one replica, it wants three."""
            if deployment(place)["spec"]["replicas"] == 1:
                change = json.dumps({"spec": {"replicas": 3}})
                manager = "--field-manager=other-scaler"
                kubectl("patch", "deployment", "chat", "-n", place, manager, "--type=merge", "-p", change)
            return bool(tell_events(place))

        eventually(told, expecting="the other controller to be told of")
        message = expect_condition(place, "Accepted", "False", "ChangedByOthers")
        assert "Deployment chat: spec.replicas changed after each apply, by field manager other-scaler" in message
        throughout(told, expecting="an event", seconds=3)
        assert len(writes_to_the_deployment(audit, place)) == 2
