"""An installation as it was found: everything that the checks judge. Pure.

What could not be read is `Unread`, which is never taken for "there is none".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from flyball_operator.api.objects import Object

#: The setting's name, as in `app.settings`, whose import brings the whole client along.
_LEASE: Final = "FLYBALL_LEASE_NAME"
_NETWORK_POLICY: Final = "FLYBALL_NETWORK_POLICY"


@dataclass(frozen=True)
class Unread:
    """What could not be read, why, in the API server's words, and the right to it: verb, resource and namespace."""

    why: str
    right: str


@dataclass(frozen=True)
class Operator:
    """A Deployment of the operator.

    `leases`: those of its election that there are, by name. `denied`: rights that its account lacks, in words.
    `pods`, `events`: of its own, where some are not Ready and these may be listed.
    """

    deployment: Object
    leases: Mapping[str, Object] | Unread
    denied: Sequence[str] | Unread
    pods: Sequence[Object] = ()
    events: Sequence[Object] = ()

    @property
    def name(self) -> str:
        """Name of the Deployment."""
        return str(self.deployment["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return str(self.deployment["metadata"]["namespace"])

    @property
    def where(self) -> str:
        """Both, as messages have them."""
        return f"{self.namespace}/{self.name}"

    @property
    def release(self) -> str:
        """How it names itself in the Lease of a namespace."""
        return f"{self.namespace}/{self.settings.get(_LEASE) or 'flyball-operator'}"

    @property
    def replicas(self) -> int:
        """Pods that it should have."""
        return int(self.deployment["spec"].get("replicas", 1))

    @property
    def ready(self) -> int:
        """Pods that are Ready."""
        return int((self.deployment.get("status") or {}).get("readyReplicas") or 0)

    @property
    def rolled_out(self) -> bool:
        """Whether all its pods, and no others, have its present template and are Ready."""
        status = self.deployment.get("status") or {}
        seen = status.get("observedGeneration", 0) == self.deployment["metadata"].get("generation", 0)
        counts = {int(status.get(field) or 0) for field in ("replicas", "updatedReplicas", "readyReplicas")}
        return seen and counts == {self.replicas}

    @property
    def namespaces(self) -> Sequence[str]:
        """Namespaces that it is told to look after by name; `*` is all, none where it selects them by their labels."""
        if self.settings.get("FLYBALL_WATCH_NAMESPACE_SELECTOR"):
            return ()
        named = [part.strip() for part in self.settings.get("FLYBALL_NAMESPACES", "").split(",") if part.strip()]
        return named or [self.namespace]

    def watches(self, namespace: str) -> bool:
        """Whether it is told to look after a namespace by name, or after all."""
        return namespace in self.namespaces or "*" in self.namespaces

    @property
    def settings(self) -> Mapping[str, str]:
        """Its environment variables with a value."""
        return settings_of(self.deployment)

    @property
    def ingress_peers(self) -> Sequence[Object] | None:
        """Who may reach control ports by the NetworkPolicies that it makes, None where it makes none."""
        text = self.settings.get(_NETWORK_POLICY)
        if not text:
            return None
        try:
            return tuple(json.loads(text)["control"])
        except (ValueError, LookupError, TypeError):
            return ()

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of its pods."""
        return self.deployment["spec"]["template"]["metadata"].get("labels") or {}


@dataclass(frozen=True)
class Tenant:
    """A namespace with services. `keys`: the ConfigMap of public keys, None if there is none."""

    name: str
    services: Sequence[Object]
    pods: Sequence[Object] | Unread = ()
    policies: Sequence[Object] | Unread = ()
    keys: Object | Unread | None = None
    lease: Object | Unread | None = None


@dataclass(frozen=True)
class Installation:
    """All that was read. `now`: by the clock of whoever asked. `namespace_labels`: by namespace of an operator.

    `admission`, `bindings`: ValidatingAdmissionPolicies of the chart, and the bindings of all.

    `searched`: the only namespace in which operators were looked for; None for all. `searched_exists`: whether it is
    there, as far as is known. `services_asked`: whether services were looked for.
    """

    now: datetime
    server: Object | Unread
    crd: Object | Unread | None
    operators: Sequence[Operator] | Unread
    tenants: Sequence[Tenant] | Unread
    admission: Sequence[Object] | Unread
    bindings: Sequence[Object] | Unread
    namespace_labels: Mapping[str, Mapping[str, str]]
    searched: str | None = None
    searched_exists: bool = True
    services_asked: bool = True


def settings_of(deployment: Object) -> Mapping[str, str]:
    """Environment variables of the operator's container that are given as values."""
    container = operator_container(deployment)
    return {item["name"]: str(item["value"]) for item in (container or {}).get("env") or () if "value" in item}


def operator_container(deployment: Object) -> Mapping[str, Any] | None:
    """The container that is an operator, told by its setting; None where the Deployment is another's."""
    for container in deployment["spec"]["template"]["spec"].get("containers") or ():
        if any(item.get("name") == _LEASE for item in container.get("env") or ()):
            return dict(container)
    return None


def services(installation: Installation) -> Iterator[tuple[Tenant, Object]]:
    """Each service with its namespace."""
    if isinstance(installation.tenants, Unread):
        return
    for tenant in installation.tenants:
        for service in tenant.services:
            yield tenant, service
