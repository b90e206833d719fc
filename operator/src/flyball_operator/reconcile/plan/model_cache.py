"""Whether the model is on its volume: what the Job that downloads it has come to, and what to do about that.

While it is not, the Deployment keeps the template it has, so that what serves goes on. Without a Deployment none is
made: it would have no pod, and a Deployment without pods would read as an outage. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from flyball_engine.model_cache import DownloadExit, Progress
from flyball_operator.api import names
from flyball_operator.api.objects import Kind, Object, annotation, being_deleted, controlled_by, moment, name, uid
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.reconcile.plan import causes, event_causes, model_claim, model_job
from flyball_operator.reconcile.plan.cause import CauseReason
from flyball_operator.reconcile.plan.intents import Create, Delete, Intent
from flyball_operator.reconcile.plan.model_reasons import FINAL, OF_EXITS, STUCK, ModelReason, one_line
from flyball_operator.reconcile.plan.pods import condition, has, has_ended
from flyball_operator.reconcile.plan.rollout import RolloutDecision
from flyball_operator.reconcile.plan.snapshot import REFUSED_SECONDS, Snapshot

#: Seconds after which a Job that failed by what passes is made anew: a hub that is down for an hour sees 6 of them.
RETRY_SECONDS: Final = 600.0
#: Seconds between two looks at how far a download is. Status is written each minute at most for that alone.
LOOK_SECONDS: Final = 30.0
_NO_CLAIM: Final = re.compile(r'persistentvolumeclaim "[^"]*" not found')
#: What a claim without a volume explains.
_UNTIL_BOUND: Final = frozenset({ModelReason.DOWNLOAD_PENDING, ModelReason.CLAIM_PENDING})
_UNBOUND: Final = re.compile(r"unbound immediate PersistentVolumeClaims|binding volumes|being deleted")


@dataclass(frozen=True)
class ModelState:
    """What has become of the model. `job`: the Job for it, None where there is none.

    `again`: seconds after which to look again, and at 0 the Job is made anew; None where nothing is to be tried.
    `has_claim`: whether the claim that is made for the model can be used, so that its Job may be made. `downloaded`:
    the volume has the model, though something of the claim is not as asked for.
    """

    reason: ModelReason
    message: str
    job: Object | None = None
    again: float | None = None
    has_claim: bool = True
    downloaded: bool = False

    @property
    def ready(self) -> bool:
        """Whether the volume has it, and nothing is wrong."""
        return self.reason is ModelReason.DOWNLOADED

    @property
    def there(self) -> bool:
        """Whether the volume has it."""
        return self.ready or self.downloaded

    @property
    def stuck(self) -> bool:
        """Whether it will not come without somebody's help."""
        return self.reason in STUCK


def state(service: InferenceService, snapshot: Snapshot) -> ModelState | None:
    """What has become of the model; None where no cache is asked for."""
    if service.spec.workload is not None or service.spec.model.cache is None:
        return None
    problem = model_claim.problem(service, snapshot)
    if problem is not None and not problem.usable:
        return ModelState(problem.reason, problem.message, again=problem.again, has_claim=False)
    found = _of_job(service, snapshot)
    if problem is not None and found.reason not in STUCK:
        again = problem.again if found.again is None else found.again
        words = problem.message if found.ready else f"{problem.message}; {found.message}"
        return replace(found, reason=problem.reason, message=words, again=again, downloaded=found.ready)
    full = found.reason is ModelReason.VOLUME_FULL
    if (found.ready or full) and (words := model_claim.of_size(service, snapshot)):
        return replace(found, message=f"{found.message}; {words}")
    pending = model_claim.pending(service, snapshot)
    if found.ready or pending is None or found.reason not in _UNTIL_BOUND:
        return found
    found = replace(found, again=pending.again if found.again is None else found.again)
    return replace(found, reason=pending.reason, message=pending.message) if pending.message else found


