"""Which template the Deployment shall have: the one asked for, or the last good one after the one asked for failed.

A Deployment never goes back by itself: with a bad image it waits for ever. Here a failure is first written down on the
revision and only then acted upon, so that a crash in between resumes instead of trying the bad template again. A newer
spec is always tried. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from flyball_operator.api import names
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.plan import causes, pod, revision
from flyball_operator.plan.causes import Cause, CauseReason
from flyball_operator.plan.objects import Kind, Object, annotation, timestamp
from flyball_operator.plan.revision import Revision
from flyball_operator.plan.snapshot import Snapshot


class Stage(Enum):
    """How far the template that was asked for has come."""

    ROLLING = "pods are being brought to it"
    COMPLETE = "all pods have it"
    FAILED = "it failed, and there is nothing good to go back to"
    ROLLED_BACK = "it failed, and the last good one is back"


@dataclass(frozen=True)
class Rollout:
    """The decision. `target` is the revision whose template the Deployment shall have; `current` the one asked for."""

    current: Revision
    target: Revision
    others: tuple[Revision, ...]
    stage: Stage
    cause: Cause | None
    outdated: bool


def decide(service: InferenceService, snapshot: Snapshot) -> Rollout:
    """Choose the target from what was asked for, what was kept, and what became of it."""
    deployment = snapshot.objects.get(Kind.DEPLOYMENT)
    spec_hash = revision.spec_hash(service)
    rendered = pod.render(service, snapshot.config, spec_hash)
    kept = [found for item in snapshot.revisions if (found := revision.read(item)) is not None]
    fresh = Revision(spec_hash=spec_hash, number=1, template=rendered)
    now = timestamp(snapshot.now)
    asked = next((found for found in kept if found.spec_hash == spec_hash), fresh)
    current, others = revision.in_force(kept, asked, now)
    good = revision.last_good(others)
    cause = causes.find(snapshot.pods, deployment, current.spec_hash)
    if deployment is not None and _runs(deployment, current):
        current = _judge(current, deployment, cause, has_good=good is not None)
    rolled_back = current.failed is not None and good is not None
    return Rollout(
        current=current,
        target=good if rolled_back and good is not None else current,
        others=tuple(others),
        stage=Stage.ROLLED_BACK if rolled_back else _stage(current, deployment, cause),
        cause=current.failed if rolled_back else cause,
        outdated=current.template != rendered,
    )


def _judge(current: Revision, deployment: Object, cause: Cause | None, *, has_good: bool) -> Revision:
    """Note on the revision that its rollout is complete, or that it is given up."""
    if _whole(deployment):
        return replace(current, good=True, failed=None)
    # One that was good once does not become bad; what fails then is around it, and going back would not mend it.
    if has_good and not current.good and current.failed is None and _hopeless(deployment, current, cause):
        return replace(current, failed=cause or _timed_out())
    return current


def _stage(current: Revision, deployment: Object | None, cause: Cause | None) -> Stage:
    if deployment is None or not _runs(deployment, current):
        return Stage.ROLLING
    if _complete(deployment):
        return Stage.COMPLETE
    return Stage.FAILED if _hopeless(deployment, current, cause) else Stage.ROLLING


def _runs(deployment: Object, current: Revision) -> bool:
    """Whether the Deployment has this template, and its controller has seen that it has."""
    template: Object = deployment["spec"]["template"]
    observed = (deployment.get("status") or {}).get("observedGeneration", 0)
    return annotation(template, names.ANNOTATION_SPEC_HASH) == current.spec_hash and observed >= deployment[
        "metadata"
    ].get("generation", 1)


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
    status = deployment.get("status") or {}
    wanted = deployment["spec"].get("replicas", 1)
    counts = {status.get(field, 0) for field in ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")}
    return bool(wanted >= 1 and counts == {wanted})


def _hopeless(deployment: Object, current: Revision, cause: Cause | None) -> bool:
    if cause is not None and CauseReason(cause.reason) in causes.PERMANENT:
        return True
    progressing = _progressing(deployment)
    # The Deployment keeps the condition of an earlier template when it finds the ReplicaSet of this one again.
    ours = str(progressing.get("lastUpdateTime", "")) >= current.since
    return ours and progressing.get("reason") == "ProgressDeadlineExceeded"


def _timed_out() -> Cause:
    message = "the engine was not ready within spec.rollout.startupTimeout"
    return Cause(CauseReason.NOT_READY_IN_TIME.value, message)
