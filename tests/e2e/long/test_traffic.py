"""Ten thousand requests through the Service while everything around them is changed: not one may fail."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from flyball_lab.harness.streams import StreamLoad, StreamTotals
from flyball_lab.harness.waiting import eventually
from support.cluster import KubectlError, Object, apply, delete, kubectl, patch
from support.live import ENGINE_START_SECONDS, MODEL, RESOURCE, Flyball, Service, in_time, inference_service
from support.node import kill_container
from support.signing_keys import Keys

pytestmark = pytest.mark.cluster

REQUESTS = 10_000
#: A rollout of two engines, one after the other, on a busy machine.
ROLLOUT_SECONDS = 3 * ENGINE_START_SECONDS


@pytest.fixture
def busy(flyball: Flyball) -> Iterator[Service]:
    """A service of its own with two replicas."""
    service = Service("busy", flyball.watched)
    apply(inference_service(service.name, image=flyball.refs["engine-cpu"], replicas=2), namespace=service.namespace)
    expect_settled(service, replicas=2)
    yield service
    delete(RESOURCE, service.name, namespace=service.namespace)
    flyball.install(replicas=1)


def expect_settled(service: Service, *, replicas: int) -> None:
    """The generation asked for serves with so many pods, all of them confirmed, and no others are left."""

    def settled() -> bool:
        found = service.read()
        ready = service.condition("Ready")
        return (
            ready.get("status") == "True"
            and ready.get("observedGeneration") == found["metadata"]["generation"]
            and found["status"].get("readyReplicas") == replicas == len(service.pods())
            and service.tuning().get("appliedPods") == f"{replicas}/{replicas}"
        )

    eventually(settled, expecting=f"{replicas} pods of {service.name} serve as asked", within=ROLLOUT_SECONDS, every=1)


def edit(service: Service, **spec: object) -> None:
    patch(RESOURCE, service.name, {"spec": spec}, namespace=service.namespace)


def objectives_are_edited(service: Service, flyball: Flyball) -> None:
    uids = {pod["metadata"]["uid"] for pod in service.pods()}
    edit(service, objectives=in_time("4s", "250ms"))
    expect_settled(service, replicas=2)
    assert {pod["metadata"]["uid"] for pod in service.pods()} == uids


def a_ceiling_is_edited(service: Service, flyball: Flyball) -> None:
    """A rollout: every pod is replaced."""
    uids = {pod["metadata"]["uid"] for pod in service.pods()}
    edit(service, batching={"maxNumSeqs": 48})
    expect_settled(service, replicas=2)
    assert not uids & {pod["metadata"]["uid"] for pod in service.pods()}


def replicas_come_and_go(service: Service, flyball: Flyball) -> None:
    for replicas in (3, 1, 2):
        edit(service, replicas=replicas)
        expect_settled(service, replicas=replicas)


def evict(pod: Object) -> None:
    """Ask for an eviction, as `kubectl drain` does. Raises `KubectlError` where a budget refuses it."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    asked = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
    kubectl(
        "create", "--raw", f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", "-f", "-", stdin=json.dumps(asked)
    )


def a_pod_is_evicted(service: Service, flyball: Flyball) -> None:
    evict(service.pods()[0])
    expect_settled(service, replicas=2)


def the_node_is_drained(service: Service, flyball: Flyball) -> None:
    """One pod leaves, and the budget keeps the other until the first is back."""
    (node,) = {pod["spec"]["nodeName"] for pod in service.pods()}
    first, second = service.pods()
    kubectl("cordon", node)
    try:
        evict(first)
        eventually(
            lambda: all(pod["metadata"]["uid"] != first["metadata"]["uid"] for pod in service.pods()),
            expecting="the evicted pod is gone",
            within=180,
        )
        with pytest.raises(KubectlError, match="disruption budget"):
            evict(second)
    finally:
        kubectl("uncordon", node)
    expect_settled(service, replicas=2)


def the_operator_is_upgraded(service: Service, flyball: Flyball) -> None:
    epoch = obeyed_epoch(service)
    flyball.install(podAnnotations={"flyball.dev/upgrade": "traffic"})
    expect_led_anew(service, epoch)


def the_leader_is_killed(service: Service, flyball: Flyball) -> None:
    flyball.install(replicas=2)
    first = eventually(flyball.leader, expecting="a leader")
    epoch = obeyed_epoch(service)
    (leader,) = (pod for pod in flyball.operator_pods() if pod["metadata"]["name"] == first)
    kill_container(leader, container="operator")
    expect_led_anew(service, epoch)


def the_key_is_rotated(service: Service, flyball: Flyball) -> None:
    """By the operator, as the key's age is over."""
    keys = Keys(flyball)
    first = keys.present()
    keys.grow_old()
    keys.expect_followed(first)
    keys.expect_refused(service, first)
    edit(service, tuning={"bounds": {"maxNumActiveSeqs": {"min": 21, "max": 21}}})
    eventually(
        lambda: all(
            core["effective"]["max_num_active_seqs"] == 21
            for pod in service.pods()
            for core in service.read_back(pod)["cores"]
        ),
        expecting="the new key's setpoint in force everywhere",
    )
    expect_settled(service, replicas=2)


def obeyed_epoch(service: Service) -> int:
    """The least epoch that a pod's engine runs under, 0 where one has no setpoint."""
    applied = [core["applied"] for pod in service.pods() for core in service.read_back(pod)["cores"]]
    return min((one["epoch"] if one else 0) for one in applied)


def expect_led_anew(service: Service, epoch: int) -> None:
    eventually(lambda: obeyed_epoch(service) > epoch, expecting="another leader's setpoint in all pods", within=300)
    expect_settled(service, replicas=2)


MUTATIONS = (
    objectives_are_edited,
    a_pod_is_evicted,
    the_operator_is_upgraded,
    the_leader_is_killed,
    replicas_come_and_go,
    a_ceiling_is_edited,
    the_node_is_drained,
    the_key_is_rotated,
)


@pytest.mark.timeout(2 * 3600)
def test_no_request_fails_whatever_is_changed(
    busy: Service, flyball: Flyball, note_figure: Callable[[str], None]
) -> None:
    load = StreamLoad(url=busy.url(), model=MODEL, concurrency=8, prompt_tokens=(8, 40, 200), max_tokens=3)
    with load.running() as totals:
        for mutation in MUTATIONS:
            before = totals.finished
            mutation(busy, flyball)
            expect_unharmed(totals, mutation.__name__)
            note_figure(f"{mutation.__name__}: {totals.finished - before} requests finished meanwhile")
        eventually(lambda: totals.finished >= REQUESTS, expecting=f"{REQUESTS} requests", within=1200, every=1)
    totals.expect_nothing_lost()
    note_figure(f"{totals.finished} requests, none failed, refused or truncated")


def expect_unharmed(totals: StreamTotals, what: str) -> None:
    """So that what did the harm is named."""
    lost = [*totals.failures, *totals.truncated, *totals.refused]
    assert not lost, f"while {what}: {len(lost)} requests lost, first: {lost[0]}"
