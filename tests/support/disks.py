"""Volumes of a class of the test's own, each for the claim of one service: folders of a pod on the node that has it.

A folder in memory has a size, and is full when it is used up. So no driver of a cluster is needed.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from support.cluster import Object, get, kubectl
from support.remnants import mark
from support.side_pods import apply_and_wait, restricted_pod

_POD: Final = "disks"
#: Where a kubelet keeps folders of a pod.
_FOLDERS: Final = "/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/{name}"


@dataclass(frozen=True)
class Disks:
    """The class of the volumes, and the namespace of the pod that has their folders."""

    storage_class: str
    namespace: str

    def claim(self) -> Object:
        """The claim that a service asks for."""
        return {"size": "64Mi", "storageClassName": self.storage_class, "accessModes": ["ReadWriteMany"]}

    def fill(self, service: str, mebibytes: int) -> None:
        """Take so much of the room of a service's volume."""
        self._run(f"head -c {mebibytes}M /dev/zero > {self._filler(service)}")

    def empty(self, service: str) -> None:
        """Give it back."""
        self._run(f"rm {self._filler(service)}")

    def _filler(self, service: str) -> str:
        return f"/disks/{service}/filler"

    def _run(self, script: str) -> None:
        kubectl("exec", _POD, "-n", self.namespace, "--", "sh", "-c", script)


@contextmanager
def disks(namespace: str, image: str, sizes: Mapping[str, str]) -> Iterator[Disks]:
    """A volume for each service, of this size in memory where it is not empty, for as long as the block lasts."""
    storage_class = f"disks-{uuid.uuid4().hex[:6]}"
    apply_and_wait(_pod(image, sizes), namespace)
    pod = get("pod", _POD, namespace=namespace)
    assert pod is not None
    owned: list[Object] = [_class(storage_class), *(_volume(storage_class, pod, service) for service in sizes)]
    manifests = "\n---\n".join(json.dumps(mark(one)) for one in owned)
    kubectl("apply", "-f", "-", stdin=manifests)
    try:
        yield Disks(storage_class, namespace)
    finally:
        kubectl("delete", "--ignore-not-found", "--wait=false", "-f", "-", stdin=manifests)
        kubectl("delete", "pod", _POD, "-n", namespace, "--ignore-not-found", "--wait=false")


def _pod(image: str, sizes: Mapping[str, str]) -> Object:
    folders = [
        {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": size} if size else {}}
        for name, size in sizes.items()
    ]
    mounts = [{"name": name, "mountPath": f"/disks/{name}"} for name in sizes]
    return restricted_pod(_POD, image, ["sleep", "infinity"], volumes=folders, mounts=mounts)


def _class(name: str) -> Object:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": "kubernetes.io/no-provisioner",
        # As classes of local volumes are: bound where the first pod goes.
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def _volume(storage_class: str, pod: Object, service: str) -> Object:
    node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [pod["spec"]["nodeName"]]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{storage_class}-{service}"},
        "spec": {
            "storageClassName": storage_class,
            "capacity": {"storage": "64Mi"},
            "accessModes": ["ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": pod["metadata"]["namespace"], "name": f"{service}-model"},
            "local": {"path": _FOLDERS.format(uid=pod["metadata"]["uid"], name=service)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [node]}]}},
        },
    }
