"""What events say of a pod whose status does not say why it waits: volumes, images in a back-off, and a node to come.

A pod that waits for a volume is `ContainerCreating`, as one whose image is being pulled is. Kubernetes keeps events for
an hour, so one counts only until a later one shows that it is over. Nothing but events says why a StatefulSet or a Job
has no pod. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from flyball_operator.api.objects import Object, being_deleted, controlled_by, controller, moment, name, uid
from flyball_operator.reconcile.plan.cause import Cause, CauseReason, cause
from flyball_operator.reconcile.plan.pods import has, has_ended, is_unschedulable, node, others_placed

#: Seconds for which a pod may wait before its events are read.
PATIENCE_SECONDS: Final = 20.0
#: Seconds between two looks at the events of a pod that goes on waiting; nobody tells the operator of new ones.
AGAIN_SECONDS: Final = 60.0

_ATTACH, _MOUNT = "FailedAttachVolume", frozenset({"FailedAttachVolume", "FailedMount", "FailedMapVolume"})
#: Events of a pod whose volumes are mounted.
_MOUNTED: Final = frozenset({"Pulling", "Pulled", "Failed", "BackOff", "Created", "Started", "FailedCreatePodSandBox"})
#: A mount that fails because of what the template names.
_MISSING: Final = re.compile(r"""(?:secret|configmap) "[^"]*" not found|non-existent|hostPath type check failed""")
#: Event of a Job or StatefulSet whose pod the API server refused: a quota, PodSecurity, a missing ServiceAccount.
_NOT_CREATED: Final = "FailedCreate"
#: Event of a StatefulSet whose pod was made.
_CREATED: Final = "SuccessfulCreate"
#: The pod of which a StatefulSet's event tells; of several that were combined, the last.
_OF_POD: Final = re.compile(r"[Cc]reate Pod (\S+) in StatefulSet ")
#: Events of a claim that gets no volume.
_NOT_BOUND: Final = frozenset({"ProvisioningFailed", "FailedBinding"})
_PULL_FAILED: Final = "Failed to pull image"
_CREATING: Final = frozenset({"ContainerCreating", "PodInitializing"})
#: All that a kubelet before 1.32 says of an image between two attempts to pull it.
_BARE_BACK_OFF: Final = re.compile(r'Back-off pulling image "[^"]*"')


def pods_to_ask_about(pods: Sequence[Object], now: datetime) -> list[Object]:
    """Pods whose events are to be read, one of each ReplicaSet or Job: the status of none of them says why it waits.

    A pod of an earlier template or Job may wait, too, and says nothing of the present one.
    """
    asked = [pod for pod in pods if _is_silent(pod) or _waits_for_room(pod, pods)]
    return [pod for pod in _oldest(asked) if _age(pod, now) >= PATIENCE_SECONDS]


def look_again(pods: Sequence[Object], now: datetime) -> float | None:
    """Seconds after which events are to be read, or read again; None where every pod's status says enough."""
    silent = [pod for pod in pods if _is_silent(pod)]
    return min((_again(_age(pod, now)) for pod in _oldest(silent)), default=None)


def _oldest(pods: Sequence[Object]) -> list[Object]:
    """The pod that was made first of each controller."""
    last_first = sorted(pods, key=lambda pod: (pod["metadata"].get("creationTimestamp") or "", uid(pod)), reverse=True)
    return list({(controller(pod) or {}).get("uid"): pod for pod in last_first}.values())


def _again(age: float) -> float:
    return PATIENCE_SECONDS - age if age < PATIENCE_SECONDS else AGAIN_SECONDS


def job_to_ask_about(jobs: Sequence[Object], pods: Sequence[Object], now: datetime) -> Object | None:
    """The Job whose events are to be read: one that goes on, and has had no pod for a while."""
    waiting = (job for job in jobs if not _lacks_nothing(job) and not any(controlled_by(pod, uid(job)) for pod in pods))
    return next((job for job in waiting if _age(job, now) >= PATIENCE_SECONDS), None)


def stateful_sets_to_ask_about(found: Sequence[Object], missing: Sequence[str], now: datetime) -> list[Object]:
    """Of these StatefulSets, those whose events are to be read: each lacks a pod of these names, and is not new."""
    lacking = {pod.rpartition("-")[0] for pod in missing}
    return [one for one in found if name(one) in lacking and _age(one, now) >= PATIENCE_SECONDS]


def of_stateful_sets(missing: Sequence[str], events: Sequence[Object]) -> str:
    """Why the first of these pods that was refused is not there, in the words of its StatefulSet's last event.

    Empty where no event says so.
    """
    last: dict[str, Object] = {}
    # Times are in seconds. A pod that is refused and then made in the same one was made.
    for event in sorted(events, key=lambda event: (_time(event), event.get("reason") == _CREATED)):
        about = _OF_POD.search(_message(event))
        if about and event.get("reason") in (_NOT_CREATED, _CREATED):
            last[about[1]] = event
    refused = (last[pod] for pod in missing if pod in last and last[pod]["reason"] == _NOT_CREATED)
    return next((_message(event) for event in refused), "")


