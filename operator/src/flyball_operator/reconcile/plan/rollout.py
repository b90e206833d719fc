"""Which template the Deployment shall have: the one asked for, or the last good one after the one asked for failed.

A Deployment never goes back by itself: with a bad image it waits for ever. A newer spec is always tried, the same one
that failed is not. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from flyball_operator.api import names
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.reconcile.plan import causes, history, pod, revision
from flyball_operator.reconcile.plan.causes import Cause, CauseReason
from flyball_operator.reconcile.plan.history import History
from flyball_operator.reconcile.plan.objects import Kind, Object, annotation, being_deleted, timestamp
from flyball_operator.reconcile.plan.revision import Revision
from flyball_operator.reconcile.plan.snapshot import Snapshot


class Stage(Enum):
    """How far the template that was asked for has come."""

    ROLLING = "pods are being brought to it"
    COMPLETE = "all pods have it"
    FAILED = "it failed, and there is nothing good to go back to"
    ROLLED_BACK = "it failed, and the last good one is back"


@dataclass(frozen=True)
class RolloutDecision:
    """The decision. `target` is the revision whose template the Deployment shall have; `current` the one asked for.

    `kept` are all revisions there are, `outdated` says that this operator would render the current one otherwise.
    `cause` is why the current one does not run, `outage` why pods of the target do not serve, be it asked for or back.
    `full`: as many pods as asked for are Ready with the current template, and no others are left; true of none, too.
    """

    current: Revision
    target: Revision
    kept: tuple[Revision, ...]
    history: History
    stage: Stage
    cause: Cause | None
    outage: Cause | None
    full: bool
    outdated: bool


def decide(service: InferenceService, snapshot: Snapshot) -> RolloutDecision:
    """Choose the target from what is asked for, what was kept, and what became of it."""
    deployment = snapshot.own(Kind.DEPLOYMENT)
    spec_hash = revision.spec_hash(service)
    rendered = pod.render(service, snapshot.config, spec_hash)
    kept = {found.spec_hash: found for item in snapshot.revisions if (found := revision.read(item)) is not None}
    current = kept.get(spec_hash) or revision.following(kept.values(), spec_hash, rendered)
    so_far = history.read(deployment).asking(spec_hash, _steps(service), timestamp(snapshot.now))
    last_good = kept.get(so_far.good) if so_far.good != spec_hash else None
    cause = causes.find(snapshot.pods, deployment, spec_hash)
    judged = _judge(so_far, deployment, cause, has_good=last_good is not None)
    back = last_good if judged.failed is not None else None
    target = back or current
    return RolloutDecision(
        current=current,
        target=target,
        kept=tuple(kept.values()),
        history=judged,
        stage=Stage.ROLLED_BACK if back is not None else _stage(judged, deployment, cause),
        cause=judged.failed if back is not None else cause,
        outage=_outage(snapshot, deployment, target.spec_hash),
        full=deployment is not None and _runs(deployment, spec_hash) and _full(deployment),
        outdated=current.template != rendered,
    )


def _steps(service: InferenceService) -> str:
    """How the user wants pods to follow one another: another way is another attempt at a template that failed."""
    asked = service.spec.rollout
    return f"{asked.max_surge}/{asked.max_unavailable}"


def _outage(snapshot: Snapshot, deployment: Object | None, target: str) -> Cause | None:
    found = causes.find(snapshot.pods, deployment, target)
    return found or causes.find(snapshot.pods, deployment, None)


def _judge(so_far: History, deployment: Object | None, cause: Cause | None, *, has_good: bool) -> History:
    """Note that the template asked for is rolled out whole, or that it is given up."""
    if deployment is None or not _runs(deployment, so_far.asked):
        return so_far
    if _whole(deployment):
        return replace(so_far, good=so_far.asked, failed=None)
    # One that was good does not become bad; what fails then is around it, and going back would not mend it.
    if has_good and so_far.failed is None and _hopeless(deployment, so_far, cause):
        return replace(so_far, failed=cause or _timed_out())
    return so_far


def _stage(judged: History, deployment: Object | None, cause: Cause | None) -> Stage:
    if deployment is None or not _runs(deployment, judged.asked):
        return Stage.ROLLING
    if _complete(deployment):
        return Stage.COMPLETE
    return Stage.FAILED if _hopeless(deployment, judged, cause) else Stage.ROLLING


def _runs(deployment: Object, spec_hash: str) -> bool:
    """Whether the Deployment has this template, and its controller has seen that it has."""
    template: Object = deployment["spec"]["template"]
    if being_deleted(deployment):
        return False
    observed = int((deployment.get("status") or {}).get("observedGeneration", 0))
    seen = observed >= int(deployment["metadata"].get("generation", 1))
    return seen and annotation(template, names.ANNOTATION_SPEC_HASH) == spec_hash


def _progressing(deployment: Object) -> Object:
    conditions = (deployment.get("status") or {}).get("conditions") or ()
    return next((dict(item) for item in conditions if item.get("type") == "Progressing"), {})


def _complete(deployment: Object) -> bool:
    """Whether every pod has the template; scaling up later does not undo that."""
    status = deployment.get("status") or {}
    all_updated = status.get("updatedReplicas", 0) == status.get("replicas", 0)
    return all_updated and (_progressing(deployment).get("reason") == "NewReplicaSetAvailable" or _whole(deployment))


def _whole(deployment: Object) -> bool:
    """Whether as many pods as wanted, and at least one, are Ready with the template, and no others are left."""
    return _full(deployment) and deployment["spec"].get("replicas", 1) >= 1


def _full(deployment: Object) -> bool:
    status = deployment.get("status") or {}
    counts = {status.get(field, 0) for field in ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")}
    return bool(counts == {deployment["spec"].get("replicas", 1)})


def _hopeless(deployment: Object, so_far: History, cause: Cause | None) -> bool:
    if cause is not None and CauseReason(cause.reason) in causes.PERMANENT:
        return True
    progressing = _progressing(deployment)
    # The Deployment keeps the condition of an earlier template when it finds the ReplicaSet of this one again.
    ours = str(progressing.get("lastUpdateTime", "")) >= so_far.since
    return ours and progressing.get("reason") == "ProgressDeadlineExceeded"


def _timed_out() -> Cause:
    message = "the engine was not ready within spec.rollout.startupTimeout"
    return Cause(CauseReason.NOT_READY_IN_TIME.value, message)
