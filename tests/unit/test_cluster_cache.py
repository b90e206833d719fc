"""What is known of services and pods: no ghosts, nothing older over newer, nothing of strangers."""

from __future__ import annotations

from flyball_operator.api import names
from flyball_operator.cluster.cache import Cache
from flyball_operator.shell.view import CachedServices
from support.manifests import Object, good

ACCEPTED = {"conditions": [{"type": "Accepted", "status": "True", "reason": "Accepted"}]}


def service(uid: str, version: int, name: str = "chat", **status: object) -> Object:
    found = good(name, metadata__namespace="ns")
    found["metadata"] |= {"uid": uid, "resourceVersion": str(version), "generation": 1}
    return found | {"status": status or ACCEPTED}


def pod(uid: str, version: int, *, service_uid: str = "s1", ready: bool = True, leaving: bool = False) -> Object:
    labels = {names.LABEL_SERVICE: "chat", names.LABEL_SERVICE_UID: service_uid}
    metadata: Object = {
        "name": f"pod-{uid}",
        "namespace": "ns",
        "uid": uid,
        "resourceVersion": str(version),
        "labels": labels,
    }
    if leaving:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    engine = {"name": "engine", "containerID": f"containerd://{uid}-{version}", "restartCount": 2}
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {
        "metadata": metadata,
        "status": {"podIP": "10.0.0.1", "conditions": conditions, "containerStatuses": [engine]},
    }


def uids(cache: Cache) -> set[str]:
    return {desire.meta.uid for desire in cache.services}


def test_a_list_removes_what_was_deleted_unseen() -> None:
    cache = Cache()
    cache.observe_service(service("s1", 5), deleted=False)
    cache.observe_service(service("s2", 6, "other"), deleted=False)
    assert cache.replace_services([service("s2", 6, "other")], 10) == 1
    assert uids(cache) == {"s2"}


def test_a_list_keeps_what_came_after_it() -> None:
    cache = Cache()
    cache.observe_service(service("s1", 12), deleted=False)
    cache.replace_services([], 10)
    assert uids(cache) == {"s1"}


def test_an_older_version_never_replaces_a_newer_one() -> None:
    cache = Cache()
    cache.observe_pod(pod("p1", 9, ready=True), deleted=False)
    cache.observe_pod(pod("p1", 8, ready=False), deleted=False)
    cache.replace_pods([pod("p1", 7, ready=False)], 7)
    assert [found.ready for found in cache.pods_of("s1")] == [True]


def test_what_is_deleted_is_forgotten() -> None:
    cache = Cache()
    cache.observe_pod(pod("p1", 9), deleted=False)
    cache.observe_pod(pod("p1", 10), deleted=True)
    assert not cache.pods_of("s1")


def test_the_brain_sees_accepted_governed_services_and_pods_that_stay() -> None:
    cache = Cache()
    view = CachedServices(cache)
    plain = service("s3", 3, "plain")
    plain["spec"]["engine"]["governed"] = False
    leaving = service("s4", 4, "leaving")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    refused = service("s2", 2, "refused", conditions=[])
    for found in (service("s1", 1), refused, plain, leaving):
        cache.observe_service(found, deleted=False)
    assert [found.metadata.uid for found in view.all()] == ["s1"]
    for found in (pod("p1", 1), pod("p2", 2, leaving=True), pod("p3", 3, service_uid="gone")):
        cache.observe_pod(found, deleted=False)
    (seen,) = view.pods("s1")
    assert (seen.name, seen.ip, seen.ready, seen.restarts, seen.container_id) == (
        "pod-p1",
        "10.0.0.1",
        True,
        2,
        "containerd://p1-1",
    )


def test_what_is_no_service_and_no_pod_of_ours_is_passed_over() -> None:
    cache = Cache()
    cache.observe_service({"metadata": {"uid": "x"}}, deleted=False)
    stranger = pod("p1", 1)
    stranger["metadata"]["labels"] = {}
    cache.observe_pod(stranger, deleted=False)
    assert not uids(cache)
    assert not list(cache.pods)
