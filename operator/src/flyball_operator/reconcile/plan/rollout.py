"""Which template the Deployment shall have: the one asked for, or the last good one after the one asked for failed.

A Deployment never goes back by itself: with a bad image it waits for ever. A newer spec is always tried, the same one
that failed is not. A template fails by what it breaks itself: while something else lacks (`Cause.is_shortage`), or one
of its pods is Ready, it is not given up. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

from flyball_operator.api.objects import Object, moment, timestamp
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.reconcile.plan import causes, in_place, progress, renewal, revision, revision_analysis
from flyball_operator.reconcile.plan.adoption import SLOT_SECONDS, Standing
from flyball_operator.reconcile.plan.cause import Cause, CauseReason
from flyball_operator.reconcile.plan.history import History
from flyball_operator.reconcile.plan.pod import drain_seconds, progress_seconds
from flyball_operator.reconcile.plan.pods import condition
from flyball_operator.reconcile.plan.revision import Revision
from flyball_operator.reconcile.plan.revision_analysis import JudgedRevision
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

    `kept` are all revisions there are, `outdated` says that this operator would render the current one otherwise, and
    `standing` how far the service has come with that.
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
    standing: Standing
    again: float | None
    """Seconds after which time alone may change the decision."""
    newer: str = ""
    """Version of the newer operator that rendered the current template, empty if none did."""
    differing: tuple[str, ...] = ()
    """Fields in which another release of this version rendered it, where the service had this one's template before."""
    due: datetime | None = None
    """From when on it may adopt in its turn, None where its template is old enough."""
    adopts: bool = False
    """Whether the service takes this operator's template by itself in this plan."""
    judged: JudgedRevision | None = None
    """What is judged on a share of the pods before the others are replaced, if anything is."""

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
    deployment = snapshot.pods_owner
    kept = {one.spec_hash: one for item in snapshot.revisions if (one := revision.read(item)) is not None}
    found = renewal.asked(service, snapshot, kept)
    current, spec_hash = found.current, found.current.spec_hash
    so_far = found.history.asking(spec_hash, _steps(service), timestamp(snapshot.now))
    last_good = kept.get(so_far.good) if so_far.good != spec_hash else None
    so_far = revision_analysis.noted(service, snapshot, deployment, so_far, last_good)
    left = in_place.seconds_left(service, snapshot, current, kept)
    # A LeaderWorkerSet's controller gives nothing up. It makes a group anew with each container that ends, so the time
    # since the template was asked for decides, and in that the earlier group ends first.
    timed = service.spec.parallelism.nodes > 1
    judges = timed or revision_analysis.judged(service, so_far, last_good)
    attempt = _Attempt.of(
        snapshot,
        deployment,
        spec_hash,
        advice=causes.IN_PLACE if left is None else in_place.ADVICE,
        startup=progress_seconds(service) + (drain_seconds(service) if timed else 0) if judges else None,
        timed=timed,
    )
    judged = _judge(so_far, attempt, now=timestamp(snapshot.now), has_good=last_good is not None)
    back = last_good if judged.failed is not None else None
    target = back or current
    if back is not None:
        # Pods of the template that failed may hold the devices.
        left = in_place.seconds_left(service, snapshot, back, kept)
        if deployment is not None and progress.runs(deployment, back.spec_hash) and progress.whole(deployment):
            judged = judged.replaced()
    if left == 0:
        judged = judged.replacing_in_place(timestamp(snapshot.now))
    if not in_place.is_left_to_us(service):
        judged = judged.replaced()
    full = deployment is not None and progress.runs(deployment, spec_hash) and progress.full(deployment)
    stage = Stage.ROLLED_BACK if back is not None else _stage(judged, attempt)
    failed = stage in (Stage.FAILED, Stage.ROLLED_BACK)
    standing = renewal.standing(service, found, judged, failed=failed, full=full, now=snapshot.now)
    held = SLOT_SECONDS - judged.short_for(snapshot.now) if standing is Standing.ADOPTING and attempt.waits else None
    return RolloutDecision(
        current=current,
        target=target,
        kept=tuple(kept.values()),
        history=judged,
        stage=stage,
        cause=judged.failed if back is not None else attempt.cause,
        outage=_outage(snapshot, deployment, target.spec_hash),
        full=full,
        outdated=found.outdated,
        standing=standing,
        again=min((seconds for seconds in (attempt.seconds_left(judged), left, held) if seconds), default=None),
        newer=found.newer,
        differing=found.differing,
        due=found.due,
        adopts=found.adopts,
        judged=revision_analysis.judged(service, judged, last_good),
    )


