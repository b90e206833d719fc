"""The reconciler's part of the status: eight conditions, each decided by a chain of rules whose first answer counts.

`Accepted`: can be acted upon. `Progressing`: whether pods are, or are being brought, as asked for (as a Deployment's:
False is trouble). `Available`: at least one Ready endpoint, of whatever generation; not the Deployment's word, which
says Available at none ready where one of one may be unavailable. `Ready`: all that this generation asks for runs and
serves. `Stalled`: it will not without somebody's help. `TemplateOutdated`: this operator would make the pods otherwise,
and what comes of that. These two are there only while they are True, as kstatus has it. `ModelReady`: whether the
volume of `spec.model.cache` has the model; there only where a cache is asked for. `Routed`: whether the gateways of
`spec.gateway` route requests to the service; there only with it. What waits for a rollout (`kubectl wait`, Helm 4,
Flux) looks at `Ready` and `Stalled`, at this `observedGeneration`. Reasons are below, in `adoption.OutdatedReason`, in
`model_reasons.ModelReason`, in `routing.RoutedReason` and in `cause.CauseReason`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from flyball_operator.api import names
from flyball_operator.api.objects import Kind, Object, controlled_by, timestamp, uid
from flyball_operator.api.v1alpha1 import (
    RECONCILER_CONDITIONS,
    CanaryStatus,
    Condition,
    ConditionType,
    InferenceService,
)
from flyball_operator.reconcile.plan import history, model_cache, progress, revision, routing, service
from flyball_operator.reconcile.plan.acceptance import Acceptance, AcceptedReason
from flyball_operator.reconcile.plan.adoption import NEVER, OutdatedReason, Standing
from flyball_operator.reconcile.plan.cause import CauseReason
from flyball_operator.reconcile.plan.causes import ready_templates
from flyball_operator.reconcile.plan.deployment import judged_pods
from flyball_operator.reconcile.plan.history import AdoptedWhy
from flyball_operator.reconcile.plan.intents import Event
from flyball_operator.reconcile.plan.model_cache import ModelState
from flyball_operator.reconcile.plan.model_reasons import ModelReason
from flyball_operator.reconcile.plan.owned_objects import selector, selector_text, serving_selector
from flyball_operator.reconcile.plan.rollout import RolloutDecision, Stage
from flyball_operator.reconcile.plan.routing import RoutedReason
from flyball_operator.reconcile.plan.snapshot import Snapshot

#: Least seconds between two status writes that change no condition.
QUIET_SECONDS: Final = 60.0
_IN_PLACE: Final = (
    "no device is free for one pod more, so the earlier pod ends first, and nothing serves until the new one is Ready;"
    " to wait for a device instead, set spec.rollout.maxSurge: 1"
)


#: So many fields are named.
_MOST_FIELDS: Final = 5
#: How an adoption is tried again.
_AGAIN: Final = f"set the annotation {names.ANNOTATION_ADOPT} to a new value to try again"
_TAKING: Final = (Standing.ADOPTING, Standing.WAITING)
#: What is going on, by why a service adopts by itself.
_ADOPTING: Final[Mapping[str, str]] = {
    AdoptedWhy.TURN: "pods are being brought to this operator's template",
    AdoptedWhy.PLUGIN_MISSING: "the plugin image of the earlier template cannot be pulled, so pods are being brought to"
    " this operator's template",
}


class ReconcileReason(StrEnum):
    """Reasons of the reconciler's conditions besides those of acceptance and of `CauseReason`."""

    ROLLING_OUT = "RollingOut"
    """Pods are being brought to the template asked for."""
    CANARY_ANALYSIS = "CanaryAnalysis"
    """A share of the pods has the template asked for, and is judged by the objectives before the others follow."""
    CANARY_NOT_JUDGED = "CanaryNotJudged"
    """The same, but it cannot be judged: Prometheus does not see its pods, or these finish too few requests."""
    REPLACING_IN_PLACE = "ReplacingInPlace"
    """Pods are being brought to the template where no device was free: earlier pods end before new ones start."""
    ROLLOUT_COMPLETE = "RolloutComplete"
    """All pods have the template asked for."""
    ROLLED_BACK = "RolledBack"
    """What was asked for failed; the last good template is back. A changed spec is tried, the same is not."""
    NOT_ACCEPTED = "NotAccepted"
    """Nothing is changed while the service is not accepted."""
    ENDPOINTS_READY = "EndpointsReady"
    """At least one pod serves."""
    EARLIER_REVISION_SERVES = "EarlierRevisionServes"
    """Pods serve, but none of what this generation asks for; the message names their revision."""
    NO_READY_ENDPOINT = "NoReadyEndpoint"
    """No pod serves yet."""
    SCALED_TO_ZERO = "ScaledToZero"
    """No pod is asked for."""
    REPLICAS_NOT_READY = "ReplicasNotReady"
    """Pods have the template asked for, but fewer or more than asked for are Ready."""
    SERVING = "Serving"
    """As many pods as asked for serve, all with the template asked for. Of a workload: all Ready pods have the
    plugin."""
    MADE_BY_OTHERS = "MadeByOthers"
    """Pods of `spec.workload` are tuned, and neither replaced, rolled back nor scaled."""
    PLUGIN_MISSING = "PluginMissing"
    """Ready pods of `spec.workload` were started without the plugin for this service; the message names them."""


