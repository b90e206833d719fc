"""The setpoint in force, and what each step may take under it: the same for every engine that takes steps.

A setpoint is completed with the start values, clamped to what is safe for the running batch, and fitted into the step
budget where there is one. The start values return when it expires or when requests stand still under it. An engine asks
before each step and tells after it; how it makes a step obey is its own.

A limit asked for is not always one an engine can run with. Above the start-up sizes the worker's buffers overflow.
Below the running decodes the newest requests freeze without an error. Below the longest part that cannot be split the
queue hangs. So limits are clamped between floors and ceilings, and each reason is told.

Pure: the clock is a parameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from flyball_engine.batching.draft_statistics import PROBE_SECONDS
from flyball_engine.batching.step_token_budgeter import Queue, StepTokenBudgeter
from flyball_engine.batching.watchdog import Stall, Watchdog
from flyball_engine.contract import (
    LEAST_CHUNK,
    AnyKnob,
    Batching,
    ClampReason,
    Classes,
    Generation,
    Knob,
    OnTime,
    Setpoint,
    Shed,
)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What an engine was started with, as far as it bounds the live limits.

    `tokens_per_decode`: 1 + speculative tokens. `least_chunk`: tokens a partial prefill must get to advance.
    `indivisible`: the longest part of a prompt that must go into one step whole (the model length without chunked
    prefill, an image, a state-space block); 0 if none. `depths`: numbers of draft tokens that the engine's graphs were
    made for, rising; empty where the depth cannot be moved. `graphs`: tokens of the steps that CUDA graphs were
    captured of, rising; empty where there are none.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    tokens_per_decode: int = 1
    least_chunk: int = LEAST_CHUNK
    indivisible: int = 0
    depths: tuple[int, ...] = ()
    graphs: tuple[int, ...] = ()


class RequestedLimits(NamedTuple):
    """A value for each knob, as asked for or once it is safe. `threshold` 0 is no cap; `depth` is draft tokens."""

    active: int
    tokens: int
    threshold: int
    depth: int = 0


class RunningBatch(NamedTuple):
    """The running requests before a step: `decodes` of them decode, the others prefill.

    `prefills`: prompt tokens each partial prefill still has to process. Decodes are served before them.
    """

    decodes: int
    prefills: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Running requests."""
        return self.decodes + len(self.prefills)


@dataclass(frozen=True)
class Limited:
    """A limit that is safe, and why it differs from what was asked for (None: it does not)."""

    value: int
    reason: ClampReason | None = None


def active_limit(wanted: int, sizes: Sizes) -> Limited:
    """Requests that may run: at least 1 (0 would spin), at most the slots there are."""
    if wanted > sizes.max_num_seqs:
        return Limited(sizes.max_num_seqs, ClampReason.CEILING)
    return Limited(wanted) if wanted >= 1 else Limited(1, ClampReason.FLOOR)


def token_limit(wanted: int, *, active: int, batch: RunningBatch, sizes: Sizes) -> Limited:
    """Tokens a step may process: enough for every request that runs or may run, at most the start-up size.

    While requests over the active limit drain, the limit follows them down; that is the reason `decodes`.
    """
    ceiling = sizes.max_num_batched_tokens
    if wanted > ceiling:
        return Limited(ceiling, ClampReason.CEILING)
    floor = min(ceiling, _standing_floor(active, sizes))
    needed = min(ceiling, batch_floor(batch, sizes))
    if wanted >= max(floor, needed):
        return Limited(wanted)
    return Limited(needed, ClampReason.DECODES) if needed > floor else Limited(floor, ClampReason.FLOOR)


def _standing_floor(active: int, sizes: Sizes) -> int:
    decodes = sizes.tokens_per_decode * active
    # What cannot be split must fit beside a full batch of decodes, or it waits for them for ever.
    return decodes + sizes.indivisible if sizes.indivisible else max(decodes, sizes.least_chunk)


def batch_floor(batch: RunningBatch, sizes: Sizes) -> int:
    """Tokens a step must have so that every running request advances; of prompts of whole parts, one of them."""
    prefills = max(sizes.least_chunk * len(batch.prefills), sizes.indivisible) if batch.prefills else 0
    return sizes.tokens_per_decode * batch.decodes + prefills


def threshold_limit(wanted: int, sizes: Sizes) -> Limited:
    """Tokens of one prompt in one step: 0 is no cap; one below the least chunk or a whole part starves prefills."""
    least = min(sizes.max_model_len, max(sizes.least_chunk, sizes.indivisible))
    if wanted == 0 or least <= wanted <= sizes.max_model_len:
        return Limited(wanted)
    if wanted > sizes.max_model_len:
        return Limited(sizes.max_model_len, ClampReason.CEILING)
    return Limited(least, ClampReason.FLOOR)


def depth_limit(wanted: int, sizes: Sizes) -> Limited:
    """Draft tokens per request and step: only depths the engine was started with have a graph."""
    depths = sizes.depths
    if not depths or wanted in depths:
        return Limited(wanted)
    if wanted > depths[-1]:
        return Limited(depths[-1], ClampReason.CEILING)
    return Limited(max((depth for depth in depths if depth < wanted), default=depths[0]), ClampReason.SCHEDULE)


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
        self._drafted_all = -math.inf

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
        tokens = self.budgeter.step_tokens(
            queue(), least_chunk=sizes.least_chunk, most=held.tokens, graphs=sizes.graphs
        )
        return held if tokens == held.tokens else held._replace(tokens=tokens)

    def next_depth(self, limits: RequestedLimits, now: float) -> int:
        """Tokens that the next step may draft for each decode under these limits.

        Now and then those that it was started with, so that it stays known what becomes of them.
        """
        return self.start.depth if now >= self.full_draft_at(limits) else limits.depth

    def full_draft_at(self, limits: RequestedLimits) -> float:
        """When a step is next to draft more than these limits say; infinite where they are the most there is."""
        return self._drafted_all + PROBE_SECONDS if limits.depth < self.start.depth else math.inf

    def note_drafts(self, depth: int, now: float) -> None:
        """A step with decodes was planned, which drafts so many tokens for each. One without them tells nothing."""
        if depth >= self.start.depth:
            self._drafted_all = now

    def reach(self, batch: RunningBatch, *, tokens_per_decode: int, kv_tokens: float) -> float:
        """Prompt tokens that the next step can have at most for its time; infinite where none is set."""
        sizes = self.sizes
        least = max(sizes.least_chunk, sizes.indivisible)
        decode_tokens = tokens_per_decode * batch.decodes
        return self.budgeter.reach(decodes=batch.decodes, decode_tokens=decode_tokens, least=least, kv_tokens=kv_tokens)

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

    def served(self, requests: Collection[str], now: float, *, all_running: bool = False) -> None:
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
