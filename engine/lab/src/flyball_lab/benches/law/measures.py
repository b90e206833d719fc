"""When requests kept their objectives, and when they did not. Pure; seconds are of the run.

A request belongs to the moment at which it arrived, whenever it was answered.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final

from flyball_lab.simulator.requests import Request

#: Seconds over which attainment is taken, and the share below which it is too low.
SPAN: Final = 10.0
ATTAINED: Final = 0.95
#: Seconds of a bin of `good_each`; and of the span in which a start is over.
BIN: Final = 5.0
START_BINS: Final = 3
#: A recovery that takes longer is none.
LONGEST_RECOVERY: Final = 60

Good = Callable[[Request], bool]


def good_each(requests: Sequence[Request], good: Good, seconds: float) -> tuple[int, ...]:
    """Requests that kept their objectives, by the bin of their arrival."""
    bins = [0] * math.ceil(seconds / BIN)
    for request in requests:
        bins[min(len(bins) - 1, int(request.arrival / BIN))] += good(request)
    return tuple(bins)


def seconds_below(requests: Sequence[Request], good: Good, seconds: float) -> int:
    """Seconds after which fewer than enough of those that came in the last span kept their objectives."""
    attainment = _attainment(requests, good)
    return sum(attainment(end - SPAN, end) < ATTAINED for end in range(1, int(seconds) + 1))


def recovery(requests: Sequence[Request], good: Good, relieved: Sequence[float]) -> int:
    """Seconds from the end of an overload until enough of those that come in the next span keep theirs; the longest."""
    attainment = _attainment(requests, good)

    def from_(end: float) -> int:
        spans = ((after, end + after) for after in range(LONGEST_RECOVERY))
        return next((after for after, start in spans if attainment(start, start + SPAN) >= ATTAINED), LONGEST_RECOVERY)

    return max(map(from_, relieved), default=0)


def start_seconds(mine: Sequence[int], best: Sequence[int]) -> float:
    """Seconds of traffic until as much is kept in some bins together as the best keeps there, all but a twentieth."""
    for end in range(1, len(mine) + 1):
        span = slice(max(0, end - START_BINS), end)
        if sum(mine[span]) >= ATTAINED * sum(best[span]):
            return BIN * end
    return BIN * len(mine)


def most_within(times: Sequence[float], seconds: float) -> int:
    """Most of these times, which are in order, that lie in any span of so many seconds."""
    return max((bisect_left(times, start + seconds) - number for number, start in enumerate(times)), default=0)


def _attainment(requests: Sequence[Request], good: Good) -> Callable[[float, float], float]:
    """Share of those that came in a span, of its start and its end, that kept theirs; 1 if nobody came.

    Each request is looked at once, however many spans are asked for.
    """
    came = sorted(requests, key=lambda request: request.arrival)
    arrivals = [request.arrival for request in came]
    kept = [0, *accumulate(map(good, came))]

    def share(start: float, end: float) -> float:
        first, last = bisect_left(arrivals, start), bisect_left(arrivals, end)
        return (kept[last] - kept[first]) / (last - first) if last > first else 1.0

    return share
