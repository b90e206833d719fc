"""Why pods do not serve, read from their status and put into one reason and one sentence.

Kubernetes spreads this over pods, containers and the Deployment, under reasons that alternate (`ErrImagePull`,
`ImagePullBackOff`). A condition needs one that stays. Secrets are not read: the kubelet says which one is missing.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from signal import Signals
from typing import Any, Final

from flyball_engine.contract import EXIT_REFUSED
from flyball_operator.api import names
from flyball_operator.reconcile.plan.objects import Object, annotation, being_deleted, name

_MESSAGE_LENGTH: Final = 900


class CauseReason(StrEnum):
    """Reasons of `Progressing`, `Available` and `Ready` when pods do not come up."""

    ARGUMENT_REFUSED = "ArgumentRefused"
    """The launcher refused `spec.engine.args`; the message names the argument. Trying again cannot help."""
    CONFIG_MISSING = "ConfigMissing"
    """A Secret, key or volume that the pod needs is not there."""
    INVALID_IMAGE_NAME = "InvalidImageName"
    """The kubelet cannot read the image's reference. Trying again cannot help."""
    IMAGE_PULL_FAILED = "ImagePullFailed"
    """The image does not exist, or may not be pulled."""
    OUT_OF_MEMORY = "OutOfMemory"
    """The engine was killed at its memory limit."""
    ENGINE_FAILED = "EngineFailed"
    """The engine ended; the message has when, its exit code, how often it was restarted, and its last lines."""
    CONTAINER_FAILED = "ContainerFailed"
    """A container beside the engine ended, of `spec.podTemplate` or a policy; the message has the same of it."""
    CONTAINER_NOT_STARTED = "ContainerNotStarted"
    """The container could not be started, such as for a command that the image does not have."""
    PODS_REFUSED = "PodsRefused"
    """Kubernetes refused to create the pods: a quota, a policy, an admission webhook."""
    UNSCHEDULABLE = "Unschedulable"
    """No node has room, or fits the selectors and tolerations."""
    NOT_READY_IN_TIME = "NotReadyInTime"
    """Nothing is visibly wrong, but the engine was not ready within `spec.rollout.startupTimeout`."""


#: Causes that no amount of waiting removes.
PERMANENT: Final = frozenset({CauseReason.ARGUMENT_REFUSED, CauseReason.INVALID_IMAGE_NAME})
#: From the surest to the vaguest: of several causes the first is told.
_ORDER: Final = tuple(CauseReason)

#: Exit code of a container that SIGTERM ended.
_TERMINATED: Final = 143
#: Exit codes beyond it are signals.
_SIGNALLED: Final = 128
#: Of exit code 0. The kubelet keeps no last lines of a container that ends well, so the reason is in the log alone.
_ENDED_WELL: Final = "vLLM ends so when its engine core died, or was told to; kubectl logs --previous says why"

#: A resource of which the scheduler found too little on some node.
_INSUFFICIENT: Final = re.compile(r"Insufficient ([\w./-]*\w)")

#: An exception as Python ends a traceback with it, behind the prefix that vLLM gives each process's lines.
_EXCEPTION: Final = re.compile(r"(?:^|[)\]] +)((?:\w+\.)*\w*(?:Error|Exception): .+)")

#: What Kubernetes says of an object outside the namespace that a pod names and that is not there; and our field.
_MISSING: Final = {
    "no PriorityClass with name": "spec.podTemplate.priorityClassName",
    "pod rejected: RuntimeClass": "spec.podTemplate.runtimeClassName",
    "error looking up service account": "spec.podTemplate.serviceAccountName",
}

_WAITING: Final[Mapping[str, CauseReason]] = {
    "ErrImagePull": CauseReason.IMAGE_PULL_FAILED,
    "ImagePullBackOff": CauseReason.IMAGE_PULL_FAILED,
    "ErrImageNeverPull": CauseReason.IMAGE_PULL_FAILED,
    "InvalidImageName": CauseReason.INVALID_IMAGE_NAME,
    "ImageInspectError": CauseReason.IMAGE_PULL_FAILED,
    "RegistryUnavailable": CauseReason.IMAGE_PULL_FAILED,
    "CreateContainerConfigError": CauseReason.CONFIG_MISSING,
    "CreateContainerError": CauseReason.CONTAINER_NOT_STARTED,
    "RunContainerError": CauseReason.CONTAINER_NOT_STARTED,
}


@dataclass(frozen=True)
class Cause:
    """A reason and a sentence."""

    reason: str
    message: str


def find(pods: Sequence[Object], deployment: Object | None, spec_hash: str | None) -> Cause | None:
    """Why the pods of this template, of any where it is None, are not all ready, if anything says so."""
    staying = [pod for pod in sorted(pods, key=name) if not being_deleted(pod)]
    found = [*_of_deployment(deployment)]
    for pod in staying:
        if spec_hash in (None, _template_of(pod)):
            found += _of_pod(pod, _in_its_way(pod, staying, deployment))
    return min(found, key=lambda cause: _ORDER.index(CauseReason(cause.reason)), default=None)


def _cause(reason: CauseReason, where: str, message: str) -> Cause:
    text = " ".join(f"{where}: {message}".split())
    return Cause(reason.value, text if len(text) <= _MESSAGE_LENGTH else "…".join((text[:200], text[-700:])))


