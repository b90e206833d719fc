"""A node with devices and no kubelet, for tests on the API server: the real scheduler gives them to pods."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flyball_lab.harness.waiting import eventually
from support.cluster import items, kubectl

#: Extended resource of the node.
DEVICE = "flyball.test/gpu"


@contextmanager
def device_node() -> Iterator[str]:
    """A node with one device. Gives the name that pods select it by."""
    name = f"device-{uuid.uuid4().hex[:6]}"
    resources = {"cpu": "8", "memory": "64Gi", "pods": "20", DEVICE: "1"}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"flyball.test/node": name}},
        "status": {"capacity": resources, "allocatable": resources},
    }
    kubectl("create", "-f", "-", stdin=json.dumps(node))
    try:
        yield name
    finally:
        kubectl("delete", "node", name, "--ignore-not-found")


def set_devices(node: str, number: int) -> None:
    """Give the node so many devices."""
    devices = {DEVICE: str(number)}
    change = json.dumps({"status": {"capacity": devices, "allocatable": devices}})
    kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", change)


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
