"""The PodDisruptionBudget: a drain takes one pod at a time unless the spec says otherwise, or there is no budget.

A drain never waits for a pod that serves nobody. Pure.
"""

from __future__ import annotations

from flyball_operator.api.objects import Kind, Object
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.reconcile.plan.owned_objects import owned, selector


def render(service: InferenceService) -> Object | None:
    """The budget, None where the spec asks for none.

    By default it allows the eviction of an only replica: budgets that block drains get deleted by administrators.
    """
    asked = service.spec.pod_disruption_budget
    if not asked.enabled:
        return None
    spec = {
        "maxUnavailable": asked.max_unavailable,
        "selector": {"matchLabels": selector(service.metadata)},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return owned(Kind.DISRUPTION_BUDGET, service.metadata, spec=spec)
