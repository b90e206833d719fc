"""One simulated engine core: it makes steps up to a given time, and counts as the real engine counts.

Whoever drives it says how late it is: `run(until)` makes every step that ends by then and leaves the one that does not
in flight. What comes meanwhile (requests, clients that leave, a setpoint) waits for the end of that step, as it would
in vLLM. So virtual time and real time are the same thing, driven differently.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import replace
from random import Random

from flyball_engine.batching.batch_metrics import BatchMetrics
from flyball_engine.batching.draft_statistics import DraftPosition, DraftStatistics
from flyball_engine.batching.gate import AdmissionReason, Admitted, Arrival, CoreLoad, Gate
from flyball_engine.batching.outcomes import End, RequestLedger
from flyball_engine.batching.prefill_rate import PrefillRate
from flyball_engine.batching.setpoint_enforcer import RequestedLimits, SetpointEnforcer
from flyball_engine.batching.step_statistics import Step, StepStatistics
from flyball_engine.contract import Generation, SchedulingPolicy, Setpoint
from flyball_lab.simulator.core_config import FIXED, CoreConfig, Speculation
from flyball_lab.simulator.departures import Departures
from flyball_lab.simulator.late_requests import LateRequests
from flyball_lab.simulator.plant import Plant
from flyball_lab.simulator.prompt_order import PromptOrder
from flyball_lab.simulator.queue_limiter import QueueLimiter
from flyball_lab.simulator.request_counts import RequestCounts
from flyball_lab.simulator.requests import Fate, Request
from flyball_lab.simulator.scheduler import Scheduler
from flyball_lab.simulator.step_plan import StepInFlight, StepPlan


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
        speculation = config.speculation if config.speculation and config.speculation.drafts else None
        drafts = speculation.drafts if speculation else 0
        depths = tuple(range(drafts + 1)) if drafts else ()
        sizes = replace(config.sizes, tokens_per_decode=1 + drafts, depths=depths)
        whole = RequestedLimits(sizes.max_num_seqs, sizes.max_num_batched_tokens, threshold=0, depth=drafts)
        self.now = 0.0
        self.plant = plant
        self.ledger = RequestLedger()
        self.statistics = StepStatistics(sums)
        self.batches = BatchMetrics(sizes.max_num_seqs, batch_sums)
        self.drafts = DraftStatistics()
        self.scheduler = Scheduler(
            sizes=sizes,
            kv_tokens=config.kv_tokens,
            policy=config.policy,
            decode_steps=functools.partial(speculation.steps, random=random) if speculation else None,
        )
        self.prompts = PromptOrder(
            self.scheduler, refusable=lambda request: not request.together and self.may_refuse((request,))
        )
        start = (config.start or whole)._replace(depth=drafts)
        self._fixed = () if drafts else FIXED
        self.governed = SetpointEnforcer(sizes, start, fixed=self._fixed)
        self._config = config
        self._jumps = jumps
        self._flight: StepInFlight | None = None
        self.starts = 1
        self._ready_at = 0.0
        self._numbers = 0
        self._departures = Departures()
        self._inbox: list[Setpoint] = []
        self._late = LateRequests()
        self._counts = RequestCounts(self.ledger, self.batches)
        self._queue = QueueLimiter()
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
            judged = (self.prompts.holds or len(self._late) > 0) and len(self.scheduler.waiting) > 0
            if self._jumps and alike and not judged and self._jump(plan, until):
                continue
            seconds = self.plant.step(plan.step, reread_tokens=plan.reread_tokens)
            self._flight = StepInFlight(plan, seconds, self.now + seconds)

    def submit(self, requests: Sequence[Request]) -> Admitted | None:
        """The sequences of one HTTP request come in; the core has run up to their arrival.

        Returns what the gate says of it; None if it was refused for another reason.
        """
        arrival, verdict = requests[0].arrival, None
        opened = self.ledger.opened(arrival, requests[0].of_class)
        full = self._queue.full(self.scheduler, arrival)
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
            self._departures.expect(request)
            self.scheduler.waiting.push(request)
            if verdict.refusable:
                self._late.let_in(request, requests)
            self.prompts.came(request)
            self.batches.arrived(request, arrival)
        # Whatever comes of it, the ledger counts it with the end of its last sequence.
        self.ledger.ended(opened, End.ANSWERED, arrival)
        return verdict

    def may_refuse(self, requests: Sequence[Request]) -> bool:
        """Whether these may still be refused, which are of one HTTP request."""
        return self._late.may_refuse(requests)

    def leave(self, request: Request, now: float) -> None:
        """Its client is gone: the core hears of it between two steps."""
        if request.fate is Fate.OPEN:
            request.leaves = now
            self._departures.expect(request)
            if self._flight is None:
                self._between_steps()

    def apply(self, setpoint: Setpoint) -> None:
        """Put a setpoint in force between two steps: at once if none is in flight."""
        self._inbox.append(setpoint)
        if self._flight is None:
            self._between_steps()

    def follow(self, setpoint: Setpoint) -> None:
        """What of a setpoint is done where requests come in, at once: counting, the gate, the limits of the queue."""
        self._counts.follow(setpoint)
        self._queue.follow(setpoint.queue, until=self.now + setpoint.expires_seconds)
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
        self._late = LateRequests()
        self.prompts.follow(None)
        for request in self.scheduler.clear():
            self._counts.failed(request, self.now)
        trips, expiries = self.governed.trips, self.governed.expiries
        self.governed = SetpointEnforcer(self.governed.sizes, self.governed.start, fixed=self._fixed)
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
        for at, request in self._departures.due(self.now):
            self._let_go(request, at)

    def _plan(self) -> StepPlan:
        scheduler = self.scheduler
        scheduler.draft(self.governed.next_depth(self.governed.held(scheduler.batch()).limits, self.now))
        plan = self._plan_in_order() if self.prompts.holds else None
        if plan is None:
            plan = scheduler.plan(self.governed.limits(scheduler.batch(), scheduler.queue))
        for request in plan.preempted:
            self._counts.catch_up(request, self.now)
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
        decoding = batch.decodes * self.scheduler.tokens_per_decode
        return scheduler.plan(limits, prompts.step(rate, tokens=limits.tokens - decoding, active=limits.active))

    def prefill_rate(self) -> PrefillRate | None:
        """How fast prompts are processed beside the decodes; None where steps are not fitted."""
        scheduler = self.scheduler
        batch = scheduler.batch()
        held = self.governed.held(batch).limits
        return self.governed.budgeter.prefill_rate(
            decodes=batch.decodes,
            # It is asked for steps to come. So what the next one alone drafts does not count.
            decode_tokens=batch.decodes * (1 + held.depth),
            tokens=held.tokens,
            least_chunk=self.governed.sizes.least_chunk,
            kv_tokens=scheduler.context_tokens,
        )

    def _refuse_late(self) -> None:
        """Refuse what was let in and cannot be in time any more, as nothing of its answer was sent."""
        if not len(self._late):
            return
        shed, scheduler = self.governed.shed, self.scheduler
        refused, kept = self._late.found(
            self.prompts,
            deadlines=self.governed.refusal_deadlines,
            rate=None if shed is None else self.prefill_rate(),
            present=len(scheduler.running) + len(scheduler.waiting),
            now=self.now,
        )
        for request in kept:
            self.prompts.stays(request)
        for requests in refused:
            for request in requests:
                scheduler.remove(request)
                self.prompts.gone(request)
            self._counts.refused(requests, self.now)
            self.gate.expired()

    def _land(self, flight: StepInFlight) -> None:
        """The step in flight ends."""
        step, seconds = flight.plan.step, flight.seconds
        self._flight = None
        self.now = flight.end
        self._count(step, 1, seconds, seconds * seconds, step.kv_tokens, seconds)
        self.governed.budgeter.observe(step, seconds)
        self._gaps_passed(1, [seconds <= threshold for threshold in self._counts.thresholds], step)
        if flight.plan.chunks:
            self.governed.served({str(request.number) for request in flight.plan.chunks}, self.now)
            room = step.occupancy.room - (step.tokens - step.prefill_tokens)
            self.prompts.served(flight.plan.chunks, most=room, now=self.now)
        self._deliver(1, flight.plan.chunks)
        self._refuse_late()

    def _jump(self, plan: StepPlan, until: float) -> int:
        """Make steps of decodes alone until something may change; how many."""
        held = self.governed.held(self.scheduler.batch()).limits
        full_draft_at = self.governed.full_draft_at(held)
        # A step that alone drafts in full is made by itself.
        if self.now >= full_draft_at:
            return 0
        most = self.scheduler.steps_until_change()
        clear = min(until, self.governed.expires, self._departures.next(), full_draft_at)
        growth = self.scheduler.growth
        thresholds = self._counts.thresholds
        made = self.plant.stretch(plan.step, growth=growth, most=most, seconds=clear - self.now, thresholds=thresholds)
        if not made.steps:
            return 0
        self.now += made.seconds
        kv_tokens = made.steps * plan.step.kv_tokens + growth * made.steps * (made.steps - 1) / 2
        self._count(plan.step, made.steps, made.seconds, made.seconds_squared, kv_tokens, made.longest)
        # The budgeter forgets by the step, so it hears of each.
        mean = plan.step._replace(kv_tokens=kv_tokens / made.steps)
        for seconds in made.each():
            self.governed.budgeter.observe(mean, seconds)
        self._gaps_passed(made.steps, made.within, plan.step)
        self._deliver(made.steps, {})
        return made.steps

    def _gaps_passed(self, steps: int, within: Sequence[int], step: Step) -> None:
        running, classes = self.scheduler.running, self.governed.classes
        self._counts.stepped(steps, within, decodes=step.decodes, running=running, classes=classes)

    def _count(self, step: Step, steps: int, seconds: float, squared: float, kv_tokens: float, longest: float) -> None:
        self.statistics.repeated(
            step, steps=steps, seconds=seconds, seconds_squared=squared, kv_tokens=kv_tokens, longest=longest
        )
        self.batches.stepped(step, seconds=seconds, steps=steps)
        if (speculation := self._config.speculation) is not None and step.decodes:
            self._count_drafts(speculation, steps * step.decodes)
            self.governed.note_drafts(self.scheduler.tokens_per_decode - 1, self.now)

    def _count_drafts(self, speculation: Speculation, decodes: int) -> None:
        """Of decodes as many are counted as accepted as are on average."""
        for position in range(self.scheduler.tokens_per_decode - 1):
            accepted = decodes * speculation.acceptance ** (position + 1)
            self.drafts.add(position, DraftPosition(decodes, decodes, accepted))

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
        self._counts.finished(request, self.now)
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
        self._counts.left(request, at=at, now=self.now)


def _gate(core: Core) -> Gate:
    return Gate(lambda: [core.load()])
