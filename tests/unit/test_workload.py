"""Services whose pods others make: which pods these are, what the status says, and that nothing of theirs changes."""

from __future__ import annotations

from typing import Any

import pytest

from flyball_lab.harness.manifests import DROP, edited
from flyball_operator.api import names
from flyball_operator.app.cached_services import CachedServices
from flyball_operator.kube.cache import Cache
from flyball_operator.kube.resources import INFERENCE_SERVICES, PODS
from support.memory_api import Object
from support.memory_cluster import NAMESPACE, READY, MemoryCluster, service

CHOSEN = {"app": "llm"}


def workload(name: str = "chat", *, created: str = "2026-01-01T00:00:00Z", **changes: Any) -> Object:
    """A service that tunes the pods of others with the label app: llm."""
    bare = {"spec.model": DROP, "spec.engine": DROP, "spec.workload": {"selector": {"matchLabels": CHOSEN}}}
    manifest = edited(service(name), bare | {path.replace("__", "."): value for path, value in changes.items()})
    manifest["metadata"] |= {"creationTimestamp": created}
    return manifest


def pod(cluster: MemoryCluster, name: str, *, of: str = "", ready: bool = True, labels: Object | None = None) -> Object:
    """A pod of somebody's ReplicaSet, as the chart's policy leaves it for the service `of`."""
    ours = {}
    if of:
        uid = cluster.api.one(INFERENCE_SERVICES, of)["metadata"]["uid"]
        ours = {names.LABEL_SERVICE: of, names.LABEL_SERVICE_UID: uid}
    owner = {"kind": "ReplicaSet", "name": "llm-1", "uid": "rs", "controller": True}
    body = {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": CHOSEN | ours | (labels or {}),
            "ownerReferences": [owner],
        },
        "spec": {"containers": [{"name": "vllm"}]},
        "status": READY if ready else {"conditions": []},
    }
    return cluster.api.put(PODS, body)


@pytest.fixture
def cluster() -> MemoryCluster:
    """A cluster with the service, and no pod yet."""
    made = MemoryCluster()
    made.apply(workload())
    return made


def test_nothing_is_made_and_no_object_of_the_owner_is_written(cluster: MemoryCluster) -> None:
    before = pod(cluster, "llm-1-a", of="chat")
    cluster.settle()
    cluster.change(lambda found: found["spec"]["tuning"].update(mode="Disabled") if "tuning" in found["spec"] else None)
    cluster.change(lambda found: found["spec"].update(objectives=[]))
    assert {kind for kind, _, _ in cluster.api.objects} <= {"inferenceservices", "pods", "events"}
    assert cluster.api.one(PODS, "llm-1-a") == before


def test_pods_that_carry_the_plugin_make_it_ready_and_what_is_not_done_for_them_is_said(cluster: MemoryCluster) -> None:
    assert cluster.condition("Ready") == ("False", "NoReadyEndpoint")
    assert cluster.message("Available") == "spec.workload.selector chooses no pod"
    pod(cluster, "llm-1-a", of="chat")
    cluster.settle()
    assert cluster.condition("Accepted") == ("True", "Accepted")
    assert cluster.condition("Available") == ("True", "EndpointsReady")
    assert cluster.condition("Ready") == ("True", "Serving")
    assert cluster.condition("Progressing") == ("True", "MadeByOthers")
    assert "does not replace, roll back or scale them" in cluster.message("Progressing")
    assert "Stalled" not in cluster.conditions()
    status = cluster.api.one(INFERENCE_SERVICES, "chat")["status"]
    assert (status["replicas"], status["readyReplicas"], status["selector"]) == (1, 1, "app=llm")


def test_ready_pods_without_the_plugin_are_named_with_what_to_do(cluster: MemoryCluster) -> None:
    pod(cluster, "llm-1-a", of="chat")
    pod(cluster, "llm-1-b")
    pod(cluster, "llm-1-c", ready=False)
    cluster.settle()
    assert cluster.condition("Ready") == ("False", "PluginMissing")
    said = cluster.message("Ready")
    assert said.startswith("llm-1-b: not started for this service")
    assert "serving.flyball.dev/service: chat" in said
    assert "restart the pods" in said


def test_it_is_looked_at_again_since_no_watch_tells_of_pods_without_the_label(cluster: MemoryCluster) -> None:
    pod(cluster, "llm-1-a", of="chat")
    cluster.settle()
    assert cluster.look() == 60.0


def test_a_pod_of_another_service_or_of_no_controller_is_named_as_that(cluster: MemoryCluster) -> None:
    pod(cluster, "llm-1-a", of="chat", labels={names.LABEL_SERVICE: "other"})
    bare = pod(cluster, "llm-1-b", of="chat")
    cluster.api.put(PODS, edited(bare, {"metadata.ownerReferences": []}))
    cluster.settle()
    assert cluster.condition("Ready") == ("False", "PluginMissing")
    assert cluster.message("Ready").startswith("llm-1-a (of the service other), llm-1-b (made by no controller): ")