@dataclass(frozen=True)
class ConditionClaim:
    """What a condition says."""

    status: bool
    reason: str
    message: str


_NOT_ACCEPTED: Final = ConditionClaim(
    False, ReconcileReason.NOT_ACCEPTED, "nothing is changed while the service is not accepted"
)
_ROUTE_STAYS: Final = "the route stays while the service is not accepted; gateways accepted it when last looked at"


def ready_endpoints(snapshot: Snapshot) -> int:
    """Ready endpoints of our own Service, as kube-proxy sees them; neither a foreign Service's nor a foreign pod's."""
    front = snapshot.own(Kind.SERVICE)
    if front is None:
        return 0
    members = {uid(pod) for pod in snapshot.pods}
    return sum(
        1
        for found in snapshot.slices
        if controlled_by(found, uid(front))
        for endpoint in found.get("endpoints") or ()
        if (endpoint.get("conditions") or {}).get("ready") and (endpoint.get("targetRef") or {}).get("uid") in members
    )


def claims(
    snapshot: Snapshot, verdict: Acceptance, rollout: RolloutDecision | None
) -> dict[ConditionType, ConditionClaim]:
    """What the conditions say about this snapshot."""
    accepted = ConditionClaim(verdict.accepted, verdict.reason.value, verdict.message)
    model = _model(snapshot, rollout)
    waits = rollout is not None and model_cache.held(model, snapshot, rollout)
    progressing = _waiting(model) if waits and model is not None else _progressing(rollout)
    available = _available(snapshot, rollout)
    found = {
        ConditionType.ACCEPTED: accepted,
        ConditionType.PROGRESSING: progressing,
        ConditionType.AVAILABLE: available,
        ConditionType.READY: _ready(snapshot, rollout, progressing, available) if accepted.status else accepted,
    }
    stuck = next((claim for claim in (accepted, progressing) if not claim.status), None)
    # Garbage collection ends by itself.
    if stuck is not None and verdict.reason is not AcceptedReason.EARLIER_SERVICE_LEAVING:
        found[ConditionType.STALLED] = replace(stuck, status=True)
    if rollout is not None and (outdated := _outdated(snapshot, rollout)) is not None:
        found[ConditionType.TEMPLATE_OUTDATED] = outdated
    if model is not None:
        found[ConditionType.MODEL_READY] = ConditionClaim(model.ready, model.reason, model.message)
    if (routed := _routed(snapshot, rollout)) is not None:
        found[ConditionType.ROUTED] = routed
    return found


def _routed(snapshot: Snapshot, rollout: RolloutDecision | None) -> ConditionClaim | None:
    wanted = snapshot.desire.service
    if wanted is None or rollout is None:
        if not routing.concerns(snapshot.desire):
            return None
        # It stays, as objects may be there. Nothing is read or changed now, so what was True serves on.
        routed = routing.was_routed(snapshot.desire)
        return replace(_NOT_ACCEPTED, status=routed, message=_ROUTE_STAYS) if routed else _NOT_ACCEPTED
    found = routing.state(wanted, snapshot)
    return ConditionClaim(found.routed, found.reason, found.message) if found is not None else None


