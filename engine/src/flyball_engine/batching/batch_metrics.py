"""How well an engine's batches are used: cumulative sums over its steps and its requests, the same for every engine.

The engine tells of each step and of each request as it comes, joins and ends; each costs constant time, and what is
kept is bounded by the requests that are open. The sums live in a flat array, so that they can be part of a
shared-memory file. Differences of two readings are exact over that window, and readings add up over cores. What each
number means is said in `BatchCounts`, and in docs/reference/metrics.md with the names it is scraped by.

Pure: the clock is a parameter.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, MutableSequence, Sequence
from dataclasses import dataclass, fields
from typing import Final

from flyball_engine.batching.cohorts import Cohort, Cohorts
from flyball_engine.batching.step_statistics import Step
from flyball_engine.batching.waiting import Arrivals

#: Upper edges of the batch sizes that are told apart; a larger one is in a bucket of its own.
BATCH_SIZES: Final[tuple[int, ...]] = tuple(2**exponent for exponent in range(12))


#: Index of each sum, in the order of the fields of `BatchCounts`; the steps by batch size come last. Plain numbers: an
#: enumeration costs a step half as much again.
(
    _USED,
    _FREE,
    _WITHHELD,
    _PREFILL,
    _SQUARES,
    _DECODE,
    _ROOM_USED,
    _ROOM_FREE,
    _REQUESTS,
    _ADMITTED,
    _ADMITTED_SECONDS,
    _LEFT,
    _LEFT_SECONDS,
    _PREEMPTIONS,
    _COHORTS,
    _COHORT_REQUESTS,
    _COHORT_PROMPTS,
    _COHORT_PROMPTS_PADDED,
    _COHORT_OUTPUTS,
    _COHORT_OUTPUTS_PADDED,
    _STEPS,
) = range(21)

#: Numbers in the flat array.
BATCH_SUMS_LENGTH: Final = _STEPS + len(BATCH_SIZES) + 1


@dataclass(frozen=True, kw_only=True)
class BatchCounts:
    """What was counted by some moment; cumulative.

    Slots, in slot-seconds of steps' time: `slots_used` by a running request, `slots_free` under the live limit,
    `slots_withheld` above it; together, the slots the engine was started with.
    Tokens: `prefill_tokens` and `decode_tokens` that steps processed (drafts and what is computed anew included);
    `prefill_squares` of what was computed of each prompt, added up chunk by chunk;
    `room_used` of the room for tokens in steps with a prompt, `room_free` the rest of it. In steps of decodes alone
    nothing could have filled the rest.
    Batches: `steps` by the number of requests in the step, by `BATCH_SIZES` and then beyond; `step_requests` their sum.
    Queue: requests `admitted` for the first time and the seconds they had waited; those that `left` before, likewise.
    `preemptions`: requests that lost their slot and are computed anew.
    Cohorts whose last member ended (see `cohorts`): how many, their requests, their tokens, and those that padded
    batches of them would have computed.
    """

    slots_used: float
    slots_free: float
    slots_withheld: float
    prefill_tokens: float
    prefill_squares: float
    decode_tokens: float
    room_used: float
    room_free: float
    step_requests: float
    admitted: float
    admitted_seconds: float
    left: float
    left_seconds: float
    preemptions: float
    cohorts: float
    cohort_requests: float
    cohort_prompts: float
    cohort_prompts_padded: float
    cohort_outputs: float
    cohort_outputs_padded: float
    steps: tuple[float, ...]

    @property
    def slot_utilisation(self) -> float | None:
        """Share of the slots under the live limit that were used while steps ran; None before the first step."""
        return _share(self.slots_used, self.slots_free)

    @property
    def token_utilisation(self) -> float | None:
        """Share of the room for tokens that steps with a prompt used; None before the first such step."""
        return _share(self.room_used, self.room_free)

    @property
    def mean_batch(self) -> float | None:
        """Requests in a step; None before the first."""
        steps = sum(self.steps)
        return self.step_requests / steps if steps else None

    @property
    def batch_efficiency(self) -> float | None:
        """Σ generated ÷ Σ (requests · longest generated) over cohorts; None before the first with an output."""
        return self.cohort_outputs / self.cohort_outputs_padded if self.cohort_outputs_padded else None

    @property
    def padding_ratio(self) -> float | None:
        """Share of a padded batch's tokens that would have been padding, prompts and outputs; None as above."""
        padded = self.cohort_prompts_padded + self.cohort_outputs_padded
        return 1 - (self.cohort_prompts + self.cohort_outputs) / padded if padded else None


