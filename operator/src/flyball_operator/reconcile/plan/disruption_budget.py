"""The PodDisruptionBudget: a drain takes one pod at a time, and never waits for one that serves nobody. Pure."""

from __future__ import annotations

from flyball_operator.api.v1alpha1 import ObjectMeta
from flyball_operator.reconcile.plan.objects import Kind, Object, owned, selector


def render(meta: ObjectMeta) -> Object:
    """The budget.

    It allows the eviction of an only replica: budgets that block drains get deleted by administrators.
    """
    spec = {
        "maxUnavailable": 1,
        "selector": {"matchLabels": selector(meta)},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return owned(Kind.DISRUPTION_BUDGET, meta, spec=spec)
