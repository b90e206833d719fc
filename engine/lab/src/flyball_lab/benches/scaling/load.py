"""A day of arrivals, made from a seed: quiet at night, a peak by day, and swarms as in Azure's conversation trace.

The day is shorter than a real one, so that runs are short. Its slopes are steeper by as much, for all rules alike.
"""

from __future__ import annotations

import math
from random import Random
from typing import Final

from flyball_lab.simulator.lengths import Shape, around
from flyball_lab.simulator.requests import Request
from flyball_lab.simulator.workload import ArrivalPhase, workload

#: Seconds of the day, and of one stretch of it with one rate.
DAY_SECONDS: Final = 5400.0
STRETCH_SECONDS: Final = 30.0
#: Requests per second at night and at the peak; one engine carries some four.
NIGHT: Final = 1.2
PEAK: Final = 13.0
#: How the mean of stretches scatters about the day's (of the logarithm), and how times between requests do.
SCATTER: Final = 0.12
VARIATION: Final = 1.5
SHAPE: Final[Shape] = around(600, 120)


def rate(at: float) -> float:
    """Requests per second in the mean of all days."""
    by_day = math.pow(0.5 - 0.5 * math.cos(2 * math.pi * at / DAY_SECONDS), 1.5)
    return NIGHT + (PEAK - NIGHT) * by_day


def day(seed: int) -> list[Request]:
    """Its requests, in order."""
    random = Random(seed)
    stretches = [number * STRETCH_SECONDS for number in range(int(DAY_SECONDS / STRETCH_SECONDS))]
    phases = [
        ArrivalPhase(
            seconds=STRETCH_SECONDS,
            rate=rate(at + STRETCH_SECONDS / 2) * random.lognormvariate(-(SCATTER**2) / 2, SCATTER),
            shape=SHAPE,
            variation=VARIATION,
        )
        for at in stretches
    ]
    return workload(phases, random)
