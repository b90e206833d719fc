"""What operator and engine image agree on about a model that is downloaded once: the command and its exit codes. Pure.

The command runs in a Job, with the engine image and the plugin, and fills a folder of a PersistentVolumeClaim.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Final

from flyball_engine.contract import CONTROL_PORT

DOWNLOAD_MODULE: Final = "flyball_engine.download"
#: Seconds for which a second download of the same model waits for the first: 1 TB at 150 MB/s takes 2 hours.
LOCK_SECONDS: Final = 7200


class DownloadExit(IntEnum):
    """Exit codes of a download that failed. The termination message has the words."""

    REVISION_MISSING = 64
    """The model has no such branch, tag or commit."""
    MODEL_MISSING = 65
    """The hub has no such model, or not a file of it; or there is no such bucket or file."""
    NO_ACCESS = 66
    """The hub wants a token (401), or the token has no access (403); or the same of a bucket's credentials."""
    CHECKSUM_WRONG = 67
    """A file arrived twice with another content than the hub or the bucket says, or was changed meanwhile."""
    DISK_FULL = 68
    """The volume has no room for the model, or a quota is used up."""
    HUB_UNREACHABLE = 69
    """No connection, no address, 429, 5xx, or an answer that is no hub's."""
    NOT_LOCKED = 70
    """Another download of the same model did not end in time."""
    CLIENT_MISSING = 71
    """The engine image lacks the library that reads from S3."""


#: What may pass without anybody's help, so that the same download is tried again.
PASSING: Final = frozenset({DownloadExit.HUB_UNREACHABLE, DownloadExit.NOT_LOCKED, DownloadExit.CHECKSUM_WRONG})


#: Where a download says how far it has come: an engine's control port, which the operator may reach in most clusters.
PROGRESS_PORT: Final = CONTROL_PORT
PROGRESS_PATH: Final = "/v1/download"
#: No answer about progress has more bytes.
PROGRESS_BYTES: Final = 1024


#: More than any volume holds.
_MOST_BYTES: Final = 1 << 63


@dataclass(frozen=True)
class Progress:
    """How far a download has come: bytes that are there, and of all files."""

    done: int
    total: int

    def body(self) -> bytes:
        """As the download answers it."""
        return json.dumps(asdict(self)).encode()


def progress_of(body: bytes) -> Progress | None:
    """What a download answered; None where that is no such answer. Pods may answer anything."""
    try:
        found = json.loads(body)
        progress = Progress(found["done"], found["total"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    known = all(type(value) is int for value in (progress.done, progress.total))
    return progress if known and 0 <= progress.done <= progress.total < _MOST_BYTES else None


def download_command(*, model: str, revision: str, folder: str, make: str | None = None) -> list[str]:
    """Command of the container that downloads. `make`: a folder that is to be there, too."""
    options = {"model": model, "revision": revision, "folder": folder, "progress-port": PROGRESS_PORT, "make": make}
    given = (f"--{name}={value}" for name, value in options.items() if value is not None)
    return ["python3", "-m", DOWNLOAD_MODULE, *given]
