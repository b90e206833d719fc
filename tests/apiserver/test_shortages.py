"""Shortages on the real API server, under the chart's own rights: they are named, outlast every deadline, and pass.

Each is held until the Deployment's own progress deadline is over, which once took the template back.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flyball_lab.harness.waiting import eventually
from flyball_operator.api import names
from support import cluster, devices
from support.cluster import apply, items, kubectl, patch
from support.devices import DEVICE, expect_placed, on_device, reporting, set_devices
from support.kubelet import make_ready, play_endpoints, play_kubelet, play_trouble
from support.operators import (
    IMAGE,
    RESOURCE,
    condition,
    expect_condition,
    expect_seen,
    made,
    one,
    serve,
    ungoverned_service,
)
from support.remnants import mark
from support.tenants import tenant_namespace

NEXT = "vllm/next:1"
IN_PLACE = "spec.rollout: {maxSurge: 0, maxUnavailable: 1}"
#: Says that no pod may be missing: an earlier one does not end first by itself.
SURGE = {"startupTimeout": "10s", "maxSurge": 1}
#: Nothing listens there, on any node.
NO_REGISTRY = "127.0.0.1:1"
#: What the restricted level of pod security asks of a container.
NO_RIGHTS = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
CRASHED = {"terminated": {"exitCode": 1, "reason": "Error", "message": "no kernel for this device"}}


@pytest.fixture
def place(crd: Path, tmp_path: Path) -> Iterator[str]:
    """The namespace of a tenant that an operator with the chart's rights looks after."""
    with tenant_namespace(tmp_path, plugin_image=f"{NO_REGISTRY}/plugin:1") as name:
        yield name


def edit(place: str, **spec: Any) -> None:
    patch(RESOURCE, "chat", {"spec": spec}, namespace=place)


def expect_waiting(place: str, reason: str, *, within: float = 240) -> str:
    """Wait for the conditions of a rollout that a shortage holds up; returns their message."""
    message = expect_condition(place, "Ready", "False", reason, within=within)
    assert condition(place, "Progressing")[:2] == ("True", reason)
    assert condition(place, "Stalled") == ("", "", "")
    return message


def expect_deadline_over(place: str) -> None:
    """Wait until the Deployment's controller says that nothing has progressed for too long."""

    def over() -> bool:
        return cluster.condition(one("deployment", place), "Progressing").get("reason") == "ProgressDeadlineExceeded"

    eventually(over, expecting="the progress deadline to be over", within=300)


def expect_still_waiting(place: str, reason: str) -> None:
    """Wait until the operator has seen that the deadline is over, and goes on waiting."""
    expect_deadline_over(place)
    expect_seen(place)
    expect_waiting(place, reason)


def pods_of(place: str, image: str) -> list[str]:
    """Names of the pods with this engine image."""
    found = items("pods", namespace=place)
    return [pod["metadata"]["name"] for pod in found if pod["spec"]["containers"][0]["image"] == image]


def image_of(place: str) -> str:
    """The engine image that the Deployment has."""
    containers = one("deployment", place)["spec"]["template"]["spec"]["containers"]
    return str(containers[0]["image"])


def test_a_quota_is_waited_for_and_the_rollout_goes_on_once_it_is_raised(place: str) -> None:
    apply(ungoverned_service(spec__replicas=1), namespace=place)
    made(place)
    serve(place)
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "tight"},
        "spec": {"hard": {"pods": "1"}},
    }
    apply(quota, namespace=place)
    eventually(lambda: "used" in one("resourcequota", place, "tight").get("status", {}), expecting="the quota to hold")
    edit(place, engine={"image": NEXT})
    message = expect_waiting(place, "QuotaExceeded")
    assert "exceeded quota: tight" in message
    assert IN_PLACE in message
    expect_still_waiting(place, "QuotaExceeded")
    assert condition(place, "Available")[:2] == ("True", "EarlierRevisionServes")
    assert image_of(place) == NEXT
    patch("resourcequota", "tight", {"spec": {"hard": {"pods": "5"}}}, namespace=place)

    def serves() -> bool:
        play_kubelet(place, image=NEXT)
        return condition(place, "Ready")[:2] == ("True", "Serving")

    eventually(serves, expecting="the rollout to go on by itself", within=420, every=1)
    assert names.ANNOTATION_SHORTAGE not in one("deployment", place)["metadata"]["annotations"]


