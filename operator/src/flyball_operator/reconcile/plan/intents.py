"""What a plan consists of: writes with their preconditions, the reconciler's part of the status, events.

An intent carries everything its write needs, so that applying it decides nothing. The precondition (absent, this UID at
this resource version) is in the plan, where it can be read and tested. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from flyball_operator.api.objects import Kind, Object
from flyball_operator.reconcile.plan.adoption import Standing
from flyball_operator.reconcile.plan.fields import Path


@dataclass(frozen=True)
class Create:
    """POST a new object. Never a patch: a patch would take over whatever somebody else made meanwhile."""

    kind: Kind
    body: Object


@dataclass(frozen=True)
class Apply:
    """Server-side apply of a whole intent, to the object with the UID and version in the body and to no other.

    `fields` are those in which the object differs from the intent.
    """

    kind: Kind
    body: Object
    fields: tuple[Path, ...]


@dataclass(frozen=True)
class Claim:
    """Turn the managed fields of our own POST into applied ones; see `fields.created_entry`."""

    kind: Kind
    name: str
    patch: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Delete:
    """Delete the object of this name, if it still has this UID."""

    kind: Kind
    name: str
    uid: str


Intent = Create | Apply | Claim | Delete


@dataclass(frozen=True)
class Event:
    """Something that changed, told to the user."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True)
class Plan:
    """What to do about one service: intents in this order, then the status, then the events.

    `status` is the reconciler's whole part of the status, None where nothing is to be written. `requeue_after`: seconds
    after which to look again although nothing changed; None waits for a change. `standing`: how far the service has
    come with this operator's template. `adopts`: whether these intents bring that template to the service first, by
    itself. `due`: when the template that it has is old enough for that, None where it is.
    """

    intents: tuple[Intent, ...] = ()
    status: Object | None = None
    events: tuple[Event, ...] = ()
    requeue_after: float | None = None
    standing: Standing = Standing.CURRENT
    adopts: bool = False
    due: datetime | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do now."""
        return not self.intents and self.status is None
