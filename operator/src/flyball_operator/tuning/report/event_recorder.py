"""The events of one service: of transitions only, and of what has no condition."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from flyball_engine.figures import percent
from flyball_operator.api.v1alpha1 import Condition, ConditionType
from flyball_operator.tuning.estimate.step_time import Fit
from flyball_operator.tuning.ports import EventType
from flyball_operator.tuning.reasons import ConditionState
from flyball_operator.tuning.report.transitions import event_of

ConditionStates = dict[ConditionType, ConditionState]
Post = Callable[[EventType, str, str], Awaitable[None]]


class EventRecorder:
    """Remembers what it reported last. `known`: the conditions in status. `trusted`: whether there was a model."""

    def __init__(self, known: Iterable[Condition], post: Post, *, trusted: bool) -> None:
        self._post = post
        self._reported = {condition.type: (condition.status, condition.reason) for condition in known}
        self._trusted = trusted
        self._announced: Mapping[ConditionType, ConditionState] | None = None
        #: Events to be posted once, at the end of the tick: type, reason, message.
        self.pending: list[tuple[EventType, str, str]] = []

    def status(self, kind: ConditionType) -> str:
        """The status that a condition had last, "Unknown" if it never was."""
        return self._reported.get(kind, ("Unknown", ""))[0]

    def reason(self, kind: ConditionType) -> str:
        """The reason that a condition had last, empty if it never was."""
        return self._reported.get(kind, ("", ""))[1]

    async def announce(self, verdicts: Mapping[ConditionType, ConditionState], fit: Fit | None) -> None:
        """Post what is pending, and the transitions."""
        trusted = fit is not None and fit.trusted
        if verdicts is self._announced and trusted == self._trusted and not self.pending:
            return
        while self.pending:
            await self._post(*self.pending.pop(0))
        for kind, verdict in verdicts.items():
            before = self._reported.get(kind)
            self._reported[kind] = (verdict.status, verdict.reason)
            found = event_of(kind, before, verdict)
            if found is not None:
                await self._post(found[0], found[1], verdict.message)
        if fit is not None and trusted and not self._trusted:
            await self._post(
                "Normal", "ModelLearned", f"the step-time model explains steps within {percent(fit.error)}"
            )
        self._trusted, self._announced = trusted, verdicts
