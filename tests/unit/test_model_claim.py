"""A claim that is made for a model: what is asked for, whose it is, what is wrong with it, and what becomes of it."""

from __future__ import annotations

from typing import Any

import pytest

from flyball_operator.api import names
from flyball_operator.api.objects import timestamp
from flyball_operator.kube.errors import ForbiddenError
from flyball_operator.kube.resources import (
    DEPLOYMENTS,
    EVENTS,
    INFERENCE_SERVICES,
    JOBS,
    SERVICES,
    VOLUME_CLAIMS,
    Resource,
    labelled,
)
from flyball_operator.reconcile.plan.event_causes import AGAIN_SECONDS, PATIENCE_SECONDS
from flyball_operator.reconcile.plan.model_claim import LOOK_SECONDS
from support.memory_api import MemoryApi, Object
from support.memory_cluster import NAMESPACE, MemoryCluster, service
from support.watched_cluster import WatchedCluster

NAME = "chat-model"
LISTED = (INFERENCE_SERVICES, *labelled(network_policies=False))
UNBOUND = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"
UNSCHEDULED: Object = {
    "phase": "Pending",
    "conditions": [{"type": "PodScheduled", "status": "False", "message": UNBOUND}],
}


class RefusingApi(MemoryApi):
    """Refuses writes of claims of these verbs."""

    refuses: frozenset[str] = frozenset()
    refuses_growth = False

    async def apply(self, resource: Resource, body: Object, **options: Any) -> Object:
        """As the API server, but that a claim is what it asks for."""
        if self.refuses_growth and resource is VOLUME_CLAIMS:
            before = self.one(VOLUME_CLAIMS, NAME)["spec"]["resources"]
            if body["spec"]["resources"] != before:
                raise ForbiddenError("exceeded quota: requests.storage")
        return await super().apply(resource, body, **options)

    def _begin(self, verb: str, resource: Resource) -> None:
        if verb in self.refuses and resource is VOLUME_CLAIMS:
            raise ForbiddenError("exceeded quota: requests.storage")
        super()._begin(verb, resource)


def with_claim(size: str = "100Gi", **claim: Any) -> Object:
    cache = {"claim": {"size": size, **claim}, "revision": "v1"}
    return service(spec__model={"uri": "hf://org/m", "cache": cache})


def ask(world: MemoryCluster, **claim: Any) -> None:
    """Edit the claim that is asked for."""
    world.change(lambda found: found["spec"]["model"]["cache"]["claim"].update(claim))


def claim(world: MemoryCluster) -> Object:
    return world.api.one(VOLUME_CLAIMS, NAME)


def owners(world: MemoryCluster) -> list[Object]:
    found: list[Object] = claim(world)["metadata"].get("ownerReferences") or []
    return found


def size(world: MemoryCluster) -> str:
    return str(claim(world)["spec"]["resources"]["requests"]["storage"])


