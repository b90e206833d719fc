"""What is known of services and pods: no ghosts, nothing older over newer, and no stranger's pod among a service's."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from flyball_lab.harness.manifests import Object, good
from flyball_operator.api import names
from flyball_operator.api.membership import Owner
from flyball_operator.api.parse import parse_service
from flyball_operator.api.service_key import Key
from flyball_operator.app.cached_services import CachedServices
from flyball_operator.kube.cache import Cache, pod_part, read_pod, read_service, service_part
from flyball_operator.reconcile.plan.pod import render
from flyball_operator.reconcile.plan.snapshot import Config

ACCEPTED = {"conditions": [{"type": "Accepted", "status": "True", "reason": "Accepted"}]}


def service(
    uid: str, version: int, name: str = "chat", *, namespace: str = "ns", status: Object | None = None
) -> Object:
    found = good(name, metadata__namespace=namespace)
    found["metadata"] |= {"uid": uid, "resourceVersion": str(version), "generation": 1}
    return found | {"status": ACCEPTED if status is None else status}


def controlled(uid: str, controller: str, *, name: str = "chat", namespace: str = "ns") -> Object:
    """An object with the labels of the service s1, as anyone may write them."""
    labels = {names.LABEL_SERVICE: "chat", names.LABEL_SERVICE_UID: "s1"}
    metadata = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": "1", "labels": labels}
    owners = [{"uid": controller, "controller": True}] if controller else []
    return {"metadata": metadata | {"ownerReferences": owners}}


def known(*services: str) -> Cache:
    """A cache that knows services with a Deployment and a ReplicaSet each."""
    cache = Cache()
    for uid in services or ("s1",):
        cache.observe_service(service(uid, 1), deleted=False)
        cache.observe_deployment(controlled(f"deployment-{uid}", uid), deleted=False)
        cache.observe_replica_set(controlled(f"replicas-{uid}", f"deployment-{uid}"), deleted=False)
    return cache


def pod(
    uid: str,
    version: int,
    *,
    controller: str = "replicas-s1",
    namespace: str = "ns",
    ready: bool = True,
    leaving: bool = False,
) -> Object:
    metadata: Object = controlled(uid, controller, name=f"pod-{uid}", namespace=namespace)["metadata"]
    metadata["resourceVersion"] = str(version)
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
    cache = known()
    cache.observe_pod(pod("p1", 9, ready=True), deleted=False)
    cache.observe_pod(pod("p1", 8, ready=False), deleted=False)
    cache.replace_pods([pod("p1", 7, ready=False)], 7)
    assert [found.ready for found in cache.pods_of("s1")] == [True]


def test_what_is_deleted_is_forgotten() -> None:
    cache = known()
    cache.observe_pod(pod("p1", 9), deleted=False)
    cache.observe_pod(pod("p1", 10), deleted=True)
    assert not cache.pods_of("s1")


def test_the_tuner_sees_accepted_governed_services_and_pods_that_stay() -> None:
    cache = known()
    view = CachedServices(cache)
    plain = service("s3", 3, "plain")
    plain["spec"]["engine"]["governed"] = False
    leaving = service("s4", 4, "leaving")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    refused = service("s2", 2, "refused", status={"conditions": []})
    for found in (service("s1", 1), refused, plain, leaving):
        cache.observe_service(found, deleted=False)
    assert [found.metadata.uid for found in view.all()] == ["s1"]
    for found in (pod("p1", 1), pod("p2", 2, leaving=True), pod("p3", 3, controller="gone")):
        cache.observe_pod(found, deleted=False)
    (seen,) = view.pods("s1")
    assert (seen.name, seen.ip, seen.ready, seen.restarts, seen.container_id) == (
        "pod-p1",
        "10.0.0.1",
        True,
        2,
        "containerd://p1-1",
    )


def test_a_pod_that_an_earlier_operator_made_without_the_volume_of_keys_takes_no_other() -> None:
    cache = known()
    made = render(parse_service(service("s1", 1)), Config(plugin_image="flyball/plugin:1"), "")
    earlier = {**made["spec"], "volumes": [one for one in made["spec"]["volumes"] if one["name"] != "flyball-keys"]}
    plain = {**earlier, "initContainers": []}
    for number, spec in enumerate((made["spec"], earlier, plain)):
        found = pod(f"p{number}", 10)
        found["metadata"]["labels"][names.LABEL_MANAGED_BY] = names.MANAGED_BY
        cache.observe_pod({**found, "spec": spec}, deleted=False)
    assert [seen.takes_keys for seen in cache.pods] == [True, False, True]
    # An invalid edit changes no pod.
    cache.observe_service(service("s1", 2, status={"conditions": []}), deleted=False)
    assert not CachedServices(cache).all()
    assert CachedServices(cache).pods_of_one_key() == ["ns/pod-p1"]


def test_of_a_pod_in_a_list_all_is_kept_that_the_cache_reads_and_little_else() -> None:
    made = render(parse_service(service("s1", 1)), Config(plugin_image="flyball/plugin:1"), "")
    found = pod("p1", 10) | {"spec": made["spec"]}
    found["metadata"] |= {
        "annotations": made["metadata"]["annotations"],
        "managedFields": [{"fieldsV1": {str(number): {} for number in range(500)}}],
    }
    found["metadata"]["labels"] |= made["metadata"]["labels"]
    found["status"]["phase"] = "Running"
    for whole in (found, pod("p2", 10, leaving=True), pod("p3", 10, controller="")):
        assert read_pod(pod_part(whole)) == read_pod(whole)
    assert read_pod(found) != read_pod(pod("p1", 10))
    assert len(json.dumps(pod_part(found))) < len(json.dumps(found)) / 4
    whole_list, parts = known(), known()
    whole_list.replace_pods([found], 20)
    parts.replace_pods([pod_part(found)], 20)
    key = Key("ns", "chat", "s1")
    assert parts.versions.of(key) == whole_list.versions.of(key)
    assert parts.pods_of("s1") == whole_list.pods_of("s1") != []


def test_of_a_service_in_a_list_all_is_kept_but_who_owns_its_fields() -> None:
    found = service("s1", 5)
    owned = {**found, "metadata": found["metadata"] | {"managedFields": [{"manager": "kubectl"}]}}
    assert service_part(owned) == found
    assert read_service(service_part(owned)) == read_service(owned)


def test_the_tuner_sees_no_service_where_another_release_acts() -> None:
    cache = known()
    cache.observe_service(service("s1", 1), deleted=False)
    assert CachedServices(cache, lambda namespace: namespace == "ns").all()
    assert not CachedServices(cache, lambda namespace: namespace != "ns").all()


def test_what_is_no_service_and_no_pod_of_ours_is_passed_over() -> None:
    cache = Cache()
    cache.observe_service({"metadata": {"uid": "x"}}, deleted=False)
    cache.observe_pod(pod("p1", 1, controller=""), deleted=False)
    assert not uids(cache)
    assert not list(cache.pods)


def names_of(cache: Cache, service_uid: str = "s1") -> list[str]:
    return sorted(found.link.name for found in cache.pods_of(service_uid))


def test_labels_make_no_pod_a_services() -> None:
    cache = known()
    cache.observe_replica_set(controlled("bare-set", ""), deleted=False)
    cache.observe_deployment(controlled("other-deployment", "s1", name="other"), deleted=False)
    cache.observe_replica_set(controlled("other-set", "other-deployment"), deleted=False)
    for number, controller in enumerate(("replicas-s1", "", "bare-set", "other-set", "nobody", "s1", "deployment-s1")):
        cache.observe_pod(pod(f"p{number}", 1, controller=controller), deleted=False)
    assert names_of(cache) == ["pod-p0"]


def test_a_pod_in_another_namespace_is_not_a_services_whatever_it_names_as_its_controller() -> None:
    cache = known()
    cache.observe_pod(pod("p1", 1), deleted=False)
    cache.observe_pod(pod("p2", 1, namespace="tenant-b"), deleted=False)
    # A whole chain over there, up to the service's UID.
    cache.observe_deployment(controlled("d-b", "s1", namespace="tenant-b"), deleted=False)
    cache.observe_replica_set(controlled("r-b", "d-b", namespace="tenant-b"), deleted=False)
    cache.observe_pod(pod("p3", 1, controller="r-b", namespace="tenant-b"), deleted=False)
    assert names_of(cache) == ["pod-p1"]


def test_a_pod_is_a_services_as_soon_as_its_chain_is_known_and_as_long_as_it_holds() -> None:
    cache = Cache()
    cache.observe_pod(pod("p1", 1), deleted=False)
    cache.observe_replica_set(controlled("replicas-s1", "deployment-s1"), deleted=False)
    cache.observe_service(service("s1", 1), deleted=False)
    assert names_of(cache) == []
    cache.observe_deployment(controlled("deployment-s1", "s1"), deleted=False)
    assert names_of(cache) == ["pod-p1"]
    cache.replace_replica_sets([], 5)
    assert names_of(cache) == []
    cache.replace_replica_sets([controlled("replicas-s1", "deployment-s1")], 6)
    assert names_of(cache) == ["pod-p1"]
    cache.observe_deployment(controlled("deployment-s1", "s1"), deleted=True)
    assert names_of(cache) == []


def a_service_is_written(cache: Cache) -> None:
    cache.observe_service(service("s1", 2, status=ACCEPTED | {"replicas": 3}), deleted=False)


def a_service_goes(cache: Cache) -> None:
    cache.observe_service(service("s2", 2), deleted=True)


def services_are_listed(cache: Cache) -> None:
    cache.replace_services([service("s1", 7)], 10)


def a_pod_is_written(cache: Cache) -> None:
    cache.observe_pod(pod("p1", 2, ready=False), deleted=False)


def a_pod_goes(cache: Cache) -> None:
    cache.observe_pod(pod("p1", 2), deleted=True)


def pods_are_listed(cache: Cache) -> None:
    cache.replace_pods([pod("p1", 7)], 10)


def a_pod_of_a_group_is_noted(cache: Cache) -> None:
    cache.observe_pod(pod("p2", 1, controller="group"), deleted=False)
    cache.note_members(Owner("ns", "chat", "s1"), frozenset({"p2"}))


def a_service_is_another_shards(cache: Cache) -> None:
    cache.forget_services(None, lambda uid: uid == "s1")


def a_replica_set_goes(cache: Cache) -> None:
    cache.observe_replica_set(controlled("replicas-s1", "deployment-s1"), deleted=True)


def what_leads_to_pods_goes(cache: Cache) -> None:
    cache.observe_deployment(controlled("deployment-s1", "s1"), deleted=True)


@pytest.mark.parametrize(
    "change",
    [
        a_service_is_written,
        a_service_goes,
        services_are_listed,
        a_pod_is_written,
        a_pod_goes,
        pods_are_listed,
        a_pod_of_a_group_is_noted,
        a_service_is_another_shards,
        a_replica_set_goes,
        what_leads_to_pods_goes,
        lambda cache: cache.forget("ns"),
    ],
)
def test_services_are_the_same_object_until_something_of_them_changes(change: Callable[[Cache], None]) -> None:
    cache = known("s1", "s2")
    cache.observe_pod(pod("p1", 1), deleted=False)
    services = CachedServices(cache)
    before = services.all()
    pods = {one.metadata.uid: services.pods(one.metadata.uid) for one in before}
    assert services.all() is before
    change(cache)
    present = services.all()
    assert present is not before
    now = {one.metadata.uid: services.pods(one.metadata.uid) for one in present}
    assert (present, now) != (before, pods)
    assert services.all() is present


def test_services_are_other_ones_once_a_namespace_is_held_by_somebody_else() -> None:
    held = {"ns"}
    services = CachedServices(known(), held.__contains__)
    (found,) = services.all()
    held.clear()
    assert not services.all()
    held.add("ns")
    assert services.all() == [found]
