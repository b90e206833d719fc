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
from typing import Any, Final

from flyball_engine.contract import EXIT_REFUSED
from flyball_operator.api import names
from flyball_operator.plan.objects import Object, annotation, being_deleted, name

_MESSAGE_LENGTH: Final = 900


class CauseReason(StrEnum):
    """Reasons of `Progressing`, `Available` and `Ready` when pods do not come up."""

    ARGUMENT_REFUSED = "ArgumentRefused"
    """The launcher refused `spec.engine.args`; the message names the argument. Trying again cannot help."""
    CONFIG_MISSING = "ConfigMissing"
    """A Secret, key or volume that the pod needs is not there."""
    IMAGE_PULL_FAILED = "ImagePullFailed"
    """The image does not exist, or may not be pulled."""
    OUT_OF_MEMORY = "OutOfMemory"
    """The engine was killed at its memory limit."""
    ENGINE_FAILED = "EngineFailed"
    """The engine ended by itself; the message has its last lines."""
    CONTAINER_NOT_STARTED = "ContainerNotStarted"
    """The container could not be started, such as for a command that the image does not have."""
    PODS_REFUSED = "PodsRefused"
    """Kubernetes refused to create the pods: a quota, a policy, an admission webhook."""
    UNSCHEDULABLE = "Unschedulable"
    """No node has room, or fits the selectors and tolerations."""
    NOT_READY_IN_TIME = "NotReadyInTime"
    """Nothing is visibly wrong, but the engine was not ready within `spec.rollout.startupTimeout`."""


#: Causes that no amount of waiting removes.
PERMANENT: Final = frozenset({CauseReason.ARGUMENT_REFUSED})
#: From the surest to the vaguest: of several causes the first is told.
_ORDER: Final = tuple(CauseReason)

#: Exit code of a container that SIGTERM ended.
_TERMINATED: Final = 143

#: An exception as Python ends a traceback with it, behind the prefix that vLLM gives each process's lines.
_EXCEPTION: Final = re.compile(r"(?:^|[)\]] +)((?:\w+\.)*\w*(?:Error|Exception): .+)")

_WAITING: Final[Mapping[str, CauseReason]] = {
    "ErrImagePull": CauseReason.IMAGE_PULL_FAILED,
    "ImagePullBackOff": CauseReason.IMAGE_PULL_FAILED,
    "ErrImageNeverPull": CauseReason.IMAGE_PULL_FAILED,
    "InvalidImageName": CauseReason.IMAGE_PULL_FAILED,
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


def find(pods: Sequence[Object], deployment: Object | None, spec_hash: str) -> Cause | None:
    """Why the pods of this template are not all ready, if anything says so."""
    found = [*_of_deployment(deployment)]
    for pod in sorted(pods, key=name):
        if annotation(pod, names.ANNOTATION_SPEC_HASH) == spec_hash and not being_deleted(pod):
            found += _of_pod(pod)
    return min(found, key=lambda cause: _ORDER.index(CauseReason(cause.reason)), default=None)


def _cause(reason: CauseReason, where: str, message: str) -> Cause:
    text = " ".join(f"{where}: {message}".split())
    return Cause(reason.value, text if len(text) <= _MESSAGE_LENGTH else "…".join((text[:200], text[-700:])))


def _of_deployment(deployment: Object | None) -> Iterator[Cause]:
    status = (deployment or {}).get("status") or {}
    for condition in status.get("conditions") or ():
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            yield _cause(CauseReason.PODS_REFUSED, "Deployment", condition.get("message", ""))


def _of_pod(pod: Object) -> Iterator[Cause]:
    status = pod.get("status") or {}
    where = f"pod {name(pod)}"
    conditions = status.get("conditions") or ()
    if any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions):
        return
    for condition in conditions:
        unschedulable = condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable"
        if unschedulable and condition.get("status") == "False":
            yield _cause(CauseReason.UNSCHEDULABLE, where, condition.get("message", ""))
    for container in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        if not container.get("ready"):
            yield from _of_container(container, f"{where}, container {container.get('name')}")


def _of_container(container: Mapping[str, Any], where: str) -> Iterator[Cause]:
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    reason = _WAITING.get(waiting.get("reason", ""))
    if reason is not None:
        yield _cause(reason, where, waiting.get("message") or waiting["reason"])
    last = container.get("lastState") or {}
    ended = state.get("terminated") or last.get("terminated")
    if ended and ended.get("exitCode") != 0:
        yield _of_end(ended, where)


def _of_end(ended: Mapping[str, Any], where: str) -> Cause:
    code = ended.get("exitCode")
    message = ended.get("message") or f"exit code {code} ({ended.get('reason', 'no reason')})"
    if code == EXIT_REFUSED:
        return _cause(CauseReason.ARGUMENT_REFUSED, where, message)
    if ended.get("reason") == "OOMKilled":
        return _cause(CauseReason.OUT_OF_MEMORY, where, "killed at its memory limit")
    if code == _TERMINATED:
        # Not of its own: its last lines, if any, are about something else.
        told = "ended by the kubelet, as one that was not ready within spec.rollout.startupTimeout"
        return _cause(CauseReason.NOT_READY_IN_TIME, where, told)
    return _cause(CauseReason.ENGINE_FAILED, where, f"exit code {code}: {_last_words(message)}")


def _last_words(message: str) -> str:
    """The exception a log ends with, and what follows it, without the traceback before; all of it if there is none."""
    lines = message.splitlines()
    for position in reversed(range(len(lines))):
        if found := _EXCEPTION.search(lines[position]):
            return "\n".join((found[1], *lines[position + 1 :]))
    return message
