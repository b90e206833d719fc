"""Objects that a service owns: their labels, what selects its pods, and their owner. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from flyball_operator.api import names
from flyball_operator.api.objects import Kind, Object
from flyball_operator.api.v1alpha1 import InferenceService, ObjectMeta

API_VERSIONS: Final[Mapping[Kind, str]] = {
    Kind.DEPLOYMENT: "apps/v1",
    Kind.LEADER_WORKER_SET: "leaderworkerset.x-k8s.io/v1",
    Kind.SERVICE: "v1",
    Kind.DISRUPTION_BUDGET: "policy/v1",
    Kind.NETWORK_POLICY: "networking.k8s.io/v1",
    Kind.CONFIG_MAP: "v1",
    Kind.REVISION: "apps/v1",
    Kind.VOLUME_CLAIM: "v1",
    Kind.JOB: "batch/v1",
    Kind.INFERENCE_POOL: "inference.networking.k8s.io/v1",
    Kind.HTTP_ROUTE: "gateway.networking.k8s.io/v1",
}

#: Value of `app.kubernetes.io/name` on all owned objects.
APPLICATION = "flyball-engine"


def selector(meta: ObjectMeta) -> dict[str, str]:
    """Labels that select the pods of this service, and none of an earlier service of its name."""
    return {names.LABEL_SERVICE: meta.name, names.LABEL_SERVICE_UID: meta.uid}


def serving_selector(service: InferenceService) -> dict[str, str]:
    """Labels that select those of its pods that serve requests."""
    leads = {names.LABEL_WORKER_INDEX: names.LEADER_INDEX}
    return selector(service.metadata) | (leads if service.spec.parallelism.core_spans_nodes else {})


def selector_text(selected: Mapping[str, str]) -> str:
    """The selector as `status.selector` spells it."""
    return ",".join(f"{key}={value}" for key, value in selected.items())


def labels(meta: ObjectMeta) -> dict[str, str]:
    """Labels of every owned object."""
    return {
        names.LABEL_NAME: APPLICATION,
        names.LABEL_INSTANCE: meta.name,
        names.LABEL_MANAGED_BY: names.MANAGED_BY,
        **selector(meta),
    }


def owner(meta: ObjectMeta) -> dict[str, Any]:
    """Owner reference to the service: garbage collection follows it, and ownership is decided by its UID."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": meta.name,
        "uid": meta.uid,
        "controller": True,
        # Without the finalizers subresource's right, this must be false (OwnerReferencesPermissionEnforcement).
        "blockOwnerDeletion": False,
    }


def owned(kind: Kind, meta: ObjectMeta, *, name: str | None = None, **fields: Any) -> Object:
    """An owned object of this kind with our labels and owner reference; its name is the service's unless given."""
    return {
        "apiVersion": API_VERSIONS[kind],
        "kind": kind.value,
        "metadata": {
            "name": name or meta.name,
            "namespace": meta.namespace,
            "labels": labels(meta),
            "annotations": {},
            "ownerReferences": [owner(meta)],
        },
        **fields,
    }
