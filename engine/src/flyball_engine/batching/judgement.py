"""Which requests can be on time: Moore and Hodgson's pass over them by deadline, made in parts. Pure."""

from __future__ import annotations

from bisect import bisect_right
from heapq import heappop, heappush
from typing import Final, Generic

from flyball_engine.batching.pending import Pending, R
from flyball_engine.batching.prefill_rate import PrefillRate

#: Requests that are judged before one step, some 20 µs: a queue of 1,000 is judged anew every 36 steps or so.
JUDGED_IN_A_STEP: Final = 32
#: Verdicts that are put in force before one step; most of them change nothing.
_VERDICTS_IN_A_STEP: Final = 128


class Judgement(Generic[R]):
    """One pass over the requests by deadline, made in parts. Times are those of its beginning."""

    def __init__(
        self, on_time: list[tuple[float, int, Pending[R]]], hopeful: list[tuple[float, int, Pending[R]]], now: float
    ) -> None:
        """Of all that are `on_time` or `hopeful` now, both by deadline."""
        self.is_complete = False
        self.is_in_force = False
        self._told = 0
        self._on_time, self._hopeful = on_time.copy(), hopeful.copy()
        self._looked_at = (0, 0)
        self._now = now
        self._busy = 0.0
        self._joining = 0
        self._seen: list[Pending[R]] = []
        # The first to be given up stands first: seconds per weight, the largest.
        self._taken: list[tuple[float, int, float, bool, Pending[R]]] = []
        self._given_up: set[int] = set()

    def go_on(self, rate: PrefillRate, most: int) -> bool:
        """Look at so many more; whether that was the last of them."""
        # What this costs is what a step waits for: nothing is called that can be said in place.
        taken, given_up, now, busy, joining = self._taken, self._given_up, self._now, self._busy, self._joining
        per_token, per_attention, free_slots, per_slot, _ = rate
        looked = self._next(most)
        for deadline, number, pending in looked:
            # What `PrefillRate.seconds` says.
            seconds = per_token * pending.tokens + per_attention * pending.attention
            had_slot = pending.begun
            wait = 0.0
            # Slots are alike for all: who comes too late for one stays out, whatever the others need.
            if per_slot and not had_slot and joining + 1 > free_slots:
                wait = (joining + 1 - free_slots) * per_slot
            if now + wait + seconds > deadline:
                given_up.add(number)
                continue
            heappush(taken, (-seconds / pending.weight, -number, seconds, had_slot, pending))
            busy += seconds
            joining += not had_slot
            while taken and now + busy > deadline:
                _, _, spared, had_slot, dropped = heappop(taken)
                busy -= spared
                joining -= not had_slot
                given_up.add(dropped.number)
        self._busy, self._joining = busy, joining
        self._seen += [pending for _, _, pending in looked]
        self.is_complete = len(looked) < most
        return self.is_complete

    def _next(self, most: int) -> list[tuple[float, int, Pending[R]]]:
        """The next of both, by deadline."""
        first, second = self._looked_at
        found = sorted([*self._on_time[first : first + most], *self._hopeful[second : second + most]])[:most]
        if found:
            last = found[-1]
            self._looked_at = bisect_right(self._on_time, last, first), bisect_right(self._hopeful, last, second)
        return found

    def wait(self, rate: PrefillRate) -> float:
        """Seconds until one more prompt is begun that comes behind all that were taken."""
        return max(self._busy, rate.slot_wait(self._joining + 1))

    def contradicted(self) -> list[Pending[R]]:
        """Of some more, who is where the verdict does not see them; once all were told of, it is in force."""
        part = self._seen[self._told : self._told + _VERDICTS_IN_A_STEP]
        self._told += len(part)
        self.is_in_force = len(part) < _VERDICTS_IN_A_STEP
        given_up = self._given_up
        return [pending for pending in part if pending.on_time is (pending.number in given_up)]
