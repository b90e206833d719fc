"""One simulated engine core: it makes steps up to a given time, and counts as the real engine counts.

Whoever drives it says how late it is: `run(until)` makes every step that ends by then and leaves the one that does not
in flight. What comes meanwhile (requests, clients that leave, a setpoint) waits for the end of that step, as it would
in vLLM. So virtual time and real time are the same thing, driven differently.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from flyball_engine.batching.batch_metrics import BatchMetrics
from flyball_engine.batching.gate import AdmissionReason, Admitted, Arrival, CoreLoad, Gate
from flyball_engine.batching.late import LetIn, SequenceProgress, but_one_alone
from flyball_engine.batching.on_time import PrefillRate
from flyball_engine.batching.outcomes import End, RequestLedger
from flyball_engine.batching.setpoint_enforcer import RequestedLimits, SetpointEnforcer, Sizes
from flyball_engine.batching.step_statistics import Step, StepStatistics
from flyball_engine.contract import (
    DEFAULT_CLASS,
    Generation,
    Knob,
    Metric,
    ObjectiveSpec,
    QueueLimits,
    SchedulingPolicy,
    Setpoint,
)
from flyball_lab.simulator.plant import Plant, Stretch
from flyball_lab.simulator.prompt_order import PromptOrder
from flyball_lab.simulator.requests import Fate, Request
from flyball_lab.simulator.scheduler import Scheduler, StepPlan

#: Knobs that a simulated core cannot move: its depth is what it was started with.
FIXED: Final = (Knob.NUM_SPECULATIVE_TOKENS,)


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """`drafts` tokens per decode and step; each is accepted with chance `acceptance` if those before it were."""

    drafts: int
    acceptance: float


@dataclass(frozen=True, kw_only=True)
class CoreConfig:
    """What a core is started with. `start` are its first limits, absent its sizes."""

    sizes: Sizes
    kv_tokens: int
    start: RequestedLimits | None = None
    policy: SchedulingPolicy = SchedulingPolicy.FCFS
    speculation: Speculation | None = None


@dataclass(frozen=True, slots=True)
class _Flight:
    """A step on its way."""

    plan: StepPlan
    seconds: float
    end: float


class Core:
    """The engine core.

    `sums` and `batch_sums` may be parts of a state file; `jumps` off makes every step by itself (for tests).
    """

    def __init__(
        self,
        config: CoreConfig,
        plant: Plant,
        random: Random,
        *,
        sums: MutableSequence[float] | None = None,
        batch_sums: MutableSequence[float] | None = None,
        jumps: bool = True,
    ) -> None:
        """Raises ValueError for sizes that vLLM refuses to start with."""
        drafts = config.speculation.drafts if config.speculation else 0
        sizes = replace(config.sizes, tokens_per_decode=1 + drafts)
        whole = RequestedLimits(active=sizes.max_num_seqs, tokens=sizes.max_num_batched_tokens, threshold=0)
        self.now = 0.0
        self.plant = plant
        self.ledger = RequestLedger()
        self.statistics = StepStatistics(sums)
        self.batches = BatchMetrics(sizes.max_num_seqs, batch_sums)
        self.scheduler = Scheduler(
            sizes=sizes,
            kv_tokens=config.kv_tokens,
            policy=config.policy,
            decode_steps=self._speculative_steps if drafts else None,
        )
        self.prompts = PromptOrder(
            self.scheduler, refusable=lambda request: not request.together and self.may_refuse((request,))
        )
        self.governed = SetpointEnforcer(sizes, config.start or whole, fixed=FIXED)
        self._config = config
        self._random = random
        self._jumps = jumps
        self._flight: _Flight | None = None
        self.starts = 1
        self._ready_at = 0.0
        self._numbers = 0
        self._leaving: list[tuple[float, int, Request]] = []
        self._inbox: list[Setpoint] = []
        self._let_in: LetIn[Request] = LetIn()
        self._gaps: tuple[ObjectiveSpec, ...] = ()
        self._queue, self._queue_until = QueueLimits(), math.inf
        self._new_gate: Callable[[Core], Gate] = _gate
        self.gate = self._new_gate(self)

    def stand_behind(self, gate: Callable[[Core], Gate]) -> None:
        """Have a gate of another kind, as whoever compares gates does."""
        self._new_gate = gate
        self.gate = gate(self)

    @property
    def accepted(self) -> Generation | None:
        """The setpoint in force when the step in flight has ended; None before the first, and after an expiry."""
        waiting = self._inbox[-1] if self._inbox else None
        if waiting is None:
            return self.governed.applied
        return Generation(epoch=waiting.epoch, generation=waiting.generation)

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache has room for."""
        return self._config.kv_tokens

    @property
    def serves(self) -> bool:
        """Whether it is there: not while it starts after a crash."""
        return self.now >= self._ready_at

    @property
    def next_change(self) -> float:
        """When the step in flight ends; infinite if none is."""
        return self._flight.end if self._flight else math.inf

    def run(self, until: float) -> None:
        """Make every step that ends by `until`."""
        while True:
            if self._flight is not None:
                if self._flight.end > until:
                    return
                self._land(self._flight)
            self._between_steps()
            if self.now >= until:
                return  # what else comes at this very moment is to be in the next step
            plan = self._plan()
            if plan.step.tokens == 0:
                self.now = until
                continue
            # A step that preempts admits nobody, the next one may.
            alike = not plan.chunks and not plan.preempted
            # While prompts wait that have an order, each step judges them.
            judged = (self.prompts.holds or len(self._let_in) > 0) and len(self.scheduler.waiting) > 0
            if self._jumps and alike and not judged and self._jump(plan, until):
                continue
            seconds = self.plant.step(plan.step, reread_tokens=plan.reread_tokens)
            self._flight = _Flight(plan, seconds, self.now + seconds)

    def submit(self, requests: Sequence[Request]) -> Admitted | None:
        """The sequences of one HTTP request come in; the core has run up to their arrival.

        Returns what the gate says of it; None if it was refused for another reason.
        """
        arrival, verdict = requests[0].arrival, None
        of_class = requests[0].of_class
        opened = self.ledger.opened(arrival, of_class)
        full = self._full(arrival)
        if full:
            self.gate.queue_full()
        elif arrival >= self._ready_at and all(self._servable(request) for request in requests):
            verdict = self.gate.decide(self._arrival(requests[0]), now=arrival)
        if verdict is None or not verdict.admitted:
            for request in requests:
                request.fate, request.ended = Fate.SHED if full or verdict else Fate.REFUSED, arrival
            self.ledger.ended(opened, End.REFUSED, arrival)
            return verdict
        for request in requests:
            request.number = self._numbers = self._numbers + 1
            request.target = request.prompt
            request.sequence = self.ledger.started(opened)
            request.together = tuple(requests) if len(requests) > 1 else ()
            request.expected_late = verdict.reason in (AdmissionReason.IDLE, AdmissionReason.PROBE)
            request.leaves = request.arrival + request.patience
            if math.isfinite(request.leaves):
                heapq.heappush(self._leaving, (request.leaves, request.number, request))
            self.scheduler.waiting.push(request)
            if verdict.refusable:
                size, tokens = len(requests), request.prompt
                key = requests[0].number
                self._let_in.add(request, key=key, size=size, arrived=arrival, tokens=tokens, of_class=of_class)
            self.prompts.came(request)
            self.batches.arrived(request, arrival)
        # Whatever comes of it, the ledger counts it with the end of its last sequence.
        self.ledger.ended(opened, End.ANSWERED, arrival)
        return verdict

    def may_refuse(self, requests: Sequence[Request]) -> bool:
        """Whether these may still be refused, which are of one HTTP request."""
        return self._let_in.has(requests[0].number)

    def leave(self, request: Request, now: float) -> None:
        """Its client is gone: the core hears of it between two steps."""
        if request.fate is Fate.OPEN:
            request.leaves = now
            heapq.heappush(self._leaving, (now, request.number, request))
            if self._flight is None:
                self._between_steps()

    def apply(self, setpoint: Setpoint) -> None:
        """Put a setpoint in force between two steps: at once if none is in flight."""
        self._inbox.append(setpoint)
        if self._flight is None:
            self._between_steps()

    def follow(self, setpoint: Setpoint) -> None:
        """What of a setpoint is done where requests come in, at once: counting, the gate, the limits of the queue."""
        self.ledger.set_objectives(setpoint.objectives)
        self.ledger.set_classes(setpoint.classes)
        self._queue, self._queue_until = setpoint.queue, self.now + setpoint.expires_seconds
        self._gaps = tuple(o for o in setpoint.objectives if o.metric is Metric.INTER_TOKEN_LATENCY)
        self.gate.set_policy(setpoint, now=self.now)

    def load(self) -> CoreLoad:
        """What the gate decides by."""
        scheduler, flight = self.scheduler, self._flight
        return CoreLoad(
            rate=self.prefill_rate() if self.governed.shed is not None else None,
            in_flight_seconds=0.0 if flight is None else self.governed.budgeter.expected(flight.plan.step) / 2,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            prefills=len(scheduler.batch().prefills),
        )

    def crash(self, now: float, *, start_seconds: float) -> None:
        """All requests fail, caches and the setpoint are lost; for `start_seconds` everything is refused.

        Counters go on, as if summed over restarts.
        """
        self.now = now
        self._flight = None
        self._inbox.clear()
        self._let_in = LetIn()
        self.prompts.follow(None)
        for request in self.scheduler.clear():
            request.fate, request.ended = Fate.FAILED, self.now
            self.batches.ended(request, request.made, self.now)
            if request.sequence is not None:
                self.ledger.ended(request.sequence.request, End.FAILED, self.now)
        trips, expiries = self.governed.trips, self.governed.expiries
        self.governed = SetpointEnforcer(self.governed.sizes, self.governed.start, fixed=FIXED)
        self.governed.trips, self.governed.expiries = trips, expiries
        counts, self.gate = self.gate.counts, self._new_gate(self)
        self.gate.counts = counts
        self.starts += 1
        self._ready_at = self.now + start_seconds

    def _arrival(self, request: Request) -> Arrival:
        return Arrival(request.prompt, (self.scheduler.prefixes.hit(request),), request.of_class, request.named)

    def _servable(self, request: Request) -> bool:
        return request.prompt >= 1 and request.prompt + request.output <= self._config.sizes.max_model_len

    def _between_steps(self) -> None:
        """What waited for the end of a step happens."""
        for setpoint in self._inbox:
            if self.governed.apply(setpoint, self.now):
                self.statistics.new_period()
        self._inbox.clear()
        self.governed.expire_if_due(self.now)
        on_time = self.governed.on_time if self._config.policy is SchedulingPolicy.FCFS else None
        self.prompts.follow(on_time, self.governed.classes)
        while self._leaving and self._leaving[0][0] <= self.now:
            at, _, request = heapq.heappop(self._leaving)
            if request.fate is Fate.OPEN and request.leaves <= at:
                self._let_go(request, at)

    def _plan(self) -> StepPlan:
        scheduler = self.scheduler
        plan = self._plan_in_order() if self.prompts.holds else None
        if plan is None:
            plan = scheduler.plan(self.governed.limits(scheduler.batch(), scheduler.queue))
        for request in plan.preempted:
            self._catch_up(request, self.now)
            self.prompts.progressed(request)
        if plan.preempted:
            self.batches.preempted(len(plan.preempted))
        if plan.admitted:
            joined = [(request, request.prompt) for request in plan.admitted]
            self.batches.admitted(joined, running=len(scheduler.running), whole=False, now=self.now)
        # Decodes are in every step, and prompts have turns: those behind the first wait for it.
        first = next(iter(plan.chunks if self.prompts.holds else scheduler.prefilling), None)
        self.governed.watch(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            tokens=plan.step.tokens,
            names=lambda: () if first is None else (str(first.number),),
            now=self.now,
        )
        return plan

    def _plan_in_order(self) -> StepPlan | None:
        """What the next step processes where prompts have an order of their own; None where no rate is known."""
        prompts, scheduler = self.prompts, self.scheduler
        rate = self.prefill_rate()
        if rate is None:
            return None
        active, refuses = self.governed.held(scheduler.batch()).limits.active, self.governed.shed is not None
        prompts.judge(rate, self.now, active=active, refuses=refuses)
        batch = scheduler.batch()
        limits = self.governed.limits(batch, prompts.queue)
        decoding = batch.decodes * self.governed.sizes.tokens_per_decode
        return scheduler.plan(limits, prompts.step(rate, tokens=limits.tokens - decoding, active=limits.active))

    def prefill_rate(self) -> PrefillRate | None:
        """How fast prompts are processed beside the decodes; None where steps are not fitted."""
        scheduler = self.scheduler
        batch = scheduler.batch()
        held = self.governed.held(batch).limits
        return self.governed.budgeter.prefill_rate(
            decodes=batch.decodes,
            decode_tokens=batch.decodes * self.governed.sizes.tokens_per_decode,
            tokens=held.tokens,
            least_chunk=self.governed.sizes.least_chunk,
            kv_tokens=scheduler.context_tokens,
        )

    def _refuse_late(self) -> None:
        """Refuse what was let in and cannot be in time any more, as nothing of its answer was sent."""
        if not len(self._let_in):
            return
        shed, scheduler = self.governed.shed, self.scheduler
        late = self._let_in.late(
            self._progress,
            deadlines=self.governed.refusal_deadlines,
            rate=None if shed is None else self.prefill_rate(),
            now=self.now,
        )
        refused, kept = but_one_alone(late, present=len(scheduler.running) + len(scheduler.waiting))
        for request in kept:
            self.prompts.stays(request)
        for requests in refused:
            for request in requests:
                scheduler.remove(request)
                self.prompts.gone(request)
                request.fate, request.ended = Fate.SHED, self.now
                self.batches.ended(request, 0, self.now)
            if (sequence := requests[0].sequence) is not None:
                self.ledger.ended(sequence.request, End.REFUSED, self.now)
            self.gate.expired()

    def _progress(self, request: Request) -> SequenceProgress:
        """How far a request is that may be refused."""
        if request.first_token is not None:
            return SequenceProgress(started=True)
        if request.fate is not Fate.OPEN:
            return SequenceProgress(gone=True)
        work = self.prompts.work(request)
        return SequenceProgress(tokens=work.tokens, attention=work.attention)

    def _land(self, flight: _Flight) -> None:
        """The step in flight ends."""
        step, seconds = flight.plan.step, flight.seconds
        self._flight = None
        self.now = flight.end
        self._count(step, 1, seconds, seconds * seconds, step.kv_tokens, seconds)
        self.governed.budgeter.observe(step, seconds)
        for objective in self._gaps:
            gaps = self._gaps_of(objective, step.decodes)
            met = gaps if seconds <= objective.threshold_seconds else 0
            self.ledger.gaps_passed(objective, met=met, violated=gaps - met)
        if flight.plan.chunks:
            self.governed.served({str(request.number) for request in flight.plan.chunks}, self.now)
            room = step.occupancy.room - (step.tokens - step.prefill_tokens)
            self.prompts.served(flight.plan.chunks, most=room, now=self.now)
        self._deliver(1, flight.plan.chunks)
        self._refuse_late()

    def _jump(self, plan: StepPlan, until: float) -> int:
        """Make steps of decodes alone until something may change; how many."""
        most = self.scheduler.steps_until_change()
        clear = min(until, self.governed.expires, self._next_leave())
        growth = self.scheduler.growth
        thresholds = [objective.threshold_seconds for objective in self._gaps]
        made = self.plant.stretch(plan.step, growth=growth, most=most, seconds=clear - self.now, thresholds=thresholds)
        if not made.steps:
            return 0
        self.now += made.seconds
        kv_tokens = made.steps * plan.step.kv_tokens + growth * made.steps * (made.steps - 1) / 2
        self._count(plan.step, made.steps, made.seconds, made.seconds_squared, kv_tokens, made.longest)
        self._observe(plan.step._replace(kv_tokens=kv_tokens / made.steps), made)
        for objective, within in zip(self._gaps, made.within, strict=True):
            gaps = self._gaps_of(objective, plan.step.decodes)
            self.ledger.gaps_passed(objective, met=within * gaps, violated=(made.steps - within) * gaps)
        self._deliver(made.steps, {})
        return made.steps

    def _gaps_of(self, objective: ObjectiveSpec, decodes: int) -> int:
        """Of the decodes of a step those that an objective counts."""
        if self.governed.classes is None:
            return decodes
        names = self.governed.classes.names
        mine = (one.of_class if one.of_class in names else DEFAULT_CLASS for one in self.scheduler.running if one.made)
        return sum(name == objective.of_class for name in mine)

    def _observe(self, step: Step, made: Stretch) -> None:
        """The budgeter forgets by the step, so it hears of each, of its expected share of the stretch."""
        middle = made.seconds / made.steps
        for number in range(made.steps):
            self.governed.budgeter.observe(step, middle + made.slope * (number - (made.steps - 1) / 2))

    def _next_leave(self) -> float:
        """When the next client gives up."""
        leaving = self._leaving
        while leaving and (leaving[0][2].fate is not Fate.OPEN or leaving[0][2].leaves > leaving[0][0]):
            heapq.heappop(leaving)
        return leaving[0][0] if leaving else math.inf

    def _count(self, step: Step, steps: int, seconds: float, squared: float, kv_tokens: float, longest: float) -> None:
        self.statistics.repeated(
            step, steps=steps, seconds=seconds, seconds_squared=squared, kv_tokens=kv_tokens, longest=longest
        )
        decode = step.tokens - step.prefill_tokens
        self.batches.stepped(step.occupancy, prefill=step.prefill_tokens, decode=decode, seconds=seconds, steps=steps)

    def _deliver(self, steps: int, chunks: dict[Request, int]) -> None:
        """Tokens of the steps that ended are there."""
        joined, ended = self.scheduler.advance(steps, chunks)
        if self.prompts.holds:
            for request in chunks:
                self.prompts.progressed(request)
            self.prompts.ended(len(ended), self.now)
        for request in joined:
            self.prompts.started(request, self.now)
            if request.leaves <= self.now:
                continue  # the client left while the step ran
            if request.first_token is None:
                request.first_token, request.leaves = self.now, math.inf
            if request.sequence is not None:
                self.ledger.received(request.sequence, tokens=1, at=self.now, now=self.now)
        for request in ended:
            if request.leaves <= self.now:
                self._let_go(request, request.leaves)
            else:
                self._finish(request)

    def _finish(self, request: Request) -> None:
        self._catch_up(request, self.now)
        request.fate, request.ended = Fate.FINISHED, self.now
        self.batches.ended(request, request.output, self.now)
        cached = request.cached or 0
        self.gate.finished(prompt_tokens=request.prompt, cached_tokens=cached)
        per_token = None
        if request.first_token is not None and request.output > 1:
            per_token = (self.now - request.first_token) / (request.output - 1)
        self.gate.answers.ended(tokens=request.output, named=request.named, per_token=per_token)
        if request.sequence is not None:
            self.ledger.done(request.sequence, prompt=request.prompt, cached=cached, now=self.now)

    def _let_go(self, request: Request, at: float) -> None:
        self.prompts.gone(request)
        if request.running or request.made < request.output:
            self.scheduler.remove(request)
        if request.first_token is not None:
            self._catch_up(request, self.now)
        request.fate, request.ended = Fate.LEFT, at
        self.batches.ended(request, request.made, self.now)
        if request.sequence is not None:
            self.ledger.ended(request.sequence.request, End.LEFT, at)

    def _catch_up(self, request: Request, at: float) -> None:
        """The ledger hears of tokens one by one only where it must."""
        sequence = request.sequence
        if sequence is not None and request.made > sequence.tokens > 0:
            gaps = request.deliveries - 1 - sequence.gaps
            self.ledger.caught_up(sequence, tokens=request.made - sequence.tokens, gaps=gaps, at=at)

    def _full(self, now: float) -> bool:
        """Whether the limits of the queue refuse whoever comes; as in vLLM the last one let in may pass them."""
        reqs, tokens = self._queue.max_num_queued_reqs, self._queue.max_num_queued_tokens
        if now >= self._queue_until or (reqs is None and tokens is None):
            return False
        scheduler = self.scheduler
        if reqs is not None and len(scheduler.running) + len(scheduler.waiting) >= reqs:
            return True
        unserved = itertools.chain(scheduler.prefilling, scheduler.waiting)
        return tokens is not None and sum(request.prompt for request in unserved) >= tokens

    def _speculative_steps(self, tokens: int) -> int:
        """Steps in which a decode makes so many tokens: each makes one, and its drafts up to the first refused."""
        speculation = self._config.speculation
        if speculation is None or speculation.acceptance <= 0.0:
            return tokens
        steps = made = 0
        scale = math.log(speculation.acceptance) if speculation.acceptance < 1.0 else -1e-300
        while made < tokens:
            accepted = math.log(1.0 - self._random.random()) / scale
            made += 1 + int(min(speculation.drafts, accepted))
            steps += 1
        return steps


def _gate(core: Core) -> Gate:
    return Gate(lambda: [core.load()])
