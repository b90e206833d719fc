"""Operators of the release live by a wall clock that a test can step (libfaketime); their other clocks go on."""

from __future__ import annotations

import base64
from contextlib import suppress
from pathlib import Path

from flyball_lab.harness.waiting import eventually
from support.cluster import apply, kubectl
from support.live import RELEASE, Flyball
from support.node import on_node

_NAME = "stepped-clock"
_FOLDER = "/etc/stepped-clock"
_OFFSET = "clock-offset"


def have_stepped_clocks(flyball: Flyball) -> None:
    """Roll the operators out anew, with the library before all others."""
    (library,) = Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")
    binary = {library.name: base64.b64encode(library.read_bytes()).decode()}
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": _NAME}, "binaryData": binary}
    apply(manifest, namespace=flyball.namespace, server_side=True)
    environment = {
        "LD_PRELOAD": f"{_FOLDER}/{library.name}",
        "FAKETIME_TIMESTAMP_FILE": f"/tmp/{_OFFSET}",
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    container = {
        "name": "operator",
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        "volumeMounts": [{"name": _NAME, "mountPath": _FOLDER, "readOnly": True}],
    }
    spec = {"containers": [container], "volumes": [{"name": _NAME, "configMap": {"name": _NAME}}]}
    change = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": RELEASE}}
    apply(change | {"spec": {"template": {"spec": spec}}}, namespace=flyball.namespace, server_side=True)
    kubectl("rollout", "status", "deployment", RELEASE, "-n", flyball.namespace, "--timeout=280s", timeout=300)
    eventually(flyball.leader, expecting="a leader")


def step_clocks(flyball: Flyball, seconds: int) -> None:
    """Set the operators' clocks so many seconds ahead of everybody else's; behind, where negative."""
    for pod in flyball.operator_pods():
        folder = f"/var/lib/kubelet/pods/{pod['metadata']['uid']}/volumes/kubernetes.io~empty-dir/tmp"
        with suppress(AssertionError):  # a pod that has no node yet
            on_node(
                "sh",
                "-c",
                f"echo {seconds:+d} >{folder}/new && chmod 644 {folder}/new && mv {folder}/new {folder}/{_OFFSET}",
            )
