"""A changed policy goes to one pod first until the model is trusted, and once more right after; then to all at once.

The others follow when that pod has shown that it works. Later policies resemble those that engines have run already.
Pure; seconds of one clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from flyball_operator.tuning.policy import Policy
from flyball_operator.tuning.state import TuningState
from flyball_operator.tuning.tunables import TUNABLES


@dataclass(frozen=True, kw_only=True)
class TrialObservation:
    """What the pod's read-back says of the policy on trial.

    `confirmed`: every core runs under it. `tripped`: the watchdog returned a core to its start values. `busy`: there
    are requests that a step should serve. `steps`: made by all cores since their start.
    """

    ready: bool
    confirmed: bool = False
    tripped: bool = False
    busy: bool = False
    steps: int = 0


@dataclass(frozen=True)
class TrialResult:
    """A trial that is over; `why` it failed, empty if it did not."""

    why: str = ""


@dataclass(frozen=True, kw_only=True)
class SetpointTrial:
    """A policy on trial in one pod, by UID and name, since a time; `before`: what the others have.

    `trusted`: whether the policy rests on a trusted model.
    `confirmed_at` and `steps`: when it was first seen to run under it, and the steps made by then.
    """

    pod: str
    name: str
    before: Policy
    since: float
    trusted: bool = False
    confirmed_at: float | None = None
    steps: int = 0

    def after(self, seen: TrialObservation, now: float) -> SetpointTrial | TrialResult:
        """The trial with what the pod shows now."""
        if not seen.ready or seen.tripped:
            return TrialResult(
                f"the watchdog of {self.name} tripped" if seen.ready else f"{self.name} is not Ready any more"
            )
        if self.confirmed_at is None:
            return self._confirming(seen, now)
        if not seen.confirmed:
            return TrialResult(f"{self.name} lost it")
        lasted, moved = now - self.confirmed_at, seen.steps > self.steps
        if lasted < (TUNABLES.window_seconds if moved else TUNABLES.trial_seconds):
            return self
        return TrialResult(f"{self.name} made no step under it" if seen.busy and not moved else "")

    def _confirming(self, seen: TrialObservation, now: float) -> SetpointTrial | TrialResult:
        if seen.confirmed:
            return replace(self, confirmed_at=now, steps=seen.steps)
        return TrialResult(f"{self.name} did not confirm it") if now - self.since >= TUNABLES.trial_seconds else self


def is_due(*, live: bool, trusted: bool, verified: bool, pods: int) -> bool:
    """Whether a changed policy goes to one pod first. `verified`: one has passed since the model is trusted."""
    return live and pods > 1 and not (trusted and verified)


def undone(state: TuningState, trial: SetpointTrial, ended: TrialResult, now: float) -> tuple[TuningState, str]:
    """The state with the policy that the others have, held for a while, and what is said of it; `now`: Unix seconds."""
    moved = state.held(trial.before, until=now + TUNABLES.rollback_hold)
    return moved, f"{ended.why}: what it alone was given is undone, held for {TUNABLES.rollback_hold:.0f} s"