def claim_to_ask_about(claim: Object | None, now: datetime) -> Object | None:
    """The claim, if its events are to be read: it has had no volume for a while."""
    waits = claim is not None and is_pending(claim) and _age(claim, now) >= PATIENCE_SECONDS
    return claim if waits else None


def is_pending(claim: Object) -> bool:
    """Whether the claim has no volume yet."""
    return not being_deleted(claim) and (claim.get("status") or {}).get("phase", "Pending") == "Pending"


def of_claim(claim: Object, events: Sequence[Object]) -> str:
    """Why the claim has no volume, in the words of its last event; empty where none says so."""
    return next((_message(event) for event in reversed(of(claim, events)) if event.get("reason") in _NOT_BOUND), "")


def look_again_at(found: Object, now: datetime) -> float:
    """Seconds after which the events of a Job without a pod, or of a claim, are to be read, or read again."""
    return _again(_age(found, now))


def of_job(job: Object, events: Sequence[Object]) -> str:
    """Why the Job has no pod, in the words of its last event; empty where none says so."""
    return next((_message(event) for event in reversed(of(job, events)) if event.get("reason") == _NOT_CREATED), "")


def _lacks_nothing(job: Object) -> bool:
    return being_deleted(job) or has(job, "Complete") or has(job, "Failed")


def of_volumes(pod: Object, where: str, events: Sequence[Object]) -> Iterator[Cause]:
    """Why the volumes of a pod that has started no container are not there."""
    if not _is_creating(pod):
        return
    found = of(pod, events)
    over = max((index for index, event in enumerate(found) if event.get("reason") in _MOUNTED), default=-1)
    failed = [event for event in found[over + 1 :] if event.get("reason") in _MOUNT]
    for event in failed:
        if _MISSING.search(_message(event)):
            yield cause(CauseReason.CONFIG_MISSING, where, _message(event))
    if failed:
        # Of a volume that is held elsewhere, the attach controller knows by whom; the kubelet that it waited in vain.
        newest = next((event for event in reversed(failed) if event["reason"] == _ATTACH), failed[-1])
        yield cause(CauseReason.VOLUME_UNAVAILABLE, where, _message(newest))


def pull_error(pod: Object, events: Sequence[Object]) -> str:
    """The last error of a pull; empty where the pod's status has it, or no event does."""
    if not _backs_off_silently(pod):
        return ""
    messages = [_message(event) for event in of(pod, events)]
    return next((message for message in reversed(messages) if message.startswith(_PULL_FAILED)), "")


def of(found: Object, events: Sequence[Object]) -> list[Object]:
    """Events of a pod, Job or claim, the newest last."""
    mine = (event for event in events if (event.get("involvedObject") or {}).get("uid") == found["metadata"].get("uid"))
    return sorted(mine, key=_time)


def _message(event: Object) -> str:
    return str(event.get("message") or "")


def _time(event: Object) -> datetime:
    fields = (
        (event.get("series") or {}).get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event["metadata"].get("creationTimestamp"),
    )
    return next((found for text in fields if (found := moment(text)) is not None), datetime.min.replace(tzinfo=UTC))


def _age(found: Object, now: datetime) -> float:
    created = moment(found["metadata"].get("creationTimestamp"))
    return (now - created).total_seconds() if created is not None else 0.0


def _is_silent(pod: Object) -> bool:
    return (
        bool(node(pod))
        and not being_deleted(pod)
        and not has_ended(pod)
        and (_is_creating(pod) or _backs_off_silently(pod))
    )


def _waits_for_room(pod: Object, pods: Sequence[Object]) -> bool:
    """Whether no node has room for the pod while earlier ones have one: an autoscaler may say that it adds a node."""
    return is_unschedulable(pod) and not being_deleted(pod) and bool(others_placed(pod, pods))


def _is_creating(pod: Object) -> bool:
    """Whether no container has been started, nor its image been asked for in vain."""
    return all((item.get("state") or {}).get("waiting", {}).get("reason") in _CREATING for item in _containers(pod))


def _backs_off_silently(pod: Object) -> bool:
    waiting = [(item.get("state") or {}).get("waiting") or {} for item in _containers(pod)]
    return any(_BARE_BACK_OFF.fullmatch(item.get("message") or "") for item in waiting)


def _containers(pod: Object) -> list[Object]:
    status = pod.get("status") or {}
    return [item for kind in ("initContainerStatuses", "containerStatuses") for item in status.get(kind) or ()]