class BatchMetrics:
    """Counts for one engine core with so many `slots`, in `sums`; in the engine's own thread, between its steps.

    Requests are named by anything that can be looked up.
    """

    def __init__(self, slots: int, sums: MutableSequence[float] | None = None) -> None:
        self.sums: MutableSequence[float] = array("d", bytes(8 * BATCH_SUMS_LENGTH)) if sums is None else sums
        self._slots = slots
        self._waiting = Arrivals()
        self._members: dict[Hashable, Cohort] = {}
        self._cohorts = Cohorts(self._complete)

    def arrived(self, request: Hashable, now: float) -> None:
        """A request entered the queue."""
        self._waiting.add(request, now)

    def admitted(self, prompts: Iterable[tuple[Hashable, int]], *, running: int, whole: bool, now: float) -> None:
        """Requests join a step, each with its prompt's tokens. Those that did before, and were preempted, are known.

        `running`: requests that run in that step, these included. `whole`: the engine runs batches to their ends.
        """
        sums, take = self.sums, self._waiting.take
        seconds = sums[_ADMITTED_SECONDS]
        names, lengths = [], []
        for request, prompt in prompts:
            arrived = take(request)
            if arrived is not None:
                seconds += now - arrived
                names.append(request)
                lengths.append(prompt)
        sums[_ADMITTED] += len(names)
        sums[_ADMITTED_SECONDS] = seconds
        self._members.update(zip(names, self._cohorts.admit(lengths, batch=running, whole=whole), strict=True))

    def ended(self, request: Hashable, outputs: int, now: float) -> None:
        """A request is gone, however it ended, after so many output tokens; maybe it never ran."""
        cohort = self._members.pop(request, None)
        if cohort is not None:
            self._cohorts.end(cohort, outputs)
        elif (arrived := self._waiting.take(request)) is not None:
            self.sums[_LEFT] += 1
            self.sums[_LEFT_SECONDS] += now - arrived

    def preempted(self, requests: int) -> None:
        """So many requests lost their slots."""
        self.sums[_PREEMPTIONS] += requests

    def stepped(self, step: Step, *, seconds: float, steps: int = 1) -> None:
        """A step ended; or several `steps` alike, of `seconds` together."""
        sums = self.sums
        requests, running, active, room = step.occupancy
        prefill, decode = step.prefill_tokens, step.tokens - step.prefill_tokens
        free = active - running if active > running else 0
        sums[_USED] += running * seconds
        sums[_FREE] += free * seconds
        sums[_WITHHELD] += (self._slots - running - free) * seconds
        sums[_PREFILL] += prefill * steps
        sums[_SQUARES] += step.prefill_squares * steps
        sums[_DECODE] += decode * steps
        if prefill and room:
            used = step.tokens
            sums[_ROOM_USED] += used * steps
            sums[_ROOM_FREE] += (room - used if room > used else 0) * steps
        sums[_REQUESTS] += requests * steps
        sums[_STEPS + _bucket(requests)] += steps

    def oldest_seconds(self, now: float) -> float:
        """How long the request has waited that waits longest for its first admission; 0 if nobody does."""
        arrived = self._waiting.oldest()
        return 0.0 if arrived is None else now - arrived

    def _complete(self, cohort: Cohort) -> None:
        sums = self.sums
        sums[_COHORTS] += 1
        sums[_COHORT_REQUESTS] += cohort.members
        sums[_COHORT_PROMPTS] += cohort.prompts
        sums[_COHORT_PROMPTS_PADDED] += cohort.padded_prompts
        sums[_COHORT_OUTPUTS] += cohort.outputs
        sums[_COHORT_OUTPUTS_PADDED] += cohort.padded_outputs


def batch_counts(sums: Sequence[float]) -> BatchCounts:
    """The flat array's numbers by name."""
    names = [field.name for field in fields(BatchCounts)[:_STEPS]]
    return BatchCounts(**dict(zip(names, sums, strict=False)), steps=tuple(sums[_STEPS:BATCH_SUMS_LENGTH]))


def _bucket(requests: int) -> int:
    return min((max(1, requests) - 1).bit_length(), len(BATCH_SIZES))


def _share(used: float, free: float) -> float | None:
    return used / (used + free) if used + free else None
