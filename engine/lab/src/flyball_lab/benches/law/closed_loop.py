"""The tuner of one service, as it ships, around simulated engines in virtual time.

It sees what Prometheus would show it. All else is the operator's own: filters, trials, way back, status, and the watch
that gives a setpoint to a pod that came back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Final

from flyball_engine.batching.batch_metrics import BatchCounts, batch_counts
from flyball_engine.batching.draft_statistics import DraftPosition, draft_positions
from flyball_engine.batching.gate import REFUSALS
from flyball_engine.batching.outcomes import MET, VIOLATED, LedgerCounts, Outcome
from flyball_engine.batching.step_statistics import step_sums
from flyball_engine.contract import Metric, Setpoint
from flyball_lab.benches.law.plays import STEP_MARGIN
from flyball_lab.benches.law.tuned_service import TunedService, manifest
from flyball_lab.harness.manifests import Object
from flyball_lab.harness.simulated_engines import SimulatedEngines
from flyball_lab.simulator.core import Core
from flyball_lab.simulator.fleet import cores_of
from flyball_lab.simulator.kv import BLOCK_TOKENS
from flyball_lab.simulator.virtual import TimedAct
from flyball_operator.api.v1alpha1 import Overload
from flyball_operator.tuning.capacity import Balance
from flyball_operator.tuning.estimate.step_time import StepTimeEstimator
from flyball_operator.tuning.observe.signals import (
    Attainment,
    Cells,
    DraftSums,
    Missing,
    ObjectiveCounts,
    Observation,
    PackedSteps,
    PromptSums,
    RequestLoad,
    Signals,
    StepWindow,
    Unobserved,
    difference,
)
from flyball_operator.tuning.policy import NO_BUDGET, Policy
from flyball_operator.tuning.spec import TuningSpec
from flyball_operator.tuning.state import TuningState
from flyball_operator.tuning.tunables import TUNABLES

#: Seconds between two scrapes, unless decisions come more often; and the least that figures are taken over.
SCRAPE_SECONDS: Final = 5.0
WINDOW_SECONDS: Final = 15.0
#: Scrapes that a window spans at least, as the operator's.
SCRAPES_PER_WINDOW: Final = 3
#: Seconds between two looks at the pods, as the operator's.
WATCH_SECONDS: Final = 1.0
_UNSCRAPED: Final = Unobserved(Missing.NOT_SCRAPED, "no scrape yet")


@dataclass(frozen=True)
class Sample:
    """What one scrape shows."""

    at: float
    cells: Cells
    batches: BatchCounts
    counts: LedgerCounts
    drafts: tuple[DraftPosition, ...]
    queued: int
    refused: int


class ClosedLoop:
    """Observes a core at every scrape and ticks every `tick` seconds, as the operator does for a service.

    `gated`: of a service whose overload is shed. `changes`: when engines were told another policy than before;
    `signals`: what it saw last.
    """

    def __init__(
        self,
        tuning: TuningSpec,
        *,
        tick: float,
        gated: bool,
        cores: int = 1,
        scrape: float | None = None,
        model: StepTimeEstimator | None = None,
        service: Callable[[Object], TunedService] = TunedService,
    ) -> None:
        """`cores` engines stand behind what it observes. `scrape`: seconds; absent, as often as it ticks.

        `model`: what its status says it has learnt. `service` makes what is driven of a manifest.
        """
        self.changes: list[float] = []
        self.signals: Signals | None = None
        self._cores = cores
        self._scrape_seconds = scrape or min(SCRAPE_SECONDS, tick)
        self._window_seconds = max(WINDOW_SECONDS, SCRAPES_PER_WINDOW * self._scrape_seconds)
        self._tuning = tuning = replace(tuning, overload=Overload.SHED if gated else Overload.QUEUE)
        self._tick = tick
        self._service = service(manifest(tuning, model))
        self._policy: Policy | None = None
        self._now = 0.0
        self._each: deque[list[int]] = deque(maxlen=int(TUNABLES.compared_seconds / self._scrape_seconds))
        self._samples: deque[Sample] = deque(maxlen=int(self._window_seconds / self._scrape_seconds) + 1)

    @property
    def state(self) -> TuningState:
        """What the tuner remembers."""
        return self._service.state

    @property
    def balance(self) -> Balance | None:
        """The load against what the engine carries, None until there is a model."""
        return self.state.balance

    def events(self, seconds: float) -> list[TimedAct]:
        """All it will do in a run of so many seconds; at one time it scrapes before it decides."""
        # An engine is scraped as soon as it is discovered, which is before it is ready for a first request.
        scrapes = [TimedAct(at, self._scrape) for at in (0.0, *_times(self._scrape_seconds, seconds))]
        ticks = [TimedAct(at, self._decide) for at in _times(self._tick, seconds)]
        watches = [TimedAct(at, self._watch) for at in _times(WATCH_SECONDS, seconds)]
        return [TimedAct(0.0, self._start), *scrapes, *ticks, *watches, TimedAct(seconds, self._end)]

    def _start(self, core: Core) -> None:
        """The pods are there, and nothing was scraped yet: engines get the first policy."""
        engines = SimulatedEngines(cores_of(core), sent=self._sent, on_setpoint=self._told_anew)
        self._service.begin(engines, core.now)
        self._now = core.now
        self._service.tick(core.now, _UNSCRAPED, Attainment())

    def _end(self, _: Core) -> None:
        self._service.end()

    def _scrape(self, core: Core) -> None:
        self._each.append([len(one.scheduler.running) + len(one.scheduler.waiting) for one in cores_of(core)])
        self._samples.append(sample(core))

    def _decide(self, core: Core) -> None:
        if len(self._samples) < 2:
            return
        seen = signals_between(self._samples[0], self._samples[-1], core, self._tuning, cores=self._cores)
        if isinstance(seen.load, RequestLoad):
            seen = replace(seen, load=replace(seen.load, uneven=_uneven(self._each)))
        self.signals = replace(seen, window_seconds=self._window_seconds)
        self._now = core.now
        # Counts come by a query of their own, whose reader passes over figures that cannot be.
        counts = Attainment(outcomes=self.signals.outcomes)
        self._service.tick(core.now, self._observed(self.signals), counts)

    def _watch(self, core: Core) -> None:
        self._now = core.now
        self._service.watch(core.now)

    def _observed(self, signals: Signals) -> Observation:
        """What reaches it of what there is to be seen."""
        return signals

    def _told_anew(self, setpoint: Setpoint) -> None:
        """Some engine is given a setpoint that none had before."""
        policy = Policy.of(setpoint, self._tuning.queueing)
        if self._policy is not None and policy != self._policy:
            self.changes.append(self._now)
        self._policy = policy

    def _sent(self, setpoint: Setpoint) -> Setpoint:
        """What engines get for it."""
        return setpoint


class Constant(ClosedLoop):
    """Sends the law's model, deadline and first steps; S and C are at their ceilings from the first model on.

    Each step has the same share of the tightest token objective, whatever comes: what of the law moves nothing.
    """

    def _sent(self, setpoint: Setpoint) -> Setpoint:
        tuning = self._tuning
        if setpoint.step is None:
            return setpoint
        tokens = [one.seconds for one in tuning.objectives if one.metric is Metric.TIME_PER_OUTPUT_TOKEN]
        seconds = STEP_MARGIN * min(tokens) if tokens else NO_BUDGET
        step = setpoint.step.model_copy(update={"seconds": seconds})
        return setpoint.model_copy(update={"limits": tuning.envelope.upper(), "step": step})


def _times(period: float, seconds: float) -> Sequence[float]:
    return [number * period for number in range(1, int(seconds / period) + 1)]


def sample(core: Core) -> Sample:
    """One scrape."""
    return Sample(
        core.now,
        PackedSteps.of(step_sums(core.statistics.sums)).cells(),
        batch_counts(core.batches.sums),
        core.ledger.collect(),
        draft_positions(core.drafts.sums),
        len(core.scheduler.running) + len(core.scheduler.waiting),
        sum(one.gate.counts[reason] for one in cores_of(core) for reason in REFUSALS),
    )


def signals_between(before: Sample, after: Sample, core: Core, tuning: TuningSpec, *, cores: int) -> Signals:
    """What two scrapes say, and the gauges of now."""
    scheduler, seconds = core.scheduler, after.at - before.at
    ended = sum(after.counts.requests.values()) - sum(before.counts.requests.values())
    load = RequestLoad(
        arrivals=max(0.0, ended + after.queued - before.queued) / seconds,
        finished=_grown(before, after, Outcome.FINISHED),
        prompt_tokens=after.counts.prompt_tokens - before.counts.prompt_tokens,
        cached_tokens=after.counts.cached_prompt_tokens - before.counts.cached_prompt_tokens,
        generated_tokens=after.counts.generated_tokens - before.counts.generated_tokens,
        running=len(scheduler.running),
        waiting=len(scheduler.waiting),
        kv_tokens=scheduler.capacity * BLOCK_TOKENS,
        held_tokens=scheduler.held_tokens(),
        used_tokens=scheduler.used_blocks() * BLOCK_TOKENS,
        refused=(after.refused - before.refused) / seconds,
    )
    prompts = PromptSums(
        tokens=after.batches.prefill_tokens - before.batches.prefill_tokens,
        squares=after.batches.prefill_squares - before.batches.prefill_squares,
    )
    drafts = tuple(
        DraftSums(*(now - then for now, then in zip(after_one, before_one, strict=True)))
        for after_one, before_one in zip_longest(after.drafts, before.drafts, fillvalue=DraftPosition(0.0, 0.0, 0.0))
    )
    cells = difference(before.cells, after.cells) or {}
    ids = [objective.id for objective in tuning.objectives]
    return Signals(
        at=after.at,
        age_seconds=core.now - after.at,
        window_seconds=WINDOW_SECONDS,
        cores=cores,
        steps=StepWindow(start=before.at, end=after.at, cells=cells, prompts=prompts, drafts=drafts),
        load=load,
        outcomes={name: _outcome(before.counts.objectives, after.counts.objectives, name) for name in ids},
    )


def _uneven(each: Iterable[Sequence[int]]) -> float:
    """What the fullest core had over the mean one; `each` scrape shows the requests of all."""
    had = [sum(counts) for counts in zip(*each, strict=True)]
    return max(had) * len(had) / sum(had) if any(had) else 1.0


def _grown(before: Sample, after: Sample, outcome: Outcome) -> float:
    return after.counts.requests[outcome] - before.counts.requests[outcome]


def _outcome(before: Mapping[tuple[str, str], int], after: Mapping[tuple[str, str], int], name: str) -> ObjectiveCounts:
    met, violated = (after.get((name, how), 0) - before.get((name, how), 0) for how in (MET, VIOLATED))
    return ObjectiveCounts(met, violated)
