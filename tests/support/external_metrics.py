"""prometheus-adapter on the cluster's node: what Prometheus knows, as external metrics of the API server."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import yaml

from flyball_lab.harness.waiting import eventually
from support.binaries import binary
from support.cluster import Object, condition, items, kubectl
from support.live import EXTERNAL_METRICS
from support.node import daemon_on_node, node_address

_PORT: Final = 16_443
_NAMESPACE: Final = "monitoring"
_NAME: Final = "prometheus-adapter"


def rules(example: Path) -> Object:
    """The rule that an example has as a comment, as this cluster's Prometheus needs it: without honor_labels.

    There the namespace of a series that the operator tells of itself is `exported_namespace`.
    """
    lines = [line.removeprefix("#").removeprefix(" ") for line in example.read_text().splitlines()]
    begin = lines.index("rules:")
    # What follows the rule is a sentence.
    end = next(number for number in range(begin + 1, len(lines)) if not lines[number].startswith(" "))
    text = "\n".join(lines[begin:end])
    for written in ("namespace!=", "namespace: {resource"):
        text = text.replace(written, f"exported_{written}")
    # Its chart's values are its own configuration but for this name.
    return {"externalRules": yaml.safe_load(text)["rules"]["external"]}


@contextmanager
def external_metrics(folder: Path, config: Object) -> Iterator[None]:
    """The adapter, for as long as the block lasts."""
    settings, log = folder / "adapter.json", folder / "adapter.log"
    settings.write_text(json.dumps(config))
    kubeconfig, adapter = os.environ["KUBECONFIG"], binary("adapter")
    options = {
        "config": settings,
        "secure-port": _PORT,
        "cert-dir": folder,
        # The node reaches pods, and no addresses of Services.
        "prometheus-url": f"http://{_prometheus()}:9090",
        "metrics-relist-interval": "10s",
        "metrics-max-age": "1m",
        "lister-kubeconfig": kubeconfig,
        "authentication-kubeconfig": kubeconfig,
        "authorization-kubeconfig": kubeconfig,
        "authentication-tolerate-lookup-failure": "true",
    }
    with daemon_on_node(adapter, options, log) as process:
        try:
            kubectl("apply", "-f", "-", stdin="\n---\n".join(map(json.dumps, _objects())))
            eventually(lambda: process.poll() is not None or served(), expecting="the external metrics are served")
            assert process.poll() is None, log.read_text(errors="replace")[-2000:]
            yield
        finally:
            kubectl("delete", "--ignore-not-found", "-f", "-", stdin="\n---\n".join(map(json.dumps, _objects())))


def _prometheus() -> str:
    (pod,) = items("pods", namespace=_NAMESPACE, selector="app=prometheus")
    return str(pod["status"]["podIP"])


def served() -> bool:
    """Whether somebody serves external metrics."""
    found = json.loads(kubectl("get", "apiservices.apiregistration.k8s.io", EXTERNAL_METRICS, "-o", "json"))
    return bool(condition(found, "Available").get("status") == "True")


def _objects() -> list[Object]:
    address = node_address()
    meta = {"name": _NAME, "namespace": _NAMESPACE}
    port = {"name": "https", "port": _PORT}
    group = {"group": "external.metrics.k8s.io", "version": "v1beta1"}
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"ports": [port | {"targetPort": _PORT}]}},
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": meta | {"labels": {"kubernetes.io/service-name": _NAME}},
            "addressType": "IPv4",
            "ports": [port],
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": EXTERNAL_METRICS},
            "spec": group
            | {
                "service": {"name": _NAME, "namespace": _NAMESPACE, "port": _PORT},
                "insecureSkipTLSVerify": True,
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
            },
        },
        *read_by_anybody(_NAME),
    ]


def read_by_anybody(server: str) -> list[Object]:
    """Rights to read external metrics for everybody, for the objects of a `server` of them.

    The API server of this cluster passes on no identity, so that everybody is nobody to it.
    """
    name, group = f"test:{server}", "external.metrics.k8s.io"
    return [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": name},
            "rules": [
                {"apiGroups": [group], "resources": ["*"], "verbs": ["get", "list", "watch"]},
                {"nonResourceURLs": [f"/apis/{group}", f"/apis/{group}/*"], "verbs": ["get"]},
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [
                {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:anonymous"},
                {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated"},
            ],
        },
    ]
