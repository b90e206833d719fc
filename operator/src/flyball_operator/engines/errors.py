"""What can go wrong between the operator and an engine.

EnginesError
└── EngineError      one pod's answer
    ├── UnreachableError      no connection, or no answer in time
    ├── BadAnswerError        an answer that is no read-back: another server, too large, cut off
    ├── SetpointRefusedError  a refusal with a reason of the contract
    ├── NotLeadingError       not written: the lease was not surely ours
    ├── NoSigningKeyError     not written: there is no key to sign with
    └── UnknownError          the cores did not answer in time; the setpoint may still land
"""

from __future__ import annotations

from typing import ClassVar

from flyball_engine.contract import Generation, Refusal


class EnginesError(Exception):
    """Root of this package's errors."""


class EngineError(EnginesError):
    """One engine did not do what it was asked. `outcome`: as the metric of pushes names it."""

    outcome: ClassVar[str]


class UnreachableError(EngineError):
    """The control port could not be reached, or was silent. `closed`: nothing listens there."""

    outcome = "Unreachable"

    def __init__(self, message: str, *, closed: bool = False) -> None:
        super().__init__(message)
        self.closed = closed


class BadAnswerError(EngineError):
    """What answered does not speak the contract."""

    outcome = "BadAnswer"


class UnknownError(EngineError):
    """Whether the setpoint was applied is not known."""

    outcome = "Unknown"


class NotLeadingError(EngineError):
    """The lease was no longer surely ours when the write was due."""

    outcome = "NotLeading"


class NoSigningKeyError(EngineError):
    """The operator has no key to sign with: its Secret has not been read or filled yet."""

    outcome = "NoSigningKey"


class SetpointRefusedError(EngineError):
    """The engine refused. `applied` is what it holds, where it says."""

    outcome = "Refused"

    def __init__(self, refusal: Refusal, message: str, applied: Generation | None) -> None:
        super().__init__(f"{refusal.value}: {message}")
        self.refusal = refusal
        self.applied = applied
