"""Which template the Deployment shall have: the one asked for, or the last good one after the one asked for failed.

A Deployment never goes back by itself: with a bad image it waits for ever. A newer spec is always tried, the same one
that failed is not. A template fails by what it breaks itself: while something else lacks (`Cause.is_shortage`), or one
of its pods is Ready, it is not given up. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

from flyball_operator.api import names
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.reconcile.plan import causes, history, in_place, pod, revision
from flyball_operator.reconcile.plan.cause import Cause, CauseReason
from flyball_operator.reconcile.plan.history import History
from flyball_operator.reconcile.plan.objects import Kind, Object, annotation, being_deleted, moment, timestamp
from flyball_operator.reconcile.plan.revision import Revision
from flyball_operator.reconcile.plan.snapshot import Snapshot


class Stage(Enum):
    """How far the template that was asked for has come."""

    ROLLING = "pods are being brought to it"
    WAITING = "pods wait for something that is not the template's"
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
    again: float | None
    """Seconds after which time alone may change the decision."""

    @property
    def replaces_in_place(self) -> bool:
        """Whether it goes on without a device for one pod more, and nothing else holds it up."""
        of_devices = self.cause is not None and self.cause.reason in (
            CauseReason.UNSCHEDULABLE,
            CauseReason.QUOTA_EXCEEDED,
        )
        return bool(self.history.in_place) and (self.stage is Stage.ROLLING or of_devices)


def decide(service: InferenceService, snapshot: Snapshot) -> RolloutDecision:
    """Choose the target from what is asked for, what was kept, and what became of it."""
    deployment = snapshot.own(Kind.DEPLOYMENT)
    spec_hash = revision.spec_hash(service)
    rendered = pod.render(service, snapshot.config, spec_hash)
    kept = {found.spec_hash: found for item in snapshot.revisions if (found := revision.read(item)) is not None}
    current = kept.get(spec_hash) or revision.following(kept.values(), spec_hash, rendered)
    so_far = history.read(deployment).asking(spec_hash, _steps(service), timestamp(snapshot.now))
    last_good = kept.get(so_far.good) if so_far.good != spec_hash else None
    left = in_place.seconds_left(service, snapshot, current, kept)
    attempt = _Attempt.of(snapshot, deployment, spec_hash, advice=causes.IN_PLACE if left is None else in_place.ADVICE)
    judged = _judge(so_far, attempt, now=timestamp(snapshot.now), has_good=last_good is not None)
    back = last_good if judged.failed is not None else None
    target = back or current
    if back is not None:
        # Pods of the template that failed may hold the devices.
        left = in_place.seconds_left(service, snapshot, back, kept)
    if left == 0:
        judged = judged.replacing_in_place(timestamp(snapshot.now))
    return RolloutDecision(
        current=current,
        target=target,
        kept=tuple(kept.values()),
        history=judged,
        stage=Stage.ROLLED_BACK if back is not None else _stage(judged, attempt),
        cause=judged.failed if back is not None else attempt.cause,
        outage=_outage(snapshot, deployment, target.spec_hash),
        full=deployment is not None and _runs(deployment, spec_hash) and _full(deployment),
        outdated=current.template != rendered,
        again=min((seconds for seconds in (attempt.seconds_left(judged), left) if seconds), default=None),
    )


def _steps(service: InferenceService) -> str:
    """How the user wants pods to follow one another: another way is another attempt at a template that failed."""
    asked = service.spec.rollout
    return f"{asked.max_surge}/{asked.max_unavailable}"


def _outage(snapshot: Snapshot, deployment: Object | None, target: str) -> Cause | None:
    found = causes.find(snapshot.pods, deployment, target, snapshot.events)
    return found or causes.find(snapshot.pods, deployment, None, snapshot.events)


@dataclass(frozen=True)
class _Attempt:
    """What became of the template asked for in the Deployment that has it.

    `deployment`: None while it does not have it. `cause`: why its pods are not all Ready. `proven`: one of them is.
    `started`: when the first of them had a node.
    """

    deployment: Object | None
    cause: Cause | None
    proven: bool
    started: datetime | None
    now: datetime

    @classmethod
    def of(cls, snapshot: Snapshot, deployment: Object | None, spec_hash: str, *, advice: str) -> _Attempt:
        return cls(
            deployment=deployment if deployment is not None and _runs(deployment, spec_hash) else None,
            cause=causes.find(snapshot.pods, deployment, spec_hash, snapshot.events, advice=advice),
            proven=causes.runs(snapshot.pods, spec_hash),
            started=moment(causes.started(snapshot.pods, spec_hash)),
            now=snapshot.now,
        )

    @property
    def waits(self) -> bool:
        """Whether nothing but a shortage is known to hold it up."""
        return self.deployment is not None and self.cause is not None and self.cause.is_shortage

    def seconds_left(self, so_far: History) -> float | None:
        """Seconds until it is given up if nothing changes; None where time does not decide, or not yet.

        The Deployment's controller says when nothing has progressed for long. It says so on after a shortage, too, and
        of pods that waited for a node for most of that time.
        """
        if self.deployment is None or self.proven or self.waits:
            return None
        if self.cause is not None and self.cause.is_permanent:
            return 0.0
        progressing = _progressing(self.deployment)
        # The Deployment keeps the condition of an earlier template when it finds the ReplicaSet of this one again.
        ours = str(progressing.get("lastUpdateTime", "")) >= so_far.since
        if not ours or progressing.get("reason") != "ProgressDeadlineExceeded":
            return None
        deadline = float(self.deployment["spec"]["progressDeadlineSeconds"])
        begun = max((found for found in (self.started, so_far.resumed) if found is not None), default=None)
        passed = deadline if begun is None else (self.now - begun).total_seconds()
        # No more than all of it where the clock was set back.
        return min(deadline, max(0.0, deadline - passed))


def _judge(so_far: History, attempt: _Attempt, *, now: str, has_good: bool) -> History:
    """Note that the template asked for is rolled out whole, waits for something, or is given up."""
    if attempt.deployment is None:
        return so_far
    if _whole(attempt.deployment):
        return so_far.rolled_out()
    if so_far.failed is not None:
        return so_far
    complete = _complete(attempt.deployment)
    noted = so_far if complete else so_far.meeting(shortage=attempt.waits, now=now)
    # One that was good does not become bad; what fails then is around it, and going back would not mend it.
    if has_good and attempt.seconds_left(noted) == 0:
        return replace(noted, failed=attempt.cause or _timed_out())
    return noted


def _stage(judged: History, attempt: _Attempt) -> Stage:
    if attempt.deployment is not None and _complete(attempt.deployment):
        return Stage.COMPLETE
    if attempt.waits:
        return Stage.WAITING
    return Stage.FAILED if attempt.seconds_left(judged) == 0 else Stage.ROLLING


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


def _timed_out() -> Cause:
    message = "the engine was not ready within spec.rollout.startupTimeout"
    return Cause(CauseReason.NOT_READY_IN_TIME.value, message)
