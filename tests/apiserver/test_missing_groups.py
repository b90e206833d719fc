"""LeaderWorkerSets on a cluster that lacks them at first, by the CRD as it is published. Their controller is played.

With the controller itself: `test_groups`, which is long.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from flyball_lab.harness.waiting import eventually
from flyball_operator.api import names
from support import others_crds
from support.cluster import Object, apply, get, items, kubectl
from support.kubelet import play_kubelet
from support.operators import IMAGE, RESOURCE, condition, expect_condition, idle_service, one
from support.tenants import tenant_namespace

GROUPS = "leaderworkersets.leaderworkerset.x-k8s.io"


@pytest.fixture
def groups_crd(crd: Path) -> Iterator[Path]:
    """The CRD, not installed yet; it is removed at the end."""
    found = others_crds.of_groups()
    others_crds.uninstall()
    others_crds.expect_absent(found)
    yield found
    others_crds.uninstall()


def groups(place: str) -> Object | None:
    found = json.loads(kubectl("get", GROUPS, "-n", place, "-o", "json"))["items"]
    return found[0] if found else None


def play_group(place: str, made: Object) -> None:
    """Do what the controller does for one group of two: a StatefulSet of the leader, and one of its worker."""
    _stateful_set(place, made, "chat", {"apiVersion": made["apiVersion"], "kind": made["kind"], **_identity(made)})
    leader = eventually(lambda: get("pod", "chat-0", namespace=place), expecting="the leader")
    _stateful_set(place, made, "chat-0", {"apiVersion": "v1", "kind": "Pod", **_identity(leader)}, start=1)
    eventually(lambda: get("pod", "chat-0-1", namespace=place), expecting="the worker")


def _identity(found: Object) -> Object:
    return {"name": found["metadata"]["name"], "uid": found["metadata"]["uid"], "controller": True}


def _stateful_set(place: str, made: Object, name: str, owner: Object, *, start: int = 0) -> None:
    template = made["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    of_group = {names.LABEL_GROUPS: "chat", names.LABEL_GROUP_INDEX: "0"}
    selected = of_group | {"flyball.test/set": name}
    labels = template["metadata"]["labels"] | selected
    body = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name, "labels": of_group, "ownerReferences": [owner]},
        "spec": {
            "replicas": 1,
            "serviceName": name,
            "ordinals": {"start": start},
            "selector": {"matchLabels": selected},
            "template": {**template, "metadata": {**template["metadata"], "labels": labels}},
        },
    }
    apply(body, namespace=place)


def test_a_service_over_nodes_waits_for_leader_worker_sets_and_is_ready_with_all_pods_of_its_group(
    groups_crd: Path, tmp_path: Path
) -> None:
    with tenant_namespace(tmp_path) as place:
        apply(idle_service(spec__parallelism={"data": 2, "nodes": 2}), namespace=place)
        message = expect_condition(place, "Accepted", "False", "LeaderWorkerSetMissing")
        assert "the cluster has no leaderworkerset.x-k8s.io/v1; install LeaderWorkerSet" in message
        others_crds.install(groups_crd)
        made = eventually(lambda: groups(place), expecting="a LeaderWorkerSet")
        assert made["spec"]["leaderWorkerTemplate"]["size"] == 2
        assert get("deployment", "chat", namespace=place) is None
        play_group(place, made)

        def serves() -> bool:
            play_kubelet(place, image=IMAGE)
            return condition(place, "Ready")[:2] == ("True", "Serving")

        eventually(serves, expecting="the service Ready", within=240, every=1)
        status = one(RESOURCE, place)["status"]
        assert (status["replicas"], status["readyReplicas"]) == (1, 1)
        assert len(items("pods", namespace=place)) == 2
        kubectl("delete", "statefulset", "chat-0", "-n", place)
        expect_condition(place, "Ready", "False", "ReplicasNotReady")
