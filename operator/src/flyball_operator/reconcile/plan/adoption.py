"""Which service may take this operator's pod template now, where services shall do so by themselves.

So many at a time, in a window, the next once the last serves with it. The first that fails stops the others: a template
that does not run at one service would cost each of them a rollout. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, StrEnum
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.alias_generators import to_camel

from flyball_operator.api import names
from flyball_operator.api.quantities import parse_duration

#: Seconds of one shortage after which a service has its turn no more: another may adopt. In a shorter one, such as of a
#: registry, waiting keeps more services from being a pod short. In a longer one, such as of devices, one service would
#: stop all others for ever.
SLOT_SECONDS: Final = 900.0
DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_TIME: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")
_DAY: Final = timedelta(days=1)


class _Strict(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class Window(_Strict):
    """When services may adopt, in UTC: from `start` on each of `days`, for so long. It may end on the next day."""

    start: str
    duration: str
    days: tuple[str, ...] = DAYS

    @field_validator("start")
    @classmethod
    def _check_start(cls, value: str) -> str:
        if not _TIME.fullmatch(value):
            raise ValueError(f"accepted: a time of day in UTC such as 22:30, not {value!r}")
        return value

    @field_validator("duration")
    @classmethod
    def _check_duration(cls, value: str) -> str:
        if not 0 < parse_duration(value) <= _DAY.total_seconds():
            raise ValueError(f"accepted: a duration of at most 24h, not {value!r}")
        return value

    @field_validator("days")
    @classmethod
    def _check_days(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or not set(value) <= set(DAYS):
            raise ValueError(f"accepted: at least one of {', '.join(DAYS)}")
        return value

    def is_open(self, now: datetime) -> bool:
        """Whether the window of today, or that of yesterday, has begun and not ended."""
        today = self._start_on(now)
        length = timedelta(seconds=float(parse_duration(self.duration)))
        return any(
            DAYS[start.weekday()] in self.days and start <= now < start + length for start in (today, today - _DAY)
        )

    def opens_in(self, now: datetime) -> float:
        """Seconds until it opens next."""
        today = self._start_on(now)
        starts = (today + number * _DAY for number in range(len(DAYS) + 1))
        return next((one - now).total_seconds() for one in starts if one > now and DAYS[one.weekday()] in self.days)

    def _start_on(self, now: datetime) -> datetime:
        hour, minute = int(self.start[:2]), int(self.start[3:])
        return now.astimezone(UTC).replace(hour=hour, minute=minute, second=0, microsecond=0)

    def __str__(self) -> str:
        on = "each day" if set(self.days) == set(DAYS) else ", ".join(day for day in DAYS if day in self.days)
        return f"{self.start} UTC for {self.duration}, {on}"


class AdoptionPolicy(_Strict):
    """How services take a new template by themselves: not at all where `max_concurrent` is 0.

    `after`: age of the template that they have, from which on they do.
    """

    max_concurrent: Annotated[int, Field(ge=0, le=1000)] = 0
    window: Window | None = None
    after: str = "0s"

    @field_validator("after")
    @classmethod
    def _check_after(cls, value: str) -> str:
        parse_duration(value)
        return value

    @property
    def least_age(self) -> timedelta:
        """`after`, as a duration."""
        return timedelta(seconds=float(parse_duration(self.after)))


class Standing(Enum):
    """Where a service stands with this operator's template."""

    CURRENT = "its pods were made from it, or from the user's word"
    OUTDATED = "its pods are of another, and all serve"
    UNSETTLED = "its pods are of another, and not all serve, a newer operator made them, or it is not old enough"
    ADOPTING = "it is taking it, and does not serve with it yet"
    WAITING = "it is taking it, and a shortage has held it up for so long that it has its turn no more"
    FAILED = "it did not come up with it, or the API server refused it"


class OutdatedReason(StrEnum):
    """Reasons of `TemplateOutdated`."""

    ADOPT_BY_ANNOTATION = "AdoptByAnnotation"
    """Services do not adopt by themselves; the message has the annotation."""
    OUTSIDE_WINDOW = "OutsideWindow"
    """It adopts by itself once the window of the chart's `adopt.window` opens."""
    NOT_OLD_ENOUGH = "NotOldEnough"
    """It adopts by itself once the template that it has is as old as the chart's `adopt.after`."""
    WAITS_FOR_TURN = "WaitsForTurn"
    """It adopts by itself once others have, and all its pods serve."""
    MADE_BY_NEWER_OPERATOR = "MadeByNewerOperator"
    """A newer operator made the pods, so this one does not undo it; the message has its version."""
    OTHER_SETTINGS = "OtherSettings"
    """Another release of this version made the pods, and they had this one's template before; the message names the
    fields that differ."""
    ADOPTION_STOPPED = "AdoptionStopped"
    """Another service could not adopt the template; the message names it."""
    ADOPTION_FAILED = "AdoptionFailed"
    """This service did not come up with it, and its earlier template is back; or the API server refused it, and the
    pods run on as they are. The message has the server's words."""


@dataclass(frozen=True)
class Turn:
    """Whether a service may adopt `now`; else why not, as `TemplateOutdated` says it.

    `opens`: seconds until the window does, where that is why. `least_age`: of templates that are replaced.
    """

    now: bool
    reason: OutdatedReason
    message: str
    opens: float | None = None
    least_age: timedelta = timedelta()


_BY_ANNOTATION: Final = (
    "this operator would make the pods otherwise; they run on as they are. To replace them, set the annotation"
    f" {names.ANNOTATION_ADOPT} to a new value"
)
OFF: Final = AdoptionPolicy()
NEVER: Final = Turn(False, OutdatedReason.ADOPT_BY_ANNOTATION, _BY_ANNOTATION)
_YES: Final = Turn(True, OutdatedReason.WAITS_FOR_TURN, "adopts this operator's template once all its pods serve")


def turn(policy: AdoptionPolicy, others: Mapping[str, Standing], *, all_seen: bool, now: datetime) -> Turn:
    """Whether a service may adopt beside the `others`, by their names. `all_seen`: whether these are all there are."""
    if policy.max_concurrent == 0:
        return NEVER
    if failed := min((name for name, standing in others.items() if standing is Standing.FAILED), default=""):
        message = f"service {failed} could not adopt this operator's template; none does until that is mended"
        return Turn(False, OutdatedReason.ADOPTION_STOPPED, message)
    if policy.window is not None and not policy.window.is_open(now):
        message = f"adopts this operator's template at {policy.window}"
        return Turn(False, OutdatedReason.OUTSIDE_WINDOW, message, policy.window.opens_in(now))
    if not all_seen or sum(one is Standing.ADOPTING for one in others.values()) >= policy.max_concurrent:
        message = f"adopts this operator's template in its turn, {policy.max_concurrent} at a time"
        return Turn(False, OutdatedReason.WAITS_FOR_TURN, message)
    return _YES
