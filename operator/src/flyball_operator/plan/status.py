"""The hands' part of the status: four conditions, each decided by a chain of rules whose first answer counts.

`Accepted`: can be acted upon. `Progressing`: whether pods are, or are being brought, as asked for (as a Deployment's:
False is trouble). `Available`: at least one Ready endpoint, not the Deployment's word, which says Available at none
ready where one of one may be unavailable. `Ready`: Accepted and Available. Reasons are below and in
`causes.CauseReason`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from flyball_operator.api.v1alpha1 import Condition, ConditionType
from flyball_operator.plan import service
from flyball_operator.plan.acceptance import Verdict
from flyball_operator.plan.intents import Event
from flyball_operator.plan.labels import selector_text
from flyball_operator.plan.objects import Kind, Object, controlled_by, timestamp, uid
from flyball_operator.plan.rollout import Rollout, Stage
from flyball_operator.plan.snapshot import Snapshot

#: Least seconds between two status writes that change no condition.
QUIET_SECONDS: Final = 60.0


class Reason(StrEnum):
    """Reasons of the hands' conditions besides those of acceptance and of `CauseReason`."""

    ROLLING_OUT = "RollingOut"
    """Pods are being brought to the template asked for."""
    ROLLOUT_COMPLETE = "RolloutComplete"
    """All pods have the template asked for."""
    ROLLED_BACK = "RolledBack"
    """What was asked for failed; the last good template is back. A changed spec is tried, the same is not."""
    NOT_ACCEPTED = "NotAccepted"
    """Nothing is changed while the service is not accepted."""
    ENDPOINTS_READY = "EndpointsReady"
    """At least one pod serves."""
    NO_READY_ENDPOINT = "NoReadyEndpoint"
    """No pod serves yet."""
    SCALED_TO_ZERO = "ScaledToZero"
    """No pod is asked for."""
    SERVING = "Serving"
    """Accepted, and at least one pod serves."""


@dataclass(frozen=True)
class Claim:
    """What a condition says."""

    status: bool
    reason: str
    message: str


def ready_endpoints(snapshot: Snapshot) -> int:
    """Ready endpoints of our own Service, as kube-proxy sees them; a foreign Service's do not count."""
    front = snapshot.own(Kind.SERVICE)
    if front is None:
        return 0
    return sum(
        1
        for found in snapshot.slices
        if controlled_by(found, uid(front))
        for endpoint in found.get("endpoints") or ()
        if (endpoint.get("conditions") or {}).get("ready")
    )


def claims(snapshot: Snapshot, verdict: Verdict, rollout: Rollout | None) -> dict[ConditionType, Claim]:
    """What the four conditions say about this snapshot."""
    accepted = Claim(verdict.accepted, verdict.reason.value, verdict.message)
    available = _available(snapshot, rollout)
    return {
        ConditionType.ACCEPTED: accepted,
        ConditionType.PROGRESSING: _progressing(rollout),
        ConditionType.AVAILABLE: available,
        ConditionType.READY: _ready(accepted, available),
    }


def _progressing(rollout: Rollout | None) -> Claim:
    if rollout is None:
        return Claim(False, Reason.NOT_ACCEPTED, "nothing is changed while the service is not accepted")
    detail = f"{rollout.cause.reason}: {rollout.cause.message}" if rollout.cause else ""
    match rollout.stage:
        case Stage.ROLLED_BACK:
            advice = "the last good pod template is back; change the spec to try again"
            return Claim(False, Reason.ROLLED_BACK, f"{detail}; {advice}")
        case Stage.FAILED if rollout.cause is not None:
            return Claim(False, rollout.cause.reason, f"{rollout.cause.message}; there is no earlier good generation")
        case Stage.FAILED:
            return Claim(False, "NotReadyInTime", "pods were not ready within spec.rollout.startupTimeout")
        case Stage.COMPLETE:
            return Claim(True, Reason.ROLLOUT_COMPLETE, detail or "all pods have the template asked for")
        case Stage.ROLLING:
            return Claim(True, Reason.ROLLING_OUT, detail or "pods are being brought to the template asked for")


