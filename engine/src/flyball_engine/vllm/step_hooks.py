"""What Flyball does in an engine core, around each step: hold the limits, count the step, watch for a stall, publish.

Everything runs on the core's own thread, before or after a step and never within one. Nothing here may end the
engine: a fault of ours restores the start values, stops governing, and is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Sized
from pathlib import Path
from typing import Any

from flyball_engine.batching.batch_metrics import BatchMetrics
from flyball_engine.batching.draft_statistics import DraftStatistics
from flyball_engine.batching.gate import CoreLoad
from flyball_engine.batching.prefill_rate import PrefillRate
from flyball_engine.batching.setpoint_enforcer import EffectiveLimits, RequestedLimits, RunningBatch, SetpointEnforcer
from flyball_engine.batching.step_statistics import Occupancy, StepStatistics
from flyball_engine.batching.step_token_budgeter import LOOK_AHEAD, Queue
from flyball_engine.batching.watchdog import Stall, Watchdog
from flyball_engine.contract import Batching, Generation, Setpoint, ShedKnob, StrategyType
from flyball_engine.control.state_file import Slot, StateWriter
from flyball_engine.log_events import EngineLogEvent, EventLog
from flyball_engine.vllm.admission import Admission
from flyball_engine.vllm.cached_blocks import cached_blocks
from flyball_engine.vllm.containment import contained
from flyball_engine.vllm.draft_counter import DraftCounter
from flyball_engine.vllm.let_in import RefusableRequests
from flyball_engine.vllm.order import PromptOrder
from flyball_engine.vllm.refusal import Refuser, told_of
from flyball_engine.vllm.scheduler_adapter import CachedTokens, SchedulerAdapter
from flyball_engine.vllm.stall_watch import StallWatch
from flyball_engine.vllm.step_composition import FoundTokens, composition, served_prompts

_log = EventLog(__name__)


class StepHooks:
    """Governs one scheduler. `cached` follows its prefix cache, if that can be followed."""

    def __init__(
        self,
        scheduler: Any,
        *,
        folder: Path,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        watchdog: Watchdog | None = None,
    ) -> None:
        """Probe the scheduler and make its state file; raises UngovernableError or StateFileError.

        `wall_clock`: the one that API servers tell by when they sent a request.
        """
        self._adapter = adapter = SchedulerAdapter(scheduler)
        # When each came that has not ended, and its outputs. Not the request: who lets go of it last pays for its end.
        self._open: dict[str, tuple[float, Sized]] = {}
        self._admission = Admission(scheduler, adapter, arrived=self._arrived)
        self._enforcer = SetpointEnforcer(
            adapter.sizes,
            adapter.start,
            fixed=adapter.unsupported,
            watchdog=watchdog or Watchdog(seconds=adapter.patience_seconds),
        )
        self._clock = clock
        self.engine = adapter.engine
        self.governing = True
        self._shown: Generation | None = None
        self._held: EffectiveLimits | None = None
        self._had_prompts = False
        self._admission_limit: int | None = None
        self.cached = cached_blocks(scheduler, folder=folder, engine=adapter.engine)
        self._cached_tokens: CachedTokens | None = None if self.cached is None else self.cached.cached_tokens
        self._refusable = RefusableRequests(adapter, cached=self._cached_tokens, wall_clock=wall_clock)
        self._refuser = Refuser(scheduler)
        self._began = self._planned_seconds = 0.0
        self._planned_rate: PrefillRate | None = None
        self._joining = 0
        self._joined: list[Any] = []
        self.found = FoundTokens()
        self._active, self._step_tokens = adapter.start.active, adapter.start.tokens
        self._order = PromptOrder(
            scheduler, adapter, self._admission.queues, cached=self._cached_tokens, refusable=self._refusable.has
        )
        self._prefilling: list[Any] = []
        self._left = 0
        self._stalls = StallWatch(adapter, self._enforcer, self._admission, self._order)
        unsupported = {**adapter.unsupported, **self._admission.unsupported, **self._order.unsupported}
        if self._refuser.lack is not None:
            unsupported[ShedKnob.WAITING] = self._refuser.lack
        self._state = StateWriter(folder, engine=self.engine, unsupported=unsupported)
        self._statistics = StepStatistics(self._state.sums, stages=adapter.stages)
        # A pipeline's next step serves other requests than those that this one drafts for.
        counted = adapter.sizes.tokens_per_decode - 1 if adapter.stages == 1 else 0
        self._drafts = DraftCounter(DraftStatistics(self._state.drafts), most=counted)
        self._batches = BatchMetrics(adapter.sizes.max_num_seqs, self._state.batches)
        self._state.describe(adapter.sizes, self._enforcer.started(), kv_cache_tokens=adapter.kv_cache_tokens)
        self._state.numbers[Slot.PIPELINE_DEPTH] = adapter.pipeline_depth
        self._state.set_admission(self._admission.strategy, self._admission.policy)
        self._hold_limits()
        self._publish()

    @property
    def applied(self) -> Generation | None:
        """The generation in force, None before the first and after an expiry."""
        return self._enforcer.applied if self.governing else None

    @property
    def step_bias(self) -> float:
        """What the next step is expected to take over what the model says."""
        return self._enforcer.budgeter.step_bias

    @property
    def parks(self) -> bool:
        """Whether some prompt that has begun waited for others in the step just planned."""
        return self._order.parks

    def apply(self, setpoint: Setpoint) -> None:
        """Put a setpoint in force from the next step on, unless a newer one is; the same again renews its expiry."""
        if not self.governing:
            raise RuntimeError("this engine core is no longer governed, see its log")
        if self._enforcer.apply(setpoint, self._clock()):
            self._statistics.new_period()
        self._follow_setpoint()
        self.touch()

    @contained
    def touch(self) -> None:
        """Check the expiry, hold the limits for the batch as it is, and publish."""
        self._expire_if_due(self._clock())
        self._hold_limits()
        self._publish()

    @contained
    def before_schedule(self) -> None:
        """Hold the limits for the batch that is about to be scheduled, and put its prompts in order."""
        self._began = now = self._clock()
        self._refusable.step_begins(now)
        self._expire_if_due(now)
        if self.cached is not None:
            self.cached.follow()
        self._hold_limits(planning=True)
        self._joining = len(self._adapter.running)

    @contained
    def abandoned(self) -> None:
        """The step could not be planned: whoever was taken out of it is put back."""
        self._order.restore()

    @contained
    def after_schedule(self, output: Any) -> None:
        """Note what the step processes, watch for a stall, publish."""
        adapter, order, began = self._adapter, self._order, self._began
        running = adapter.running
        self._joined, lost = running[self._joining :], self._joining - len(running)
        order.restore()
        scheduled = output.num_scheduled_tokens
        served = served_prompts(scheduled, (*self._prefilling, *self._joined))
        if order.holds:
            order.planned(output, served, self._joined, room=self._step_tokens, lost=lost, now=began)
        kv_tokens = self._state.numbers[Slot.RUNNING_KV_TOKENS] = adapter.context(output)
        occupancy = Occupancy(len(scheduled), len(adapter.running), self._active, self._step_tokens)
        self.found.follow(output, self._joined)
        step = composition(output, served, self.found, kv_tokens=kv_tokens, occupancy=occupancy)
        self._planned_seconds = self._enforcer.budgeter.expected(step)
        self._statistics.scheduled(id(output), step, now=began)
        if scheduled:
            drafting = adapter.drafting(len(scheduled))
            self._drafts.planned(output, drafting=drafting)
            adapter.tokens_per_decode = 1 + drafting
            if step.decodes and adapter.depth is not None:
                self._enforcer.note_drafts(adapter.depth, began)
        self._left = left = self._most_left()
        self._admission.joined(self._joined)
        self._count_requests(output, lost=lost)
        stall = self._stalls.stepped(output, left=left, now=began)
        if stall is not None:
            self._stood_still(stall)
        self._publish(self._planned_rate)

    @contained
    def after_update(self, output: Any) -> None:
        """Count the step that ended, publish."""
        now = self._clock()
        ended = self._statistics.finished(id(output), now=now)
        if ended is not None:
            step, occupancy = ended.step, ended.step.occupancy
            self._enforcer.budgeter.observe(step, ended.counted)
            self._batches.stepped(step, seconds=ended.seconds)
            served_all = occupancy.requests == occupancy.running
            self._enforcer.served(output.num_scheduled_tokens, now, all_running=served_all)
        self._drafts.ended(output, self._open)
        self._order.ended(output, now)
        self._admission.ended(self._adapter.finished())
        # While something runs, the next step is planned at once, and that publishes.
        if not self._adapter.running:
            self._publish()

    @contained
    def refuse_late(self, outputs: dict[int, Any]) -> None:
        """Refuse what was let in and cannot be in time any more; the `outputs` of the step that ended say so."""
        if not self._refusable:
            return
        refused, kept = self._refusable.late(
            deadlines=self._enforcer.refusal_deadlines,
            rate=None if self._enforcer.shed is None else self._rate_of_now(),
            now=self._clock(),
        )
        for request in kept:
            self._order.stays(request)
        if refused:
            self._refuser.refuse([request for requests in refused for request in requests], outputs)

    @contained
    def received(self, request: Any) -> None:
        """A request came in; published with the next step."""
        now, name, told = self._clock(), request.request_id, told_of(request)
        if self._refuser.lack is None:
            self._refusable.received(request, now, told)
        if self._order.holds:
            self._order.received(request, now, told)
        # A session's next input comes as a request of the same name.
        if name not in self._open:
            self._open[name] = (now, request.output_token_ids)
            self._batches.arrived(name, now)

    @contained
    def after_finish(self) -> None:
        """Publish that requests left."""
        self._admission.ended(self._adapter.finished())
        self._publish()

    def give_up(self) -> None:
        """Restore the start values and govern no more; the engine goes on as plain vLLM. Never raises."""
        self.governing = False
        self._order.restore()
        self._state.set_generation(None)
        self._state.numbers[Slot.GOVERNED] = 0
        self._state.numbers[Slot.STEP_BUDGET_SECONDS] = 0
        start = self._adapter.start
        try:
            self._adapter.write(start, step_threshold=start.threshold)
            self._adapter.draft(start.depth)
            for knob, value in self._enforcer.started().items():
                self._state.set_knob(knob, requested=value, effective=value, reason=None)
            self._admit_by(Batching())
            self._order.use(None, 0.0)
        except Exception:  # noqa: BLE001 – what failed may be what restores; the step must go on
            _log.exception(EngineLogEvent.START_VALUES_NOT_RESTORED, "the step goes on")
        self._state.publish()

    def _prefill_rate(self, decodes: int, *, kv_tokens: float) -> PrefillRate | None:
        """How fast prompts are processed beside so many decodes that read `kv_tokens`, under the limits that hold.

        It is asked for steps to come. So what the next one alone drafts does not count.
        """
        sizes, limits = self._adapter.sizes, self._adapter.start if self._held is None else self._held.limits
        return self._enforcer.budgeter.prefill_rate(
            decodes=decodes,
            decode_tokens=decodes * (1 + self._adapter.drafting_at(limits.depth)),
            tokens=limits.tokens,
            least_chunk=sizes.least_chunk,
            kv_tokens=kv_tokens,
        )

    def _kv_tokens(self, prefilling: Sequence[Any], decodes: int) -> float:
        """Tokens of the KV cache that so many decodes read, 0 where a step's time does not hang on it."""
        return self._adapter.decode_context(prefilling, decodes) if self._enforcer.budgeter.reads_kv else 0.0

    def _rate_of_now(self) -> PrefillRate | None:
        """How fast prompts are processed beside the decodes that run, under the limits that hold."""
        prefilling = self._begun()
        decodes = len(self._adapter.running) - len(prefilling)
        return self._prefill_rate(decodes, kv_tokens=self._kv_tokens(prefilling, decodes))

    def _hold_limits(self, *, planning: bool = False) -> None:
        """Write the limits that are safe for the batch; if `planning`, also what holds for the next step alone."""
        self._prefilling = self._begun()
        if planning:
            self._order.decodes_first(self._prefilling)
        batch = self._adapter.batch(self._prefilling, elsewhere=self._statistics.decodes_elsewhere)
        held, stood = self._enforcer.held(batch), self._held
        if held is not stood:
            self._held, self._active = held, held.limits.active
            for knob, shown in self._enforcer.shown(batch).items():
                self._state.set_knob(knob, requested=shown.requested, effective=shown.effective, reason=shown.reason)
        self._adapter.draft(self._enforcer.next_depth(held.limits, self._began) if planning else held.limits.depth)
        before, self._admission_limit = self._admission_limit, None
        if planning and self._admission.holds:
            active, prefilling = held.limits.active, len(self._prefilling)
            self._admission_limit = self._admission.limit(active=active, prefilling=prefilling, now=self._began)
        had, self._had_prompts = self._had_prompts, bool(batch.prefills)
        # What is written depends on the batch by its prompts alone, and on nothing else that changes by itself.
        by_batch = had or self._had_prompts or self._adapter.drains_by_slots or self._enforcer.budgeter.holds
        if held is not stood or self._admission_limit != before or by_batch:
            self._write(held, batch, planning=planning)

    def _write(self, held: EffectiveLimits, batch: RunningBatch, *, planning: bool) -> None:
        limits, active = held.limits, held.limits.active if self._admission_limit is None else self._admission_limit
        self._planned_rate = None
        if not (planning and self._order.holds):
            step = self._enforcer.limits(batch, lambda: self._queue(batch))
            threshold = step.threshold
        else:
            kv_tokens = self._kv_tokens(self._prefilling, batch.decodes)
            rate = self._planned_rate = self._prefill_rate(batch.decodes, kv_tokens=kv_tokens)
            queue = self._order.look(
                batch,
                self._prefilling,
                limits=limits if active == limits.active else limits._replace(active=active),
                rate=rate,
                reach=self._enforcer.reach(
                    batch, tokens_per_decode=self._adapter.tokens_per_decode, kv_tokens=kv_tokens
                ),
                kv_tokens=kv_tokens,
                refuses=self._enforcer.shed is not None,
                now=self._began,
            )
            step = self._enforcer.limits(batch, lambda: queue)
            withheld, cap = self._order.arrange(tokens=step.tokens - queue.decode_tokens, decodes=batch.decodes)
            active -= withheld
            threshold = min(step.threshold or cap, cap or step.threshold)
        self._step_tokens = step.tokens
        safe = RequestedLimits(active, step.tokens, limits.threshold, limits.depth)
        self._adapter.write(safe, step_threshold=threshold)

    def _begun(self) -> list[Any]:
        """The running requests whose prompt is not yet processed. Only a step leaves such, so most need no look."""
        return self._adapter.prefilling(self._left)

    def _most_left(self) -> int:
        """How many prompts the step left unfinished, of those in it, or more where it made others lose their places."""
        if self._adapter.has_connector:
            return len(self._adapter.running)
        return sum([request.is_prefill_chunk for request in (*self._prefilling, *self._joined)])

    def _queue(self, batch: RunningBatch) -> Queue:
        """What the next step may serve, as far as its time depends on it."""
        adapter = self._adapter
        # Behind the gate nobody joins, however short the prompt.
        joining = LOOK_AHEAD if self._admission_limit is None else self._admission_limit - len(adapter.running)
        head = adapter.queue_head(max(0, min(LOOK_AHEAD, joining)))
        return Queue(
            decodes=batch.decodes,
            tokens_per_decode=adapter.tokens_per_decode,
            prefilling=adapter.prompts(self._prefilling),
            waiting=adapter.prompts(head, self._cached_tokens),
            more=len(head) == LOOK_AHEAD,
            indivisible=adapter.sizes.indivisible,
            kv_tokens=self._kv_tokens(self._prefilling, batch.decodes),
        )

    def _count_requests(self, output: Any, *, lost: int) -> None:
        """Whose end this step is the first to know of, who joins it, and how many lost their places for it."""
        batches, now = self._batches, self._began
        for name in output.finished_req_ids:
            ended = self._open.pop(name, None)
            self._drafts.gone(name)
            if ended is not None:
                self._order.gone(name)
                batches.ended(name, len(ended[1]), now)
        if self._joined:
            joined = [(request.request_id, request.num_prompt_tokens) for request in self._joined]
            whole = self._admission.strategy is not StrategyType.CONTINUOUS
            batches.admitted(joined, running=len(self._adapter.running), whole=whole, now=now)
        elif lost > 0:
            # vLLM admits nobody in a step that preempts.
            batches.preempted(lost)

    def _stood_still(self, stall: Stall) -> None:
        """The start values hold again."""
        what = "the queue" if stall.request is None else f"request {stall.request}"
        _log.error(EngineLogEvent.WATCHDOG_TRIPPED, "%s stood still for %.0f s; start values hold", what, stall.seconds)
        self._follow_setpoint()
        # Now, not before the next step: whoever reads of the trip shall read of the start values, too.
        self._hold_limits()

    def _expire_if_due(self, now: float) -> None:
        if self._enforcer.expire_if_due(now):
            _log.warning(EngineLogEvent.SETPOINT_EXPIRED, "start values hold until the next one")
            self._follow_setpoint()

    def _follow_setpoint(self) -> None:
        """Admit and order as the setpoint in force says."""
        self._admit_by(self._enforcer.batching)
        self._order.use(self._enforcer.on_time, self._clock(), self._enforcer.classes)

    def _admit_by(self, batching: Batching) -> None:
        self._admission.use(batching)
        self._state.set_admission(self._admission.strategy, self._admission.policy)

    def _publish(self, rate: PrefillRate | None = None) -> None:
        """Show what there is. `rate`: of prompts in the step just planned, None where it is to be found anew."""
        numbers, governed, now = self._state.numbers, self._enforcer, self._clock()
        if governed.applied is not self._shown:
            self._shown = governed.applied
            self._state.set_generation(governed.applied)
        numbers[Slot.WATCHDOG_TRIPS] = governed.trips
        numbers[Slot.EXPIRIES] = governed.expiries
        self._state.set_load(self._load(rate))
        numbers[Slot.KV_CACHE_USAGE] = self._adapter.kv_cache_usage
        numbers[Slot.LONGEST_STEP_SECONDS] = self._statistics.longest_seconds
        numbers[Slot.STEP_BUDGET_SECONDS] = governed.budgeter.seconds
        numbers[Slot.LOCAL_BIAS] = governed.budgeter.bias
        numbers[Slot.OLDEST_WAITING_SECONDS] = self._batches.oldest_seconds(now)
        self._order.tell(numbers, now)
        self._state.publish()

    def _load(self, rate: PrefillRate | None) -> CoreLoad:
        """What the gate decides by; its rate only where a deadline is to be kept."""
        adapter, sheds = self._adapter, self._enforcer.shed is not None
        running = len(adapter.running)
        return CoreLoad(
            rate=(rate or self._rate_of_now()) if sheds else None,
            # Of the steps in flight the oldest is half done, in the mean.
            in_flight_seconds=(adapter.pipeline_depth - 0.5) * self._planned_seconds if running else 0.0,
            running=running,
            waiting=adapter.waiting(),
            prefills=len(self._begun()),
        )

    def _arrived(self, name: str) -> float | None:
        """When a request came that has not ended."""
        known = self._open.get(name)
        return None if known is None else known[0]
