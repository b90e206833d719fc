"""The live limits of a simulated core: the setpoint in force, and what each step may take under it.

The policies are the plugin's (`flyball_engine.batching`); what differs is that nothing here has to survive a vLLM that
changed. Times are parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from flyball_engine.batching.limits import (
    ClampReason,
    Limited,
    RunningBatch,
    Sizes,
    Wanted,
    active_limit,
    step_threshold,
    threshold_limit,
    token_limit,
)
from flyball_engine.batching.reflex import Queue, Reflex, Room
from flyball_engine.batching.watchdog import Watchdog
from flyball_engine.contract import Generation, Knob, Setpoint


@dataclass(frozen=True, slots=True)
class _Held:
    """The limits of a batch, and for each knob its live value with the reason if it is not what was asked for."""

    wanted: Wanted
    batch: RunningBatch
    limits: Wanted
    shown: Mapping[Knob, Limited]


def _hold(wanted: Wanted, batch: RunningBatch, sizes: Sizes) -> _Held:
    """What is wanted, as far as it is safe for the running batch."""
    active = active_limit(wanted.active, sizes)
    tokens = token_limit(wanted.tokens, active=active.value, batch=batch, sizes=sizes)
    threshold = threshold_limit(wanted.threshold, sizes)
    return _Held(
        wanted,
        batch,
        Wanted(active=active.value, tokens=tokens.value, threshold=threshold.value),
        {
            Knob.MAX_NUM_ACTIVE_SEQS: active,
            Knob.MAX_NUM_SCHEDULED_TOKENS: tokens,
            Knob.LONG_PREFILL_TOKEN_THRESHOLD: threshold,
        },
    )


class Governed:
    """Holds the setpoint. `applied` is None before the first and after an expiry; `trips` and `expiries` count."""

    def __init__(self, sizes: Sizes, start: Wanted) -> None:
        self.sizes = sizes
        self.start = start
        self.reflex = Reflex()
        self.applied: Generation | None = None
        self.trips = 0
        self.expiries = 0
        self._wanted = start
        self._asked = start
        self._newest: Setpoint | None = None
        self._expires = math.inf
        self._tripped = False
        self._watchdog = Watchdog()
        self._held: _Held | None = None

    @property
    def expires(self) -> float:
        """When the setpoint expires."""
        return self._expires

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
        self._expires = now + setpoint.expires_seconds
        self.applied = Generation(epoch=setpoint.epoch, generation=setpoint.generation)
        self._asked = _complete(setpoint, self.start)
        self._wanted = self.start if self._tripped else self._asked
        self.reflex.set_budget(None if self._tripped else setpoint.step)
        return new

    def expire_if_due(self, now: float) -> None:
        """An engine that heard nothing for so long returns to its start values."""
        if now >= self._expires:
            self._expires = math.inf
            self._wanted = self._asked = self.start
            self.reflex.set_budget(None)
            self.applied = None
            self.expiries += 1

    def limits(self, batch: RunningBatch, queue: Callable[[], Queue]) -> Wanted:
        """What the next step may take, as the plugin decides it; `queue` is asked for where steps are fitted."""
        held = self._limits(batch).limits
        room = Room(tokens=held.tokens, threshold=held.threshold)
        if self.reflex.holds:
            room = self.reflex.room(queue(), least_chunk=self.sizes.least_chunk, most=room)
        threshold = step_threshold(room.threshold, tokens=room.tokens, batch=batch, sizes=self.sizes)
        return replace(held, tokens=room.tokens, threshold=threshold)

    def watch(self, *, running: int, waiting: int, tokens: int, prefilling: Iterable[str], now: float) -> None:
        """A step was planned: return to the start values if requests stand still. Decodes are in every step."""
        stall = self._watchdog.stepped(
            running=running, waiting=waiting, scheduled=tokens, names=lambda: prefilling, now=now
        )
        if stall is not None and (self._wanted != self.start or self.reflex.holds):
            self._tripped = True
            self._wanted = self.start
            self.reflex.set_budget(None)
            self.trips += 1
            self._watchdog.reset()

    def served(self, requests: Iterable[str], now: float) -> None:
        """These prefilling requests got tokens in the step that ended."""
        self._watchdog.served(requests, now=now)

    def shown(self, batch: RunningBatch) -> dict[Knob, tuple[int, int, ClampReason | None]]:
        """For each knob what was asked for, what it is, and why these differ."""
        asked = by_knob(self._asked)
        found = {}
        for knob, limited in self._limits(batch).shown.items():
            reason = limited.reason
            if self._tripped and reason is None and limited.value != asked[knob]:
                reason = ClampReason.WATCHDOG
            found[knob] = (asked[knob], limited.value, reason)
        return found

    def _limits(self, batch: RunningBatch) -> _Held:
        held = self._held
        if held is None or held.wanted is not self._wanted or held.batch != batch:
            held = self._held = _hold(self._wanted, batch, self.sizes)
        return held


def by_knob(limits: Wanted) -> dict[Knob, int]:
    """The limits by the names of their knobs."""
    return {
        Knob.MAX_NUM_ACTIVE_SEQS: limits.active,
        Knob.MAX_NUM_SCHEDULED_TOKENS: limits.tokens,
        Knob.LONG_PREFILL_TOKEN_THRESHOLD: limits.threshold,
    }


def _complete(setpoint: Setpoint, start: Wanted) -> Wanted:
    given = by_knob(start) | setpoint.limits.given()
    return Wanted(
        active=given[Knob.MAX_NUM_ACTIVE_SEQS],
        tokens=given[Knob.MAX_NUM_SCHEDULED_TOKENS],
        threshold=given[Knob.LONG_PREFILL_TOKEN_THRESHOLD],
    )
