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
from typing import Any, Concatenate, Final, ParamSpec

from flyball_engine.batching.backlog import Backlog
from flyball_engine.batching.limits import (
    ClampReason,
    Limited,
    RunningBatch,
    Wanted,
    active_limit,
    depth_limit,
    step_threshold,
    threshold_limit,
    token_limit,
)
from flyball_engine.batching.reflex import LOOK_AHEAD, Queue, Reflex, Room
from flyball_engine.batching.step_statistics import Step, StepStatistics
from flyball_engine.batching.watchdog import Stall, Watchdog
from flyball_engine.contract import Batching, Generation, Knob, Setpoint
from flyball_engine.control.state_file import Slot, StateWriter
from flyball_engine.vllm.admission import Admission
from flyball_engine.vllm.surface import Surface

_log = logging.getLogger(__name__)
_P = ParamSpec("_P")
_NEVER: Final = float("inf")


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
    """Governs one scheduler. `applied` is the generation in force, None before the first and after an expiry."""

    def __init__(
        self,
        scheduler: Any,
        *,
        folder: Path,
        clock: Callable[[], float] = time.monotonic,
        watchdog: Watchdog | None = None,
    ) -> None:
        """Probe the scheduler and make its state file; raises UngovernableError or StateFileError."""
        self._surface = Surface(scheduler)
        self._admission = Admission(scheduler, self._surface)
        self._clock = clock
        self._watchdog = watchdog or Watchdog()
        self.engine = self._surface.engine
        self.governing = True
        self.applied: Generation | None = None
        self._newest: Setpoint | None = None
        self._expires = _NEVER
        self._tripped = False
        self._wanted = self._surface.start
        self._held = self._surface.start
        self._held_for: tuple[Wanted, RunningBatch] | None = None
        self._gate: int | None = None
        self._reflex = Reflex()
        self._backlog = Backlog()
        self._began = 0.0
        self._joining = 0
        self._prefilling: list[Any] = []
        unsupported = {**self._surface.unsupported, **self._admission.unsupported}
        self._state = StateWriter(folder, engine=self.engine, unsupported=unsupported)
        self._statistics = StepStatistics(self._state.sums)
        self._describe()
        self._hold_limits()
        self._publish()

    def apply(self, setpoint: Setpoint) -> None:
        """Put a setpoint in force from the next step on, unless a newer one is; the same again renews its expiry."""
        if not self.governing:
            raise RuntimeError("this engine core is no longer governed, see its log")
        newest = self._newest
        if newest is not None and setpoint.order() < newest.order():
            return
        if newest is None or setpoint.order() > newest.order():
            self._tripped = False
            self._statistics.new_period()
            self._watchdog.reset()
        self._newest = setpoint
        self._expires = self._clock() + setpoint.expires_seconds
        self._set_applied(Generation(epoch=setpoint.epoch, generation=setpoint.generation))
        # A renewal after a trip leaves the start values: the same limits would bring the same stall.
        self._wanted = self._surface.start if self._tripped else _complete(setpoint, self._surface.start)
        self._reflex.set_budget(None if self._tripped else setpoint.step)
        self._admission.use(Batching() if self._tripped else setpoint.batching)
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
        self._admission.joined(self._surface.running[self._joining :])
        self._watch(output)
        self._publish()

    @_contained
    def after_update(self, output: Any) -> None:
        """Count the step that ended, publish."""
        now = self._clock()
        ended = self._statistics.finished(id(output), now=now)
        if ended is not None:
            self._reflex.observe(*ended)
        self._watchdog.served(output.num_scheduled_tokens, now=now)
        self._admission.updated()
        self._publish()

    @_contained
    def received(self, request: Any) -> None:
        """A request came in; published with the next step."""
        self._backlog.received(request.num_tokens)
        self._admission.arrived(request, now=self._clock())

    @_contained
    def after_finish(self) -> None:
        """Publish that requests left."""
        self._publish()

    def give_up(self) -> None:
        """Restore the start values and govern no more; the engine goes on as plain vLLM. Never raises."""
        self.governing = False
        self._set_applied(None)
        self._state.numbers[Slot.GOVERNED] = 0
        self._state.numbers[Slot.STEP_BUDGET_SECONDS] = 0
        start = self._surface.start
        try:
            self._surface.write(start, step_threshold=start.threshold)
            for knob in Knob:
                self._show(knob, Limited(_value(start, knob)))
            self._admission.use(Batching())
            self._state.set_admission(self._admission.strategy, self._admission.policy)
        except Exception:  # noqa: BLE001 – what failed may be what restores; the step must go on
            _log.exception("Flyball: the start values could not be restored")
        self._state.publish()

    def _hold_limits(self, *, planning: bool = False) -> None:
        """Write the limits that are safe for the batch; if `planning`, also what holds for the next step alone."""
        self._prefilling = self._surface.prefilling()
        batch = self._surface.batch(self._prefilling)
        stand = self._held_for == (self._wanted, batch)
        if not stand:
            self._held_for = (self._wanted, batch)
            self._clamp(batch)
        before, self._gate = self._gate, None
        if planning and self._admission.holds:
            prefilling = len(self._prefilling)
            self._gate = self._admission.gate(active=self._held.active, prefilling=prefilling, now=self._began)
        # The limits depend on nothing else: they may stand as they were written.
        if not stand or self._gate != before or self._reflex.holds:
            self._write(batch)

    def _clamp(self, batch: RunningBatch) -> None:
        wanted, sizes = self._wanted, self._surface.sizes
        active = active_limit(wanted.active, sizes)
        tokens = token_limit(wanted.tokens, active=active.value, batch=batch, sizes=sizes)
        threshold = threshold_limit(wanted.threshold, sizes)
        depth = depth_limit(wanted.depth, sizes)
        self._held = Wanted(active=active.value, tokens=tokens.value, threshold=threshold.value, depth=depth.value)
        self._show(Knob.MAX_NUM_ACTIVE_SEQS, active)
        self._show(Knob.MAX_NUM_SCHEDULED_TOKENS, tokens)
        self._show(Knob.LONG_PREFILL_TOKEN_THRESHOLD, threshold)
        self._show(Knob.NUM_SPECULATIVE_TOKENS, depth)

    def _write(self, batch: RunningBatch) -> None:
        held, surface = self._held, self._surface
        room = Room(tokens=held.tokens, threshold=held.threshold)
        if self._reflex.holds:
            room = self._reflex.room(self._queue(batch), least_chunk=surface.sizes.least_chunk, most=room)
        threshold = step_threshold(
            room.threshold,
            tokens=room.tokens,
            batch=batch,
            sizes=surface.sizes,
            adaptive=surface.adaptive and room.threshold == held.threshold,
        )
        active = held.active if self._gate is None else self._gate
        surface.write(replace(held, active=active, tokens=room.tokens), step_threshold=threshold)

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

    def _show(self, knob: Knob, limited: Limited) -> None:
        if knob in self._surface.unsupported:
            return
        asked = _complete(self._newest, self._surface.start) if self._newest and self.applied else self._surface.start
        requested = _value(asked, knob)
        reason = limited.reason
        if self._tripped and reason is None and requested != limited.value:
            reason = ClampReason.WATCHDOG
        self._state.set_knob(knob, requested=requested, effective=limited.value, reason=reason)

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
        )

    def _watch(self, output: Any) -> None:
        if self._surface.paused:
            self._watchdog.reset()
            return
        stall = self._watchdog.stepped(
            running=len(self._surface.running),
            # A batch that gathers stands still by intent.
            waiting=0 if self._admission.gathers(self._began) else self._surface.waiting_for_capacity(),
            scheduled=output.total_num_scheduled_tokens,
            names=lambda: [request.request_id for request in self._surface.running],
            now=self._began,
        )
        # At the start values there is nothing to return to: the stall is not of our making.
        if stall is not None and (self._wanted != self._surface.start or self._reflex.holds or self._admission.holds):
            self._trip(stall)

    def _trip(self, stall: Stall) -> None:
        what = "the queue" if stall.request is None else f"request {stall.request}"
        _log.error("Flyball: %s stood still for %.0f s; start values hold until a newer setpoint", what, stall.seconds)
        self._tripped = True
        self._wanted = self._surface.start
        self._reflex.set_budget(None)
        self._admission.use(Batching())
        self._held_for = None
        self._state.numbers[Slot.WATCHDOG_TRIPS] += 1
        self._watchdog.reset()
        # Now, not before the next step: whoever reads of the trip shall read of the start values, too.
        self._hold_limits()

    def _expire_if_due(self, now: float) -> None:
        if now < self._expires:
            return
        _log.warning("Flyball: the setpoint expired; start values hold until the next one")
        self._expires = _NEVER
        self._wanted = self._surface.start
        self._reflex.set_budget(None)
        self._admission.use(Batching())
        self._set_applied(None)
        self._state.numbers[Slot.EXPIRIES] += 1

    def _set_applied(self, generation: Generation | None) -> None:
        self.applied = generation
        self._held_for = None
        self._state.set_generation(generation)

    def _describe(self) -> None:
        numbers, sizes = self._state.numbers, self._surface.sizes
        numbers[Slot.GOVERNED] = 1
        numbers[Slot.MAX_NUM_SEQS] = sizes.max_num_seqs
        numbers[Slot.MAX_NUM_BATCHED_TOKENS] = sizes.max_num_batched_tokens
        numbers[Slot.MAX_MODEL_LEN] = sizes.max_model_len
        numbers[Slot.TOKENS_PER_DECODE] = sizes.tokens_per_decode
        numbers[Slot.PIPELINE_DEPTH] = self._surface.pipeline_depth
        numbers[Slot.KV_CACHE_TOKENS] = self._surface.kv_cache_tokens
        for knob in Knob:
            if knob not in self._surface.unsupported:
                self._state.set_start(knob, _value(self._surface.start, knob))

    def _publish(self) -> None:
        numbers = self._state.numbers
        numbers[Slot.RUNNING] = len(self._surface.running)
        numbers[Slot.WAITING] = self._surface.waiting()
        numbers[Slot.KV_CACHE_USAGE] = self._surface.kv_cache_usage
        numbers[Slot.LONGEST_STEP_SECONDS] = self._statistics.longest_seconds
        numbers[Slot.STEP_BUDGET_SECONDS] = self._reflex.seconds
        numbers[Slot.LOCAL_BIAS] = self._reflex.bias
        self._count_backlog()
        self._state.set_admission(self._admission.strategy, self._admission.policy)
        self._state.publish()

    def _count_backlog(self) -> None:
        began = self._clock()
        if not self._backlog.due(began):
            return
        numbers, surface = self._state.numbers, self._surface
        prefilling = surface.prefilling()
        numbers[Slot.DECODES] = len(surface.running) - len(prefilling)
        self._state.set_work(Slot.BACKLOG_REQUESTS, surface.backlog(prefilling))
        self._state.set_work(Slot.RECEIVED_REQUESTS, self._backlog.total)
        self._backlog.counted(began=began, ended=self._clock())


def _complete(setpoint: Setpoint, start: Wanted) -> Wanted:
    """The limits of a setpoint; those it leaves out have their start values."""
    given = setpoint.limits.given()
    return Wanted(
        active=given.get(Knob.MAX_NUM_ACTIVE_SEQS, start.active),
        tokens=given.get(Knob.MAX_NUM_SCHEDULED_TOKENS, start.tokens),
        threshold=given.get(Knob.LONG_PREFILL_TOKEN_THRESHOLD, start.threshold),
        depth=given.get(Knob.NUM_SPECULATIVE_TOKENS, start.depth),
    )


def _value(limits: Wanted, knob: Knob) -> int:
    return {
        Knob.MAX_NUM_ACTIVE_SEQS: limits.active,
        Knob.MAX_NUM_SCHEDULED_TOKENS: limits.tokens,
        Knob.LONG_PREFILL_TOKEN_THRESHOLD: limits.threshold,
        Knob.NUM_SPECULATIVE_TOKENS: limits.depth,
    }[knob]
