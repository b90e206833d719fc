"""Cumulative sums over an engine's steps: what the step-time model is learnt from.

The sums live in a flat array, so that they can be the body of a shared-memory file. It has one row of eight numbers per
bucket of scheduled tokens and kind of step. A step lasts from the later of its schedule and the previous update to its
own update: that holds with one step in flight and with several. Only steps that scheduled tokens count.

In a pipeline a step counts for the time of one stage, so that a token takes as many such steps as there are stages.
That is the time between two steps' ends where all stages are busy, and the share of the busy ones where some idle. It
is never more than its part of the time it was on its way, which a long step before it does not lengthen.

Pure: the clock is a parameter.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import MutableSequence, Sequence
from itertools import islice
from typing import Final, NamedTuple

from flyball_engine.contract import STEP_FIELDS, TOKEN_BUCKETS, StepKind, StepSums

_WIDTH: Final = len(STEP_FIELDS)
_KINDS: Final = tuple(StepKind)
#: Numbers in the flat array: rows of `STEP_FIELDS`, for each bucket and then for each kind.
SUMS_LENGTH: Final = len(TOKEN_BUCKETS) * len(_KINDS) * _WIDTH
#: Steps in flight that are remembered; the deepest pipelines have a few.
_MOST_IN_FLIGHT: Final = 64


class Occupancy(NamedTuple):
    """Who is in a step: `requests` get tokens, `running` hold a slot, `active` may by the live limit.

    `room`: the tokens that the step may process; 0 where nothing limits them.
    """

    requests: int = 0
    running: int = 0
    active: int = 0
    room: int = 0


class EndedStep(NamedTuple):
    """A step that ended: the `seconds` since the one before it, or since its schedule, and those it `counted` for."""

    step: Step
    seconds: float
    counted: float


#: Where nobody asks.
NOBODY: Final = Occupancy()


class Step(NamedTuple):
    """What one step processes; but for the last two, the fields are those of `contract.StepSums`.

    `prefill_squares`: by how much it adds to the squares of what is computed of each prompt.
    """

    tokens: int
    prefill_tokens: int
    decodes: int
    kv_tokens: float
    prefill_attention: float
    occupancy: Occupancy = NOBODY
    prefill_squares: int = 0


class StepStatistics:
    """Adds up steps as they are scheduled and finished, in order. `stages`: those of the engine's pipeline."""

    def __init__(self, sums: MutableSequence[float] | None = None, *, stages: int = 1) -> None:
        self.sums: MutableSequence[float] = array("d", bytes(8 * SUMS_LENGTH)) if sums is None else sums
        self._stages = stages
        self._longest = 0.0
        self._longest_before = 0.0
        self._in_flight: deque[tuple[int, float, Step]] = deque(maxlen=_MOST_IN_FLIGHT)
        self._updated = float("-inf")

    @property
    def longest_seconds(self) -> float:
        """The longest step of this period and the one before: a change waits for a step that ends before it."""
        return max(self._longest, self._longest_before)

    @property
    def decodes_elsewhere(self) -> int:
        """Decodes of the steps in flight, which the next step of a pipeline cannot have.

        Prompts that end in one of them are not among these: of them the next step is thought to have some.
        """
        if self._stages == 1:
            return 0
        return sum(step.decodes for _, _, step in islice(reversed(self._in_flight), self._stages - 1))

    def new_period(self) -> None:
        """A change was made: steps from now on are under it."""
        self._longest, self._longest_before = 0.0, self._longest

    def scheduled(self, key: int, step: Step, *, now: float) -> None:
        """A step began to be scheduled at `now`; `key` names it until `finished`."""
        # In a pipeline a step without tokens leaves a stage idle.
        if step.tokens > 0 or self._stages > 1:
            self._in_flight.append((key, now, step))

    def finished(self, key: int, *, now: float) -> EndedStep | None:
        """The step's outputs were processed at `now`; None if it processed nothing.

        Steps finish in the order they were scheduled in.
        """
        began, self._updated = self._updated, now
        in_flight = self._in_flight
        # In flight is one step, or two: those that were scheduled before and never finished are dropped.
        while in_flight and in_flight[0][0] != key and any(entry[0] == key for entry in in_flight):
            in_flight.popleft()
        if not in_flight or in_flight[0][0] != key:
            return None
        busy = self._busy()
        _, scheduled, step = in_flight.popleft()
        if step.tokens == 0:
            # Others were on their way meanwhile.
            self._updated = began
            return None
        seconds = now - max(began, scheduled)
        counted = min(seconds * busy, (now - scheduled) / self._stages)
        self._longest = max(self._longest, seconds)
        self._add(step, 1, counted, counted * counted, step.kv_tokens)
        return EndedStep(step, seconds, counted)

    def _busy(self) -> float:
        """Share of the stages that have a step, the one that ends now among them."""
        if self._stages == 1:
            return 1.0
        return sum(step.tokens > 0 for _, _, step in islice(self._in_flight, self._stages)) / self._stages

    def repeated(
        self, step: Step, *, steps: int, seconds: float, seconds_squared: float, kv_tokens: float, longest: float
    ) -> None:
        """Steps that differ from `step` only in KV tokens and time: how many, the sums of these, the longest."""
        self._longest = max(self._longest, longest)
        self._add(step, steps, seconds, seconds_squared, kv_tokens)

    def _add(self, step: Step, steps: int, seconds: float, seconds_squared: float, kv_tokens: float) -> None:
        """To the row of steps like this, field by field in the order of `STEP_FIELDS`."""
        sums, start = self.sums, row(step)
        sums[start] += steps
        sums[start + 1] += seconds
        sums[start + 2] += seconds_squared
        sums[start + 3] += steps * step.tokens
        sums[start + 4] += steps * step.prefill_tokens
        sums[start + 5] += steps * step.decodes
        sums[start + 6] += kv_tokens
        sums[start + 7] += steps * step.prefill_attention


def row(step: Step) -> int:
    """Where in the flat array the sums of steps like this one begin."""
    bucket = min((step.tokens - 1).bit_length(), len(TOKEN_BUCKETS) - 1)
    return (bucket * len(_KINDS) + (1 if step.prefill_tokens else 0)) * _WIDTH


def step_sums(sums: Sequence[float]) -> tuple[StepSums, ...]:
    """The rows that saw a step, as the contract has them."""
    rows = []
    for position in range(len(TOKEN_BUCKETS) * len(_KINDS)):
        values = sums[position * _WIDTH : (position + 1) * _WIDTH]
        if values[0]:
            rows.append(_as_sums(position, values))
    return tuple(rows)


def _as_sums(position: int, values: Sequence[float]) -> StepSums:
    steps, seconds, seconds_squared, tokens, prefill_tokens, decodes, kv_tokens, prefill_attention = values
    return StepSums(
        bucket=TOKEN_BUCKETS[position // len(_KINDS)],
        kind=_KINDS[position % len(_KINDS)],
        steps=int(steps),
        seconds=seconds,
        seconds_squared=seconds_squared,
        tokens=int(tokens),
        prefill_tokens=int(prefill_tokens),
        decodes=int(decodes),
        kv_tokens=int(kv_tokens),
        prefill_attention=prefill_attention,
    )
