"""Scrape jobs as clusters have them, over targets as Prometheus' discovery of pods finds them.

Discovery gives a target for each port of each container, init containers too, and one at the bare address of the pod
for a container without ports. What it knows of them stands in labels `__meta_kubernetes_*`, which a real Prometheus
takes from a file as well, so that the relabelling here is Prometheus' own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from flyball_engine.contract import CONTROL_PORT
from flyball_lab.harness.engines import ServedEngine
from flyball_lab.harness.ports import free_port
from flyball_lab.harness.prometheus import ADDRESS, ScrapeJob
from flyball_lab.harness.tuners import inference_service
from flyball_lab.repository import ROOT
from flyball_operator.reconcile.plan import pod as pods
from flyball_operator.reconcile.plan import worker as workers
from flyball_operator.reconcile.plan.snapshot import Config

_META = "__meta_kubernetes_"
#: Whether a target is an init container's.
INIT = f"{_META}pod_container_init"


def discovered(
    engine: ServedEngine, /, *, namespace: str = "team", uid: str | None = None, worker: bool = False, **spec: Any
) -> list[dict[str, str]]:
    """The targets of an engine's pod, which has the template that the operator renders for its service.

    `worker`: of a worker of a group.
    """
    service = inference_service(uid or engine.service, **spec)
    template = pods.render(service, Config(plugin_image="plugin:1", public_key="PEM"), "hash")
    template = workers.render(template) if worker else template
    # On loopback the control port is another one, and nobody serves the API.
    ports = {CONTROL_PORT: engine.port}
    metadata, spec = template["metadata"], template["spec"]
    common = {
        f"{_META}namespace": namespace,
        f"{_META}pod_name": engine.name,
        f"{_META}pod_ip": engine.ip,
        f"{_META}pod_phase": "Running",
        f"{_META}pod_node_name": "node-1",
    }
    for kind in ("labels", "annotations"):
        for key, value in metadata[kind].items():
            common[f"{_META}pod_{kind[:-1]}_{spelled(key)}"] = value
            common[f"{_META}pod_{kind[:-1]}present_{spelled(key)}"] = "true"
    targets = []
    for of, containers in (("false", spec["containers"]), ("true", spec.get("initContainers", []))):
        for container in containers:
            own = common | {f"{_META}pod_container_name": container["name"], INIT: of}
            if not container.get("ports"):
                targets.append(own | {ADDRESS: engine.ip})
            for port in container.get("ports", ()):
                number = ports.setdefault(port["containerPort"], free_port())
                targets.append(
                    own
                    | {
                        ADDRESS: f"{engine.ip}:{number}",
                        f"{_META}pod_container_port_name": port.get("name", ""),
                        f"{_META}pod_container_port_number": str(number),
                    }
                )
    return targets


def annotation_job(targets: Sequence[Mapping[str, str]], *, scrape: str | None = None) -> ScrapeJob:
    """The job `kubernetes-pods` of the community's chart `prometheus`, as of its version 29.27."""
    annotation = f"{_META}pod_annotation_prometheus_io_"
    port = [f"{annotation}port", f"{_META}pod_ip"]
    relabelings: list[Mapping[str, Any]] = [
        {"source_labels": [f"{annotation}scrape"], "action": "keep", "regex": "true"},
        {"source_labels": [f"{annotation}scrape_slow"], "action": "drop", "regex": "true"},
        {"source_labels": [f"{annotation}scheme"], "regex": "(https?)", "target_label": "__scheme__"},
        {"source_labels": [f"{annotation}path"], "regex": "(.+)", "target_label": "__metrics_path__"},
        {
            "source_labels": port,
            "regex": r"(\d+);(([A-Fa-f0-9]{1,4}::?){1,7}[A-Fa-f0-9]{1,4})",
            "replacement": "[$2]:$1",
            "target_label": ADDRESS,
        },
        {
            "source_labels": port,
            "regex": r"(\d+);((([0-9]+?)(\.|$)){4})",
            "replacement": "$2:$1",
            "target_label": ADDRESS,
        },
        {"action": "labelmap", "regex": f"{annotation}param_(.+)", "replacement": "__param_$1"},
        {"action": "labelmap", "regex": f"{_META}pod_label_(.+)"},
        {"source_labels": [f"{_META}namespace"], "target_label": "namespace"},
        {"source_labels": [f"{_META}pod_name"], "target_label": "pod"},
        {
            "source_labels": [f"{_META}pod_phase"],
            "action": "drop",
            "regex": "Pending|Succeeded|Failed|Completed",
        },
        {"source_labels": [f"{_META}pod_node_name"], "target_label": "node"},
    ]
    return ScrapeJob("kubernetes-pods", targets, relabelings, honor_labels=True, scrape=scrape)


