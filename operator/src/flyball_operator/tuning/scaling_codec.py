"""What status keeps of scaling, and back: a new leader goes on with it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from flyball_operator.api.v1alpha1 import ConditionType, InferenceServiceStatus, RecommendedReplicas
from flyball_operator.reconcile.plan.status import ReconcileReason
from flyball_operator.tuning.replicas import Recommended, Replicas
from flyball_operator.tuning.spec import TuningSpec
from flyball_operator.tuning.status_codec import time_status


def resumed(status: InferenceServiceStatus, spec: TuningSpec, now: float) -> Replicas | None:
    """The number that an earlier leader left; None where status has none. What is malformed begins anew."""
    bounds, found = spec.scaling, status.present_scaling
    if bounds is None:
        return None if status.desired_replicas is None else Replicas(replicas=status.desired_replicas * spec.nodes)
    if found is None:
        return taken_over(status)
    try:
        changed = None if found.last_scale_time is None else datetime.fromisoformat(found.last_scale_time).timestamp()
        memory = Replicas(
            replicas=found.replicas,
            up=_remembered(found.scale_up, now),
            down=_remembered(found.scale_down, now),
            changed_at=changed,
        )
    except ValueError:
        return Replicas(replicas=found.replicas)
    return memory.resumed(bounds, now)


def taken_over(status: InferenceServiceStatus) -> Replicas | None:
    """The pods there are, where the operator begins to scale; None where there are none yet.

    None in the middle of a rollout, too: then there may be a pod more than asked for.
    """
    return Replicas(replicas=status.replicas) if status.replicas and not rolling(status) else None


def rolling(status: InferenceServiceStatus) -> bool:
    """Whether pods are being replaced. A rollout that failed is over."""
    return any(
        one.type == ConditionType.PROGRESSING
        and one.status == "True"
        and one.reason != ReconcileReason.ROLLOUT_COMPLETE
        for one in status.conditions
    )  # fmt: skip


def recommended(window: Sequence[Recommended]) -> tuple[RecommendedReplicas, ...]:
    """The newest has no time, so that a status is not rewritten while it lasts."""
    *older, newest = window or (None,)
    dated = [
        RecommendedReplicas(replicas=one.replicas, until=time_status(one.until)) for one in older if one is not None
    ]
    return (*dated, RecommendedReplicas(replicas=newest.replicas)) if newest is not None else ()


def _remembered(window: Sequence[RecommendedReplicas], now: float) -> tuple[Recommended, ...]:
    """Raises ValueError for a time that is none."""
    return tuple(
        Recommended(now if one.until is None else datetime.fromisoformat(one.until).timestamp(), one.replicas)
        for one in window
    )
