"""The law run again over what was observed at past times, as a shadow: what it would have done. Pure.

The mode is Auto whatever the spec says, so that counts are used as they are where the law's limits are live. They are
those of the limits that really ran.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from flyball_operator.api.v1alpha1 import DecisionStatus, InferenceService, Mode
from flyball_operator.cli.time_range import rfc3339
from flyball_operator.tuning import status_codec
from flyball_operator.tuning.decide import decide
from flyball_operator.tuning.filters.filters import HoldReason
from flyball_operator.tuning.observe.signals import (
    CellKey,
    ObjectiveCounts,
    Observation,
    Signals,
    StepWindow,
    Sums,
    Unobserved,
    blind_spot,
)
from flyball_operator.tuning.policy import Policy
from flyball_operator.tuning.replicas import Replicas
from flyball_operator.tuning.report.decision_history import is_change
from flyball_operator.tuning.spec import LatencyObjective, TuningSpec, tuning_spec
from flyball_operator.tuning.state import Decision, TuningState, start
from flyball_operator.tuning.tunables import TUNABLES

#: The least and the most of each limit over the engines, by its name.
Ran = Mapping[str, tuple[float, float]]
#: Windows that should follow each other may overlap by this: times are in milliseconds.
_OVERLAP: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class Tick:
    """One tick: what was decided, what engines really ran then, if that is known, and why nothing was seen, if so."""

    decision: Decision
    ran: Ran
    missing: Unobserved | None


@dataclass
class ObservedWindows:
    """What was observed from a Unix time on, in windows that do not overlap."""

    until: float
    cells: dict[CellKey, Sums] = field(default_factory=dict)
    outcomes: dict[str, ObjectiveCounts] = field(default_factory=dict)
    whole: bool = False
    last: Signals | None = None

    def add(self, signals: Signals) -> None:
        """Take in a window, if it begins after the ones before."""
        self.last = signals
        if signals.at - signals.window_seconds < self.until - _OVERLAP:
            return
        self.until, self.whole = signals.at, True
        for key, sums in signals.steps.cells.items() if isinstance(signals.steps, StepWindow) else ():
            self.cells[key] = self.cells.get(key, Sums()).plus(sums)
        for name, outcome in signals.outcomes.items():
            before = self.outcomes.get(name, ObjectiveCounts(0.0, 0.0))
            self.outcomes[name] = ObjectiveCounts(before.met + outcome.met, before.violated + outcome.violated)

    def observed(self, spec: TuningSpec) -> str:
        """In the words of a decision record; where no window was whole, of the last one."""
        if self.last is None:
            return "not observed"
        if not self.whole:
            return status_codec.came_of_it(self.last, spec)
        steps = StepWindow(start=0.0, end=self.until, cells=self.cells)
        return status_codec.came_of_it(replace(self.last, steps=steps, outcomes=self.outcomes), spec)


@dataclass(frozen=True)
class ReplayedChange:
    """A change that the law would have made, what engines ran when it did, and what was seen until the next."""

    decision: Decision
    ran: Ran
    seen: ObservedWindows

    def status(self, spec: TuningSpec) -> DecisionStatus:
        """The change as status shows one."""
        decision = self.decision
        return DecisionStatus(
            time=rfc3339(decision.at),
            trigger=decision.trigger,
            before=status_codec.change_status(decision.before),
            after=status_codec.change_status(decision.policy),
            predicted=status_codec.predicted(decision.output),
            observed=self.seen.observed(spec),
        )


class Replay:
    """The law over one service's past. `resume`: begin with what its status holds, else as if it were never tuned."""

    def __init__(self, service: InferenceService, *, resume: bool) -> None:
        self.service, self.resumed = service, resume
        self.spec = replace(tuning_spec(service.spec), mode=Mode.AUTO)
        self.state: TuningState = start(self.spec)
        if resume:
            known = status_codec.resumed(service.status.tuning, self.spec)
            advised = service.status.desired_replicas
            self.state = replace(known, desired=Replicas(replicas=advised) if advised is not None else None)
        self.ticks: list[Tick] = []
        self.rows: list[ReplayedChange] = []
        self.counted: set[str] = set()
        self.scraped = False
        self.binding = ""

    def tick(self, observation: Observation, ran: Ran, at: float) -> Decision:
        """Decide on what was observed at a Unix time, later than all before."""
        self.state, decision = decide(self.state, observation, self.spec, at)
        missing = blind_spot(observation, TUNABLES.stale_seconds)
        # Before the new decision: its own first window begins with it.
        if isinstance(observation, Signals):
            self.scraped = True
            self.counted |= {name for name, outcome in observation.outcomes.items() if outcome.total > 0}
            if missing is None and self.rows:
                self.rows[-1].seen.add(observation)
        if is_change(decision.before, decision.policy):
            self.rows.append(ReplayedChange(decision, ran, ObservedWindows(at)))
        if decision.output is not None:
            self.binding = decision.output.binding
        self.ticks.append(Tick(decision=decision, ran=ran, missing=missing))
        return decision

    @property
    def holds(self) -> Counter[str]:
        """Ticks by what held the limits; `Changed` where nothing did."""
        return Counter(_held(tick.decision.hold) for tick in self.ticks)

    @property
    def missing(self) -> Counter[str]:
        """Ticks on which nothing was decided for want of signals, by reason."""
        return Counter(tick.missing.reason.value for tick in self.ticks if tick.missing is not None)

    @property
    def uncounted(self) -> list[LatencyObjective]:
        """Objectives that no request was counted against."""
        return [objective for objective in self.spec.objectives if objective.id not in self.counted]

    @property
    def alike(self) -> tuple[int, int]:
        """Ticks at which every engine ran the limits that the law held, of those at which it is known what they ran."""
        known = [tick for tick in self.ticks if tick.ran]
        return sum(_ran_as(tick.ran, tick.decision.before) for tick in known), len(known)


def _held(hold: HoldReason | None) -> str:
    return "Changed" if hold is None else hold.value


def _ran_as(ran: Ran, policy: Policy) -> bool:
    given = {knob.value: float(value) for knob, value in policy.limits.given().items()}
    return all(ran[name] == (value, value) for name, value in given.items() if name in ran)
