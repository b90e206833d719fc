"""What arrives: a day made from a seed, quiet at night, with a peak and with swarms as Azure's trace has; or a trace.

The day is shorter than a real one, so that runs are short. Its slopes are steeper by as much, for all rules alike. On a
cluster, where time is real, it passes faster still.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Final, Protocol

from flyball_lab.simulator.lengths import around
from flyball_lab.simulator.requests import Request
from flyball_lab.simulator.workload import ArrivalPhase, read_trace, workload

#: Seconds of the day, and of one stretch of it with one rate.
DAY_SECONDS: Final = 5400.0
STRETCH_SECONDS: Final = 30.0
#: Requests per second at night and at the peak; one engine carries some four.
NIGHT: Final = 1.2
PEAK: Final = 13.0
#: How the mean of stretches scatters about the day's (of the logarithm), and how times between requests do.
SCATTER: Final = 0.12
VARIATION: Final = 1.5
#: Tokens of prompts and answers in the mean.
PROMPT: Final = 600
ANSWER: Final = 120


class Arrivals(Protocol):
    """A load of so many `seconds`.

    A decode reads `context` tokens in the mean. Replicas start `speed` times as fast.
    """

    @property
    def speed(self) -> float: ...  # noqa: D102
    @property
    def seconds(self) -> float: ...  # noqa: D102
    @property
    def context(self) -> int: ...  # noqa: D102

    def requests(self, seed: int) -> list[Request]:
        """In order."""


@dataclass(frozen=True, kw_only=True)
class Day:
    """A day that passes `speed` times as fast as the bench's.

    There are `split` times as many requests, each as much shorter: less of the load is due to chance.
    """

    speed: float = 1.0
    split: float = 1.0

    @property
    def seconds(self) -> float:
        """How long it is."""
        return DAY_SECONDS / self.speed

    def rate(self, at: float) -> float:
        """Requests per second in the mean of all such days."""
        by_day = math.pow(0.5 - 0.5 * math.cos(2 * math.pi * at / self.seconds), 1.5)
        return self.split * (NIGHT + (PEAK - NIGHT) * by_day)

    @property
    def context(self) -> int:
        """Tokens that a decode reads in the mean."""
        return round((PROMPT + ANSWER / 2) / self.split)

    def requests(self, seed: int) -> list[Request]:
        """In order."""
        random, shape = Random(seed), around(round(PROMPT / self.split), round(ANSWER / self.split))
        stretches = [number * STRETCH_SECONDS for number in range(int(self.seconds / STRETCH_SECONDS))]
        phases = [
            ArrivalPhase(
                seconds=STRETCH_SECONDS,
                rate=self.rate(at + STRETCH_SECONDS / 2) * random.lognormvariate(-(SCATTER**2) / 2, SCATTER),
                shape=shape,
                variation=VARIATION,
            )
            for at in stretches
        ]
        return workload(phases, random)


@dataclass(frozen=True)
class Trace:
    """Recorded arrivals, as fast as they were."""

    recorded: Sequence[Request]
    speed: float = 1.0

    @classmethod
    def read(cls, path: Path) -> Trace:
        """Raises TraceError."""
        return cls(read_trace(path))

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.recorded[-1].arrival

    @property
    def context(self) -> int:
        """Tokens that a decode reads in the mean."""
        return round(statistics.fmean(one.prompt + one.output / 2 for one in self.recorded))

    def requests(self, seed: int) -> list[Request]:  # noqa: ARG002 - the same for each
        """In order."""
        return [replace(one) for one in self.recorded]