def theirs(**labels: str) -> Object:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "100Gi"}}}
    metadata = {"name": NAME, "namespace": NAMESPACE, "labels": labels}
    return {"kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def without_volume(world: MemoryCluster) -> None:
    """Let no claim get a volume, and so no pod of a Job a node."""
    world.volume = {"phase": "Pending"}
    world.download = (UNSCHEDULED, {"active": 1})


def said_of_claim(world: MemoryCluster, reason: str, message: str) -> None:
    def made_now(found: Object) -> None:
        found["metadata"]["creationTimestamp"] = timestamp(world.now)

    world.api.edit(VOLUME_CLAIMS, NAME, made_now)
    involved = {"uid": claim(world)["metadata"]["uid"], "name": NAME}
    metadata = {"name": f"{reason}-1", "namespace": NAMESPACE}
    world.api.put(EVENTS, {"metadata": metadata, "involvedObject": involved, "reason": reason, "message": message})


def test_a_claim_is_made_and_the_model_downloaded_to_it() -> None:
    world = MemoryCluster()
    world.apply(with_claim(storageClassName="fast"))
    assert claim(world)["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "fast",
        "resources": {"requests": {"storage": "100Gi"}},
    }
    assert world.condition("ModelReady") == ("True", "Downloaded")
    assert world.condition("Ready") == ("True", "Serving")
    (job,) = world.api.find(JOBS)
    for pod in (job["spec"]["template"]["spec"], world.template()["spec"]):
        assert [one["persistentVolumeClaim"]["claimName"] for one in pod["volumes"] if one["name"] == "model"] == [NAME]
    writes = world.api.writes
    world.restart()
    world.settle()
    assert world.api.writes == writes


@pytest.mark.parametrize("deletion", ["Keep", "Delete"])
def test_what_becomes_of_the_claim_is_as_the_spec_says(deletion: str) -> None:
    world = MemoryCluster()
    world.apply(with_claim(deletion=deletion))
    made = claim(world)["metadata"]["uid"]
    world.delete()
    assert [one["metadata"]["uid"] for one in world.api.find(VOLUME_CLAIMS)] == ([made] if deletion == "Keep" else [])
    world.apply(with_claim(deletion=deletion))
    assert (claim(world)["metadata"]["uid"] == made) is (deletion == "Keep")
    assert world.condition("Ready") == ("True", "Serving")


def test_a_claim_is_kept_unless_the_spec_says_otherwise_and_the_last_word_counts() -> None:
    world = MemoryCluster()
    world.apply(with_claim())
    assert owners(world) == []
    assert names.LABEL_SERVICE_UID not in claim(world)["metadata"]["labels"]
    template = world.template()
    ask(world, deletion="Delete")
    (owner,) = owners(world)
    assert (owner["kind"], owner["name"], owner["controller"]) == (names.KIND, "chat", True)
    ask(world, deletion="Keep")
    assert owners(world) == []
    assert world.template() == template


def test_edits_of_the_claim_replace_no_pod_and_another_volume_does() -> None:
    world = MemoryCluster()
    world.apply(with_claim())
    before = world.template()
    ask(world, size="200Gi", deletion="Delete")
    assert world.template() == before
    world.change(lambda found: found["spec"]["model"].update(cache={"claimName": NAME, "revision": "v1"}))
    assert world.template()["metadata"] != before["metadata"]
    assert world.condition("Ready") == ("True", "Serving")


def test_pods_without_a_cache_are_others_than_those_with_a_claim_that_is_made() -> None:
    world = MemoryCluster()
    world.apply(service(spec__model={"uri": "hf://org/m", "cache": {"claim": {"size": "1Gi"}}}))
    world.change(lambda found: found["spec"].update(model={"uri": "hf://org/m"}))
    assert "model" not in {one["name"] for one in world.template()["spec"]["volumes"]}
    assert world.api.find(VOLUME_CLAIMS), "what was made is deleted with the service alone"


def test_a_volume_that_does_not_grow_is_told_with_why() -> None:
    world = MemoryCluster()
    world.apply(with_claim("100Gi"))
    world.volume = {"phase": "Bound", "capacity": {"storage": "100Gi"}}
    ask(world, size="200Gi")
    waits = f"the volume of claim {NAME} has 100Gi and is to grow to 200Gi"
    assert world.message("ModelReady").endswith(waits)
    error = {"type": "ControllerResizeError", "status": "True", "message": "rpc error:\nquota of the zone"}
    world.volume = {**world.volume, "conditions": [{"type": "Resizing", "status": "True"}, error]}
    world.settle()
    assert world.condition("ModelReady") == ("True", "Downloaded")
    assert world.message("ModelReady").endswith(f"{waits}: rpc error: quota of the zone")
    world.volume = None
    world.settle()
    assert "grow" not in world.message("ModelReady")


def test_a_claim_grows_and_never_shrinks() -> None:
    world = MemoryCluster()
    world.apply(with_claim("100Gi"))
    ask(world, size="200Gi")
    assert size(world) == "200Gi"
    ask(world, size="150Gi")
    assert size(world) == "200Gi"
    assert world.condition("ModelReady") == ("True", "Downloaded")
    assert world.message("ModelReady").endswith("asks for 200Gi, not 150Gi: Kubernetes shrinks no claim")
    ask(world, size="204800Mi")
    assert "shrinks" not in world.message("ModelReady")


def test_a_claim_grows_once_it_has_a_volume() -> None:
    world = MemoryCluster()
    without_volume(world)
    world.apply(with_claim("100Gi"))
    ask(world, size="200Gi")
    assert size(world) == "100Gi"
    world.volume = world.download = None
    world.settle()
    assert size(world) == "200Gi"
    assert world.condition("Ready") == ("True", "Serving")


def test_a_growth_that_never_came_can_be_taken_back() -> None:
    world = MemoryCluster()
    world.apply(with_claim("100Gi"))
    world.volume = {"phase": "Bound", "capacity": {"storage": "100Gi"}}
    ask(world, size="100Ti")
    ask(world, size="200Gi")
    assert size(world) == "200Gi"


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"accessModes": ["ReadWriteOnce"]}, "accessModes: [ReadWriteOnce] is not what claim chat-model has; acc"),
        ({"storageClassName": "slow"}, "storageClassName: slow is not what claim chat-model has; accepted: fast"),
        ({"storageClassName": ""}, "storageClassName: (empty) is not what claim chat-model has; accepted: fast"),
    ],
)
def test_what_kubernetes_does_not_change_is_named_and_pods_serve_on(asked: Object, says: str) -> None:
    world = MemoryCluster()
    world.apply(with_claim(storageClassName="fast"))
    before, jobs = claim(world), world.api.find(JOBS)
    ask(world, **asked)
    assert world.condition("ModelReady") == ("False", "ClaimDiffers")
    assert f"spec.model.cache.claim.{says}" in world.message("ModelReady")
    assert f"kubectl delete pvc {NAME} -n {NAMESPACE}" in world.message("ModelReady")
    assert world.condition("Ready") == ("True", "Serving")
    assert (claim(world), world.api.find(JOBS)) == (before, jobs)


