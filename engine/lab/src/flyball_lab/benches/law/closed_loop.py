"""The tuner's law around a simulated engine, in virtual time: it sees what Prometheus would show it, and retunes.

It sends what the law decided and adds nothing: behind a gate that is, besides the limits, the time a step may take
with the model it was learnt by, and the deadline.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from flyball_engine.batching.gate import REFUSALS
from flyball_engine.batching.outcomes import MET, VIOLATED, LedgerCounts
from flyball_engine.batching.outcomes import Outcome as Ended
from flyball_engine.batching.step_statistics import step_sums
from flyball_engine.contract import Metric
from flyball_lab.benches.law.plays import STEP_MARGIN
from flyball_lab.benches.law.setpoints import fixed
from flyball_lab.simulator.core import Core
from flyball_lab.simulator.fleet import cores_of
from flyball_lab.simulator.kv import BLOCK_TOKENS
from flyball_lab.simulator.virtual import Event
from flyball_operator.api.v1alpha1 import Overload
from flyball_operator.tuning.capacity import Balance
from flyball_operator.tuning.decide import decide
from flyball_operator.tuning.observe.signals import (
    Cells,
    Observation,
    Outcome,
    RequestLoad,
    Signals,
    StepWindow,
    cells_of,
    difference,
)
from flyball_operator.tuning.policy import NO_BUDGET, Policy
from flyball_operator.tuning.spec import TuningSpec
from flyball_operator.tuning.state import start
from flyball_operator.tuning.tunables import TUNABLES

#: Seconds between two scrapes, unless decisions come more often; and the least that figures are taken over.
SCRAPE_SECONDS: Final = 5.0
WINDOW_SECONDS: Final = 15.0
#: Scrapes that a window spans at least, as the operator's.
SCRAPES_PER_WINDOW: Final = 3


@dataclass(frozen=True)
class _Sample:
    """What one scrape shows."""

    at: float
    cells: Cells
    counts: LedgerCounts
    queued: int
    refused: int


class ClosedLoop:
    """Observes a core at every scrape and decides at every `tick` seconds, as the operator does for a service.

    `gated`: of a service whose overload is shed. `changes`: setpoints after the first; `signals`: what it decided on
    last.
    """

    def __init__(
        self, tuning: TuningSpec, *, tick: float, gated: bool, cores: int = 1, scrape: float | None = None
    ) -> None:
        """`cores` engines stand behind what it observes. `scrape`: seconds; absent, as often as it decides."""
        self.changes: list[float] = []
        self.signals: Signals | None = None
        self._cores = cores
        self._scrape_seconds = scrape or min(SCRAPE_SECONDS, tick)
        self._window_seconds = max(WINDOW_SECONDS, SCRAPES_PER_WINDOW * self._scrape_seconds)
        self._tuning = tuning = replace(tuning, overload=Overload.SHED if gated else Overload.QUEUE)
        self._tick = tick
        self._state = start(tuning)
        self._generation = 0
        self._each: deque[list[int]] = deque(maxlen=int(TUNABLES.uneven_seconds / self._scrape_seconds))
        self._samples: deque[_Sample] = deque(maxlen=int(self._window_seconds / self._scrape_seconds) + 1)

    @property
    def balance(self) -> Balance | None:
        """The load against what the engine carries, None until there is a model."""
        return self._state.balance

    def events(self, seconds: float) -> list[Event]:
        """All it will do in a run of so many seconds; at one time it scrapes before it decides."""
        first = Event(0.0, self._push)
        # An engine is scraped as soon as it is discovered, which is before it is ready for a first request.
        scrapes = [Event(at, self._scrape) for at in (0.0, *_times(self._scrape_seconds, seconds))]
        return [first, *scrapes, *(Event(at, self._decide) for at in _times(self._tick, seconds))]

    def _scrape(self, core: Core) -> None:
        queued = len(core.scheduler.running) + len(core.scheduler.waiting)
        self._each.append([len(one.scheduler.running) + len(one.scheduler.waiting) for one in cores_of(core)])
        refused = sum(one.gate.counts[reason] for one in cores_of(core) for reason in REFUSALS)
        self._samples.append(
            _Sample(core.now, cells_of(step_sums(core.statistics.sums)), core.ledger.collect(), queued, refused)
        )

    def _decide(self, core: Core) -> None:
        if len(self._samples) < 2:
            return
        seen = _signals(self._samples[0], self._samples[-1], core, self._tuning)
        if isinstance(seen.load, RequestLoad):
            seen = replace(seen, load=replace(seen.load, uneven=_uneven(self._each)))
        self.signals = replace(seen, window_seconds=self._window_seconds, cores=self._cores)
        self._state, decision = decide(self._state, self._told(self.signals), self._tuning, core.now)
        if decision.changed:
            self.changes.append(core.now)
            self._push(core)

    def _told(self, signals: Signals) -> Observation:
        """What reaches it of what there is to be seen."""
        return signals

    def _sent(self) -> Policy:
        """What engines are told."""
        return self._state.policy

    def _push(self, core: Core) -> None:
        self._generation += 1
        policy = self._sent()
        sent = fixed(policy.limits, self._tuning, generation=self._generation)
        setpoint = sent.model_copy(
            update={"step": policy.step, "shed": policy.shed, "on_time": policy.on_time, "queue": policy.queue}
        )
        core.follow(setpoint)
        core.apply(setpoint)


class Constant(ClosedLoop):
    """Sends the law's model, deadline and first steps; S and C are at their ceilings from the first model on.

    Each step has the same share of the tightest token objective, whatever comes: what of the law moves nothing.
    """

    def _sent(self) -> Policy:
        policy, tuning = self._state.policy, self._tuning
        if policy.step is None:
            return policy
        tokens = [one.seconds for one in tuning.objectives if one.metric is Metric.TIME_PER_OUTPUT_TOKEN]
        seconds = STEP_MARGIN * min(tokens) if tokens else NO_BUDGET
        step = policy.step.model_copy(update={"seconds": seconds})
        return replace(policy, limits=tuning.envelope.upper(), step=step)


def _times(period: float, seconds: float) -> Sequence[float]:
    return [number * period for number in range(1, int(seconds / period) + 1)]


def _signals(before: _Sample, after: _Sample, core: Core, tuning: TuningSpec) -> Signals:
    """What two scrapes say, and the gauges of now."""
    scheduler, seconds = core.scheduler, after.at - before.at
    ended = sum(after.counts.requests.values()) - sum(before.counts.requests.values())
    load = RequestLoad(
        arrivals=max(0.0, ended + after.queued - before.queued) / seconds,
        finished=_grown(before, after, Ended.FINISHED),
        prompt_tokens=after.counts.prompt_tokens - before.counts.prompt_tokens,
        cached_tokens=after.counts.cached_prompt_tokens - before.counts.cached_prompt_tokens,
        generated_tokens=after.counts.generated_tokens - before.counts.generated_tokens,
        running=len(scheduler.running),
        waiting=len(scheduler.waiting),
        kv_tokens=scheduler.capacity * BLOCK_TOKENS,
        held_tokens=scheduler.held_tokens(),
        refused=(after.refused - before.refused) / seconds,
    )
    ids = [objective.id for objective in tuning.objectives]
    return Signals(
        at=after.at,
        age_seconds=core.now - after.at,
        window_seconds=WINDOW_SECONDS,
        cores=1,
        steps=StepWindow(start=before.at, end=after.at, cells=difference(before.cells, after.cells) or {}),
        load=load,
        outcomes={name: _outcome(before.counts.objectives, after.counts.objectives, name) for name in ids},
    )


def _uneven(each: Iterable[Sequence[int]]) -> float:
    """What the fullest core had over the mean one; `each` scrape shows the requests of all."""
    had = [sum(counts) for counts in zip(*each, strict=True)]
    return max(had) * len(had) / sum(had) if any(had) else 1.0


def _grown(before: _Sample, after: _Sample, outcome: Ended) -> float:
    return after.counts.requests[outcome] - before.counts.requests[outcome]


def _outcome(before: Mapping[tuple[str, str], int], after: Mapping[tuple[str, str], int], name: str) -> Outcome:
    met, violated = (after.get((name, how), 0) - before.get((name, how), 0) for how in (MET, VIOLATED))
    return Outcome(met, violated)
