"""A step-level plant: vLLM's scheduling order over a step-time model, in virtual time, counted as the engine counts.

Running requests first, decodes one token each, partial prefills what the step's tokens and the long-prefill threshold
leave; then waiting ones first come first served while slots and tokens last. It is driven by the real law, so
that tests see the law's closed loop in milliseconds.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from flyball_engine.contract import TOKEN_BUCKETS, Limits, Metric, StepKind
from flyball_engine.model import StepModel
from flyball_operator.tuning.observe.signals import (
    CellKey,
    ObjectiveCounts,
    PromptSums,
    RequestLoad,
    Signals,
    StepWindow,
    Sums,
)
from flyball_operator.tuning.spec import LatencyObjective

#: The small model on two CPU cores of the local cluster, as measured.
CPU = StepModel(t0=8.3e-3, h=0.0, c1=0.26e-3, c2=0.20e-3, beta=0.14e-3, g=1.5e-8, kappa=64)
#: An 8B model on one H100, and on one A100: fits of public kernel profiles.
H100 = StepModel(t0=5.6e-3, h=0.4e-3, c1=2e-6, c2=20e-6, beta=8e-6 + 5e-5, g=1.3e-9, kappa=256)
A100 = StepModel(t0=9.5e-3, h=0.5e-3, c1=4e-6, c2=66e-6, beta=8e-6 + 8e-5, g=3e-9, kappa=128)


@dataclass(eq=False)
class PlantRequest:
    """One request on its way; times in seconds."""

    arrival: float
    prompt: int
    output: int
    computed: int = 0
    made: int = 0
    first: float = 0.0
    last: float = 0.0


@dataclass
class PlantCounters:
    """What the engine's counters hold: cumulative."""

    finished: int = 0
    ended: int = 0
    prompt: int = 0
    generated: int = 0
    met: dict[str, list[int]] = field(default_factory=dict)
    together: list[int] = field(default_factory=lambda: [0, 0])


class EnginePlant:
    """One engine core. `noise` is the relative scatter of a step, `stall` the chance of one four times as long."""

    def __init__(
        self,
        model: StepModel,
        objectives: Sequence[LatencyObjective],
        *,
        limits: Limits,
        kv_tokens: int = 10**9,
        noise: float = 0.05,
        stall: float = 0.002,
        seed: int = 1,
    ) -> None:
        self.model, self.objectives, self.limits = model, tuple(objectives), limits
        self.kv_tokens, self.noise, self.stall = kv_tokens, noise, stall
        self.now = 0.0
        self.waiting: deque[PlantRequest] = deque()
        self.running: list[PlantRequest] = []
        self.cells: dict[CellKey, Sums] = {}
        self.counts = PlantCounters()
        self.longest = 0.0
        self._random = random.Random(seed)

    def run(self, until: float, arrivals: deque[PlantRequest]) -> None:
        """Step until `until`, taking requests as they arrive."""
        while self.now < until:
            while arrivals and arrivals[0].arrival <= self.now:
                self.waiting.append(arrivals.popleft())
            batch = self._schedule()
            if not batch:
                self.now = min(until, arrivals[0].arrival) if arrivals else until
                continue
            self._execute(batch)

    def _schedule(self) -> list[tuple[PlantRequest, int]]:
        budget = self.limits.max_num_scheduled_tokens or 8192
        cap = self.limits.long_prefill_token_threshold or budget
        batch: list[tuple[PlantRequest, int]] = []
        for request in self.running:
            tokens = min(budget, cap, max(1, request.prompt - request.computed))
            if tokens > 0:
                batch.append((request, tokens))
                budget -= tokens
        held = sum(request.computed + request.made for request in self.running)
        while self.waiting and budget > 0 and len(self.running) < (self.limits.max_num_active_seqs or 256):
            request = self.waiting[0]
            if held + request.prompt > self.kv_tokens:
                break
            tokens = min(budget, cap, request.prompt)
            self.running.append(self.waiting.popleft())
            batch.append((request, tokens))
            budget -= tokens
            held += request.prompt
        return batch

    def _execute(self, batch: Iterable[tuple[PlantRequest, int]]) -> None:
        tokens = prefill = decodes = kv = 0
        attention = 0.0
        for request, scheduled in batch:
            tokens += scheduled
            if request.computed < request.prompt:
                prefill += scheduled
                attention += scheduled * (request.computed + scheduled / 2)
            else:
                decodes += 1
                kv += request.computed + request.made
        seconds = self.model.step_seconds(
            tokens=tokens, decodes=decodes, prefills=prefill > 0, attention=attention, kv_tokens=kv
        )
        seconds *= max(0.5, self._random.gauss(1.0, self.noise)) * (4.0 if self._random.random() < self.stall else 1.0)
        self.now += seconds
        self.longest = max(self.longest, seconds)
        self._count_step(tokens, prefill, decodes, kv, attention, seconds)
        for request, scheduled in batch:
            self._advance(request, scheduled)

    def _advance(self, request: PlantRequest, scheduled: int) -> None:
        if request.computed < request.prompt:
            request.computed += scheduled
            if request.computed < request.prompt:
                return
            request.first = self.now
        else:
            self._count_gap(self.now - request.last)
        request.made += 1
        request.last = self.now
        if request.made >= request.output:
            self.running.remove(request)
            self._count_request(request)

    def _count_step(self, tokens: int, prefill: int, decodes: int, kv: int, attention: float, seconds: float) -> None:
        bucket = next(edge for edge in TOKEN_BUCKETS if edge >= tokens)
        key = CellKey(bucket, StepKind.MIXED if prefill else StepKind.DECODE)
        step = Sums(
            steps=1.0,
            seconds=seconds,
            seconds_squared=seconds**2,
            tokens=tokens,
            prefill_tokens=prefill,
            decodes=decodes,
            kv_tokens=kv,
            prefill_attention=attention,
        )
        self.cells[key] = self.cells.get(key, Sums()).plus(step)

    def _count_gap(self, gap: float) -> None:
        for objective in self.objectives:
            if objective.metric is Metric.INTER_TOKEN_LATENCY:
                self.counts.met.setdefault(objective.id, [0, 0])[gap > objective.seconds] += 1

    def _count_request(self, request: PlantRequest) -> None:
        counts, good = self.counts, True
        counts.finished += 1
        counts.ended += 1
        counts.prompt += request.prompt
        counts.generated += request.made
        for objective in self.objectives:
            value = measured(objective.metric, request)
            if value is None:
                continue
            good &= value <= objective.seconds
            if objective.metric is not Metric.INTER_TOKEN_LATENCY:
                counts.met.setdefault(objective.id, [0, 0])[value > objective.seconds] += 1
        counts.together[not good] += 1


