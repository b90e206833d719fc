"""Whether one service's tuner is alive: what keeps it from deciding, and when a tick was last completed."""

from __future__ import annotations

from typing import Final

from flyball_operator.tuning.actuate.engine_pods import EnginePods
from flyball_operator.tuning.dependencies import Dependencies
from flyball_operator.tuning.observe.signals import Observation
from flyball_operator.tuning.report.decision_age import DecisionAge
from flyball_operator.tuning.state import Decision, TuningState

#: Of an exception so much is told.
_SHOWN_LENGTH: Final = 200


class Liveness:
    """The memory of one service, by namespace and name.

    `not_deciding`: its status says NotDeciding; `chosen`: status tells of a decision by the law.
    """

    def __init__(
        self, dependencies: Dependencies, labels: tuple[str, str], *, not_deciding: bool, chosen: bool
    ) -> None:
        self._clock, self._late_seconds = dependencies.clock, dependencies.late_seconds
        self._decision_age = DecisionAge.begun(dependencies.clock(), not_deciding=not_deciding, chosen=chosen)
        self._completed_at = self._reported_at = dependencies.clock()
        self._failure = ""
        dependencies.metrics.ages(
            *labels,
            tick=lambda: self._clock() - self._completed_at,
            decision=lambda: self._clock() - self._decision_age.decided_at,
        )

    def decided(
        self, decision: Decision, state: TuningState, observation: Observation, engine_pods: EnginePods
    ) -> None:
        """Note what was decided on what, and whether engines have requests."""
        answers = engine_pods.answers
        self._decision_age = self._decision_age.after(
            decision, state, observation, running=answers.running, steps=answers.steps_made, now=self._clock()
        )

    def without_engines(self) -> None:
        """Note that no engine has told its sizes, so that nothing is to be decided."""
        self._decision_age = self._decision_age.without_engines(self._clock())

    def completed(self) -> None:
        """A tick came to its end."""
        self._completed_at, self._failure = self._clock(), ""

    def failed(self, error: Exception) -> None:
        """A tick did not."""
        self._failure = f"{type(error).__name__}: {error}"[:_SHOWN_LENGTH]

    def report_due(self) -> bool:
        """Whether no tick was completed for long, and that is to be told now: not again at once."""
        now = self._clock()
        if min(now - self._completed_at, now - self._reported_at) < self._late_seconds:
            return False
        self._reported_at = now
        return True

    @property
    def stall(self) -> str:
        """Why no tick is completed."""
        cause = f"the last one failed: {self._failure}" if self._failure else "the last one has not ended"
        return f"no tick was completed for {self._late_seconds:.0f} s, {cause}"

    @property
    def chosen(self) -> bool:
        """Whether the law has chosen once: what engines hold before that is no choice of its."""
        return self._decision_age.chosen

    @property
    def not_deciding(self) -> str | None:
        """What has kept the law from deciding for minutes, None if nothing has."""
        return self._decision_age.not_deciding(self._clock())
