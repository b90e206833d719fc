"""Installations of Flyball as they are found in a cluster: a good one, and what breaks one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from flyball_lab.harness.manifests import Object, good
from flyball_operator import __version__
from flyball_operator.api import names
from flyball_operator.api.crd import custom_resource_definition

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
HOME = "flyball-system"
TEAM = "team-a"
UID = "uid-chat"
OPERATOR_LABELS = {"app.kubernetes.io/name": "flyball", "app.kubernetes.io/component": "operator"}
POD_LABELS = {
    names.LABEL_MANAGED_BY: names.MANAGED_BY,
    names.LABEL_SERVICE: "chat",
    names.LABEL_SERVICE_UID: UID,
}

Change = Callable[["World"], None]


def condition(kind: str, status: str, reason: str, message: str = "") -> Object:
    """A condition of a service."""
    return {"type": kind, "status": status, "reason": reason, "message": message}


class World:
    """The objects of a cluster with one operator and one service that is tuned. Tests change or remove them."""

    def __init__(self) -> None:
        self.version: Object = {"major": "1", "minor": "33+", "gitVersion": "v1.33.1"}
        self.denied: set[tuple[str, str]] = set()
        """Verbs and resources that the operator's account lacks."""
        self.crd = custom_resource_definition() | {
            "status": {"conditions": [{"type": "Established", "status": "True"}]}
        }
        labels = {**OPERATOR_LABELS, "app.kubernetes.io/version": __version__}
        self.operator: Object = {
            "metadata": {"name": "flyball", "namespace": HOME, "labels": labels},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": OPERATOR_LABELS},
                "template": {
                    "metadata": {"labels": OPERATOR_LABELS},
                    "spec": {
                        "serviceAccountName": "flyball",
                        "containers": [{"name": "operator", "image": f"flyball/operator:{__version__}", "env": []}],
                    },
                },
            },
            "status": {"replicas": 1, "updatedReplicas": 1, "readyReplicas": 1},
        }
        self.set(
            FLYBALL_NAMESPACES=TEAM,
            FLYBALL_LEASE_NAME="flyball",
            FLYBALL_PLUGIN_IMAGE=f"flyball/plugin:{__version__}",
            FLYBALL_PROMETHEUS_URL="http://prometheus:9090",
            FLYBALL_SIGNING_KEY_SECRET="flyball-signing-key",
        )
        self.operators = [self.operator]
        self.operator_pods: list[Object] = []
        """Of all operators, where some are not Ready."""
        self.operator_events: list[Object] = []
        self.leases = {
            (HOME, "flyball"): self.lease(HOME, "flyball", "flyball-0"),
            (TEAM, names.NAMESPACE_LEASE): self.lease(TEAM, names.NAMESPACE_LEASE, f"{HOME}/flyball"),
        }
        self.home: Object = {"metadata": {"name": HOME, "labels": {"kubernetes.io/metadata.name": HOME}}}
        self.others: list[Object] = []
        """Namespaces besides."""
        self.service: Object = good(metadata__namespace=TEAM, metadata__uid=UID) | {
            "status": {
                "conditions": [
                    condition("Accepted", "True", "Accepted"),
                    condition("MetricsAvailable", "True", "Scraped"),
                    condition("Tuned", "True", "Applied"),
                ]
            }
        }
        self.services = [self.service]
        plugin = {"name": names.CONTAINER_PLUGIN, "image": f"flyball/plugin:{__version__}"}
        self.pod: Object = {
            "metadata": {
                "name": "chat-1",
                "namespace": TEAM,
                "labels": POD_LABELS,
                "annotations": {names.ANNOTATION_SCRAPE: "true"},
            },
            "spec": {"initContainers": [plugin]},
        }
        self.policies: list[Object] = []
        self.keys: Object | None = {
            "metadata": {
                "name": names.PUBLIC_KEYS,
                "namespace": TEAM,
                "labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY},
            },
            "data": {names.PUBLIC_KEYS_KEY: "PEM"},
        }
        self.searched: str | None = None
        """The only namespace in which operators are looked for."""
        self.searched_exists = True
        self.services_asked = True
        self.admission: list[Object] = [{"metadata": {"name": "flyball-owned", "labels": OPERATOR_LABELS}}]
        self.bindings: list[Object] = [{"metadata": {"name": "flyball-owned"}, "spec": {"policyName": "flyball-owned"}}]

    @staticmethod
    def lease(namespace: str, name: str, holder: str, renewed: str = "2026-01-01T12:00:00.000000Z") -> Object:
        """A Lease with this holder."""
        spec = {"holderIdentity": holder, "renewTime": renewed}
        return {"metadata": {"name": name, "namespace": namespace}, "spec": spec}

    def set(self, **settings: str) -> None:
        """Settings of the operator; an empty one is taken away."""
        container = self.operator["spec"]["template"]["spec"]["containers"][0]
        known = {item["name"]: item["value"] for item in container["env"]} | settings
        container["env"] = [{"name": name, "value": value} for name, value in known.items() if value]

    def say(self, kind: str, status: str, reason: str, message: str = "") -> None:
        """Let a condition of the service say something else."""
        others = [one for one in self.service["status"]["conditions"] if one["type"] != kind]
        self.service["status"]["conditions"] = [*others, condition(kind, status, reason, message)]

    def isolate(self, *rules: Object) -> None:
        """A NetworkPolicy on all pods of the service's namespace with these ingress rules."""
        spec: dict[str, Any] = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": list(rules)}
        self.policies.append({"metadata": {"name": "deny", "namespace": TEAM}, "spec": spec})
