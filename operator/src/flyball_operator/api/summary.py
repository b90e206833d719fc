"""What a list says of a service: how many pods serve, its gravest trouble, and its worst objective. Pure."""

from __future__ import annotations

import math
from typing import Final

from flyball_operator.api.status import ConditionType, InferenceServiceStatus, ObjectiveStatus

#: Conditions whose trouble is named, the gravest first.
_TROUBLES: Final = (
    ConditionType.ACCEPTED,
    ConditionType.READY,
    ConditionType.METRICS_AVAILABLE,
    ConditionType.TUNED,
    ConditionType.CAPACITY_SUFFICIENT,
    ConditionType.OBJECTIVES_MET,
)
#: Of these Unknown is trouble, too.
_UNKNOWN_IS_TROUBLE: Final = frozenset({ConditionType.ACCEPTED, ConditionType.READY})


def is_ready(status: InferenceServiceStatus) -> bool:
    """Whether status says so."""
    return any(one.type == ConditionType.READY and one.status == "True" for one in status.conditions)


def wanted_pods(status: InferenceServiceStatus, replicas: int | None) -> int:
    """Pods that there shall be: `replicas` of the spec, else as many as there are."""
    return status.replicas if replicas is None else replicas


def trouble(status: InferenceServiceStatus) -> str:
    """The reason of the gravest trouble, empty where there is none."""
    known = {one.type: one for one in status.conditions}
    if not known:
        return "New"
    for kind in _TROUBLES:
        one = known.get(kind)
        if one is not None and (one.status == "False" or (one.status != "True" and kind in _UNKNOWN_IS_TROUBLE)):
            return one.reason
    return ""


def worst_objective(status: InferenceServiceStatus) -> ObjectiveStatus | None:
    """The objective with the least budget left, of those that were counted: both of its figures are numbers."""
    counted = [
        (left, one)
        for one in status.objectives
        if number(one.attained) is not None and (left := number(one.budget_remaining)) is not None
    ]
    return min(counted, key=lambda one: one[0])[1] if counted else None


def number(text: object) -> float | None:
    """The finite number in a figure of a status; None where there is none."""
    try:
        found = float(str(text))
    except ValueError:
        return None
    return found if math.isfinite(found) else None
