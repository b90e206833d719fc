"""How fast an engine processes prompts, and how soon one more request may join its batch. Pure."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

#: Seconds over which the turnover of slots is averaged: some tens of requests of an engine that is full.
_TURNOVER_SECONDS: Final = 10.0
#: Those that are late join while prompts are processed at this share of an idle engine's rate, or faster. Each of them
#: decodes for seconds, and slows down all prompts that come meanwhile. In simulation 0.9 is worth up to 2 % of goodput
#: over 0.75, and the longest wait is up to 40 s longer.
LEAST_RATE_FOR_LATE: Final = 0.9
#: The same for work without a deadline. At 0.9 batch work would get a third of what chats leave.
LEAST_RATE_FOR_BATCH: Final = 0.75


class PrefillRate(NamedTuple):
    """How fast prompts are processed under the present step budget and batch.

    `per_token`: seconds per prompt token, with its share of what steps cost anyway. `per_attention`: seconds per unit
    of prefill attention (token²). `free_slots`: requests that may join at once. `per_slot`: seconds until one more may,
    0 while that is not known. `of_idle`: the rate of tokens over that beside no decodes.
    """

    per_token: float
    per_attention: float = 0.0
    free_slots: float = math.inf
    per_slot: float = 0.0
    of_idle: float = 1.0

    def seconds(self, tokens: float, attention: float) -> float:
        """Time that the rest of a prompt takes."""
        return self.per_token * tokens + self.per_attention * attention

    def slot_wait(self, joining: int) -> float:
        """Seconds until so many more requests have joined the batch; 0 while that is not known."""
        return max(0.0, joining - self.free_slots) * self.per_slot if self.per_slot else 0.0

    def misses(self, deadline: float, *, tokens: float, attention: float, now: float) -> bool:
        """Whether a first token would come after the deadline if the rest of its prompt were served alone from now."""
        return now + self.seconds(tokens, attention) > deadline


class SlotTurnover:
    """How long it takes until one more request may join, where all slots are taken or the memory is."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._freed = 0.0

    @property
    def per_slot(self) -> float:
        """Seconds from one slot that comes free to the next; 0 while that is not known."""
        return self._seconds / self._freed if self._freed > 0 else 0.0

    def observe(self, seconds: float, freed: int) -> None:
        """For so many seconds nobody could join, and then so many slots came free."""
        kept = math.exp(-seconds / _TURNOVER_SECONDS)
        self._seconds = kept * self._seconds + seconds
        self._freed = kept * self._freed + freed


def holds_back(rate: PrefillRate) -> bool:
    """Whether some of those behind may not join at this rate."""
    return rate.of_idle < LEAST_RATE_FOR_LATE
