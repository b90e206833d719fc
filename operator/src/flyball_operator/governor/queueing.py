"""How long requests wait where nobody is refused: behind other prompts, and for a place in the batch. Pure."""

from __future__ import annotations

import math
from typing import Final

from flyball_operator.governor.situation import Demand, Situation

#: A batch this close to what it sustains has chance queues, whose hundredth part waits this many times 1 / spare rate.
BUSY: Final = 0.8
TAIL: Final = 3.0
#: Share of the logarithm of those odds that is believed: both rates are estimates, and arrivals come in swarms.
BELIEVED: Final = 0.25
#: Seconds that stand for a queue that only grows.
UNBOUNDED: Final = 3600.0


def prompt_wait(demand: Demand, rate: float) -> float:
    """Mean wait behind other prompts (M/G/1), `rate` tokens of which are computed per second.

    Very long once prompts arrive faster than that.
    """
    load = demand.arrivals * demand.uncached / rate
    return load / (2 * (1 - load)) * demand.large / rate if load < 1 else UNBOUNDED


def mean_backlog(demand: Demand, rate: float) -> float:
    """Prompts' worth of work that a request finds before it in the mean, prompts being computed at `rate`."""
    return prompt_wait(demand, rate) * rate / demand.uncached


def place_wait(situation: Situation, seqs: int, *, waiting: float) -> float:
    """Wait for a free place: the queue before it, and the tail of chance queues where the batch is nearly full.

    The tail of the wait falls with the spare rate (P(W > t) ~ P(full)·exp(-spare·t)), so one in a hundred waits some
    3 / spare where the batch is always full, and nobody does where it hardly ever is.
    """
    demand, sustained = situation.demand, situation.capacity(seqs)
    if demand.arrivals >= sustained:
        return UNBOUNDED
    queue = waiting / sustained if demand.running >= 0.9 * seqs else 0.0
    if demand.arrivals <= BUSY * sustained:
        return queue
    return queue + max(0.0, TAIL + _log_full(situation, seqs)) / (sustained - demand.arrivals)


def _log_full(situation: Situation, seqs: int) -> float:
    """Logarithm of how much rarer a full batch is, by chance alone, than one that λ just holds; at most 0.

    Of a birth-death process with the rates λ and μ(n) that is the sum of ln(λ/μ(n)) in between. Each term is below the
    straight line between the first and the last, so that half of the last for each is on the safe side.
    """
    arrivals, low, high = situation.demand.arrivals, 1, seqs
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if situation.capacity(middle) >= arrivals else (middle + 1, high)
    return BELIEVED * (seqs - low) / 2 * math.log(arrivals / situation.capacity(seqs))
