"""The Prometheus operator on the cluster, with a Prometheus as the chart kube-prometheus-stack has it made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import yaml

from flyball_lab.harness.prometheus_api import PrometheusApi
from flyball_lab.harness.waiting import eventually
from support.binaries import binary, imported
from support.cluster import Object, get, kubectl

_NAMESPACE: Final = "monitoring"
#: As the chart's release. Its Prometheus takes what has this name as a label, of all namespaces.
_RELEASE: Final = "kube-prometheus-stack"
_POD: Final = f"prometheus-{_RELEASE}-0"
_TOOLS: Final = ("prometheus", "prometheus-operator", "prometheus-config-reloader")


@contextmanager
def prometheus_operator() -> Iterator[PrometheusApi]:
    """The operator as it is published, in namespace `monitoring`; the API of the Prometheus that it runs there."""
    images = imported(*_TOOLS)
    crds, objects = _published(images)
    try:
        _apply(crds)
        kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", "-", stdin=crds, timeout=120)
        _apply(_text([*objects, _prometheus(images)]))
        yield PrometheusApi(f"http://{_address()}:9090")
    finally:
        kubectl("delete", "--ignore-not-found", "-f", "-", stdin=_text([_prometheus(images)]))
        eventually(lambda: get("pod", _POD, namespace=_NAMESPACE) is None, expecting="its Prometheus is gone")
        kubectl("delete", "--ignore-not-found", "-f", "-", stdin=f"{_text(objects)}\n---\n{crds}", timeout=300)


def _published(images: dict[str, str]) -> tuple[str, list[Object]]:
    """The published CRDs as text, and all other objects, in our namespace and with our images."""
    documents = Path(binary("prometheus-operator.yaml")).read_text().split("\n---\n")
    crds = [one for one in documents if "\nkind: CustomResourceDefinition\n" in one]
    objects: list[Object] = [yaml.safe_load(one) for one in documents if one not in crds]
    for one in objects:
        if "namespace" in one["metadata"]:
            one["metadata"]["namespace"] = _NAMESPACE
        for subject in one.get("subjects", ()):
            subject["namespace"] = _NAMESPACE
        if one["kind"] == "Deployment":
            (container,) = one["spec"]["template"]["spec"]["containers"]
            container["image"] = images["prometheus-operator"]
            # What it would do for the kubelets' metrics stays behind in kube-system.
            container["args"] = [
                f"--prometheus-config-reloader={images['prometheus-config-reloader']}",
                *(arg for arg in container["args"] if not arg.startswith(("--prometheus-config-", "--kubelet-"))),
            ]
    return "\n---\n".join(crds), objects


def _prometheus(images: dict[str, str]) -> Object:
    selector = {"matchLabels": {"release": _RELEASE}}
    selected = {f"{kind}Selector": selector for kind in ("podMonitor", "serviceMonitor", "rule")}
    everywhere: Object = {f"{kind}NamespaceSelector": {} for kind in ("podMonitor", "serviceMonitor", "rule")}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "Prometheus",
        "metadata": {"name": _RELEASE, "namespace": _NAMESPACE},
        "spec": {
            "image": images["prometheus"],
            "replicas": 1,
            # That of the cluster's own Prometheus, which may list pods.
            "serviceAccountName": "prometheus",
            "scrapeInterval": "30s",
            "evaluationInterval": "30s",
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 1000,
                "runAsGroup": 2000,
                "fsGroup": 2000,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "resources": {"requests": {"cpu": "20m", "memory": "100Mi"}},
            **selected,
            **everywhere,
        },
    }


def _address() -> str:
    """The Ready pod's."""

    def ready() -> str | None:
        found = get("pod", _POD, namespace=_NAMESPACE) or {}
        status = found.get("status", {})
        said = {one["type"]: one["status"] for one in status.get("conditions", ())}
        return status.get("podIP") if said.get("Ready") == "True" else None

    return eventually(ready, expecting="the operator's Prometheus is Ready")


def _text(objects: list[Object]) -> str:
    return "\n---\n".join(map(json.dumps, objects))


def _apply(manifest: str) -> None:
    """On the server's side: no annotation can hold what these CRDs are."""
    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=manifest, timeout=300)