def test_a_full_node_is_waited_for_and_what_fails_after_it_has_its_start_up_time_anew(
    place: str, device_node: str
) -> None:
    apply(ungoverned_service(spec__replicas=1, spec__rollout=SURGE, **on_device(device_node)), namespace=place)
    # Only a pod that the scheduler gave the node has the device.
    made(place)
    expect_placed(place, device_node, IMAGE)
    serve(place)
    edit(place, engine={"image": NEXT})
    message = expect_waiting(place, "Unschedulable")
    assert f"Earlier pods of this service hold {DEVICE}" in message
    assert IN_PLACE in message
    expect_still_waiting(place, "Unschedulable")
    set_devices(device_node, 2)
    expect_placed(place, device_node, NEXT)
    assert image_of(place) == NEXT
    play_trouble(place, image=NEXT, serving=IMAGE, state=CRASHED)
    eventually(lambda: "EngineFailed" in condition(place, "Ready")[2], expecting="the new cause")
    # The Deployment said long ago that the deadline is over; this is another's turn.
    assert condition(place, "Progressing")[:2] == ("True", "RollingOut")
    message = expect_condition(place, "Progressing", "False", "RolledBack", within=300)
    assert f"on node {device_node}" in message
    assert condition(place, "Stalled")[:2] == ("True", "RolledBack")


def test_the_way_that_a_full_node_is_told_with_makes_room_on_it(place: str, device_node: str) -> None:
    apply(ungoverned_service(spec__replicas=1, spec__rollout=SURGE, **on_device(device_node)), namespace=place)
    made(place)
    expect_placed(place, device_node, IMAGE)
    serve(place)
    edit(place, engine={"image": NEXT})
    assert IN_PLACE in expect_waiting(place, "Unschedulable")
    edit(place, rollout={"startupTimeout": "10s", "maxSurge": 0, "maxUnavailable": 1})
    expect_placed(place, device_node, NEXT)
    serve(place, image=NEXT)


@pytest.mark.long
def test_a_registry_that_refuses_connections_is_waited_for(place: str) -> None:
    on_real_node: dict[str, Any] = {
        "spec__podTemplate__nodeSelector": {},
        "spec__engine__image": f"{NO_REGISTRY}/engine:1",
    }
    apply(ungoverned_service(**on_real_node), namespace=place)
    message = expect_waiting(place, "RegistryUnavailable", within=300)
    assert "connection refused" in message
    expect_still_waiting(place, "RegistryUnavailable")
    assert condition(place, "Available")[:2] == ("False", "RegistryUnavailable")


@pytest.mark.long
def test_a_registry_that_comes_back_is_gone_on_with(place: str) -> None:
    apply(ungoverned_service(spec__replicas=1), namespace=place)
    made(place)
    serve(place)
    edit(place, engine={"image": NEXT})
    message = f'Back-off pulling image "{NEXT}": dial tcp 10.0.0.1:443: connect: connection refused'
    waiting = {"reason": "ImagePullBackOff", "message": message}
    play_trouble(place, image=NEXT, serving=IMAGE, state={"waiting": waiting})
    expect_waiting(place, "RegistryUnavailable")
    expect_still_waiting(place, "RegistryUnavailable")
    assert condition(place, "Available")[:2] == ("True", "EarlierRevisionServes")
    assert image_of(place) == NEXT
    play_trouble(place, image=NEXT, serving=IMAGE, ready=True, state={"running": {}})
    serve(place, image=NEXT)


@contextmanager
def claimed(place: str, **source: Any) -> Iterator[str]:
    """A claim of a volume of this source, which one node may have at a time. Gives the name of both."""
    name = f"volume-{uuid.uuid4().hex[:6]}"
    size, once = {"storage": "1Gi"}, ["ReadWriteOnce"]
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": size,
            "accessModes": once,
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": place, "name": name},
            **source,
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {"storageClassName": "", "accessModes": once, "volumeName": name, "resources": {"requests": size}},
    }
    kubectl("create", "-f", "-", stdin=json.dumps(mark(volume)))
    try:
        apply(claim, namespace=place)
        yield name
    finally:
        kubectl("delete", "persistentvolume", name, "--ignore-not-found", "--wait=false")


def mounted(claim: str) -> dict[str, Any]:
    """What of a pod template mounts a claim."""
    return {
        "volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": claim}}],
        "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
    }


@pytest.fixture
def lost_volume(place: str) -> Iterator[str]:
    """A claim whose volume no node can mount. Returns its name."""
    anywhere = {"matchExpressions": [{"key": "kubernetes.io/os", "operator": "Exists"}]}
    path = f"/lost-{uuid.uuid4().hex[:6]}"
    with claimed(place, local={"path": path}, nodeAffinity={"required": {"nodeSelectorTerms": [anywhere]}}) as name:
        yield name


@pytest.mark.long
def test_a_volume_that_cannot_be_mounted_is_named_from_the_kubelets_events(place: str, lost_volume: str) -> None:
    anywhere: dict[str, Any] = {"spec__podTemplate": mounted(lost_volume), "spec__podTemplate__nodeSelector": {}}
    apply(ungoverned_service(**anywhere), namespace=place)
    assert lost_volume in expect_waiting(place, "VolumeUnavailable", within=180)
    expect_still_waiting(place, "VolumeUnavailable")


