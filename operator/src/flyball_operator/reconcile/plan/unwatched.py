"""The reconciler's part of the status of a service whose namespace is not watched.

Nothing is decided about such a service: what is around it may not be read. So the figures of the status stay, with
the generation that they are of, and every condition of the reconciler is Unknown. Pure.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from flyball_operator.api.objects import Object, timestamp
from flyball_operator.api.v1alpha1 import RECONCILER_CONDITIONS, TUNER_FIELDS, ConditionType

#: The namespace is missing, or rights that the operator needs there are not granted; the message says which.
NAMESPACE_NOT_WATCHED: Final = "NamespaceNotWatched"


def unwatched(raw: Object, why: str, *, epoch: int, now: datetime) -> Object | None:
    """The reconciler's part for a service as read; None if its status says so already."""
    found = raw.get("status") or {}
    before = {item.get("type"): item for item in found.get("conditions") or ()}
    conditions = [
        {
            "type": kind.value,
            "status": "Unknown",
            "reason": NAMESPACE_NOT_WATCHED,
            "message": f"nobody looks after this service: {why}",
            "observedGeneration": (before.get(kind) or {}).get("observedGeneration", 0),
            "lastTransitionTime": _since(before.get(kind) or {}, now),
        }
        for kind in ConditionType
        # A service that names no gateway has no route, of which then nothing is read.
        if kind in RECONCILER_CONDITIONS and (kind is not ConditionType.ROUTED or kind in before)
    ]
    if all(before.get(item["type"], {}).get("message") == item["message"] for item in conditions):
        return None
    kept = {field: value for field, value in found.items() if field not in TUNER_FIELDS}
    return {**kept, "epoch": epoch, "conditions": conditions}


def _since(before: Object, now: datetime) -> str:
    same = before.get("status") == "Unknown" and before.get("lastTransitionTime")
    return str(same or timestamp(now))
