"""What can go wrong with a call to the Kubernetes API.

ClusterError
├── NotFoundError           404
│   └── UnknownKindError    404 of the path: the API server has no such kind in this version
├── AlreadyExistsError      409 on create
├── ConflictError           409 otherwise: UID or resource version is another one
├── ForbiddenError          403: a missing right, worth another try only after somebody grants it
│   └── UnauthorizedError   401: it is not known who asks; it says nothing of rights
├── InvalidObjectError      400, 422: the object is wrong; trying again cannot help
├── UnavailableError        429, 5xx, time-outs, connections: try again; a write may or may not have happened
└── NotLeadingError         no call was made: this process may not write (any more)
"""

from __future__ import annotations

import json
from typing import Final


class ClusterError(Exception):
    """A call to the Kubernetes API did not do what it should."""


class NotFoundError(ClusterError):
    """No such object, or no such kind."""


class UnknownKindError(NotFoundError):
    """The API server has no such kind, or not in this version."""


class AlreadyExistsError(ClusterError):
    """An object of this name exists."""


class ConflictError(ClusterError):
    """The object is not the one, or not in the version, that the write was meant for."""


class ForbiddenError(ClusterError):
    """The account may not do this."""


class UnauthorizedError(ForbiddenError):
    """The API server does not know who asks: a token has expired, or cannot be verified now."""


class InvalidObjectError(ClusterError):
    """The API server says the object is wrong."""


class UnavailableError(ClusterError):
    """The API server could not be asked, or did not answer in time."""


class NotLeadingError(ClusterError):
    """The process does not hold the lease for sure, so it did not write."""


_MESSAGE_LENGTH: Final = 800
_BY_STATUS: Final[dict[int, type[ClusterError]]] = {
    400: InvalidObjectError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: ConflictError,
    422: InvalidObjectError,
}


def from_response(status: int, body: bytes) -> ClusterError:
    """The error that a response of this status means, with the API server's words."""
    try:
        answer = json.loads(body)
        message, reason = str(answer.get("message", "")), str(answer.get("reason", ""))
    except (ValueError, AttributeError):
        message, reason = body[:200].decode(errors="replace"), ""
    if status == 404 and not reason:
        # Of an object the API server says so in a Status, of a path that it does not serve in plain text.
        return UnknownKindError(f"{message.strip() or 'no message'} (HTTP {status})")
    if reason == "AlreadyExists":
        return AlreadyExistsError(message)
    if len(message) > _MESSAGE_LENGTH:
        # An invalid value is quoted whole, before the reason.
        message = f"{message[: _MESSAGE_LENGTH // 2]} … {message[-_MESSAGE_LENGTH // 2 :]}"
    return of_status(status, message)


def of_status(status: int, message: str) -> ClusterError:
    """The error that an HTTP status means."""
    return _BY_STATUS.get(status, UnavailableError)(f"{message or 'no message'} (HTTP {status})")