@pytest.fixture
def held_volume(place: str) -> Iterator[str]:
    """A claim whose volume is attached to the node of another pod, `holder`. Returns its name."""
    csi = {"driver": "csi.flyball.test", "volumeHandle": uuid.uuid4().hex}
    with devices.device_node() as elsewhere, reporting(elsewhere), claimed(place, csi=csi) as name:
        spec = {
            "nodeName": elsewhere,
            "volumes": mounted(name)["volumes"],
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "holder", "image": "holder:1", "securityContext": NO_RIGHTS}],
        }
        apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "holder"}, "spec": spec}, namespace=place)
        play_attacher(name, elsewhere)
        yield name


def play_attacher(volume: str, node: str) -> None:
    """Play the volume's driver: once the controller wants it attached to this node, say that it is."""

    def wanted() -> list[str]:
        found = json.loads(kubectl("get", "volumeattachments", "-o", "json"))["items"]
        asked = {"persistentVolumeName": volume}, node
        return [one["metadata"]["name"] for one in found if (one["spec"]["source"], one["spec"]["nodeName"]) == asked]

    (name,) = eventually(wanted, expecting=f"{volume} to be attached to {node}")
    attached = json.dumps({"status": {"attached": True}})
    kubectl("patch", "volumeattachment", name, "--subresource=status", "--type=merge", "-p", attached)


def test_a_volume_that_a_pod_on_another_node_holds_is_waited_for_and_gone_on_with(
    place: str, device_node: str, held_volume: str
) -> None:
    """The events are those of the real controller that attaches volumes; only the driver's part is played."""
    apply(ungoverned_service(spec__replicas=1, spec__rollout=SURGE, **on_device(device_node)), namespace=place)
    made(place)
    expect_placed(place, device_node, IMAGE)
    serve(place)
    set_devices(device_node, 2)
    edit(place, engine={"image": NEXT}, podTemplate=mounted(held_volume))
    message = expect_waiting(place, "VolumeUnavailable")
    assert f'Multi-Attach error for volume "{held_volume}" Volume is already used by pod(s) holder' in message
    expect_still_waiting(place, "VolumeUnavailable")
    assert condition(place, "Available")[:2] == ("True", "EarlierRevisionServes")
    assert image_of(place) == NEXT
    kubectl("delete", "pod", "holder", "-n", place, "--force")
    play_attacher(held_volume, device_node)
    serve(place, image=NEXT)


@pytest.mark.long
def test_a_node_that_is_gone_is_waited_for_and_its_pods_get_another_place(place: str, device_node: str) -> None:
    """That the node is gone is the word of Kubernetes' own controllers, once it no longer reports."""
    with reporting(device_node):
        apply(ungoverned_service(spec__replicas=1, spec__rollout=SURGE, **on_device(device_node)), namespace=place)
        made(place)
        expect_placed(place, device_node, IMAGE)
        serve(place)
        set_devices(device_node, 2)
        edit(place, engine={"image": NEXT})
        expect_placed(place, device_node, NEXT)
    # No kubelet takes the pod up.
    assert f"on node {device_node}" in expect_waiting(place, "NodeUnavailable")
    expect_still_waiting(place, "NodeUnavailable")

    def lost() -> bool:
        return all(cluster.condition(pod, "Ready").get("status") != "True" for pod in items("pods", namespace=place))

    eventually(lost, expecting="the pods of the node not Ready")
    play_endpoints(place, [])
    expect_condition(place, "Available", "False", "NodeUnavailable")
    assert image_of(place) == NEXT
    with devices.device_node(like=device_node) as other:
        set_devices(other, 2)
        kubectl("delete", "node", device_node)
        expect_placed(place, other, NEXT)
        serve(place, image=NEXT)


def test_one_bad_pod_of_fifty_beside_a_ready_one_rolls_nothing_back_and_is_named(place: str) -> None:
    apply(ungoverned_service(spec__replicas=50), namespace=place)
    made(place)
    serve(place, replicas=50)
    edit(place, engine={"image": NEXT}, rollout={"maxSurge": 2, "maxUnavailable": 0})
    eventually(lambda: len(pods_of(place, NEXT)) == 2, expecting="two new pods")
    play_trouble(place, image=NEXT, serving=IMAGE, state=CRASHED)
    make_ready(place, pods_of(place, NEXT)[0], "10.255.0.99")
    expect_deadline_over(place)
    expect_seen(place)
    assert condition(place, "Progressing")[:2] == ("True", "RollingOut")
    assert "EngineFailed: pod chat-" in condition(place, "Ready")[2]
    assert condition(place, "Stalled") == ("", "", "")
    assert image_of(place) == NEXT
