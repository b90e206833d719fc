"""A service and what is around it, as a command read it; and how sentences about it end. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from flyball_operator.api.objects import Object, moment
from flyball_operator.api.v1alpha1 import (
    Condition,
    ConditionType,
    InferenceServiceSpec,
    InferenceServiceStatus,
    ObjectMeta,
)

_HOUR: Final = 3600
_DAY: Final = 24 * _HOUR


@dataclass(frozen=True)
class Found:
    """A service and what is around it, as it was read. `spec`: None where it is wrong, `error` then says what is.

    `deployment`, and the namespace's `lease`: None where there is none, or it may not be read. `events`: about the
    service.
    """

    meta: ObjectMeta
    spec: InferenceServiceSpec | None
    status: InferenceServiceStatus
    error: str
    deployment: Object | None
    pods: Sequence[Object]
    events: Sequence[Object]
    lease: Object | None
    now: datetime

    def condition(self, kind: ConditionType) -> Condition | None:
        """A condition, None where nobody has said it yet."""
        return next((one for one in self.status.conditions if one.type is kind), None)

    def says(self, kind: ConditionType, status: str) -> Condition | None:
        """A condition that has this status."""
        found = self.condition(kind)
        return found if found is not None and found.status == status else None

    @property
    def unattended(self) -> str:
        """Since when no operator has looked after its namespace; empty where one does, or it is not known."""
        return unattended_since(self.lease, self.now)

    @property
    def where(self) -> str:
        """Namespace and name."""
        return f"{self.meta.namespace}/{self.meta.name}"


def unattended_since(lease: Object | None, now: datetime) -> str:
    """When a namespace's Lease was renewed last, if no release can hold it any more; else empty.

    Without a Lease nothing is known: a release that may not keep one acts all the same.
    """
    spec = (lease or {}).get("spec") or {}
    renewed = moment(spec.get("renewTime"))
    lasts = spec.get("leaseDurationSeconds")
    if renewed is None or not isinstance(lasts, int) or (now - renewed).total_seconds() <= lasts:
        return ""
    return renewed.strftime("%Y-%m-%dT%H:%M:%SZ")


def sentence(text: str) -> str:
    """With a full stop at the end."""
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."


def ago(text: str, now: datetime) -> str:
    """How long ago that was, in one unit; nothing of a moment that is none, or to come."""
    then = moment(text)
    seconds = (now - then).total_seconds() if then is not None else -1.0
    if seconds < 0:
        return ""
    size, unit = next((one for one in ((_DAY, "d"), (_HOUR, "h"), (60, "m")) if seconds >= one[0]), (1, "s"))
    return f" ({seconds // size:.0f}{unit} ago)"
