"""Somebody undoes what was applied, in each apply or after it: field and who are said, writes end, and it heals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from flyball_lab.harness.waiting import eventually
from flyball_operator.api import names
from flyball_operator.api.objects import annotation
from support.audit import Audit, Write
from support.cluster import Object, apply, get, items, kubectl, namespace, patch, throughout
from support.kubelet import play_kubelet
from support.operators import expect_condition, expect_no_node, idle_service
from support.policies import STRIPS_A_LABEL, STRIPS_THE_COMMAND, mutating, remove
from support.shared_operator import SharedOperator
from support.tenants import operator

RESOURCE = names.CRD_NAME
#: Creating, claiming the fields of the creation, noting that its pods fit no node, and that they are ready.
WRITES = ["create", "patch", "patch", "patch"]


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
    [
        (STRIPS_THE_COMMAND, "spec.template.spec.containers[engine].command"),
        (STRIPS_A_LABEL, "metadata.labels[serving.flyball.dev/service]"),
    ],
    ids=["command", "label"],
)
def test_a_policy_that_undoes_what_flyball_needs_is_told_without_a_further_write(
    place: str, shared: SharedOperator, patches: str, field: str
) -> None:
    with mutating(place, patches), shared.at(place):
        audit = Audit()
        apply(idle_service(), namespace=place)
        message = expect_condition(place, "Accepted", "False", "ChangedByOthers")
        assert f"Deployment chat: {field} changed in each apply, by an admission policy or webhook" in message
        eventually(lambda: tell_events(place) == [message], expecting="one event with the same words")
        expect_condition(place, "Ready", "False", "ChangedByOthers")
        expect_no_node(place)

        # What becomes of pods changes the Deployment, and nothing of what others changed.
        image = deployment(place)["spec"]["template"]["spec"]["containers"][0]["image"]
        eventually(lambda: play_kubelet(place, image=image), expecting="a pod")
        eventually(lambda: columns(place)[1:5] == ["False", "True", "1", "1"], expecting="the columns to be filled")
        eventually(lambda: annotation(deployment(place), names.ANNOTATION_GOOD), expecting="the rollout to be noted")
        writes = writes_to_the_deployment(audit, place)
        # On a busy machine one of them was seen twice.
        assert [write.verb for write in writes] in (WRITES, [*WRITES, "patch"])
        throughout(lambda: writes_to_the_deployment(audit, place) == writes, expecting="no write", seconds=5)

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
    with mutating(place, STRIPS_THE_COMMAND), operator(place, tmp_path, resync_seconds="5"):
        apply(idle_service(), namespace=place)
        expect_condition(place, "Accepted", "False", "ChangedByOthers")
        remove(place)
        expect_condition(place, "Accepted", "True", "Accepted")
        assert "flyball_engine.launch" in deployment(place)["spec"]["template"]["spec"]["containers"][0]["command"]


def test_another_controller_is_named(place: str, shared: SharedOperator) -> None:
    with shared.at(place):
        apply(idle_service(spec__replicas=1), namespace=place)
        expect_no_node(place)
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
        assert len(writes_to_the_deployment(audit, place)) == 1
