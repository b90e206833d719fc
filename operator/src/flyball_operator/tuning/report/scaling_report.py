"""What status says of scaling: the number of replicas that the operator sets, and what holds it."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from flyball_operator.api.v1alpha1 import InferenceServiceStatus, Mode, ScalingStatus
from flyball_operator.tuning import scaling_codec
from flyball_operator.tuning.capacity import Balance
from flyball_operator.tuning.reasons import ConditionState, Reason
from flyball_operator.tuning.replicas import Bounds, Replicas, ScalingLimit
from flyball_operator.tuning.spec import TuningSpec
from flyball_operator.tuning.state import TuningState
from flyball_operator.tuning.status_codec import time_status


class ScalingReason(StrEnum):
    """Reasons of ScalingActive, beside those of `replicas.ScalingLimit` and of the other conditions."""

    NO_CAPACITY_ESTIMATE = "NoCapacityEstimate"
    """ScalingActive is False: what a pod carries, or what arrives, is not known. Replicas stay as they are."""
    ROLLOUT_UNDER_WAY = "RolloutUnderWay"
    """ScalingActive is False: scaling begins once the rollout is complete. Replicas stay as they are."""


#: Reason of the event that tells of another number.
RESCALED: Final = "Rescaled"
#: Reasons of CapacitySufficient where there is a figure to scale by.
_KNOWN: Final = (Reason.SUFFICIENT, Reason.OVERLOADED)
#: Those where nobody sees what arrives.
_UNOBSERVED: Final = (Reason.NOT_OBSERVED, Reason.NO_READY_PODS)


class ScalingReport:
    """The number that is set. `status`: as it was found."""

    def __init__(self, status: InferenceServiceStatus) -> None:
        found = status.present_scaling
        self._set = found.replicas if found is not None else None

    def note(self, state: TuningState, spec: TuningSpec, *, begun: bool) -> str | None:
        """Take a tick in: what people are told of a change. Without an estimate the number stays.

        `begun`: whether the operator has taken over the pods there are.
        """
        before, desired, balance = self._set, state.desired, state.balance
        if spec.scaling is None:
            self._set = None
            return None
        known = state.idle or (balance is not None and balance.settled and balance.rate > 0.0)
        if begun and spec.live and known and desired is not None:
            self._set = desired.replicas
        if desired is None or self._set == before:
            return None
        if before is None:
            # The first number is a change where it is not that of the pods there were.
            return None if desired.changed_at is None else _message(desired, spec.scaling, balance)
        return f"{_pods(before)} before; {_message(desired, spec.scaling, balance)}"

    def status(self, state: TuningState, spec: TuningSpec) -> ScalingStatus | None:
        """What the operator scales by; None where it does not, or not yet."""
        bounds, desired = spec.scaling, state.desired
        if bounds is None or self._set is None:
            return None
        replicas = bounds.clip(self._set)
        if desired is None:
            return ScalingStatus(replicas=replicas)
        return ScalingStatus(
            replicas=replicas,
            last_scale_time=None if desired.changed_at is None else time_status(desired.changed_at),
            scale_up=scaling_codec.recommended(desired.up),
            scale_down=scaling_codec.recommended(desired.down),
        )


def scaling_verdict(
    state: TuningState, spec: TuningSpec, capacity: ConditionState, *, begun: bool
) -> ConditionState | None:
    """Whether the operator scales, and what holds the number; None where it is not asked to.

    `capacity`: what is said of capacity. `begun`: whether the operator has taken over the pods there are.
    """
    if spec.scaling is None:
        return None
    if not spec.live:
        return _not_live(spec)
    if not begun:
        said = "replicas stay as they are until the rollout is complete"
        return ConditionState("False", ScalingReason.ROLLOUT_UNDER_WAY, said)
    if capacity.reason == Reason.INFEASIBLE and not state.idle:
        return ConditionState("False", Reason.INFEASIBLE, "replicas stay as they are: no number keeps the objectives")
    known = capacity.reason not in _UNOBSERVED if state.idle else capacity.reason in _KNOWN
    if not known or state.desired is None:
        said = f"replicas stay as they are: {capacity.message}"
        return ConditionState("False", ScalingReason.NO_CAPACITY_ESTIMATE, said)
    return ConditionState("True", state.desired.limit, _message(state.desired, spec.scaling, state.balance))


def _not_live(spec: TuningSpec) -> ConditionState:
    stay = "replicas stay as they are"
    if spec.paused is not None:
        return ConditionState("False", Reason.PAUSED, f"{stay}: tuning is paused")
    if spec.mode is Mode.RECOMMEND:
        return ConditionState("False", Reason.RECOMMEND_ONLY, f"{stay}; see status.desiredReplicas")
    return ConditionState("False", Reason.DISABLED, f"{stay}: what pods carry is known with tuned limits only")


def _pods(number: int) -> str:
    return "1 replica" if number == 1 else f"{number} replicas"


def _message(desired: Replicas, bounds: Bounds, balance: Balance | None) -> str:
    number, queue_asks = _pods(desired.replicas), balance is not None and balance.queue_asks
    needs = "the load and the requests that wait need" if queue_asks else "the load needs"
    match desired.limit:
        case ScalingLimit.AT_MINIMUM:
            return f"{number}, minReplicas: the load needs fewer"
        case ScalingLimit.AT_MAXIMUM:
            return f"{number}, maxReplicas: {needs} more"
        case ScalingLimit.GROWTH_LIMITED:
            return f"{number}: more are added once these are Ready"
        case ScalingLimit.STABILIZING if desired.short:
            return f"{number}: {needs} more, which must last for {bounds.up_seconds:.0f}s"
        case ScalingLimit.STABILIZING:
            return f"{number}: the load needs fewer, which must last for {bounds.down_seconds:.0f}s"
        case ScalingLimit.AS_NEEDED:
            return f"{number}: as many as {needs}"