def _of_job(service: InferenceService, snapshot: Snapshot) -> ModelState:
    wanted = _job_name(service, snapshot)
    job = next((one for one in snapshot.jobs if name(one) == wanted), None)
    if job is None or being_deleted(job):
        return _without_job(job, snapshot)
    pods = sorted(
        (pod for pod in snapshot.job_pods if controlled_by(pod, uid(job))),
        key=lambda pod: (str(pod["metadata"].get("creationTimestamp") or ""), name(pod)),
    )
    found = [end for pod in pods if (end := _ended(pod)) is not None]
    ended = [end for end in found if end.get("exitCode")]
    # The Job is told later, and never where a container that a policy added does not end.
    if (found and not found[-1].get("exitCode")) or has(job, "Complete"):
        if not model_job.made_folder(job, service):
            message = "the Job is made anew: it makes the folder for what vLLM compiles"
            return ModelState(ModelReason.DOWNLOAD_PENDING, message, job, 0.0)
        last = next((str(end.get("message") or "") for end in reversed(found) if not end.get("exitCode")), "")
        return ModelState(ModelReason.DOWNLOADED, one_line(last) or f"Job {wanted} has completed", job)
    if has(job, "Failed"):
        return _failed(job, condition(job, "Failed"), ended, snapshot)
    if not pods:
        return _without_pod(job, snapshot)
    return replace(_under_way(job, pods, ended, snapshot), job=job)


def _without_job(leaving: Object | None, snapshot: Snapshot) -> ModelState:
    if leaving is None and snapshot.job_refused:
        return ModelState(ModelReason.DOWNLOAD_REFUSED, one_line(snapshot.job_refused), again=REFUSED_SECONDS)
    return ModelState(ModelReason.DOWNLOAD_PENDING, "a Job that downloads the model is being made", leaving)


def _advice(job: Object) -> str:
    command = f"kubectl delete job {name(job)} -n {job['metadata']['namespace']}"
    return f"change the spec, or mend it and try again with {command}"


def _failed(job: Object, failed: Object, ended: Sequence[Object], snapshot: Snapshot) -> ModelState:
    reason, message = _why(ended) if ended else (ModelReason.DOWNLOAD_FAILED, one_line(str(failed.get("message", ""))))
    if reason in FINAL:
        return ModelState(reason, f"{message}; {_advice(job)}", job)
    since = moment(failed.get("lastTransitionTime"))
    passed = (snapshot.now - since).total_seconds() if since is not None else 0.0
    # No more than all of it where the clock was set back.
    again = min(RETRY_SECONDS, max(0.0, RETRY_SECONDS - passed))
    return ModelState(reason, f"{message}; it is tried again after {RETRY_SECONDS / 60:g} minutes", job, again)


def _without_pod(job: Object, snapshot: Snapshot) -> ModelState:
    why = event_causes.of_job(job, snapshot.events)
    message = one_line(f"the Job cannot make its pod: {why}") if why else "the Job has yet to make its pod"
    return ModelState(ModelReason.DOWNLOAD_PENDING, message, job, event_causes.look_again_at(job, snapshot.now))


def _under_way(job: Object, pods: Sequence[Object], ended: Sequence[Object], snapshot: Snapshot) -> ModelState:
    # Of a pod whose download has ended, another container may go on.
    running = [pod for pod in pods if not has_ended(pod) and _ended(pod) is None]
    before = ""
    if ended:
        reason, before = _why(ended)
        if not running:
            # The Job's controller has yet to say that it gives up.
            return ModelState(reason, f"{before}; {_advice(job) if reason in FINAL else 'it is tried again'}")
    last = (running or pods)[-1]
    found = causes.find([last], None, None, snapshot.events, now=snapshot.now)
    if found is None:
        reason, message = _told(last, snapshot.progress.get(uid(last)))
        again = LOOK_SECONDS if reason is ModelReason.DOWNLOADING else None
        return ModelState(reason, f"{message}; the attempt before: {before}" if before else message, again=again)
    waits = {CauseReason.CONFIG_MISSING, CauseReason.UNSCHEDULABLE}
    if found.reason in waits and _NO_CLAIM.search(found.message):
        return ModelState(ModelReason.CLAIM_NOT_FOUND, f"{found.message.rstrip('.')}; the download waits for it")
    if found.reason in waits and _UNBOUND.search(found.message):
        return ModelState(ModelReason.CLAIM_PENDING, f"{found.message.rstrip('.')}; the download waits for it")
    return ModelState(ModelReason.DOWNLOAD_PENDING, f"{found.reason}: {found.message}")


