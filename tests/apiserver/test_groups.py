"""Replicas over two nodes, by the controller of LeaderWorkerSets as it is published, on nodes that kwok plays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from flyball_lab.harness.waiting import eventually
from flyball_operator.api import names
from flyball_operator.api.objects import moment
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.reconcile.plan import history
from flyball_operator.reconcile.plan.pod import drain_seconds, progress_seconds
from support.cluster import KubectlError, Object, apply, delete, get, items, kubectl, patch
from support.devices import DEVICE
from support.kwok import NO_IMAGE, kwok_nodes
from support.leader_worker_sets import leader_worker_sets
from support.operators import (
    RESOURCE,
    OperatorProcess,
    condition,
    expect_condition,
    expect_seen,
    idle_service,
    one,
)

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


OVER_TWO_NODES: dict[str, Any] = {"spec__parallelism": {"data": 2, "nodes": 2}}
#: Of one engine core.
SPREAD: dict[str, Any] = {
    "spec__parallelism": {"tensor": 4, "nodes": 2},
    "spec__accelerator": {"resourceName": DEVICE},
}


def pods(place: str) -> dict[str, Object]:
    """The service's pods that stay, by their names."""
    found = items("pods", namespace=place, selector=f"{names.LABEL_SERVICE}=chat")
    return {pod["metadata"]["name"]: pod for pod in found if "deletionTimestamp" not in pod["metadata"]}


def uids(place: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods(place).values()}


def images(place: str) -> set[str]:
    return {pod["spec"]["containers"][0]["image"] for pod in pods(place).values()}


def engine_of(pod: Object) -> Object:
    (engine,) = (one for one in pod["spec"]["containers"] if one["name"] == names.CONTAINER_ENGINE)
    return dict(engine)


@contextmanager
def serving(place: str, service: Object) -> Iterator[str]:
    """The service is there and Ready, and its pods are gone after the block."""
    apply(service, namespace=place)
    expect_condition(place, "Ready", "True", "Serving")
    yield place
    # While the nodes are there: nobody else ends its pods.
    delete(RESOURCE, "chat", namespace=place)
    eventually(lambda: not pods(place), expecting="no pod is left")


@pytest.fixture(params=[OVER_TWO_NODES, SPREAD], ids=["two cores", "one core"])
def ready(
    place: str, running: OperatorProcess, served: None, two_nodes: dict[str, Any], request: pytest.FixtureRequest
) -> Iterator[str]:
    """The namespace of a service of one group that is Ready: each pod has an engine core, or both are parts of one."""
    with serving(place, idle_service(**request.param, **two_nodes)):
        yield place


@pytest.fixture
def spread(place: str, running: OperatorProcess, served: None, two_nodes: dict[str, Any]) -> Iterator[str]:
    """The same, of one engine core."""
    with serving(place, idle_service(**SPREAD, **two_nodes)):
        yield place


@pytest.fixture
def hasty(place: str, running: OperatorProcess, served: None, two_nodes: dict[str, Any]) -> Iterator[str]:
    """Likewise, of a service that gives a template up after two minutes: no time is for requests that run."""
    steps = {"startupTimeout": "10s", "drainTimeout": "1s"}
    with serving(place, idle_service(**OVER_TWO_NODES, spec__rollout=steps, **two_nodes)):
        yield place


def test_a_group_has_a_pod_on_each_node_and_is_ready_as_one_replica(ready: str) -> None:
    found = pods(ready)
    assert set(found) == {"chat-0", "chat-0-1"}
    assert len({pod["spec"]["nodeName"] for pod in found.values()}) == 2
    for index, pod in enumerate(found[name] for name in sorted(found)):
        told = {variable["name"]: variable.get("value") for variable in engine_of(pod)["env"]}
        assert (told["LWS_WORKER_INDEX"], told["LWS_GROUP_SIZE"]) == (str(index), "2")
        assert told["LWS_LEADER_ADDRESS"] == f"chat-0.chat-0.{ready}"
    status = one(RESOURCE, ready)["status"]
    assert (status["replicas"], status["readyReplicas"]) == (1, 1)
    assert get("deployment", "chat", namespace=ready) is None


def test_of_one_engine_core_the_leader_alone_serves(spread: str) -> None:
    leader, other = (engine_of(pods(spread)[name]) for name in ("chat-0", "chat-0-1"))
    assert {engine["resources"]["limits"][DEVICE] for engine in (leader, other)} == {"2"}
    assert {"ports", "startupProbe", "readinessProbe", "livenessProbe"} <= leader.keys() - other.keys()
    assert leader["command"] == other["command"]

    def served() -> set[str]:
        slices = items("endpointslices", namespace=spread, selector="kubernetes.io/service-name=chat")
        return {one["targetRef"]["name"] for found in slices for one in found.get("endpoints") or ()}

    eventually(lambda: served() == {"chat-0"}, expecting="the leader is the Service's only endpoint")
    expect_condition(spread, "Available", "True", "EndpointsReady")
    with pytest.raises(KubectlError, match="may not change from or to 1"):
        patch(RESOURCE, "chat", {"spec": {"parallelism": {"tensor": 1, "data": 2}}}, namespace=spread)


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


def set_room(place: str, number: int) -> None:
    """Have a quota for so many pods, and wait until it holds."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "tight"}}
    apply({**quota, "spec": {"hard": {"pods": str(number)}}}, namespace=place)

    def holds() -> bool:
        return bool(one("resourcequota", place, "tight").get("status", {}).get("hard") == {"pods": str(number)})

    eventually(holds, expecting="the quota to hold")


def expect_deadline_over(place: str) -> None:
    """Wait until the template asked for has had all the time to come up that it has, and the operator has looked."""
    service = InferenceService.model_validate(one(RESOURCE, place))
    asked = moment(history.read(one("leaderworkerset", place)).since)
    assert asked is not None
    over = asked + timedelta(seconds=progress_seconds(service) + drain_seconds(service))
    eventually(lambda: datetime.now(UTC) > over, expecting="the deadline to be over", within=300)
    expect_seen(place)


def test_a_quota_that_keeps_pods_of_a_group_away_is_waited_for_and_named(hasty: str) -> None:
    set_room(hasty, 0)
    patch(RESOURCE, "chat", {"spec": {"engine": {"image": NEXT}}}, namespace=hasty)
    message = expect_condition(hasty, "Progressing", "True", "QuotaExceeded")
    assert "exceeded quota: tight" in message
    assert not pods(hasty)
    expect_deadline_over(hasty)
    expect_condition(hasty, "Ready", "False", "QuotaExceeded")
    assert condition(hasty, "Progressing")[:2] == ("True", "QuotaExceeded")
    set_room(hasty, 1)
    # Its StatefulSet tries again ever more seldom.
    eventually(lambda: set(pods(hasty)) == {"chat-0"}, expecting="a leader alone", within=400)
    eventually(lambda: "Create Pod chat-0-1" in condition(hasty, "Progressing")[2], expecting="the pod that is missing")
    assert condition(hasty, "Progressing")[:2] == ("True", "QuotaExceeded")
    set_room(hasty, 2)
    # As docs/operations.md says.
    kubectl("annotate", "statefulset", "--overwrite", "-n", hasty, "-l", f"{names.LABEL_GROUPS}=chat", "retry=now")
    expect_condition(hasty, "Ready", "True", "Serving")
    assert images(hasty) == {NEXT}