MAIN: Object = {"name": "main", "env": [], "ports": [{"containerPort": 8000}]}
SIDECAR: Object = {"name": "sidecar", "ports": [{"containerPort": 8101}]}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"containers": [{"name": "vllm"}]}, "has no container main: correct spec.workload.container"),
        (
            {"containers": [MAIN | {"env": [{"name": "PYTHONPATH", "valueFrom": {}}]}]},
            "sets PYTHONPATH by valueFrom: set a value",
        ),
        (
            {"containers": [SIDECAR, MAIN]},
            "uses port 8101 itself: choose another spec.workload.controlPort",
        ),
        (
            {"containers": [MAIN], "initContainers": [SIDECAR]},
            "uses port 8101 itself: choose another spec.workload.controlPort",
        ),
        (
            {"containers": [MAIN, {"name": "x", "ports": [{"name": "control", "containerPort": 1}]}]},
            "has a port control of its own: rename it",
        ),
    ],
    ids=["no such container", "a variable from elsewhere", "the port", "an init container's port", "the port's name"],
)
def test_a_pod_that_the_policy_leaves_as_it_is_is_named_with_why(
    cluster: MemoryCluster, spec: Object, says: str
) -> None:
    cluster.change(lambda found: found["spec"]["workload"].update(container="main", controlPort=8101))
    left = pod(cluster, "llm-1-a", labels={names.LABEL_SERVICE: "chat"})
    cluster.api.put(PODS, left | {"spec": spec})
    cluster.settle()
    assert cluster.condition("Ready") == ("False", "PluginMissing")
    assert cluster.message("Ready").startswith(f"llm-1-a ({says}): not started for this service")


def test_a_pod_that_was_there_before_the_service_is_named_without_a_reason(cluster: MemoryCluster) -> None:
    pod(cluster, "llm-1-a", labels={names.LABEL_SERVICE: "chat"})
    given_back = pod(cluster, "llm-1-b", labels={names.LABEL_SERVICE: "chat"})
    given_back["spec"]["initContainers"] = [{"name": names.CONTAINER_PLUGIN}]
    given_back["spec"]["containers"][0]["ports"] = [{"name": "control", "containerPort": 8001}]
    cluster.api.put(PODS, given_back)
    pod(cluster, "llm-1-c", labels={names.LABEL_SERVICE: "chat", names.LABEL_SERVICE_UID: "gone"})
    cluster.settle()
    assert cluster.message("Ready").startswith(
        "llm-1-a, llm-1-b, llm-1-c (started for an earlier service of this name): not started for this service"
    )


def known(cluster: MemoryCluster) -> Cache:
    """What the operator's watches show."""
    cache = Cache()
    cache.replace_services(cluster.api.find(INFERENCE_SERVICES), 1_000)
    cache.replace_pods(cluster.api.find(PODS), 1_000)
    return cache


def tuned(cache: Cache, cluster: MemoryCluster, name: str = "chat") -> list[str]:
    """Pods that are tuned for a service."""
    uid = cluster.api.one(INFERENCE_SERVICES, name)["metadata"]["uid"]
    return sorted(found.link.name for found in cache.pods_of(uid))


def test_a_pod_is_tuned_if_the_selector_chooses_it_and_its_engine_was_started_for_the_service(
    cluster: MemoryCluster,
) -> None:
    pod(cluster, "chosen", of="chat")
    pod(cluster, "without-plugin")
    pod(cluster, "other-label", of="chat", labels={"app": "other"})
    pod(cluster, "earlier-service", of="chat", labels={names.LABEL_SERVICE_UID: "gone"})
    pod(cluster, "other-service", of="chat", labels={names.LABEL_SERVICE: "other"})
    bare = pod(cluster, "of-nobody", of="chat")
    cluster.api.put(PODS, edited(bare, {"metadata.ownerReferences": []}))
    assert tuned(known(cluster), cluster) == ["chosen"]


def test_labels_alone_make_no_pod_one_of_a_service_that_has_its_own_pods(cluster: MemoryCluster) -> None:
    cluster.apply(service("own"))
    pod(cluster, "pretender", of="own")
    assert "pretender" not in tuned(known(cluster), cluster, "own")


def test_an_edited_selector_lets_pods_go(cluster: MemoryCluster) -> None:
    pod(cluster, "chosen", of="chat")
    cache = known(cluster)
    assert tuned(cache, cluster) == ["chosen"]
    cluster.change(lambda found: found["spec"]["workload"]["selector"].update(matchLabels={"app": "next"}))
    cache.observe_service({**cluster.api.one(INFERENCE_SERVICES, "chat")}, deleted=False)
    assert tuned(cache, cluster) == []


@pytest.mark.parametrize(
    ("containers", "port"),
    [
        ([{"name": "vllm"}, {"name": "mesh"}], 8001),
        ([{"name": "mesh"}, {"name": "vllm", "ports": [{"name": "control", "containerPort": 8101}]}], 8101),
        ([{"name": "mesh", "ports": [{"name": "http", "containerPort": 80}]}, {"name": "engine"}], 8001),
    ],
    ids=["the first one", "that with the control port", "one that is called so"],
)
def test_the_container_with_the_engine_and_its_port_are_found(
    cluster: MemoryCluster, containers: list[Object], port: int
) -> None:
    found = pod(cluster, "chosen", of="chat")
    found["spec"]["containers"] = containers
    statuses = {"mesh": ("m", 9), "vllm": ("v", 2), "engine": ("v", 2)}
    found["status"]["containerStatuses"] = [
        {"name": one["name"], "containerID": statuses[one["name"]][0], "restartCount": statuses[one["name"]][1]}
        for one in containers
    ]
    cluster.api.put(PODS, found)
    services = CachedServices(known(cluster))
    (seen,) = services.pods(cluster.api.one(INFERENCE_SERVICES, "chat")["metadata"]["uid"])
    assert (seen.container_id, seen.restarts, seen.control_port) == ("v", 2, port)
