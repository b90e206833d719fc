"""What is read off the engines beyond whether they hold their setpoint: requests that stand still, and a slow pod."""

from __future__ import annotations

from flyball_operator.api.v1alpha1 import TuningStatus
from flyball_operator.tuning.actuate.engine_pods import EnginePods
from flyball_operator.tuning.dependencies import Dependencies
from flyball_operator.tuning.filters.stall import Proven, fall_back
from flyball_operator.tuning.observe import slow_pods
from flyball_operator.tuning.observe.signals import Observation
from flyball_operator.tuning.policy import Policy
from flyball_operator.tuning.report import status_codec
from flyball_operator.tuning.report.event_recorder import EventRecorder
from flyball_operator.tuning.spec import TuningSpec
from flyball_operator.tuning.state import Decision, TuningState


class StallFallback:
    """The memory of one service; `tuning`: what its status says."""

    def __init__(self, engine_pods: EnginePods, dependencies: Dependencies, tuning: TuningStatus) -> None:
        self._engine_pods = engine_pods
        self._dependencies = dependencies
        self._proven = Proven()
        self._lags = slow_pods.begun(status_codec.slow_pods(tuning), dependencies.clock())

    @property
    def slow_pods(self) -> dict[str, float]:
        """The pods that are slower than their siblings, and by what factor."""
        return slow_pods.told(self._lags)

    def compare_pods(self, event_recorder: EventRecorder) -> int:
        """Name the pods that are clearly slower than the others, and those that are no longer. Returns how many are."""
        before, biases = self.slow_pods, self._engine_pods.biases()
        self._lags = slow_pods.watched(self._lags, biases, self._dependencies.clock())
        event_recorder.news += slow_pods.news(before, self.slow_pods, biases)
        return len(self.slow_pods)

    def let_in(
        self, state: TuningState, decision: Decision, spec: TuningSpec, observation: Observation, live: Policy | None
    ) -> tuple[TuningState, Decision]:
        """Fall back where engines let nobody in under what they were told; else remember what they work under."""
        if live is not None:
            moving, now = self._engine_pods.moving, self._dependencies.wall()
            self._proven = self._proven.after(live, observation, moving=moving, now=now)
        stuck = self._engine_pods.stuck()
        if stuck is None or not spec.live:
            return state, decision
        return fall_back(state, decision, spec, self._proven, stuck)