def test_a_claim_that_is_kept_and_differs_is_used_as_it_is_by_a_service_that_is_made_anew() -> None:
    world = MemoryCluster()
    world.apply(with_claim())
    world.delete()
    world.apply(with_claim(accessModes=["ReadWriteOnce"]))
    assert world.condition("ModelReady") == ("False", "ClaimDiffers")
    assert world.condition("Ready") == ("True", "Serving")
    assert "scale to 0 and delete it" in world.message("ModelReady")
    world.api.remove(VOLUME_CLAIMS, NAME)
    world.settle()
    assert claim(world)["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert world.condition("Ready") == ("True", "Serving")


def test_whether_it_is_kept_counts_though_the_claim_differs_or_its_growth_is_refused() -> None:
    api = RefusingApi()
    world = MemoryCluster(api)
    world.apply(with_claim(deletion="Delete"))
    ask(world, accessModes=["ReadWriteOnce"], deletion="Keep")
    assert world.condition("ModelReady") == ("False", "ClaimDiffers")
    assert owners(world) == []
    ask(world, accessModes=["ReadWriteMany"], deletion="Delete")
    assert len(owners(world)) == 1
    api.refuses_growth = True
    ask(world, size="200Gi", deletion="Keep")
    assert world.condition("ModelReady") == ("False", "ClaimRefused")
    assert (owners(world), size(world)) == ([], "100Gi")


def test_a_new_revision_rolls_out_though_the_claim_does_not_grow() -> None:
    api = RefusingApi()
    world = MemoryCluster(api)
    world.apply(with_claim())
    api.refuses_growth = True
    ask(world, size="200Gi")
    world.change(lambda found: found["spec"]["model"]["cache"].update(revision="v2"))
    assert world.condition("ModelReady") == ("False", "ClaimRefused")
    (job,) = world.api.find(JOBS)
    assert "v2" in str(job["spec"]["template"]["spec"]["containers"][0])
    assert world.condition("Ready") == ("True", "Serving")


def test_a_claim_without_a_class_is_given_the_one_that_is_asked_for_then() -> None:
    world = MemoryCluster()
    without_volume(world)
    world.apply(with_claim())
    ask(world, storageClassName="fast")
    assert claim(world)["spec"]["storageClassName"] == "fast"


def test_another_size_is_told_while_the_claim_has_no_volume() -> None:
    world = MemoryCluster()
    without_volume(world)
    world.apply(with_claim("1000Ti"))
    ask(world, size="100Gi")
    assert world.condition("ModelReady") == ("False", "ClaimPending")
    assert "it asks for 1000Ti, and for 100Gi once it has a volume; or scale to 0" in world.message("ModelReady")


def test_a_claim_of_another_kind_of_this_name_is_not_waited_for() -> None:
    world = MemoryCluster()
    theirs_of_kserve = theirs()
    owner = {"apiVersion": "serving.kserve.io/v1beta1", "kind": names.KIND, "name": "chat", "uid": "u"}
    theirs_of_kserve["metadata"]["ownerReferences"] = [owner | {"controller": True}]
    world.api.put(VOLUME_CLAIMS, theirs_of_kserve)
    world.apply(with_claim())
    assert world.condition("ModelReady") == ("False", "ClaimConflict")


def test_the_class_is_the_clusters_where_none_is_asked_for() -> None:
    api = MemoryApi()
    api.policies = [(VOLUME_CLAIMS, lambda found: found["spec"].setdefault("storageClassName", "standard"))]
    world = MemoryCluster(api)
    world.apply(with_claim())
    assert claim(world)["spec"]["storageClassName"] == "standard"
    assert world.condition("Accepted") == ("True", "Accepted")
    assert world.condition("Ready") == ("True", "Serving")
    ask(world, storageClassName="standard")
    assert world.condition("ModelReady") == ("True", "Downloaded")
    world.change(lambda found: found["spec"]["model"]["cache"]["claim"].pop("storageClassName"))
    assert world.condition("ModelReady") == ("True", "Downloaded")


@pytest.mark.parametrize(
    "labels", [{}, {"team": "a"}, {names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_SERVICE: "other"}]
)
def test_a_claim_of_somebody_else_is_left_alone_and_named(labels: dict[str, str]) -> None:
    world = MemoryCluster()
    world.api.put(VOLUME_CLAIMS, theirs(**labels))
    world.apply(with_claim(deletion="Delete"))
    assert world.condition("ModelReady") == ("False", "ClaimConflict")
    assert world.condition("Stalled") == ("True", "ClaimConflict")
    assert "spec.model.cache.claimName" in world.message("ModelReady")
    assert owners(world) == []
    assert world.api.find(SERVICES)
    assert not world.api.find(JOBS)
    assert world.look() == LOOK_SECONDS
    world.api.remove(VOLUME_CLAIMS, NAME)
    world.settle()
    assert world.condition("Ready") == ("True", "Serving")


def test_a_claim_with_our_labels_that_another_controller_owns_is_left_alone() -> None:
    world = MemoryCluster()
    world.apply(with_claim())
    owner = {"kind": "StatefulSet", "name": "db", "uid": "u", "controller": True}
    world.api.edit(VOLUME_CLAIMS, NAME, lambda found: found["metadata"].update(ownerReferences=[owner]))
    ask(world, deletion="Delete")
    assert world.condition("ModelReady") == ("False", "ClaimConflict")
    assert owners(world) == [owner]


def test_a_claim_of_an_earlier_service_is_waited_for_until_it_is_gone() -> None:
    world = MemoryCluster()
    world.apply(with_claim(deletion="Delete"))
    left = claim(world)
    world.delete()
    # Pods of the earlier service still use it.
    world.api.put(VOLUME_CLAIMS, left)
    world.apply(with_claim(deletion="Delete"))
    assert world.condition("ModelReady") == ("False", "ClaimBeingDeleted")
    assert "Stalled" not in world.conditions()
    world.api.remove(VOLUME_CLAIMS, NAME)
    world.settle()
    assert world.condition("Ready") == ("True", "Serving")
    assert claim(world)["metadata"]["uid"] != left["metadata"]["uid"]


def test_an_orphan_of_an_earlier_service_is_found_as_one_that_was_kept() -> None:
    world = MemoryCluster()
    world.apply(with_claim(deletion="Delete"))
    made = claim(world)["metadata"]["uid"]
    world.delete(cascade="orphan")
    for plural, namespace, name in list(world.api.objects):
        if plural != VOLUME_CLAIMS.plural:
            del world.api.objects[plural, namespace, name]
    world.apply(with_claim(deletion="Delete"))
    assert claim(world)["metadata"]["uid"] == made
    assert len(owners(world)) == 1
    assert world.condition("Ready") == ("True", "Serving")


def test_a_model_is_downloaded_anew_to_another_claim_of_the_name() -> None:
    world = MemoryCluster()
    world.apply(with_claim())
    (first,) = world.api.find(JOBS)
    world.api.remove(VOLUME_CLAIMS, NAME)
    world.settle()
    (second,) = world.api.find(JOBS)
    assert second["metadata"]["name"] != first["metadata"]["name"]
    assert world.condition("Ready") == ("True", "Serving")


def test_a_claim_that_is_being_deleted_is_told_and_made_anew_once_it_is_gone() -> None:
    world = MemoryCluster()
    world.apply(with_claim())
    world.api.edit(VOLUME_CLAIMS, NAME, lambda found: found["metadata"].update(deletionTimestamp=timestamp(world.now)))
    world.settle()
    assert world.condition("ModelReady") == ("False", "ClaimBeingDeleted")
    assert world.condition("Available") == ("True", "EndpointsReady")
    assert world.look() is None, "its watch tells"
    world.api.remove(VOLUME_CLAIMS, NAME)
    world.settle()
    assert world.condition("ModelReady") == ("True", "Downloaded")


def test_a_lost_volume_is_told_and_pods_are_left_alone() -> None:
    world = MemoryCluster()
    world.apply(with_claim())
    world.volume = {"phase": "Lost"}
    world.settle()
    assert world.condition("ModelReady") == ("False", "ClaimLost")
    assert f"kubectl delete pvc {NAME}" in world.message("ModelReady")
    assert world.api.find(DEPLOYMENTS)


def test_a_claim_that_is_refused_is_told_and_asked_for_again() -> None:
    api = RefusingApi()
    api.refuses = frozenset({"create"})
    world = MemoryCluster(api)
    world.apply(with_claim())
    assert world.condition("Accepted")[0] == "True"
    assert world.condition("ModelReady") == ("False", "ClaimRefused")
    assert world.condition("Stalled") == ("True", "ClaimRefused")
    assert "exceeded quota: requests.storage" in world.message("ModelReady")
    assert world.look() == LOOK_SECONDS
    api.refuses = frozenset()
    world.settle()
    assert world.condition("Ready") == ("True", "Serving")
    assert "Stalled" not in world.conditions()


def test_a_growth_that_is_refused_is_told_and_pods_serve_on() -> None:
    api = RefusingApi()
    world = MemoryCluster(api)
    world.apply(with_claim("100Gi"))
    api.refuses = frozenset({"apply"})
    ask(world, size="200Gi")
    assert world.condition("ModelReady") == ("False", "ClaimRefused")
    assert world.condition("Ready") == ("True", "Serving")
    assert world.look() == LOOK_SECONDS
    ask(world, size="100Gi")
    assert world.condition("ModelReady") == ("True", "Downloaded")


@pytest.mark.parametrize(
    ("event", "message", "reason"),
    [
        ("ProvisioningFailed", 'storageclass.storage.k8s.io "fast" not found', "StorageClassNotFound"),
        ("ProvisioningFailed", "MULTI_NODE_MULTI_WRITER is not supported", "ClaimPending"),
        ("FailedBinding", "no persistent volumes available and no storage class is set", "ClaimPending"),
    ],
)
def test_a_claim_without_a_volume_says_why_in_the_words_of_its_events(event: str, message: str, reason: str) -> None:
    world = MemoryCluster()
    without_volume(world)
    world.apply(with_claim(storageClassName="fast"))
    assert world.condition("ModelReady") == ("False", "ClaimPending")
    said_of_claim(world, "ExternalProvisioning", "waiting for a volume to be created")
    said_of_claim(world, event, message)
    again = world.look()
    assert again is not None
    assert 0 < again <= PATIENCE_SECONDS
    world.wait(AGAIN_SECONDS + PATIENCE_SECONDS)
    assert world.condition("ModelReady") == ("False", reason)
    assert message in world.message("ModelReady")
    assert "Stalled" not in world.conditions()
    assert world.look() == AGAIN_SECONDS
    world.volume = world.download = None
    world.settle()
    assert world.condition("Ready") == ("True", "Serving")


def test_no_claim_is_read_where_none_is_made() -> None:
    world = MemoryCluster()
    world.apply(service(spec__model={"uri": "hf://org/m", "cache": {"claimName": "models"}}))
    assert not any(plural == VOLUME_CLAIMS.plural for _, plural in world.api.reads)


def test_a_service_is_looked_at_when_its_claim_changes_and_not_before() -> None:
    world = WatchedCluster()
    model = {"uri": "hf://org/m", "cache": {"claim": {"size": "1Gi"}}}
    world.api.edit(INFERENCE_SERVICES, "chat-0", lambda found: found["spec"].update(model=model))
    world.run()
    assert world.condition("ModelReady", "chat-0") == ("True", "Downloaded")
    world.now_passes(300)
    world.counted()
    world.resync()
    assert world.counted() == ({("list", kind.plural): 1 for kind in LISTED}, 0)
    world.volume = {"phase": "Lost"}
    world.run()
    assert world.condition("ModelReady", "chat-0") == ("False", "ClaimLost")
