"""The last decisions, as status keeps them: what was changed and why, what was expected of it and what came. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from flyball_operator.api.v1alpha1 import DecisionStatus, Mode
from flyball_operator.tuning import status_codec
from flyball_operator.tuning.observe.signals import Signals
from flyball_operator.tuning.policy import Policy
from flyball_operator.tuning.spec import TuningSpec
from flyball_operator.tuning.state import ChangeCause, Decision

_KEPT: Final = 5
#: A window is seen in full this much later.
_SCRAPE_SECONDS: Final = 5.0


@dataclass(frozen=True)
class DecisionHistory:
    """Decisions, newest first; `came_of_it`: what the newest window showed."""

    decisions: tuple[DecisionStatus, ...] = ()
    came_of_it: str = ""

    def changed(self, before: Policy, after: Policy, decision: Decision, mode: Mode) -> DecisionHistory:
        """With the change from one policy to another, if it is one for people; a model that moved is none."""
        if not is_change(before, after):
            return self
        trigger = decision.trigger
        if mode is Mode.DISABLED:
            trigger = "mode Disabled runs at the upper bounds"
        elif decision.hold is not None:
            trigger = f"mode {mode.value} takes up the law's limits"
        entry = DecisionStatus(
            time=status_codec.time_status(decision.at),
            trigger=trigger,
            before=status_codec.change_status(before),
            after=status_codec.change_status(after),
            predicted=status_codec.predicted(decision.output) if mode is Mode.AUTO else "",
        )
        return replace(self, decisions=(entry, *self.closed().decisions)[:_KEPT])

    def observed(self, signals: Signals, spec: TuningSpec, now: float) -> DecisionHistory:
        """With what a window showed, once that is all after the newest decision; `now` in Unix seconds."""
        if signals.steps is None:
            return self
        noted = replace(self, came_of_it=status_codec.came_of_it(signals, spec))
        if not self.decisions:
            return noted
        taken = datetime.fromisoformat(self.decisions[0].time).timestamp()
        return noted.closed() if now - taken >= signals.window_seconds + _SCRAPE_SECONDS else noted

    def closed(self) -> DecisionHistory:
        """With what came of the newest decision, unless that is noted already."""
        if not self.decisions or self.decisions[0].observed:
            return self
        newest = self.decisions[0].model_copy(update={"observed": self.came_of_it})
        return replace(self, decisions=(newest, *self.decisions[1:]))


def cause_of(decision: Decision, mode: Mode) -> str:
    """What moved the limits of engines: where the decision itself moves nothing, an edited mode did."""
    return decision.cause if mode is Mode.AUTO and decision.hold is None else ChangeCause.SPEC_EDITED


def is_change(before: Policy, after: Policy) -> bool:
    """Whether people would see a change."""
    return status_codec.change_status(before) != status_codec.change_status(after)