def downloads(pod: Object) -> bool:
    """Whether the pod of a Job downloads."""
    return "running" in (_container(pod).get("state") or {})


def _told(pod: Object, progress: Progress | None) -> tuple[ModelReason, str]:
    """How far a pod is that nothing is wrong with."""
    if downloads(pod):
        far = "" if progress is None else f": {_gigabytes(progress.done)} of {_gigabytes(progress.total)} GB are there"
        return ModelReason.DOWNLOADING, f"pod {name(pod)} downloads the model{far}"
    return ModelReason.DOWNLOAD_PENDING, f"pod {name(pod)} has yet to start the download"


def _why(ended: Sequence[Object]) -> tuple[ModelReason, str]:
    last = ended[-1]
    code = int(last.get("exitCode", 0))
    known = code in set(DownloadExit)
    reason = OF_EXITS[DownloadExit(code)] if known else ModelReason.DOWNLOAD_FAILED
    words = str(last.get("message") or last.get("reason") or "no message")
    return reason, one_line(words if known else f"exit code {code}: {words}")


def _ended(pod: Object) -> dict[str, Any] | None:
    """How the container that downloads ended; None if it has not."""
    return (_container(pod).get("state") or {}).get("terminated") or None


def _container(pod: Object) -> Object:
    """Status of the container that downloads; empty before it has one."""
    found = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((dict(one) for one in found if one.get("name") == names.CONTAINER_DOWNLOAD), {})


def intents(service: InferenceService, snapshot: Snapshot, found: ModelState | None) -> Iterator[Intent]:
    """Make the Job, once. Delete it to make it anew, and those that nothing asks for any more; never a volume."""
    if found is not None and found.has_claim:
        body = model_job.render(service, snapshot.config, _claim_uid(snapshot))
        if found.job is None and not snapshot.job_refused:
            yield Create(Kind.JOB, body)
        elif found.job is not None and not found.there and (found.again == 0 or _differs(found.job, body)):
            yield from _delete(found.job)
    for other in snapshot.jobs:
        if found is None or name(other) != _job_name(service, snapshot):
            yield from _delete(other)


def _claim_uid(snapshot: Snapshot) -> str:
    """UID of the claim that is made for the model; empty where there is none, or the user named one."""
    found = snapshot.objects.get(Kind.VOLUME_CLAIM)
    return uid(found) if found is not None else ""


def _job_name(service: InferenceService, snapshot: Snapshot) -> str:
    return model_job.job_name(service, _claim_uid(snapshot))


def _differs(job: Object, body: Object) -> bool:
    """Whether another image, token or node is asked for now. What is done stays as it was done."""
    return annotation(job, names.ANNOTATION_INTENT) != annotation(body, names.ANNOTATION_INTENT)


def _delete(job: Object) -> Iterator[Intent]:
    if not being_deleted(job):
        yield Delete(Kind.JOB, name(job), uid(job))


def held(found: ModelState | None, snapshot: Snapshot, rollout: RolloutDecision) -> bool:
    """Whether the rollout waits for the model: its template would be new to the Deployment."""
    if found is None or found.there or rollout.target is not rollout.current:
        return False
    return _template(snapshot) != rollout.current.spec_hash


def kept(snapshot: Snapshot, rollout: RolloutDecision) -> RolloutDecision | None:
    """The decision to keep the template that the Deployment has; None where it has none that is known."""
    present = next((one for one in rollout.kept if one.spec_hash == _template(snapshot)), None)
    return replace(rollout, target=present) if present is not None else None


def shown_template(found: ModelState | None, snapshot: Snapshot, rollout: RolloutDecision) -> Object:
    """The pod template that clients meet: that asked for, or the Deployment's while the rollout waits for the model."""
    deployment = snapshot.pods_owner
    if deployment is None or not held(found, snapshot, rollout):
        return rollout.target.template
    template: Object = deployment["spec"]["template"]
    return template


def _template(snapshot: Snapshot) -> str | None:
    """Which template the Deployment has; None where there is no Deployment."""
    deployment = snapshot.pods_owner
    return None if deployment is None else annotation(deployment["spec"]["template"], names.ANNOTATION_SPEC_HASH)


def _gigabytes(size: int) -> str:
    """With two decimals: a model has between one and a thousand."""
    return f"{size / 1e9:.2f}"