def measured(metric: Metric, request: PlantRequest) -> float | None:
    """Seconds of a metric of a finished request; None if it has none."""
    if metric is Metric.TIME_TO_FIRST_TOKEN:
        return request.first - request.arrival
    if metric is Metric.END_TO_END_LATENCY:
        return request.last - request.arrival
    return (request.last - request.first) / (request.made - 1) if request.made > 1 else None


def prompts_of(sums: Sums) -> PromptSums:
    """What steps computed of prompts: without a prefix cache a token's mean position is half of what is computed."""
    return PromptSums(tokens=sums.prefill_tokens, squares=2.0 * sums.prefill_attention)


class Observer:
    """Differences of a plant's counters over windows, as Prometheus would give them."""

    def __init__(self, plant: EnginePlant, *, window: float = 15.0, scrape: float = 5.0) -> None:
        self._plant, self._window = plant, window
        self._kept: deque[tuple[float, dict[CellKey, Sums], PlantCounters, float]] = deque(
            maxlen=int(window / scrape) + 1
        )
        self.scrape()

    def scrape(self) -> None:
        """Take a sample now."""
        plant, counts = self._plant, self._plant.counts
        copied = replace(counts, met={k: list(v) for k, v in counts.met.items()}, together=list(counts.together))
        self._kept.append((plant.now, dict(plant.cells), copied, len(plant.running) + len(plant.waiting)))

    def signals(self) -> Signals:
        """What the newest and the oldest sample in the window say."""
        (start, cells, before, queued), (end, now_cells, after, queue) = self._kept[0], self._kept[-1]
        span = max(1e-9, end - start)
        grown = {key: sums.minus(cells.get(key, Sums())) for key, sums in now_cells.items()}
        plant = self._plant
        held = sum(request.computed + request.made for request in plant.running)
        load = RequestLoad(
            arrivals=max(0.0, after.ended - before.ended + queue - queued) / span,
            finished=after.finished - before.finished,
            prompt_tokens=after.prompt - before.prompt,
            cached_tokens=0.0,
            generated_tokens=after.generated - before.generated,
            running=len(plant.running),
            waiting=len(plant.waiting),
            kv_tokens=plant.kv_tokens,
            held_tokens=held,
            used_tokens=held,
        )
        cells = {key: sums for key, sums in grown.items() if sums.steps > 0}
        window = StepWindow(start=start, end=end, cells=cells)
        window = replace(window, prompts=prompts_of(window.total()))
        outcomes = {
            name: ObjectiveCounts(now[0] - before.met.get(name, [0, 0])[0], now[1] - before.met.get(name, [0, 0])[1])
            for name, now in after.met.items()
        }
        return Signals(
            at=end,
            age_seconds=0.0,
            window_seconds=self._window,
            cores=1,
            steps=window,
            load=load,
            outcomes=outcomes,
        )


@dataclass(frozen=True)
class PlantPhase:
    """Poisson arrivals of one kind of request. `burst`: arrivals come in groups of this many."""

    seconds: float
    rate: float
    prompt: int
    output: int
    burst: int = 1
    spread: float = 0.3


def arrivals(phases: Sequence[PlantPhase | Sequence[PlantPhase]], *, seed: int = 1) -> deque[PlantRequest]:
    """Requests of phases one after the other; a sequence of phases runs side by side."""
    rng = random.Random(seed)
    found: list[PlantRequest] = []
    start = 0.0
    for group in phases:
        together = [group] if isinstance(group, PlantPhase) else list(group)
        for phase in together:
            found += _poisson(phase, start, rng)
        start += max(phase.seconds for phase in together)
    return deque(sorted(found, key=lambda request: request.arrival))


def _poisson(phase: PlantPhase, start: float, rng: random.Random) -> list[PlantRequest]:
    found, at = [], start

    def scatter(mean: int) -> int:
        return max(1, round(mean * rng.lognormvariate(-(phase.spread**2) / 2, phase.spread)))

    while (at := at + rng.expovariate(phase.rate / phase.burst)) < start + phase.seconds:
        found += [PlantRequest(at, scatter(phase.prompt), scatter(phase.output)) for _ in range(phase.burst)]
    return found
