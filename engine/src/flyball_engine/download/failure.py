"""Why a download failed: an exit code and a sentence."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from typing import Any, Final

from flyball_engine.model_cache import DownloadExit

#: No room: on the device, in a quota, or in the largest file that this process may write.
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_MESSAGE_LENGTH: Final = 1000
#: Variables whose values nobody is to be told.
CREDENTIALS: Final = ("HF_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
#: User and password of an address, up to the last @ before its path.
_USER: Final = re.compile(r"(?<=://)[^\s/?#'\"<>]*@")
#: A query: a signed link is as good as a token until it ends. Of an address without a host, too, as clients write it.
_QUERY: Final = re.compile(r"\?[^\s'\"<>()?]*=[^\s'\"<>()]*")
#: Errors of connections, by name: the HTTP library is another from one version of the client to the next. The last one
#: is of an answer that is no hub's.
_AWAY: Final = frozenset({"HTTPError", "RequestException", "ConnectionError", "TimeoutError", "JSONDecodeError"})


class DownloadError(Exception):
    """The folder does not hold the model; the message says why."""

    def __init__(self, code: DownloadExit, message: str) -> None:
        super().__init__(message)
        self.code = code


def explain(error: BaseException) -> DownloadError | None:
    """The failure that an error of the client, of the network or of the disk comes to; None if it is none of these."""
    if isinstance(error, DownloadError):
        return error
    chain = list(_chain(error))
    full = next((one for one in chain if isinstance(one, OSError) and one.errno in _NO_ROOM), None)
    if full is not None:
        return DownloadError(DownloadExit.DISK_FULL, f"no room on the volume: {full.strerror}")
    words = in_words(error)
    named = {one.__name__ for found in chain for one in type(found).__mro__}
    status = next((code for found in chain if (code := _status(found)) is not None), None)
    if "RevisionNotFoundError" in named:
        return DownloadError(DownloadExit.REVISION_MISSING, words)
    if status in (401, 403) or named & {"GatedRepoError", "DisabledRepoError"}:
        # The hub answers 401 to a name that it does not know, so that nobody can ask which private models there are.
        unknown = ", or it has no such model" if status == 401 else ""
        return DownloadError(DownloadExit.NO_ACCESS, f"the hub gives no access{unknown}: {words}")
    if status == 404 or named & {"RepositoryNotFoundError", "EntryNotFoundError", "HFValidationError"}:
        return DownloadError(DownloadExit.MODEL_MISSING, words)
    away = status is not None or named & _AWAY
    return DownloadError(DownloadExit.HUB_UNREACHABLE, f"the hub cannot be reached: {words}") if away else None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _status(error: BaseException) -> int | None:
    response: Any = getattr(error, "response", None)
    code = getattr(response, "status_code", None)
    return code if isinstance(code, int) else None


def without_credentials(text: str) -> str:
    """The text without what lets a reader in: parts of addresses, and what variables hold."""
    for name in CREDENTIALS:
        # Clients tell headers that they cannot send.
        if value := os.environ.get(name, "").strip():
            text = text.replace(value, "…")
    return _QUERY.sub("?…", _USER.sub("", text))


def in_words(error: BaseException) -> str:
    """What kind of error it is and what it says, in one line of bounded length."""
    text = without_credentials(" ".join(f"{type(error).__name__}: {error}".split()))
    return text if len(text) <= _MESSAGE_LENGTH else f"{text[:_MESSAGE_LENGTH]}…"