def operator_target(address: str) -> dict[str, str]:
    """The target of the operator's own metrics, with the labels and annotations that its pod has by the chart."""
    (deployment,) = (one for one in _chart() if one["kind"] == "Deployment")
    metadata = deployment["spec"]["template"]["metadata"]
    named = {
        f"{_META}pod_{kind[:-1]}_{spelled(key)}": value
        for kind in ("labels", "annotations")
        for key, value in metadata[kind].items()
    }
    return {
        ADDRESS: address,
        f"{_META}namespace": deployment["metadata"]["namespace"],
        f"{_META}pod_name": "flyball-0",
        f"{_META}pod_container_name": "operator",
        f"{_META}pod_container_port_name": "metrics",
        **named,
    }


def _chart() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ROOT / "tests/golden/chart/cluster.yaml").read_text()))


def pod_monitor_jobs(targets: Sequence[Mapping[str, str]], name: str = "flyball-engines") -> list[ScrapeJob]:
    """The jobs that the Prometheus operator makes of a PodMonitor of the chart: one for each port."""
    (monitor,) = (one for one in _chart() if one["kind"] == "PodMonitor" and one["metadata"]["name"] == name)
    spec, meta = monitor["spec"], monitor["metadata"]
    asked = {one["key"]: one["operator"] for one in spec["selector"].get("matchExpressions", ())}
    there = [key for key, operator in asked.items() if operator == "Exists"]
    dropped = [
        {"source_labels": [f"{_META}pod_labelpresent_{spelled(key)}"], "action": "drop", "regex": "true"}
        for key, operator in asked.items()
        if operator == "DoesNotExist"
    ]
    wanted = {key: re.escape(value) for key, value in spec["selector"].get("matchLabels", {}).items()}
    selected = [
        {"source_labels": [f"{_META}pod_label_{spelled(key)}"], "action": "keep", "regex": regex}
        for key, regex in (dict.fromkeys(there, ".+") | wanted).items()
    ]
    job = f"{meta['namespace']}/{meta['name']}"
    return [
        ScrapeJob(
            f"podMonitor/{job}/{number}",
            targets,
            [
                *selected,
                *dropped,
                {
                    "source_labels": [f"{_META}pod_container_port_name"],
                    "action": "keep",
                    "regex": endpoint["port"],
                },
                {"source_labels": [f"{_META}namespace"], "target_label": "namespace"},
                {"source_labels": [f"{_META}pod_container_name"], "target_label": "container"},
                {"source_labels": [f"{_META}pod_name"], "target_label": "pod"},
                {"target_label": "job", "replacement": job},
                *(
                    {"source_labels": [f"{_META}pod_label_{spelled(key)}"], "target_label": spelled(key)}
                    for key in spec.get("podTargetLabels", ())
                ),
                {"target_label": "endpoint", "replacement": endpoint["port"]},
                *(
                    {re.sub("(?=[A-Z])", "_", field).lower(): value for field, value in one.items()}
                    for one in endpoint.get("relabelings", ())
                ),
            ],
            honor_labels=endpoint.get("honorLabels", False),
        )
        for number, endpoint in enumerate(spec["podMetricsEndpoints"])
    ]


def spelled(name: str) -> str:
    """A label or annotation as Prometheus spells it."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)
