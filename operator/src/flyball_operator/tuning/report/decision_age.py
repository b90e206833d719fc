"""Whether anything is decided for a service that has requests: a loop that turns and does nothing must say so.

Holding still may be right (nothing would get better, a change was undone) or the law cannot decide (nothing is seen,
no model is trusted). Only the latter counts here, and only while requests come. Pure; seconds of one clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from flyball_operator.api.v1alpha1 import ConditionType, InferenceServiceStatus
from flyball_operator.tuning.estimate.step_time import doubt_message
from flyball_operator.tuning.filters.filters import HoldReason
from flyball_operator.tuning.observe.signals import Observation, Signals, Unobserved, blind_spot
from flyball_operator.tuning.state import Decision, TuningState
from flyball_operator.tuning.tunables import TUNABLES

#: Without a decision for so long the condition says so: a model is learnt, and a Prometheus restarted, in less.
NOT_DECIDING_SECONDS: Final = 300.0
#: Without a sign of a request for so long there is none. Engines whose load nobody sees are read back every 15 s.
QUIET_SECONDS: Final = 60.0
_NO_DECISION: Final = (HoldReason.NOT_OBSERVED, HoldReason.LEARNING)


def decided_before(status: InferenceServiceStatus) -> bool:
    """Whether status tells of a decision by the law: the service is tuned, something binds, or was predicted."""
    tuning = status.tuning
    tuned = any(one.type == ConditionType.TUNED and one.status == "True" for one in status.conditions)
    return tuned or bool(tuning.binding_objective) or any(one.predicted for one in tuning.decisions)


@dataclass(frozen=True, kw_only=True)
class DecisionAge:
    """When something was last decided, and what keeps it from being.

    `decided_at`: the last decision that rested on signals and a model, or moment without anything to decide on.
    `busy_at`: the last sign of a request. `steps`: that engines had made then. `cause`: why nothing was decided since.
    `chosen`: whether the law has chosen once, under this leader or an earlier one.
    """

    decided_at: float
    busy_at: float
    steps: float = 0.0
    cause: str = ""
    chosen: bool = False

    @classmethod
    def begun(cls, now: float, *, not_deciding: bool, chosen: bool) -> DecisionAge:
        """At the start of a leader. `not_deciding`: status has NotDeciding, and a new leader must not clear it."""
        return cls(decided_at=now - NOT_DECIDING_SECONDS if not_deciding else now, busy_at=now, chosen=chosen)

    def after(
        self,
        decision: Decision,
        state: TuningState,
        observation: Observation,
        *,
        running: bool,
        steps: float,
        now: float,
    ) -> DecisionAge:
        """With one tick. `running`: engines have requests as they were read back, and made so many `steps` in all."""
        busy = _asked_for(observation) or running or steps > self.steps
        busy_at = now if busy else self.busy_at
        chosen = self.chosen or decision.output is not None
        if decision.hold not in _NO_DECISION or now - busy_at > QUIET_SECONDS:
            return DecisionAge(decided_at=now, busy_at=busy_at, steps=steps, chosen=chosen)
        return replace(self, busy_at=busy_at, steps=steps, cause=_cause(decision, state, observation), chosen=chosen)

    def without_engines(self, now: float) -> DecisionAge:
        """With one tick in which no engine had told its sizes: there is nothing to decide."""
        return replace(self, decided_at=now, cause="")

    def not_deciding(self, now: float) -> str | None:
        """What has kept the law from deciding for minutes, None if nothing has."""
        return self.cause if self.cause and now - self.decided_at >= NOT_DECIDING_SECONDS else None


def _asked_for(observation: Observation) -> bool:
    """Whether requests were seen."""
    if not isinstance(observation, Signals) or isinstance(observation.load, Unobserved):
        return False
    return not observation.load.none


def _cause(decision: Decision, state: TuningState, observation: Observation) -> str:
    """In words that stay the same from tick to tick."""
    if decision.hold is HoldReason.NOT_OBSERVED:
        blind = blind_spot(observation, TUNABLES.stale_seconds)
        return f"{blind.reason.value}: {blind.detail}" if blind is not None else "nothing is observed"
    return f"the step-time model is not trusted: {doubt_message(state.step_time.fit)}"