def _model(snapshot: Snapshot, rollout: RolloutDecision | None) -> ModelState | None:
    wanted = snapshot.desire.service
    return model_cache.state(wanted, snapshot) if wanted is not None and rollout is not None else None


def _waiting(model: ModelState) -> ConditionClaim:
    """Of a rollout that waits until the model is there."""
    return ConditionClaim(not model.stuck, model.reason, f"the rollout waits for the model: {model.message}")


def _outdated(snapshot: Snapshot, rollout: RolloutDecision) -> ConditionClaim | None:
    if rollout.standing is Standing.FAILED:
        what = "this operator's template did not run"
        if rollout.outdated:
            words = rollout.history.refused_words.rstrip(".")
            what = f"the API server refused this operator's template, so the pods run on as they are: {words}"
        return ConditionClaim(True, OutdatedReason.ADOPTION_FAILED, f"{what}; {_AGAIN}")
    if not rollout.outdated:
        return None
    if rollout.newer and snapshot.turn != NEVER:
        message = (
            f"operator {rollout.newer} made the pods, and this one is {snapshot.config.version}, so they run on as they"
            f" are. To replace them all the same, set the annotation {names.ANNOTATION_ADOPT} to a new value"
        )
        return ConditionClaim(True, OutdatedReason.MADE_BY_NEWER_OPERATOR, message)
    if rollout.differing and snapshot.turn != NEVER:
        message = (
            "another release of this version made the pods, or settings were turned back. They had this template"
            f" before, and run on as they are. It differs in {', '.join(rollout.differing[:_MOST_FIELDS])}. Give both"
            f" releases the same settings, or set the annotation {names.ANNOTATION_ADOPT} to a new value"
        )
        return ConditionClaim(True, OutdatedReason.OTHER_SETTINGS, message)
    stopped = snapshot.turn.reason is OutdatedReason.ADOPTION_STOPPED
    if rollout.due is not None and snapshot.turn != NEVER and not stopped:
        message = f"adopts this operator's template from {timestamp(rollout.due)} on, when its own is old enough"
        return ConditionClaim(True, OutdatedReason.NOT_OLD_ENOUGH, message)
    return ConditionClaim(True, snapshot.turn.reason, snapshot.turn.message)


def _progressing(rollout: RolloutDecision | None) -> ConditionClaim:
    if rollout is None:
        return _NOT_ACCEPTED
    detail = f"{rollout.cause.reason}: {rollout.cause.message}" if rollout.cause else ""
    match rollout.stage:
        case Stage.ROLLED_BACK:
            again = _AGAIN if rollout.standing is Standing.FAILED else "change the spec to try again"
            advice = f"the last good pod template is back; {again}"
            return ConditionClaim(False, ReconcileReason.ROLLED_BACK, f"{detail}; {advice}")
        case Stage.FAILED if rollout.cause is not None:
            return ConditionClaim(
                False, rollout.cause.reason, f"{rollout.cause.message}; there is no earlier good generation"
            )
        case Stage.FAILED:
            return ConditionClaim(
                False, CauseReason.NOT_READY_IN_TIME, "pods were not ready within spec.rollout.startupTimeout"
            )
        case _:
            return _going_on(rollout, detail)


def _going_on(rollout: RolloutDecision, detail: str) -> ConditionClaim:
    """Of a rollout that needs nobody's help; a shortage has its own reason, so that `Ready` names it, too."""
    if rollout.stage is Stage.COMPLETE:
        return ConditionClaim(True, ReconcileReason.ROLLOUT_COMPLETE, detail or "all pods have the template asked for")
    if rollout.replaces_in_place:
        return ConditionClaim(True, ReconcileReason.REPLACING_IN_PLACE, f"{_IN_PLACE}{detail and f'. {detail}'}")
    if rollout.stage is Stage.WAITING and rollout.cause is not None:
        waits = "the rollout waits for it, and then goes on by itself"
        return ConditionClaim(True, rollout.cause.reason, f"{rollout.cause.message.rstrip('.')}; {waits}")
    if rollout.judged is not None:
        message = "; ".join(part for part in (rollout.judged.message, detail) if part)
        judged = ReconcileReason.CANARY_ANALYSIS
        reason = ReconcileReason.CANARY_NOT_JUDGED if rollout.judged.inconclusive else judged
        return ConditionClaim(True, reason, message)
    adopting = _ADOPTING.get(rollout.history.adopted_why) if rollout.standing in _TAKING else None
    promoted = rollout.history.promoted and f"{rollout.history.promoted}; the other pods follow"
    message = ". ".join(part for part in (promoted, adopting, detail) if part)
    return ConditionClaim(
        True, ReconcileReason.ROLLING_OUT, message or "pods are being brought to the template asked for"
    )


