"""How far a Deployment has come with the template it has, by the word of its own controller. Pure."""

from __future__ import annotations

from flyball_operator.api.objects import Object, being_deleted
from flyball_operator.reconcile.plan.pods import condition, template_of


def runs(deployment: Object, spec_hash: str) -> bool:
    """Whether the Deployment has this template, and its controller has seen that it has."""
    observed = int((deployment.get("status") or {}).get("observedGeneration", 0))
    seen = observed >= int(deployment["metadata"].get("generation", 1))
    return seen and has_template(deployment, spec_hash)


def has_template(deployment: Object, spec_hash: str) -> bool:
    """Whether the Deployment has this template, whether or not its controller has seen that."""
    return not being_deleted(deployment) and template_of(deployment["spec"]["template"]) == spec_hash


def complete(deployment: Object) -> bool:
    """Whether every pod has the template; scaling up later does not undo that."""
    status = deployment.get("status") or {}
    all_updated = status.get("updatedReplicas", 0) == status.get("replicas", 0)
    replaced = condition(deployment, "Progressing").get("reason") == "NewReplicaSetAvailable"
    return all_updated and (replaced or whole(deployment))


def whole(deployment: Object) -> bool:
    """Whether as many pods as wanted, and at least one, are Ready with the template, and no others are left."""
    return full(deployment) and deployment["spec"].get("replicas", 1) >= 1


def full(deployment: Object) -> bool:
    """The same, and true of none wanted, too."""
    status = deployment.get("status") or {}
    counts = {status.get(field, 0) for field in ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")}
    return bool(counts == {deployment["spec"].get("replicas", 1)})
