"""Pods that tests need beside a service, as namespaces of Pod Security `restricted` admit them."""

from __future__ import annotations

from collections.abc import Sequence

from flyball_lab.harness.waiting import eventually
from support.cluster import Object, apply, condition, get


def restricted_pod(
    name: str,
    image: str,
    command: Sequence[str],
    *,
    volumes: Sequence[Object] = (),
    mounts: Sequence[Object] = (),
    port: int | None = None,
) -> Object:
    """The manifest of a pod of one container. `port`: it is Ready once this one takes connections."""
    container: Object = {
        "name": name,
        "image": image,
        "command": [*command],
        "volumeMounts": [*mounts],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    if port is not None:
        container["readinessProbe"] = {"tcpSocket": {"port": port}, "periodSeconds": 1}
    security = {"seccompProfile": {"type": "RuntimeDefault"}, "runAsUser": 65532, "runAsGroup": 65532}
    spec = {
        "containers": [container],
        "volumes": [*volumes],
        "securityContext": security,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
    }
    metadata = {"name": name, "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def apply_and_wait(pod: Object, namespace: str) -> None:
    """Make the pod, and wait until it is Ready."""
    apply(pod, namespace=namespace)
    name = pod["metadata"]["name"]

    def ready() -> bool:
        return bool(condition(get("pod", name, namespace=namespace), "Ready").get("status") == "True")

    eventually(ready, expecting=f"pod {name} is Ready")


def service_of(name: str, port: int) -> Object:
    """The Service of such a pod."""
    spec = {"selector": {"app": name}, "ports": [{"port": port}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}
