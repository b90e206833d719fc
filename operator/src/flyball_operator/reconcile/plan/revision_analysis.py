"""Whether the template asked for runs on a share of the pods alone, while the tuner judges it by the objectives.

Nothing is paused: meanwhile the Deployment has a `minReadySeconds` (`deployment`), so that its controller waits by
itself before it replaces more pods, even where no operator runs. The tuner's word is in `status.analysis`. It is about
one revision, asked for at one time, and is noted in the history, which says so on when the status does not. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from flyball_operator.api.objects import Object, being_deleted
from flyball_operator.api.v1alpha1 import AnalysisPhase, AnalysisStatus, InferenceService
from flyball_operator.reconcile.plan import causes, progress
from flyball_operator.reconcile.plan.cause import Cause, CauseReason
from flyball_operator.reconcile.plan.history import History
from flyball_operator.reconcile.plan.pods import template_of
from flyball_operator.reconcile.plan.revision import Revision
from flyball_operator.reconcile.plan.snapshot import Snapshot

_NOTHING_TO_COMPARE = "no pod of the earlier revision serves, so there is nothing to compare with"
_NOT_YET = "the pods that are judged are not all Ready"


@dataclass(frozen=True)
class JudgedRevision:
    """The spec hashes of the revision that is judged and of the one that it is compared with.

    `since`: when it was asked for. `message`: what the tuner says of it. `inconclusive`: that it cannot be judged now.
    """

    revision: str
    baseline: str
    since: str
    message: str
    inconclusive: bool


def noted(
    service: InferenceService,
    snapshot: Snapshot,
    deployment: Object | None,
    so_far: History,
    last_good: Revision | None,
) -> History:
    """The history with what came of judging the template asked for, if anything did by now."""
    if last_good is None or not _is_asked_for(service, so_far):
        return so_far
    if _is_alone(snapshot, deployment, so_far.asked, last_good.spec_hash):
        return so_far.promoting(_NOTHING_TO_COMPARE)
    said = _said(service, so_far)
    if said is None or not said.phase.decided:
        return so_far
    if said.phase is AnalysisPhase.SUCCESSFUL:
        return so_far.promoting(said.message or said.phase.value)
    return replace(so_far, failed=Cause(CauseReason.CANARY_MISSED_OBJECTIVES.value, said.message))


def judged(service: InferenceService, so_far: History, last_good: Revision | None) -> JudgedRevision | None:
    """What is judged now, by a history that has what was `noted`; None where nothing is."""
    if last_good is None or not _is_asked_for(service, so_far):
        return None
    said = _said(service, so_far)
    message = said.message if said is not None and said.message else _NOT_YET
    inconclusive = said is not None and said.phase is AnalysisPhase.INCONCLUSIVE
    return JudgedRevision(so_far.asked, last_good.spec_hash, so_far.since, message, inconclusive)


def _is_asked_for(service: InferenceService, so_far: History) -> bool:
    """Whether the user wants it judged, and nothing has come of it yet."""
    return service.spec.rollout.canary is not None and so_far.failed is None and not so_far.promoted


def _said(service: InferenceService, so_far: History) -> AnalysisStatus | None:
    """The tuner's word about this revision, asked for then; None where it has none."""
    said = service.status.analysis
    return said if said is not None and (said.revision, said.start_time) == (so_far.asked, so_far.since) else None


def _is_alone(snapshot: Snapshot, deployment: Object | None, revision: str, baseline: str) -> bool:
    """Whether there is no pod to compare with.

    Before the first pod is replaced none that is Ready. Later none at all: one that is not Ready for a moment is no
    reason to stop judging.
    """
    earlier = [pod for pod in snapshot.pods if template_of(pod) == baseline and not being_deleted(pod)]
    begun = deployment is not None and progress.has_template(deployment, revision)
    return not earlier if begun else not causes.runs(earlier, baseline)
