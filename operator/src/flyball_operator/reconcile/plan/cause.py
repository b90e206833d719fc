"""What keeps pods from serving: the reasons, and which of them are faults of the template that was asked for.

Kubernetes spreads this over pods, containers, events and the Deployment, under reasons that alternate (`ErrImagePull`,
`ImagePullBackOff`). A condition needs one that stays. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_MESSAGE_LENGTH: Final = 900


class CauseReason(StrEnum):
    """Reasons of `Progressing`, `Available` and `Ready` when pods do not come up.

    From the surest to the vaguest: of several causes the first is reported. Shortages come last: one is reported only
    where nothing else is wrong.
    """

    ARGUMENT_REFUSED = "ArgumentRefused"
    """The launcher refused `spec.engine.args`; the message names the argument. Trying again cannot help."""
    CONFIG_MISSING = "ConfigMissing"
    """A Secret, key, claim or volume that the pod needs is not there."""
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
    """Kubernetes refused to create the pods: a policy, an admission webhook, a class that is missing."""
    NOT_READY_IN_TIME = "NotReadyInTime"
    """Nothing is visibly wrong, but the engine was not ready within `spec.rollout.startupTimeout`."""
    CANARY_MISSED_OBJECTIVES = "CanaryMissedObjectives"
    """Pods of the new revision missed an objective that the earlier revision kept; the message has both shares."""
    QUOTA_EXCEEDED = "QuotaExceeded"
    """A ResourceQuota has no room for the pods."""
    WEBHOOK_UNAVAILABLE = "WebhookUnavailable"
    """An admission webhook that must be asked about pods does not answer."""
    REGISTRY_UNAVAILABLE = "RegistryUnavailable"
    """The image's registry does not answer, or not now: no connection, no address, 429, 5xx."""
    VOLUME_UNAVAILABLE = "VolumeUnavailable"
    """A volume cannot be attached or mounted, such as one that a pod on another node holds."""
    NODE_UNAVAILABLE = "NodeUnavailable"
    """The pod's node is not ready or gone, or put the pod out."""
    UNSCHEDULABLE = "Unschedulable"
    """No node has room, or fits the selectors and tolerations."""


#: Causes that no amount of waiting removes.
PERMANENT: Final = frozenset({CauseReason.ARGUMENT_REFUSED, CauseReason.INVALID_IMAGE_NAME})
#: What lacks outside the template: it is waited for, however long, and the rollout goes on once it is there.
SHORTAGES: Final = frozenset(
    {
        CauseReason.QUOTA_EXCEEDED,
        CauseReason.WEBHOOK_UNAVAILABLE,
        CauseReason.REGISTRY_UNAVAILABLE,
        CauseReason.VOLUME_UNAVAILABLE,
        CauseReason.NODE_UNAVAILABLE,
        CauseReason.UNSCHEDULABLE,
    }
)
_ORDER: Final = tuple(CauseReason)


@dataclass(frozen=True)
class Cause:
    """A reason and a sentence."""

    reason: str
    message: str

    @property
    def is_permanent(self) -> bool:
        """Whether waiting cannot help."""
        return self.reason in PERMANENT

    @property
    def is_shortage(self) -> bool:
        """Whether something lacks that is not the template's."""
        return self.reason in SHORTAGES

    @property
    def rank(self) -> int:
        """Place in the order of what is reported."""
        return _ORDER.index(CauseReason(self.reason))


def cause(reason: CauseReason, where: str, message: str) -> Cause:
    """A cause in one line of bounded length."""
    text = " ".join(f"{where}: {message}".split())
    return Cause(reason.value, text if len(text) <= _MESSAGE_LENGTH else "…".join((text[:200], text[-700:])))
