"""A node with devices and no kubelet, for tests on the API server: the real scheduler gives them to pods."""

from __future__ import annotations

import json
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from flyball_lab.harness.waiting import eventually
from flyball_operator.api.objects import timestamp
from support.cluster import KubectlError, items, kubectl
from support.remnants import mark

#: Extended resource of the node.
DEVICE = "flyball.test/gpu"
#: A kubelet writes its node's status so often, in seconds.
_REPORT_SECONDS = 10.0


@contextmanager
def device_node(*, like: str = "") -> Iterator[str]:
    """A node with one device. Gives its name, which pods select it by.

    `like`: pods that select that node may have this one, too.
    """
    name = f"device-{uuid.uuid4().hex[:6]}"
    resources = {"cpu": "8", "memory": "64Gi", "pods": "20", DEVICE: "1"}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"flyball.test/node": like or name},
            # A kubelet's word that volumes are attached by the controller.
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
        },
        "status": {"capacity": resources, "allocatable": resources},
    }
    kubectl("create", "-f", "-", stdin=json.dumps(mark(node)))
    try:
        yield name
    finally:
        kubectl("delete", "node", name, "--ignore-not-found")


def set_devices(node: str, number: int) -> None:
    """Give the node so many devices."""
    devices = {DEVICE: str(number)}
    _set_status(node, {"capacity": devices, "allocatable": devices})


def _set_status(node: str, status: dict[str, Any]) -> None:
    change = json.dumps({"status": status})
    kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", change)


@contextmanager
def reporting(node: str) -> Iterator[None]:
    """The node says that it is Ready, again and again until the block ends. Some time later it counts as gone."""
    over = threading.Event()

    def report() -> None:
        while not over.is_set():
            ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": timestamp(datetime.now(UTC))}
            with suppress(KubectlError, subprocess.TimeoutExpired):  # the next one says the same
                _set_status(node, {"conditions": [ready]})
            over.wait(_REPORT_SECONDS)

    reports = threading.Thread(target=report)
    reports.start()
    try:
        yield
    finally:
        over.set()
        reports.join()


def on_device(node: str) -> dict[str, Any]:
    """What makes pods run on that node alone, with a device each."""
    return {
        "spec__podTemplate__nodeSelector": {"flyball.test/node": node},
        "spec__podTemplate__tolerations": [{"operator": "Exists"}],
        "spec__accelerator": {"resourceName": DEVICE},
    }


def expect_placed(place: str, node: str, image: str) -> None:
    """Wait until the scheduler has given the node to the pod with this engine image. Pods that end make room for it."""

    def placed() -> bool:
        end_deleted_pods(place)
        found = items("pods", namespace=place)
        nodes = [pod["spec"].get("nodeName") for pod in found if pod["spec"]["containers"][0]["image"] == image]
        return nodes == [node]

    eventually(placed, expecting=f"a pod of {image} on {node}", every=0.5)


def end_deleted_pods(place: str) -> None:
    """Play the kubelet's last part, on a node that has none."""
    for pod in items("pods", namespace=place):
        if pod["metadata"].get("deletionTimestamp"):
            kubectl("delete", "pod", pod["metadata"]["name"], "-n", place, "--force", "--ignore-not-found")
