"""Services that come, go and come again; upgrades of the operator; what the chart's account may do."""

from __future__ import annotations

import json

import pytest

from support.cluster import Object, apply, delete, eventually, get, items, kubectl
from support.live import MODEL, RESOURCE, Flyball, Service, inference_service
from support.streams import StreamLoad

pytestmark = pytest.mark.cluster

OWNED = ("deployments", "services", "poddisruptionbudgets", "controllerrevisions", "replicasets", "pods")


def owned_by(service: Service, uid: str) -> list[str]:
    """Names of everything on the cluster that carries this service's UID."""
    return [
        f"{kind}/{one['metadata']['name']}"
        for kind in OWNED
        for one in items(kind, namespace=service.namespace, selector=f"serving.flyball.dev/service-uid={uid}")
    ]


def small(name: str, flyball: Flyball) -> Object:
    return inference_service(name, image=flyball.refs["engine-cpu"])


def test_deleting_leaves_nothing(flyball: Flyball) -> None:
    service = Service("short", flyball.watched)
    apply(small(service.name, flyball), namespace=service.namespace)
    eventually(service.pods, expecting="a pod")
    uid = service.uid
    assert owned_by(service, uid)
    delete(RESOURCE, service.name, namespace=service.namespace)
    eventually(lambda: not owned_by(service, uid), expecting="nothing of the service is left", within=240)


def test_a_recreated_service_governs_and_the_old_one_does_not_act(flyball: Flyball) -> None:
    service = Service("again", flyball.watched)
    apply(small(service.name, flyball), namespace=service.namespace)
    service.expect_governed()
    old = service.uid
    load = StreamLoad(url=service.url(), model=MODEL, concurrency=4)
    with load.running():  # its requests break when their pods go: that is what deleting asks for
        delete(RESOURCE, service.name, namespace=service.namespace, wait=False)
        eventually(lambda: get(RESOURCE, service.name, namespace=service.namespace) is None, expecting="gone")
        apply(small(service.name, flyball), namespace=service.namespace)
        service.expect_governed(within=600)
    assert service.uid != old
    assert service.read_back()["service"] == service.uid
    eventually(lambda: not owned_by(service, old), expecting="nothing of the old service is left", within=240)
    delete(RESOURCE, service.name, namespace=service.namespace)


def test_a_spec_change_rolls_pods_and_an_objective_does_not(chat: Service) -> None:
    pod = chat.pod()
    generation = chat.read()["metadata"]["generation"]
    objectives = [{"name": "ttft", "metric": "TimeToFirstToken", "threshold": "6s", "target": "90"}]
    before = chat.read()["spec"]["objectives"]
    kubectl(
        "patch", RESOURCE, chat.name, "-n", chat.namespace, "--type=merge", "-p",
        json.dumps({"spec": {"objectives": objectives}}),
    )  # fmt: skip

    def counted() -> bool:
        accepted = chat.read_back()["accepted"] or {}
        return [one["threshold_seconds"] for one in accepted.get("objectives", [])] == [6.0]

    eventually(counted, expecting="the engine counts against the new objective")
    assert chat.read()["metadata"]["generation"] > generation
    assert chat.pod()["metadata"]["uid"] == pod["metadata"]["uid"]
    kubectl(
        "patch", RESOURCE, chat.name, "-n", chat.namespace, "--type=merge", "-p",
        json.dumps({"spec": {"objectives": before}}),
    )  # fmt: skip
