"""Services whose pods others make: which these are, and what the status says of them. Nothing is ever applied. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from flyball_operator.api import names
from flyball_operator.api.membership import link, tuned_by
from flyball_operator.api.objects import Object, being_deleted, controller, name, uid
from flyball_operator.api.v1alpha1 import ConditionType, InferenceService
from flyball_operator.reconcile.plan.acceptance import Acceptance
from flyball_operator.reconcile.plan.injection import obstacle
from flyball_operator.reconcile.plan.pods import has, has_ended
from flyball_operator.reconcile.plan.snapshot import Snapshot, WorkloadPods
from flyball_operator.reconcile.plan.status import ConditionClaim, ReconcileReason, part

#: Seconds until the next look: no watch tells of pods that lack the label.
LOOK_SECONDS: Final = 60.0
#: So many pods are named.
_NAMED: Final = 3


def choose(service: InferenceService, pods: Iterable[Object]) -> WorkloadPods:
    """What a service's selector chooses. `pods`: those with its labels."""
    chosen = tuple(pod for pod in pods if not (has_ended(pod) or being_deleted(pod)))
    tuned = tuple(pod for pod in chosen if tuned_by(service, link(pod), labels_of(pod)) is not None)
    return WorkloadPods(chosen, tuned)


def labels_of(found: Object) -> dict[str, str]:
    """Labels of an object."""
    return dict(found["metadata"].get("labels") or {})


def render(snapshot: Snapshot, verdict: Acceptance) -> Object:
    """The reconciler's whole part of the status."""
    workload, wanted = snapshot.workload or WorkloadPods(), snapshot.desire.service
    return {
        "replicas": len(workload.chosen),
        "readyReplicas": sum(has(pod, "Ready") for pod in workload.chosen),
        "selector": wanted.spec.workload.text if wanted is not None and wanted.spec.workload is not None else "",
        "url": "",
        "revisionOutdated": False,
        **part(snapshot, _claims(snapshot, workload, verdict)),
    }


def _claims(snapshot: Snapshot, workload: WorkloadPods, verdict: Acceptance) -> dict[ConditionType, ConditionClaim]:
    accepted = ConditionClaim(verdict.accepted, verdict.reason.value, verdict.message)
    progressing, available = _progressing(verdict), _available(workload)
    found = {
        ConditionType.ACCEPTED: accepted,
        ConditionType.PROGRESSING: progressing,
        ConditionType.AVAILABLE: available,
        ConditionType.READY: _ready(snapshot, workload, available) if verdict.accepted else accepted,
    }
    if not verdict.accepted:
        found[ConditionType.STALLED] = replace(accepted, status=True)
    return found


def _progressing(verdict: Acceptance) -> ConditionClaim:
    if not verdict.accepted:
        return ConditionClaim(False, ReconcileReason.NOT_ACCEPTED, "nothing is done while the service is not accepted")
    message = "others make these pods: Flyball tunes them, and does not replace, roll back or scale them"
    return ConditionClaim(True, ReconcileReason.MADE_BY_OTHERS, message)


def _available(workload: WorkloadPods) -> ConditionClaim:
    if any(has(pod, "Ready") for pod in workload.chosen):
        return ConditionClaim(True, ReconcileReason.ENDPOINTS_READY, "at least one pod of spec.workload is Ready")
    why = "no pod of spec.workload is Ready" if workload.chosen else "spec.workload.selector chooses no pod"
    return ConditionClaim(False, ReconcileReason.NO_READY_ENDPOINT, why)


def _ready(snapshot: Snapshot, workload: WorkloadPods, available: ConditionClaim) -> ConditionClaim:
    if not available.status:
        return available
    tuned = {uid(pod) for pod in workload.tuned}
    without = [pod for pod in workload.chosen if has(pod, "Ready") and uid(pod) not in tuned]
    if without:
        return ConditionClaim(False, ReconcileReason.PLUGIN_MISSING, " ".join(_missing(snapshot, without)))
    message = "every Ready pod of spec.workload has the labels of this service; Tuned says whether their engines obey"
    return ConditionClaim(True, ReconcileReason.SERVING, message)


def _missing(snapshot: Snapshot, pods: Sequence[Object]) -> Iterator[str]:
    mine = snapshot.desire.meta.name
    named = sorted(f"{name(pod)}{_why(pod, snapshot)}" for pod in pods)
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    yield f"{', '.join(named[:_NAMED])}{more}: not started for this service, so not tuned."
    yield f"Set the label {names.LABEL_SERVICE}: {mine} on the pod template, and restart the pods."
    yield "If they have it, let the chart inject the plugin (inject.enabled), or see docs/existing-engines.md"


def _why(pod: Object, snapshot: Snapshot) -> str:
    """What is special about a pod that the service does not tune."""
    meta, service, labels = snapshot.desire.meta, snapshot.desire.service, labels_of(pod)
    of, started_for = labels.get(names.LABEL_SERVICE), labels.get(names.LABEL_SERVICE_UID)
    found = ""
    if controller(pod) is None:
        found = "made by no controller"
    elif of is not None and of != meta.name:
        found = f"of the service {of}"
    elif of is not None and started_for is not None:
        found = "started for an earlier service of this name"
    elif of is not None and service is not None and service.spec.workload is not None:
        found = obstacle(pod, service.spec.workload)
    return f" ({found})" if found else ""