def _of_deployment(deployment: Object | None) -> Iterator[Cause]:
    status = (deployment or {}).get("status") or {}
    for condition in status.get("conditions") or ():
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            message = condition.get("message", "")
            yield _cause(CauseReason.PODS_REFUSED, "Deployment", message + _advice(message))


def _advice(refusal: str) -> str:
    """Which field names the object that is missing, where the refusal is of such a kind."""
    return next((f"; create it, or change {field}" for words, field in _MISSING.items() if words in refusal), "")


def ready_templates(pods: Sequence[Object]) -> frozenset[str]:
    """Spec hashes of the pods that are Ready, and stay."""
    return frozenset(_template_of(pod) for pod in pods if _is_ready(pod) and not being_deleted(pod))


def _template_of(pod: Object) -> str:
    return annotation(pod, names.ANNOTATION_SPEC_HASH)


def _is_ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions)


def _in_its_way(pod: Object, pods: Sequence[Object], deployment: Object | None) -> frozenset[str]:
    """Resources that pods of earlier templates hold, where none of them ends before this one is Ready."""
    strategy = ((deployment or {}).get("spec") or {}).get("strategy") or {}
    if (strategy.get("rollingUpdate") or {}).get("maxUnavailable") != 0:
        return frozenset()
    earlier = (other for other in pods if _template_of(other) != _template_of(pod))
    return frozenset(
        resource
        for other in earlier
        if (other.get("spec") or {}).get("nodeName")
        for container in other["spec"].get("containers") or ()
        for resource in (container.get("resources") or {}).get("requests") or ()
    )


def _unschedulable(where: str, message: str, held: frozenset[str]) -> Cause:
    lacking = ", ".join(sorted(held.intersection(_INSUFFICIENT.findall(message))))
    if lacking:
        message += (
            f" Earlier pods of this service hold {lacking}. If no node has more, set"
            " spec.rollout: {maxSurge: 0, maxUnavailable: 1}: an earlier pod then ends before a new one starts."
        )
    return _cause(CauseReason.UNSCHEDULABLE, where, message)


def _of_pod(pod: Object, held: frozenset[str]) -> Iterator[Cause]:
    """`held` are resources that it may wait for, and that other pods of the service have."""
    status = pod.get("status") or {}
    where = f"pod {name(pod)}"
    conditions = status.get("conditions") or ()
    if _is_ready(pod):
        return
    for condition in conditions:
        unschedulable = condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable"
        if unschedulable and condition.get("status") == "False":
            yield _unschedulable(where, condition.get("message", ""), held)
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(kind) or ():
            if not container.get("ready"):
                place = f"{where}, container {container.get('name')}"
                yield from _of_container(container, place, may_end=kind == "initContainerStatuses")


def _of_container(container: Mapping[str, Any], where: str, *, may_end: bool) -> Iterator[Cause]:
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    reason = _WAITING.get(waiting.get("reason", ""))
    if reason is not None:
        yield _cause(reason, where, waiting.get("message") or waiting["reason"])
    last = container.get("lastState") or {}
    ended = state.get("terminated") or last.get("terminated")
    if ended and (ended.get("exitCode") or not may_end):
        ours = container.get("name") in (names.CONTAINER_ENGINE, names.CONTAINER_PLUGIN)
        yield _of_end(ended, where, int(container.get("restartCount", 0)), ours=ours)


def _of_end(ended: Mapping[str, Any], where: str, restarts: int, *, ours: bool) -> Cause:
    """`ours`: of the engine or the plugin, whose exit codes have a meaning."""
    code, message = int(ended.get("exitCode", 0)), ended.get("message") or ""
    facts = _facts(ended, code, restarts)
    if code == EXIT_REFUSED and ours:
        return _cause(CauseReason.ARGUMENT_REFUSED, where, message or facts)
    if ended.get("reason") == "OOMKilled":
        return _cause(CauseReason.OUT_OF_MEMORY, where, f"killed at its memory limit; {facts}")
    if not ours:
        words = _last_words(message) or ended.get("reason", "no reason")
        return _cause(CauseReason.CONTAINER_FAILED, where, f"{facts}: {words}")
    if code == _TERMINATED:
        # Not of its own: its last lines, if any, are about something else.
        why = "ended by the kubelet, as one that was not ready within spec.rollout.startupTimeout"
        return _cause(CauseReason.NOT_READY_IN_TIME, where, f"{why}; {facts}")
    words = _last_words(message) or (ended.get("reason", "no reason") if code else _ENDED_WELL)
    return _cause(CauseReason.ENGINE_FAILED, where, f"{facts}: {words}")


def _facts(ended: Mapping[str, Any], code: int, restarts: int) -> str:
    """When a container ended, how often it was started again, and its exit code, of a signal with its name."""
    moment = f"ended at {ended['finishedAt']}, " if ended.get("finishedAt") else ""
    number = code - _SIGNALLED
    signalled = f" ({Signals(number).name})" if number in set(Signals) else ""
    return f"{moment}{restarts} {'restart' if restarts == 1 else 'restarts'}, exit code {code}{signalled}"


def _last_words(message: str) -> str:
    """The exception a log ends with, and what follows it, without the traceback before; all of it if there is none."""
    lines = message.splitlines()
    for position in reversed(range(len(lines))):
        if found := _EXCEPTION.search(lines[position]):
            return "\n".join((found[1], *lines[position + 1 :]))
    return message
