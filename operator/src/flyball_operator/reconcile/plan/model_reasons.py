"""Reasons of `ModelReady`, and of `Progressing` while a rollout waits for the model. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from flyball_engine.model_cache import PASSING, DownloadExit
from flyball_operator.reconcile.plan.cause import CauseReason, cause


class ModelReason(StrEnum):
    """Reasons of `ModelReady`, and of `Progressing` while a rollout waits for the model."""

    DOWNLOADED = "Downloaded"
    """The volume has the model; the message has its bytes."""
    DOWNLOADING = "Downloading"
    """The Job downloads; the message has what an earlier attempt left."""
    DOWNLOAD_PENDING = "DownloadPending"
    """The Job's pod does not download yet; the message says why, once anything does."""
    DOWNLOAD_REFUSED = "DownloadRefused"
    """The API server refused the Job; the message is its own. It is asked for again."""
    CLAIM_NOT_FOUND = "ClaimNotFound"
    """There is no PersistentVolumeClaim of that name."""
    CLAIM_PENDING = "ClaimPending"
    """The PersistentVolumeClaim has no volume yet."""
    STORAGE_CLASS_NOT_FOUND = "StorageClassNotFound"
    """The StorageClass of the claim does not exist. The claim waits for it."""
    CLAIM_CONFLICT = "ClaimConflict"
    """A PersistentVolumeClaim that is not this service's has the name of the one to make. It is not touched."""
    CLAIM_DIFFERS = "ClaimDiffers"
    """The claim to make is there with a class or access modes that are not asked for. Kubernetes changes neither."""
    CLAIM_REFUSED = "ClaimRefused"
    """The API server refused the claim, or its growth; the message is its own. It is asked for again."""
    CLAIM_BEING_DELETED = "ClaimBeingDeleted"
    """The claim is being deleted. Another is made once it is gone."""
    CLAIM_LOST = "ClaimLost"
    """The volume of the claim is gone."""
    REVISION_NOT_FOUND = "RevisionNotFound"
    """The model has no such revision."""
    MODEL_NOT_FOUND = "ModelNotFound"
    """The hub has no such model, or the bucket no file there."""
    MODEL_ACCESS_DENIED = "ModelAccessDenied"
    """The hub wants a token, or the token has no access; or the same of the credentials for a bucket."""
    CHECKSUM_MISMATCH = "ChecksumMismatch"
    """A file arrived with another content than the hub or the bucket says. It is tried again."""
    VOLUME_FULL = "VolumeFull"
    """The volume has no room for the model."""
    HUB_UNREACHABLE = "HubUnreachable"
    """The hub, or the server of the bucket, does not answer. It is tried again."""
    LOCK_TIMEOUT = "LockTimeout"
    """Another download into the same folder did not end. It is tried again."""
    CLIENT_MISSING = "ClientMissing"
    """The engine image lacks the library that reads from S3."""
    DOWNLOAD_FAILED = "DownloadFailed"
    """The download ended otherwise; the message has its last lines. It is tried again."""


OF_EXITS: Final = {
    DownloadExit.REVISION_MISSING: ModelReason.REVISION_NOT_FOUND,
    DownloadExit.MODEL_MISSING: ModelReason.MODEL_NOT_FOUND,
    DownloadExit.NO_ACCESS: ModelReason.MODEL_ACCESS_DENIED,
    DownloadExit.CHECKSUM_WRONG: ModelReason.CHECKSUM_MISMATCH,
    DownloadExit.DISK_FULL: ModelReason.VOLUME_FULL,
    DownloadExit.HUB_UNREACHABLE: ModelReason.HUB_UNREACHABLE,
    DownloadExit.NOT_LOCKED: ModelReason.LOCK_TIMEOUT,
    DownloadExit.CLIENT_MISSING: ModelReason.CLIENT_MISSING,
}
#: Ends of a download that nobody but the user can mend.
FINAL: Final = frozenset(reason for code, reason in OF_EXITS.items() if code not in PASSING)
#: What does not go on without somebody's help.
STUCK: Final = FINAL | {
    ModelReason.DOWNLOAD_REFUSED,
    ModelReason.CLAIM_CONFLICT,
    ModelReason.CLAIM_DIFFERS,
    ModelReason.CLAIM_REFUSED,
    ModelReason.CLAIM_LOST,
}


def one_line(text: str) -> str:
    """One line of bounded length: a pod or an event may say anything."""
    return cause(CauseReason.CONTAINER_FAILED, "", text).message.removeprefix(": ").rstrip(".:") if text else ""
