"""What Flyball does in an engine core, around each step: hold the limits, count the step, watch for a stall, publish.

Everything runs on the core's own thread, before or after a step and never within one. Nothing here may end the
engine: a fault of ours restores the start values, stops governing, and is reported.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from flyball_engine.batching.backlog import Backlog
from flyball_engine.batching.batch_metrics import BatchMetrics
from flyball_engine.batching.gate import Work
from flyball_engine.batching.governed import Governed, Held
from flyball_engine.batching.limits import RunningBatch
from flyball_engine.batching.reflex import LOOK_AHEAD, Queue
from flyball_engine.batching.step_statistics import Seats, Step, StepStatistics
from flyball_engine.batching.watchdog import Watchdog
from flyball_engine.contract import Batching, Generation, Setpoint, StrategyType
from flyball_engine.control.state_file import Slot, StateWriter
from flyball_engine.vllm.admission import Admission
from flyball_engine.vllm.cached_blocks import cached_blocks
from flyball_engine.vllm.surface import Surface

_log = logging.getLogger(__name__)
_P = ParamSpec("_P")
_NO_WORK = Work()


def _contained(method: Callable[Concatenate[Governor, _P], None]) -> Callable[Concatenate[Governor, _P], None]:
    """Let no fault of ours reach vLLM's step: give up governing instead."""

    def contained(self: Governor, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        if not self.governing:
            return
        try:
            method(self, *args, **kwargs)
        except Exception:  # noqa: BLE001 – see above
            _log.exception("Flyball: a fault in %s; governing ends, start values hold", method.__name__)
            self.give_up()

    functools.update_wrapper(contained, method)
    return contained


class Governor:
    """Governs one scheduler. `cached` follows its prefix cache, if that can be followed."""

    def __init__(
        self,
        scheduler: Any,
        *,
        folder: Path,
        clock: Callable[[], float] = time.monotonic,
        watchdog: Watchdog | None = None,
    ) -> None:
        """Probe the scheduler and make its state file; raises UngovernableError or StateFileError."""
        self._surface = surface = Surface(scheduler)
        self._admission = Admission(scheduler, surface)
        self._governed = Governed(
            surface.sizes,
            surface.start,
            fixed=surface.unsupported,
            adaptive=surface.adaptive,
            watchdog=watchdog or Watchdog(seconds=surface.patience_seconds),
        )
        self._clock = clock
        self.engine = surface.engine
        self.governing = True
        self._shown: Generation | None = None
        self._held: Held | None = None
        self._had_prompts = False
        self._gate: int | None = None
        self._backlog = Backlog()
        self.cached = cached_blocks(scheduler, folder=folder, engine=surface.engine)
        self._began = 0.0
        self._joining = 0
        self._active, self._room = surface.start.active, surface.start.tokens
        self._prefilling: list[Any] = []
        self._leaves_prompts = False
        unsupported = {**surface.unsupported, **self._admission.unsupported}
        self._state = StateWriter(folder, engine=self.engine, unsupported=unsupported)
        self._statistics = StepStatistics(self._state.sums, stages=surface.stages)
        self._batches = BatchMetrics(surface.sizes.max_num_seqs, self._state.batches)
        self._open: dict[str, Any] = {}
        self._state.describe(surface.sizes, self._governed.started(), kv_cache_tokens=surface.kv_cache_tokens)
        self._state.numbers[Slot.PIPELINE_DEPTH] = surface.pipeline_depth
        self._state.numbers[Slot.STAGES] = surface.stages
        self._state.set_admission(self._admission.strategy, self._admission.policy)
        self._hold_limits()
        self._publish()

    @property
    def applied(self) -> Generation | None:
        """The generation in force, None before the first and after an expiry."""
        return self._governed.applied if self.governing else None

    def apply(self, setpoint: Setpoint) -> None:
        """Put a setpoint in force from the next step on, unless a newer one is; the same again renews its expiry."""
        if not self.governing:
            raise RuntimeError("this engine core is no longer governed, see its log")
        if self._governed.apply(setpoint, self._clock()):
            self._statistics.new_period()
        self._admit_by(self._governed.batching)
        self.touch()

    @_contained
    def touch(self) -> None:
        """Check the expiry, hold the limits for the batch as it is, and publish."""
        self._expire_if_due(self._clock())
        self._hold_limits()
        self._publish()

    @_contained
    def before_schedule(self) -> None:
        """Hold the limits for the batch that is about to be scheduled."""
        self._began = self._clock()
        self._expire_if_due(self._began)
        self._joining = len(self._surface.running)
        self._hold_limits(planning=True)

    @_contained
    def after_schedule(self, output: Any) -> None:
        """Note what the step processes, watch for a stall, publish."""
        self._statistics.scheduled(id(output), self._composition(output), now=self._began)
        self._leaves_prompts = bool(self._surface.prefilling())
        self._admission.joined(self._surface.running[self._joining :])
        self._count_requests(output)
        self._watch(output)
        self._publish()

    @_contained
    def after_update(self, output: Any) -> None:
        """Count the step that ended, publish."""
        now = self._clock()
        ended = self._statistics.finished(id(output), now=now)
        if ended is not None:
            step, prefill = ended.step, ended.step.prefill_tokens
            self._governed.reflex.observe(step, ended.counted)
            self._batches.stepped(step.seats, prefill=prefill, decode=step.tokens - prefill, seconds=ended.seconds)
        self._governed.served(output.num_scheduled_tokens, now)
        self._admission.updated()
        # While something runs, the next step is planned at once, and that publishes.
        if not self._surface.running:
            self._publish()

    @_contained
    def received(self, request: Any) -> None:
        """A request came in; published with the next step."""
        now, name = self._clock(), request.request_id
        self._backlog.received()
        if self.cached is not None:
            self.cached.follow()
        self._admission.arrived(request, now=now)
        # A session's next input comes as a request of the same name.
        if name not in self._open:
            self._open[name] = request
            self._batches.arrived(name, now)

    @_contained
    def after_finish(self) -> None:
        """Publish that requests left."""
        self._publish()

    def give_up(self) -> None:
        """Restore the start values and govern no more; the engine goes on as plain vLLM. Never raises."""
        self.governing = False
        self._state.set_generation(None)
        self._state.numbers[Slot.GOVERNED] = 0
        self._state.numbers[Slot.STEP_BUDGET_SECONDS] = 0
        start = self._surface.start
        try:
            self._surface.write(start, step_threshold=start.threshold)
            for knob, value in self._governed.started().items():
                self._state.set_knob(knob, requested=value, effective=value, reason=None)
            self._admit_by(Batching())
        except Exception:  # noqa: BLE001 – what failed may be what restores; the step must go on
            _log.exception("Flyball: the start values could not be restored")
        self._state.publish()

    def _hold_limits(self, *, planning: bool = False) -> None:
        """Write the limits that are safe for the batch; if `planning`, also what holds for the next step alone."""
        self._prefilling = self._begun()
        batch = self._surface.batch(self._prefilling, elsewhere=self._statistics.decodes_elsewhere)
        held, stood = self._governed.held(batch), self._held
        if held is not stood:
            self._held, self._active = held, held.limits.active
            for knob, shown in self._governed.shown(batch).items():
                self._state.set_knob(knob, requested=shown.requested, effective=shown.effective, reason=shown.reason)
        before, self._gate = self._gate, None
        if planning and self._admission.holds:
            prefilling = len(self._prefilling)
            self._gate = self._admission.gate(active=held.limits.active, prefilling=prefilling, now=self._began)
        had, self._had_prompts = self._had_prompts, bool(batch.prefills)
        # What is written depends on the batch by its prompts alone, and on nothing else that changes by itself.
        by_batch = had or self._had_prompts or self._surface.drains_by_slots or self._governed.reflex.holds
        if held is not stood or self._gate != before or by_batch:
            self._write(held, batch)

    def _write(self, held: Held, batch: RunningBatch) -> None:
        step = self._governed.limits(batch, lambda: self._queue(batch))
        active = held.limits.active if self._gate is None else self._gate
        self._room = step.tokens
        self._surface.write(replace(held.limits, active=active, tokens=step.tokens), step_threshold=step.threshold)

    def _begun(self) -> list[Any]:
        """The running requests whose prompt is not yet processed. Only a step leaves such, so most need no look."""
        return self._surface.prefilling() if self._leaves_prompts else []

    def _queue(self, batch: RunningBatch) -> Queue:
        """What the next step may serve, as far as its time depends on it."""
        surface = self._surface
        # Behind the gate nobody joins, however short the prompt.
        joining = LOOK_AHEAD if self._gate is None else self._gate - len(surface.running)
        head = surface.queue_head(max(0, min(LOOK_AHEAD, joining)))
        return Queue(
            decodes=batch.decodes,
            tokens_per_decode=surface.sizes.tokens_per_decode,
            prefilling=surface.prompts(self._prefilling),
            waiting=surface.prompts(head),
            more=len(head) == LOOK_AHEAD,
            decodes_behind=batch.decodes_behind,
            indivisible=surface.sizes.indivisible,
        )

    def _composition(self, output: Any) -> Step:
        """What the step processes. Requests that join in a step stand at the end of `running`, with their prompts."""
        scheduled = output.num_scheduled_tokens
        decodes, kv_tokens = len(scheduled), self._surface.context(scheduled)
        self._state.numbers[Slot.RUNNING_KV_TOKENS] = kv_tokens
        prefill_tokens, attention = 0, 0.0
        for request in (*self._prefilling, *self._surface.running[self._joining :]):
            processed = scheduled.get(request.request_id, 0)
            if processed:
                prefill_tokens += processed
                attention += processed * (request.num_computed_tokens - processed / 2)
                decodes -= 1
                kv_tokens -= request.num_computed_tokens
        return Step(
            tokens=output.total_num_scheduled_tokens,
            prefill_tokens=prefill_tokens,
            decodes=decodes,
            kv_tokens=kv_tokens,
            prefill_attention=attention,
            seats=self._seats(scheduled),
        )

    def _seats(self, scheduled: Any) -> Seats:
        return Seats(len(scheduled), len(self._surface.running), self._active, self._room)

    def _count_requests(self, output: Any) -> None:
        """Whose end this step is the first to know of, who joins it, and how many lost their places for it."""
        batches, running, now = self._batches, self._surface.running, self._began
        for name in output.finished_req_ids:
            request = self._open.pop(name, None)
            if request is not None:
                batches.ended(name, request.num_output_tokens, now)
        if len(running) > self._joining:
            joined = [(request.request_id, request.num_prompt_tokens) for request in running[self._joining :]]
            whole = self._admission.strategy is not StrategyType.CONTINUOUS
            batches.admitted(joined, running=len(running), whole=whole, now=now)
        elif len(running) < self._joining:
            # vLLM admits nobody in a step that preempts.
            batches.preempted(self._joining - len(running))

    def _due(self) -> list[str]:
        """The running requests that must get tokens now. Prompts have turns: those behind the first wait for it.

        Where data-parallel ranks prefill in the same step, the first waits for that step too, for as many as there are
        in between: longer than the watchdog's patience, if the interval is.
        """
        prefilling = self._begun()
        waiting = {id(request) for request in (prefilling if self._surface.defers_prefills else prefilling[1:])}
        return [request.request_id for request in self._surface.running if id(request) not in waiting]

    def _watch(self, output: Any) -> None:
        if self._surface.paused:
            self._governed.paused()
            return
        stall = self._governed.watch(
            running=len(self._surface.running),
            waiting=0 if output.total_num_scheduled_tokens else self._kept_waiting(),
            tokens=output.total_num_scheduled_tokens,
            names=self._due,
            now=self._began,
        )
        if stall is None:
            return
        what = "the queue" if stall.request is None else f"request {stall.request}"
        _log.error("Flyball: %s stood still for %.0f s; start values hold until a newer setpoint", what, stall.seconds)
        self._admit_by(self._governed.batching)
        # Now, not before the next step: whoever reads of the trip shall read of the start values, too.
        self._hold_limits()

    def _kept_waiting(self) -> int:
        """Requests that should join. A batch that gathers stands still by intent."""
        return 0 if self._admission.gathers(self._began) else self._surface.waiting_for_capacity()

    def _expire_if_due(self, now: float) -> None:
        if self._governed.expire_if_due(now):
            _log.warning("Flyball: the setpoint expired; start values hold until the next one")
            self._admit_by(self._governed.batching)

    def _admit_by(self, batching: Batching) -> None:
        self._admission.use(batching)
        self._state.set_admission(self._admission.strategy, self._admission.policy)

    def _publish(self) -> None:
        numbers, governed, now = self._state.numbers, self._governed, self._clock()
        if governed.applied is not self._shown:
            self._shown = governed.applied
            self._state.set_generation(governed.applied)
        numbers[Slot.WATCHDOG_TRIPS] = governed.trips
        numbers[Slot.EXPIRIES] = governed.expiries
        numbers[Slot.RUNNING] = len(self._surface.running)
        numbers[Slot.WAITING] = self._surface.waiting()
        numbers[Slot.KV_CACHE_USAGE] = self._surface.kv_cache_usage
        numbers[Slot.LONGEST_STEP_SECONDS] = self._statistics.longest_seconds
        numbers[Slot.STEP_BUDGET_SECONDS] = governed.reflex.seconds
        numbers[Slot.LOCAL_BIAS] = governed.reflex.bias
        numbers[Slot.OLDEST_WAITING_SECONDS] = self._batches.oldest_seconds(now)
        if self._backlog.due(now):
            self._count_backlog(now)
        self._state.publish()

    def _count_backlog(self, began: float) -> None:
        numbers, surface = self._state.numbers, self._surface
        prefilling = self._begun()
        numbers[Slot.DECODES] = len(surface.running) - len(prefilling)
        cached = self.cached if self.cached is not None and self.cached.knows else None
        nothing = not prefilling and not numbers[Slot.WAITING]
        backlog = _NO_WORK if nothing else surface.backlog(prefilling, None if cached is None else cached.cached_tokens)
        self._state.set_backlog(backlog, knows_prefixes=cached is not None, received=self._backlog.requests)
        self._backlog.counted(began=began, ended=self._clock())
