"""The setpoint in force, and what each step may take under it: the same for every engine that takes steps.

A setpoint is completed with the start values, clamped to what is safe for the running batch, fitted into the step
budget where there is one, and thrown out when it expires or when requests stand still under it. An engine asks before
each step and tells after it; how it makes a step obey is its own.

Pure: the clock is a parameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from flyball_engine.batching.limits import (
    Limited,
    RequestedLimits,
    RunningBatch,
    Sizes,
    active_limit,
    batch_floor,
    depth_limit,
    threshold_limit,
    token_limit,
)
from flyball_engine.batching.step_token_budgeter import Queue, StepTokenBudgeter
from flyball_engine.batching.watchdog import Stall, Watchdog
from flyball_engine.contract import AnyKnob, Batching, ClampReason, Classes, Generation, Knob, OnTime, Setpoint, Shed

_OWN_WAY: Final = Batching()


class ReportedLimit(NamedTuple):
    """What was asked of a knob, what it is, and why these differ (None: they do not)."""

    requested: int
    effective: int
    reason: ClampReason | None


@dataclass(frozen=True, slots=True, eq=False)
class EffectiveLimits:
    """The `limits` that are safe for a batch; `limited` has the reason for each that is not what was wanted.

    `batch`: the one they were found for, None where they are safe for every batch whose floor is no higher than them.
    """

    batch: RunningBatch | None
    limits: RequestedLimits
    limited: Mapping[Knob, Limited]

    def hold_for(self, batch: RunningBatch, sizes: Sizes) -> bool:
        """Whether they are what this batch would be given, too."""
        return self.batch == batch if self.batch is not None else batch_floor(batch, sizes) <= self.limits.tokens


class SetpointEnforcer:
    """Holds the setpoint of one engine core, between its steps.

    `applied`: the generation in force, None before the first and after an expiry. `batching`: how it admits. `expires`:
    when, infinite if never. `trips` and `expiries` count.
    """

    def __init__(
        self,
        sizes: Sizes,
        start: RequestedLimits,
        *,
        fixed: Container[AnyKnob] = (),
        watchdog: Watchdog | None = None,
    ) -> None:
        """`start`: the limits it starts with and returns to. `fixed`: knobs that cannot be moved, and are not shown."""
        self.sizes = sizes
        self.start = start
        self.budgeter = StepTokenBudgeter()
        self.applied: Generation | None = None
        self.batching = _OWN_WAY
        self.expires = math.inf
        self.trips = 0
        self.expiries = 0
        self._knobs = [knob for knob in Knob if knob not in fixed]
        self._watchdog = watchdog or Watchdog()
        self._newest: Setpoint | None = None
        self._deadlines: dict[str, float] = {}
        self._asked = start
        self._wanted = start
        self._tripped = False
        self._held: EffectiveLimits | None = None

    def apply(self, setpoint: Setpoint, now: float) -> bool:
        """Put a setpoint in force unless a newer one is; the same again renews its expiry. Whether it is a new one."""
        newest = self._newest
        if newest is not None and setpoint.order() < newest.order():
            return False
        new = newest is None or setpoint.order() > newest.order()
        if new:
            self._tripped = False
            self._watchdog.reset()
        self._newest = setpoint
        self._deadlines = setpoint.refusal_deadlines
        self.expires = now + setpoint.expires_seconds
        self.applied = Generation(epoch=setpoint.epoch, generation=setpoint.generation)
        self._asked = _complete(setpoint, self.start)
        if self._tripped:
            # A renewal after a trip leaves the start values: the same limits would bring the same stall.
            self._return_to_start()
            return new
        self._wanted = self._asked
        self.budgeter.set_budget(setpoint.step)
        self.batching = setpoint.batching
        self._held = None
        return new

    @property
    def on_time(self) -> OnTime | None:
        """The order of prompts, None for the engine's own: who can be on time is told by a trusted model alone."""
        return self._newest.on_time if self._newest is not None and self.budgeter.holds else None

    @property
    def shed(self) -> Shed | None:
        """The deadline that requests are refused by; None, too, without a trusted model, and at the start values."""
        return self._newest.shed if self._newest is not None and self.budgeter.holds else None

    @property
    def classes(self) -> Classes | None:
        """The classes of requests, None if there are none."""
        return self._newest.classes if self._newest is not None else None

    @property
    def refusal_deadlines(self) -> dict[str, float]:
        """Seconds to the first token by which requests of each class are refused, infinite where they never are."""
        return self._deadlines

    def expire_if_due(self, now: float) -> bool:
        """An engine that heard nothing for so long returns to its start values; whether it does so now."""
        if now < self.expires:
            return False
        self.expires = math.inf
        self.applied = None
        self._asked = self.start
        self._return_to_start()
        self.expiries += 1
        return True

    def held(self, batch: RunningBatch) -> EffectiveLimits:
        """The limits for a batch; the same object as long as neither the setpoint nor what is safe is another."""
        held = self._held
        if held is None or not held.hold_for(batch, self.sizes):
            held = self._held = _hold(self._wanted, batch, self.sizes)
        return held

    def limits(self, batch: RunningBatch, queue: Callable[[], Queue]) -> RequestedLimits:
        """What the next step may take. `queue` is asked for where steps are fitted into a budget."""
        held = self.held(batch).limits
        if not self.budgeter.holds:
            return held
        sizes = self.sizes
        tokens = self.budgeter.room(queue(), least_chunk=sizes.least_chunk, most=held.tokens, graphs=sizes.graphs)
        return held if tokens == held.tokens else replace(held, tokens=tokens)

    def watch(
        self, *, running: int, waiting: int, tokens: int, names: Callable[[], Iterable[str]], now: float
    ) -> Stall | None:
        """A step was planned: return to the start values if requests stand still under others, and tell which.

        `tokens`: of the step. `names`: of the running requests that may stand still.
        """
        stall = self._watchdog.stepped(running=running, waiting=waiting, scheduled=tokens, names=names, now=now)
        # At the start values there is nothing to return to: the stall is not of our making.
        if stall is None or not self._moved:
            return None
        self._tripped = True
        self._return_to_start()
        self.trips += 1
        self._watchdog.reset()
        return stall

    def served(self, requests: Container[str], now: float, *, all_running: bool = False) -> None:
        """These requests got tokens in the step that ended; `all_running`: so did each that ran in it.

        They are kept, not copied: nobody may change them.
        """
        self._watchdog.served(requests, now=now, all_running=all_running)

    def paused(self) -> None:
        """The engine itself holds its requests back: that is no stall."""
        self._watchdog.reset()

    def shown(self, batch: RunningBatch) -> dict[Knob, ReportedLimit]:
        """What is to be said of each knob that can be moved."""
        limited, asked = self.held(batch).limited, by_knob(self._asked)
        found = {}
        for knob in self._knobs:
            value, reason = limited[knob].value, limited[knob].reason
            if self._tripped and reason is None and value != asked[knob]:
                reason = ClampReason.WATCHDOG
            found[knob] = ReportedLimit(asked[knob], value, reason)
        return found

    def started(self) -> dict[Knob, int]:
        """The start value of each knob that can be moved."""
        start = by_knob(self.start)
        return {knob: start[knob] for knob in self._knobs}

    @property
    def _moved(self) -> bool:
        return self._wanted != self.start or self.budgeter.holds or self.batching != _OWN_WAY

    def _return_to_start(self) -> None:
        self._wanted = self.start
        self.budgeter.set_budget(None)
        self.batching = _OWN_WAY
        self._held = None