def _available(snapshot: Snapshot, rollout: RolloutDecision | None) -> ConditionClaim:
    if ready_endpoints(snapshot):
        return _served(snapshot)
    if _wanted(snapshot) == 0:
        return ConditionClaim(False, ReconcileReason.SCALED_TO_ZERO, "spec.replicas is 0")
    if rollout is not None and rollout.outage is not None:
        return ConditionClaim(False, rollout.outage.reason, rollout.outage.message)
    return ConditionClaim(False, ReconcileReason.NO_READY_ENDPOINT, "no pod serves")


def _served(snapshot: Snapshot) -> ConditionClaim:
    """Whose pods serve. Endpoints do not say; a Ready pod's template does."""
    wanted, ready = snapshot.desire.service, ready_templates(snapshot.pods)
    if not ready or (wanted is not None and _asked(snapshot, wanted) in ready):
        return ConditionClaim(True, ReconcileReason.ENDPOINTS_READY, "at least one pod serves")
    kept = (found for item in snapshot.revisions if (found := revision.read(item)) is not None)
    numbers = sorted(found.number for found in kept if found.spec_hash in ready)
    serving = f"revision {', '.join(map(str, numbers))} serves" if numbers else "an earlier revision serves"
    generation = snapshot.desire.meta.generation
    message = f"{serving}, not what generation {generation} asks for (kubectl get controllerrevisions lists revisions)"
    return ConditionClaim(True, ReconcileReason.EARLIER_REVISION_SERVES, message)


def _asked(snapshot: Snapshot, wanted: InferenceService) -> str:
    return revision.spec_hash(wanted, history.read(snapshot.pods_owner).adopted)


def _wanted(snapshot: Snapshot) -> int | None:
    """Pods asked for; None where there is no Deployment."""
    deployment = snapshot.pods_owner
    return None if deployment is None else int(deployment["spec"].get("replicas", 1))


def _ready(
    snapshot: Snapshot, rollout: RolloutDecision | None, progressing: ConditionClaim, available: ConditionClaim
) -> ConditionClaim:
    if rollout is None or rollout.stage is not Stage.COMPLETE or progressing.reason in set(ModelReason):
        return replace(progressing, status=False)
    wanted = _wanted(snapshot)
    if rollout.full and wanted == 0:
        return ConditionClaim(True, ReconcileReason.SCALED_TO_ZERO, "spec.replicas is 0, and no pod is left")
    if not available.status:
        return available
    if not rollout.full:
        counts = (snapshot.pods_owner or {}).get("status") or {}
        detail = f": {rollout.cause.reason}: {rollout.cause.message}" if rollout.cause else ""
        message = f"{counts.get('readyReplicas', 0)} of {wanted} replicas are ready{detail}"
        return ConditionClaim(False, ReconcileReason.REPLICAS_NOT_READY, message)
    return ConditionClaim(
        True, ReconcileReason.SERVING, "as many pods as asked for serve, all with the template asked for"
    )


def render(snapshot: Snapshot, verdict: Acceptance, rollout: RolloutDecision | None) -> Object:
    """The reconciler's whole part of the status."""
    meta = snapshot.desire.meta
    deployment = snapshot.pods_owner or {}
    counts = deployment.get("status") or {}
    template = deployment.get("spec", {}).get("template", {})
    if rollout is not None:
        template = model_cache.shown_template(_model(snapshot, rollout), snapshot, rollout)
    return {
        "replicas": counts.get("replicas", 0),
        "readyReplicas": counts.get("readyReplicas", 0),
        "selector": _selector(snapshot),
        "url": service.url(meta, template),
        "revisionOutdated": rollout.outdated if rollout is not None else snapshot.desire.status.revision_outdated,
        **part(snapshot, claims(snapshot, verdict, rollout)),
        **_canary(snapshot, rollout),
    }


