"""Gives a changed policy that rests on little to one pod first: which one, what the others keep, and how it ends."""

from __future__ import annotations

from collections.abc import Callable

from flyball_engine.contract import Setpoint
from flyball_operator.api.v1alpha1 import TuningStatus
from flyball_operator.tuning.actuate.engine_pods import EnginePods
from flyball_operator.tuning.actuate.setpoint_trial import SetpointTrial, TrialResult, is_due
from flyball_operator.tuning.policy import Policy
from flyball_operator.tuning.queueing import Queueing


class TrialRollout:
    """The memory of one service. `verified`: its engines have run under a policy of the model that is trusted now.

    `failure`: why the last trial failed, until that is undone.
    """

    def __init__(self, engine_pods: EnginePods, clock: Callable[[], float], *, verified: bool) -> None:
        self._engine_pods = engine_pods
        self._clock = clock
        self._verified = verified
        self._trial: SetpointTrial | None = None
        self.failure = ""

    @property
    def pod(self) -> str | None:
        """The name of the pod that has a policy alone, None if none has."""
        return self._trial.name if self._trial is not None else None

    def others(self, start: Policy, asked: Queueing) -> Policy | None:
        """What the others keep while one pod has a setpoint alone, None if none has. Untold, they have `start`.

        `asked`: what users had asked for then.
        """
        if self._engine_pods.alone is None:
            return None
        kept = self._engine_pods.alone[1]
        return Policy.of(kept, asked) if kept is not None else start

    async def begin(self, before: Setpoint | None, left: Policy, *, live: bool, trusted: bool) -> None:
        """Let the setpoint that is pushed next go to one pod, if it is to; the others keep the one `before`.

        `left` is what they run under; `trusted` whether decisions rest on the model. Pods are read back first:
        where Prometheus confirms the rest, they tell how busy they are once in a minute only.
        """
        due = is_due(live=live, trusted=trusted, verified=self._verified, pods=self._engine_pods.ready)
        if not due:
            return
        asked_at = self._clock()
        await self._engine_pods.survey()
        if (first := self._engine_pods.busiest(asked_at)) is not None:
            self._engine_pods.alone = (first.uid, before)
            self._trial = SetpointTrial(
                pod=first.uid, name=first.name, before=left, since=self._clock(), trusted=trusted
            )

    def check(self, setpoint: Setpoint, *, trusted: bool) -> tuple[SetpointTrial, TrialResult] | None:
        """The trial, and how it ended, if it did just now. If it failed, the others keep what they have until `end`."""
        self._verified = self._verified and trusted
        if (trial := self._trial) is None:
            return None
        found = trial.after(self._engine_pods.observe_trial(trial.pod, setpoint), self._clock())
        if isinstance(found, SetpointTrial):
            self._trial = found
            return None
        self.stop()
        if not found.why:
            self.end()
        self._verified = trial.trusted and trusted and not found.why
        return trial, found

    def accept(self, *, trusted: bool) -> None:
        """All pods were given a policy at once: there is nothing left to try of a model that is trusted."""
        self._verified = self._verified or trusted

    def resume(self, tuning: TuningStatus) -> None:
        """Go on with what a pause left under the last leader: one pod at most has what status says, the others keep."""
        newest, held = (tuning.epoch, tuning.generation), self._engine_pods.accepted()
        first = [uid for uid, given in held.items() if given.order() == newest]
        older = [given for given in held.values() if given.order() < newest]
        if older and len(first) <= 1:
            self._engine_pods.alone = (first[0] if first else "", max(older, key=Setpoint.order))

    def stop(self) -> None:
        """Nothing is tried any more. Until `end` each pod keeps what it has: what all shall have is not written yet."""
        self._trial = None

    def end(self) -> None:
        """All pods get what is pushed."""
        self._trial = self._engine_pods.alone = None
        self.failure = ""
