"""Plays the kubelet for pods that no node runs: what it would say of them, and the endpoints that would follow."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from flyball_lab.harness.manifests import Object
from flyball_lab.harness.waiting import eventually
from flyball_operator.api import names
from flyball_operator.api.objects import timestamp
from support.cluster import KubectlError, condition, get, items, patch, server_side_apply

#: The state of a container whose image reference the kubelet cannot read.
UNREADABLE = {"waiting": {"reason": "InvalidImageName", "message": "couldn't parse image name: invalid reference"}}


def play_kubelet(namespace: str, *, image: str) -> int:
    """Make the pods with this engine image Ready. Returns how many of them there are."""
    mine = _engine_pods(namespace, image)
    for number, pod in enumerate(mine):
        try:
            make_ready(namespace, pod["metadata"]["name"], f"10.255.0.{number + 1}", since=_ready_since(pod))
        except KubectlError as error:
            _pass_over_gone(error)
    play_endpoints(namespace, mine)
    return len(mine)


def play_trouble(
    namespace: str, *, image: str, serving: str = "", statuses: str = "containerStatuses", **container: Any
) -> None:
    """Make the pods with this engine image not Ready, with this status of the engine's container, or of the one named.

    Those with the image `serving` go on, as endpoints have it. `statuses`: where the container's status is.
    """
    status = {"name": "engine", "image": image, "imageID": "", "ready": False, "restartCount": 0, **container}

    def told() -> bool:
        mine = _engine_pods(namespace, image)
        for pod in mine:
            unready = _conditions(("Ready", "ContainersReady"), "False")
            played = {"phase": "Pending", statuses: [status], "conditions": unready}
            try:
                _play_status(namespace, pod["metadata"]["name"], played)
            except KubectlError as error:
                _pass_over_gone(error)
        return bool(mine)

    eventually(told, expecting=f"a pod of {image}")
    play_endpoints(namespace, _engine_pods(namespace, serving) if serving else [])


def make_ready(namespace: str, pod: str, address: str, *, since: str = "") -> None:
    """Say of a pod what a kubelet says of one that is Ready at this address, since now where no time is given."""
    ready = _conditions(("Ready", "ContainersReady", "PodScheduled"), "True")
    ready[0]["lastTransitionTime"] = since or timestamp(datetime.now(UTC))
    engine = {"name": "engine", "image": "", "imageID": "", "ready": True, "restartCount": 0, "state": {"running": {}}}
    played = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": ready}
    played["containerStatuses"] = [engine]
    _play_status(namespace, pod, played)


def play_download(namespace: str, job: str, *, code: int, message: str) -> None:
    """End the pod of a Job that downloads a model, once it is there, with this exit code and termination message."""
    selector = f"{names.LABEL_JOB}={job}"
    (pod,) = eventually(lambda: items("pods", namespace=namespace, selector=selector), expecting=f"a pod of {job}")
    terminated = {"exitCode": code, "reason": "Error" if code else "Completed", "message": message}
    container = {"name": names.CONTAINER_DOWNLOAD, "image": "", "imageID": "", "ready": False, "restartCount": 0}
    status = [{**container, "state": {"terminated": terminated}}]
    phase = "Failed" if code else "Succeeded"
    _play_status(namespace, pod["metadata"]["name"], {"phase": phase, "containerStatuses": status})


def _engine_pods(namespace: str, image: str) -> list[Object]:
    return [
        pod
        for pod in items("pods", namespace=namespace, selector="app.kubernetes.io/managed-by=flyball")
        if image in [container["image"] for container in pod["spec"]["containers"]]
        and not pod["metadata"].get("deletionTimestamp")
    ]


def _ready_since(pod: Object) -> str:
    """When a pod became Ready; empty where it is not."""
    found = condition(pod, "Ready")
    return str(found.get("lastTransitionTime") or "") if found.get("status") == "True" else ""


def _conditions(kinds: Sequence[str], status: str) -> list[Object]:
    return [{"type": kind, "status": status} for kind in kinds]


def _play_status(namespace: str, pod: str, status: Object) -> None:
    patch("pod", pod, {"status": status}, namespace=namespace, subresource="status")


def _pass_over_gone(error: KubectlError) -> None:
    if "not found" not in str(error):
        raise error


def play_endpoints(namespace: str, ready: list[Object]) -> None:
    """Kubernetes lists no endpoint of a pod without a node, so these are added to our Service beside its own."""
    service = get("service", "chat", namespace=namespace)
    if service is None:
        return
    owner = {
        "apiVersion": "v1",
        "kind": "Service",
        "name": "chat",
        "uid": service["metadata"]["uid"],
        "controller": True,
    }
    labels = {
        "kubernetes.io/service-name": "chat",
        names.LABEL_MANAGED_BY: names.MANAGED_BY,
        names.LABEL_SERVICE: "chat",
    }
    server_side_apply(
        "endpointslice",
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": "chat-played", "labels": labels, "ownerReferences": [owner]},
            "addressType": "IPv4",
            "endpoints": [
                {
                    "addresses": [f"10.255.0.{number + 1}"],
                    "conditions": {"ready": True},
                    "targetRef": {"kind": "Pod", "namespace": namespace, "name": name, "uid": uid},
                }
                for number, (name, uid) in enumerate((pod["metadata"]["name"], pod["metadata"]["uid"]) for pod in ready)
            ],
        },
        namespace=namespace,
    )