def _selector(snapshot: Snapshot) -> str:
    """What selects the pods that serve; what was said before where the spec cannot be read."""
    wanted, said = snapshot.desire.service, snapshot.desire.status.selector
    if wanted is None:
        return said or selector_text(selector(snapshot.desire.meta))
    return selector_text(serving_selector(wanted))


def _canary(snapshot: Snapshot, rollout: RolloutDecision | None) -> Object:
    """What the tuner is to judge; nothing before the Deployment has it."""
    wanted, live = snapshot.desire.service, snapshot.pods_owner
    judged = rollout.judged if rollout is not None else None
    if wanted is None or live is None or judged is None or not progress.has_template(live, judged.revision):
        return {}
    canary = CanaryStatus(
        revision=judged.revision, baseline=judged.baseline, start_time=judged.since, pods=judged_pods(live)
    )
    return {"canary": canary.model_dump(mode="json", by_alias=True)}


def part(snapshot: Snapshot, said: Mapping[ConditionType, ConditionClaim]) -> Object:
    """What the status says of any service: of which generation it is, under which epoch, and its conditions."""
    return {
        "observedGeneration": snapshot.desire.meta.generation,
        "epoch": snapshot.epoch,
        "conditions": [_condition(snapshot, kind, claim) for kind, claim in said.items()],
    }


def _condition(snapshot: Snapshot, kind: ConditionType, claim: ConditionClaim) -> Object:
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
        or _types(snapshot) != {item["type"] for item in wanted["conditions"]}
        or (None if found.canary is None else found.canary.model_dump(mode="json", by_alias=True))
        != wanted.get("canary")
        or any(True for _ in transitions(snapshot, wanted))
        or any(True for _ in _other_causes(snapshot, wanted))
    )
    words = any(
        (before := _find(snapshot, item["type"])) is None or before.message != item["message"]
        for item in wanted["conditions"]
    )
    return Difference(any=urgent or words, urgent=urgent)


def _types(snapshot: Snapshot) -> set[str]:
    return {item.type for item in snapshot.desire.status.conditions if item.type in RECONCILER_CONDITIONS}


def _other_causes(snapshot: Snapshot, wanted: Object) -> Iterator[Object]:
    """Conditions whose message begins with another cause: its words may alternate, what it is is told at once."""
    for item in wanted["conditions"]:
        before = _find(snapshot, item["type"])
        if before is not None and before.message.partition(":")[0] != item["message"].partition(":")[0]:
            yield item


def transitions(snapshot: Snapshot, wanted: Object) -> Iterator[tuple[Condition | None, Object]]:
    """Conditions whose status or reason changes, before and after."""
    for item in wanted["conditions"]:
        before = _find(snapshot, item["type"])
        if before is None or (before.status, before.reason) != (item["status"], item["reason"]):
            yield before, item


def events(snapshot: Snapshot, wanted: Object) -> tuple[Event, ...]:
    """What users are told: transitions only, and none that merely follows from another."""
    transitioned = []
    for before, item in transitions(snapshot, wanted):
        good = item["status"] == "True"
        available = before is not None and before.status == "True"
        derived = (
            item["type"] in (ConditionType.READY, ConditionType.STALLED, ConditionType.TEMPLATE_OUTDATED)
            or item["reason"] == ReconcileReason.NOT_ACCEPTED
            or (item["type"] == ConditionType.PROGRESSING and item["reason"] in set(ModelReason))
        )
        # Not yet, or still, whosever pods they are.
        same = item["type"] == ConditionType.AVAILABLE and good == available
        if not (derived or same):
            reason = str(item["reason"]) if item["reason"] != item["type"] else str(item["type"])
            begun = reason in (ModelReason.DOWNLOAD_PENDING, ModelReason.DOWNLOADING, RoutedReason.ROUTE_PENDING)
            warned = (not good and not begun) or reason == AcceptedReason.UNKNOWN_ANNOTATION
            transitioned.append(Event("Warning" if warned else "Normal", reason, item["message"]))
    return tuple(transitioned)
