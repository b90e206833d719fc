"""Whether a service can be observed, as its condition says it. Pure."""

from __future__ import annotations

from flyball_operator.tuning.observe.signals import Unobserved
from flyball_operator.tuning.reasons import ConditionState, Reason


def metrics_verdict(
    missing: Unobserved | None, *, ready_pods: int, young: bool = False, twice: str = ""
) -> ConditionState:
    """Whether the service can be observed; while it is `young`, Prometheus may just not have come to it yet.

    `twice`: as in `Signals`.
    """
    if ready_pods == 0:
        return ConditionState("Unknown", Reason.NO_READY_PODS, "no pod is Ready")
    if missing is not None:
        return ConditionState(
            "Unknown" if young else "False", missing.reason.value, f"{missing.detail}; the limits hold"
        )
    if twice:
        return ConditionState("True", Reason.SCRAPED_TWICE, f"Prometheus has fresh samples; {twice}")
    return ConditionState("True", Reason.SCRAPED, "Prometheus has fresh samples")
