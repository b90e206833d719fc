"""Which transitions of the tuner's conditions are worth an event, and which. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from flyball_operator.api.v1alpha1 import ConditionType
from flyball_operator.tuning.reasons import ConditionState, Reason

Event = tuple[Literal["Normal", "Warning"], str]

#: Events of a condition that turned "True" or "False".
_TURNS: Final[Mapping[ConditionType, Mapping[str, Event]]] = {
    ConditionType.METRICS_AVAILABLE: {"True": ("Normal", "MetricsAvailable"), "False": ("Warning", "MetricsLost")},
    ConditionType.OBJECTIVES_MET: {"True": ("Normal", "ObjectivesMet"), "False": ("Warning", "ObjectivesViolated")},
    # Of False the reason is told.
    ConditionType.CAPACITY_SUFFICIENT: {"True": ("Normal", "CapacitySufficient")},
}
_PAUSES: Final[Mapping[str, Event]] = {
    Reason.PAUSED: ("Normal", "TuningPaused"),
    Reason.PAUSE_UNCLEAR: ("Warning", "TuningPaused"),
}
_FAILURES: Final = (
    Reason.PUSH_FAILED,
    Reason.UNREACHABLE,
    Reason.UNGOVERNED,
    Reason.UNSUPPORTED,
    Reason.FENCED,
    Reason.UNEXPLAINED,
    Reason.NOT_DECIDING,
    Reason.LOOP_STALLED,
    Reason.ADMISSION_STUCK,
)
_WARNINGS: Final = {
    *_FAILURES,
    *(name for kind, name in _PAUSES.values() if kind == "Warning"),
    *(name for events in _TURNS.values() for kind, name in events.values() if kind == "Warning"),
}
#: Begin of the warnings that the load is not carried.
_SHORT: Final = "Capacity"


def of_condition(reason: str) -> bool:
    """Whether a warning of this reason tells what a condition tells, as long as it lasts."""
    return reason in _WARNINGS or reason.startswith(_SHORT)


def event_of(kind: ConditionType, before: tuple[str, str] | None, verdict: ConditionState) -> Event | None:
    """Type and reason of the event that a transition from `before` (status, reason) is worth, if any."""
    if before == (verdict.status, verdict.reason):
        return None
    if kind is ConditionType.TUNED:
        return _tuned_event(before, verdict)
    if kind is ConditionType.CAPACITY_SUFFICIENT and verdict.status == "False":
        return ("Warning", f"{_SHORT}{verdict.reason}")
    if verdict.reason == Reason.SCRAPED_TWICE:
        return "Warning", verdict.reason
    turned = before is None or before[0] != verdict.status
    if kind is ConditionType.CAPACITY_SUFFICIENT and (before is None or before[0] != "False"):
        return None
    return _TURNS.get(kind, {}).get(verdict.status) if turned else None


def _tuned_event(before: tuple[str, str] | None, verdict: ConditionState) -> Event | None:
    if verdict.reason in _PAUSES:
        return _PAUSES[verdict.reason]
    if verdict.reason in _FAILURES:
        return "Warning", verdict.reason
    return ("Normal", "TuningResumed") if before is not None and before[1] in _PAUSES else None