def by_knob(limits: RequestedLimits) -> dict[Knob, int]:
    """The limits by the names of their knobs."""
    return {
        Knob.MAX_NUM_ACTIVE_SEQS: limits.active,
        Knob.MAX_NUM_SCHEDULED_TOKENS: limits.tokens,
        Knob.LONG_PREFILL_TOKEN_THRESHOLD: limits.threshold,
        Knob.NUM_SPECULATIVE_TOKENS: limits.depth,
    }


def _complete(setpoint: Setpoint, start: RequestedLimits) -> RequestedLimits:
    """The limits of a setpoint; those it leaves out have their start values."""
    given = by_knob(start) | setpoint.limits.given()
    return RequestedLimits(
        active=given[Knob.MAX_NUM_ACTIVE_SEQS],
        tokens=given[Knob.MAX_NUM_SCHEDULED_TOKENS],
        threshold=given[Knob.LONG_PREFILL_TOKEN_THRESHOLD],
        depth=given[Knob.NUM_SPECULATIVE_TOKENS],
    )


def _hold(wanted: RequestedLimits, batch: RunningBatch, sizes: Sizes) -> EffectiveLimits:
    """What is wanted, as far as it is safe for the running batch."""
    active = active_limit(wanted.active, sizes)
    tokens = token_limit(wanted.tokens, active=active.value, batch=batch, sizes=sizes)
    threshold = threshold_limit(wanted.threshold, sizes)
    depth = depth_limit(wanted.depth, sizes)
    return EffectiveLimits(
        batch if tokens.reason is ClampReason.DECODES else None,
        RequestedLimits(active=active.value, tokens=tokens.value, threshold=threshold.value, depth=depth.value),
        {
            Knob.MAX_NUM_ACTIVE_SEQS: active,
            Knob.MAX_NUM_SCHEDULED_TOKENS: tokens,
            Knob.LONG_PREFILL_TOKEN_THRESHOLD: threshold,
            Knob.NUM_SPECULATIVE_TOKENS: depth,
        },
    )