def _available(snapshot: Snapshot, rollout: Rollout | None) -> Claim:
    ready = ready_endpoints(snapshot)
    if ready:
        return Claim(True, Reason.ENDPOINTS_READY, "at least one pod serves")
    deployment = snapshot.own(Kind.DEPLOYMENT)
    if deployment is not None and deployment["spec"].get("replicas") == 0:
        return Claim(False, Reason.SCALED_TO_ZERO, "spec.replicas is 0")
    if rollout is not None and rollout.cause is not None:
        return Claim(False, rollout.cause.reason, rollout.cause.message)
    return Claim(False, Reason.NO_READY_ENDPOINT, "no pod serves")


def _ready(accepted: Claim, available: Claim) -> Claim:
    for claim in (accepted, available):
        if not claim.status:
            return claim
    return Claim(True, Reason.SERVING, "accepted, and at least one pod serves")


def render(snapshot: Snapshot, verdict: Verdict, rollout: Rollout | None) -> Object:
    """The hands' whole part of the status."""
    meta = snapshot.desire.meta
    counts = (snapshot.own(Kind.DEPLOYMENT) or {}).get("status") or {}
    return {
        "observedGeneration": meta.generation,
        "epoch": snapshot.epoch,
        "replicas": counts.get("replicas", 0),
        "readyReplicas": counts.get("readyReplicas", 0),
        "selector": selector_text(meta),
        "url": service.url(meta),
        "revisionOutdated": rollout.outdated if rollout is not None else snapshot.desire.status.revision_outdated,
        "conditions": [_condition(snapshot, kind, claim) for kind, claim in claims(snapshot, verdict, rollout).items()],
    }


def _condition(snapshot: Snapshot, kind: ConditionType, claim: Claim) -> Object:
    word = "True" if claim.status else "False"
    before = _find(snapshot, kind)
    kept = before is not None and before.status == word and before.last_transition_time
    return {
        "type": kind.value,
        "status": word,
        "reason": str(claim.reason),
        "message": claim.message,
        "observedGeneration": snapshot.desire.meta.generation,
        "lastTransitionTime": before.last_transition_time if kept and before else timestamp(snapshot.now),
    }


def _find(snapshot: Snapshot, kind: ConditionType | str) -> Condition | None:
    return next((item for item in snapshot.desire.status.conditions if item.type == kind), None)


@dataclass(frozen=True)
class Difference:
    """How the status to be differs from the one that is. `urgent` differences are not held back."""

    any: bool
    urgent: bool


def difference(snapshot: Snapshot, wanted: Object) -> Difference:
    """Compare. The epoch alone is no difference: an operator that restarts writes nothing."""
    found = snapshot.desire.status
    urgent = (
        found.observed_generation != wanted["observedGeneration"]
        or found.selector != wanted["selector"]
        or found.url != wanted["url"]
        or found.revision_outdated != wanted["revisionOutdated"]
        # Autoscalers read them, and beside a condition that changed an older count reads as a contradiction.
        or (found.replicas, found.ready_replicas) != (wanted["replicas"], wanted["readyReplicas"])
        or any(True for _ in transitions(snapshot, wanted))
    )
    words = any(
        (before := _find(snapshot, item["type"])) is None or before.message != item["message"]
        for item in wanted["conditions"]
    )
    return Difference(any=urgent or words, urgent=urgent)


def transitions(snapshot: Snapshot, wanted: Object) -> Iterator[tuple[Condition | None, Object]]:
    """Conditions whose status or reason changes, before and after."""
    for item in wanted["conditions"]:
        before = _find(snapshot, item["type"])
        if before is None or (before.status, before.reason) != (item["status"], item["reason"]):
            yield before, item


def events(snapshot: Snapshot, wanted: Object) -> tuple[Event, ...]:
    """What users are told: transitions only, and none that merely follows from another."""
    told = []
    for before, item in transitions(snapshot, wanted):
        good = item["status"] == "True"
        derived = item["type"] == ConditionType.READY or item["reason"] == Reason.NOT_ACCEPTED
        not_yet = item["type"] == ConditionType.AVAILABLE and not good and (before is None or before.status != "True")
        if not (derived or not_yet):
            reason = str(item["reason"]) if item["reason"] != item["type"] else str(item["type"])
            told.append(Event("Normal" if good else "Warning", reason, item["message"]))
    return tuple(told)
