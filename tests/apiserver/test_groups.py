"""Replicas over two nodes, by the controller of LeaderWorkerSets as it is published, on nodes that kwok plays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flyball_lab.harness.waiting import eventually
from flyball_operator.api import names
from support.cluster import Object, apply, delete, get, items, kubectl, patch
from support.kwok import NO_IMAGE, kwok_nodes
from support.leader_worker_sets import leader_worker_sets
from support.operators import RESOURCE, OperatorProcess, expect_condition, idle_service, one

pytestmark = pytest.mark.long

NEXT = "vllm/next:1"


@pytest.fixture(scope="module")
def served(crd: object) -> Iterator[None]:
    with leader_worker_sets():
        yield


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with kwok_nodes(tmp_path_factory.mktemp("kwok"), 2) as placed:
        yield placed


def over_two_nodes(**changes: Any) -> Object:
    return idle_service(spec__parallelism={"data": 2, "nodes": 2}, **changes)


def pods(place: str) -> dict[str, Object]:
    """The service's pods that stay, by their names."""
    found = items("pods", namespace=place, selector=f"{names.LABEL_SERVICE}=chat")
    return {pod["metadata"]["name"]: pod for pod in found if "deletionTimestamp" not in pod["metadata"]}


def uids(place: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods(place).values()}


def images(place: str) -> set[str]:
    return {pod["spec"]["containers"][0]["image"] for pod in pods(place).values()}


@pytest.fixture
def ready(place: str, running: OperatorProcess, served: None, two_nodes: dict[str, Any]) -> Iterator[str]:
    """The namespace of a service of one group that is Ready."""
    apply(over_two_nodes(**two_nodes), namespace=place)
    expect_condition(place, "Ready", "True", "Serving")
    yield place
    # While the nodes are there: nobody else ends its pods.
    delete(RESOURCE, "chat", namespace=place)
    eventually(lambda: not pods(place), expecting="no pod is left")


def test_a_group_has_a_pod_on_each_node_and_is_ready_as_one_replica(ready: str) -> None:
    found = pods(ready)
    assert set(found) == {"chat-0", "chat-0-1"}
    assert len({pod["spec"]["nodeName"] for pod in found.values()}) == 2
    for index, pod in enumerate(found[name] for name in sorted(found)):
        (engine,) = (one for one in pod["spec"]["containers"] if one["name"] == names.CONTAINER_ENGINE)
        told = {variable["name"]: variable.get("value") for variable in engine["env"]}
        assert (told["LWS_WORKER_INDEX"], told["LWS_GROUP_SIZE"]) == (str(index), "2")
        assert told["LWS_LEADER_ADDRESS"] == f"chat-0.chat-0.{ready}"
    status = one(RESOURCE, ready)["status"]
    assert (status["replicas"], status["readyReplicas"]) == (1, 1)
    assert get("deployment", "chat", namespace=ready) is None


def test_a_new_template_replaces_the_group_and_one_that_fails_is_rolled_back(ready: str) -> None:
    before = uids(ready)
    patch(RESOURCE, "chat", {"spec": {"engine": {"image": NEXT}}}, namespace=ready)
    eventually(lambda: images(ready) == {NEXT} and not before & uids(ready), expecting="both pods replaced")
    expect_condition(ready, "Ready", "True", "Serving")
    patch(RESOURCE, "chat", {"spec": {"podTemplate": {"annotations": NO_IMAGE}}}, namespace=ready)
    message = expect_condition(ready, "Progressing", "False", "RolledBack")
    assert "InvalidImageName" in message
    eventually(lambda: images(ready) == {NEXT} and len(pods(ready)) == 2, expecting="the last good template is back")
    expect_condition(ready, "Available", "True", "EarlierRevisionServes")
    patch(RESOURCE, "chat", {"spec": {"podTemplate": {"annotations": None}}}, namespace=ready)
    expect_condition(ready, "Ready", "True", "Serving")


def test_a_group_of_which_one_pod_fails_is_made_anew_whole(ready: str) -> None:
    before = uids(ready)
    engine = next(one for one in pods(ready)["chat-0-1"]["status"]["containerStatuses"])
    restarted = {"status": {"containerStatuses": [{**engine, "restartCount": 1}]}}
    patch("pod", "chat-0-1", restarted, namespace=ready, subresource="status")
    eventually(lambda: len(pods(ready)) == 2 and not before & uids(ready), expecting="both pods made anew")
    expect_condition(ready, "Ready", "True", "Serving")
    assert kubectl("get", "events", "-n", ready, "--field-selector=reason=RecreateGroupOnPodRestart", "-o", "name")