def _steps(service: InferenceService) -> str:
    """How the user wants pods to follow one another: another way is another attempt at a template that failed."""
    asked = service.spec.rollout
    steps = f"{asked.max_surge}/{asked.max_unavailable}"
    canary = asked.canary
    return steps if canary is None else f"{steps}/{canary.weight}/{canary.duration}"


def _outage(snapshot: Snapshot, deployment: Object | None, target: str) -> Cause | None:
    found = causes.find(snapshot.pods, deployment, target, snapshot.events, now=snapshot.now)
    return found or causes.find(snapshot.pods, deployment, None, snapshot.events, now=snapshot.now)


@dataclass(frozen=True)
class _Attempt:
    """What became of the template asked for in the Deployment that has it.

    `deployment`: None while it does not have it. `cause`: why its pods are not all Ready. `proven`: one of them is.
    `started`: when the first of them had a node, None where that does not count. `startup`: seconds that its first
    pods have to be Ready while it is judged; None where it is not.
    """

    deployment: Object | None
    cause: Cause | None
    proven: bool
    started: datetime | None
    now: datetime
    startup: int | None

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        deployment: Object | None,
        spec_hash: str,
        *,
        advice: str,
        startup: int | None,
        timed: bool,
    ) -> _Attempt:
        return cls(
            deployment=deployment if deployment is not None and progress.runs(deployment, spec_hash) else None,
            cause=causes.find(snapshot.pods, deployment, spec_hash, snapshot.events, now=snapshot.now, advice=advice),
            proven=causes.runs(snapshot.pods, spec_hash),
            started=None if timed else moment(causes.started(snapshot.pods, spec_hash)),
            now=snapshot.now,
            startup=startup,
        )

    @property
    def waits(self) -> bool:
        """Whether nothing but a shortage is known to hold it up."""
        return self.deployment is not None and self.cause is not None and self.cause.is_shortage

    def seconds_left(self, so_far: History) -> float | None:
        """Seconds until it is given up if nothing changes; None where time does not decide, or not yet.

        The Deployment's controller says when nothing has progressed for long. It says so on after a shortage, too, and
        of pods that waited for a node for most of that time. While a template is judged, it says so later by the time
        for which pods are held, so the time since it was asked for decides. Once one of its pods was Ready, it has
        come up: a pod that is evicted, or not Ready for a moment, is the Deployment's matter again.
        """
        if self.deployment is None or self.proven or self.waits:
            return None
        if self.cause is not None and self.cause.is_permanent:
            return 0.0
        progressing = condition(self.deployment, "Progressing")
        # The Deployment keeps the condition of an earlier template when it finds the ReplicaSet of this one again.
        ours = str(progressing.get("lastUpdateTime", "")) >= so_far.since
        startup = None if so_far.served else self.startup
        if startup is None and (not ours or progressing.get("reason") != "ProgressDeadlineExceeded"):
            return None
        deadline = float(self.deployment["spec"]["progressDeadlineSeconds"] if startup is None else startup)
        asked = None if startup is None else moment(so_far.since)
        begun = max((found for found in (self.started, so_far.resumed, asked) if found is not None), default=None)
        passed = deadline if begun is None else (self.now - begun).total_seconds()
        # No more than all of it where the clock was set back.
        return min(deadline, max(0.0, deadline - passed))


def _judge(so_far: History, attempt: _Attempt, *, now: str, has_good: bool) -> History:
    """Note that the template asked for is rolled out whole, waits for something, or is given up."""
    if attempt.deployment is None:
        return so_far
    if progress.whole(attempt.deployment):
        return so_far.rolled_out()
    if attempt.startup is not None and attempt.proven:
        so_far = so_far.serving(now)
    if so_far.failed is not None:
        return so_far
    complete = progress.complete(attempt.deployment)
    noted = so_far if complete else so_far.meeting(shortage=attempt.waits, now=now)
    # One that was good does not become bad; what fails then is around it, and going back would not mend it.
    if has_good and attempt.seconds_left(noted) == 0:
        return replace(noted, failed=attempt.cause or _timed_out())
    return noted


def _stage(judged: History, attempt: _Attempt) -> Stage:
    if attempt.deployment is not None and progress.complete(attempt.deployment):
        return Stage.COMPLETE
    if attempt.waits:
        return Stage.WAITING
    return Stage.FAILED if attempt.seconds_left(judged) == 0 else Stage.ROLLING


def _timed_out() -> Cause:
    message = "the engine was not ready within spec.rollout.startupTimeout"
    return Cause(CauseReason.NOT_READY_IN_TIME.value, message)
