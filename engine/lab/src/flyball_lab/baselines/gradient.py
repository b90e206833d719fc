"""Gradient2 of Netflix' concurrency-limits: the limit follows the quotient of long and short latency.

github.com/Netflix/concurrency-limits, Gradient2Limit. Each window of a second, with the window's latency as `short` and
its exponential average over 600 windows (the mean of the first ten) as `long`:

    gradient = clip(tolerance · long / short, 0.5, 1)
    limit = (1 − 0.2) · limit + 0.2 · (gradient · limit + 4)

tolerance is 1.5. `long` is cut by 5 % while it is more than twice `short`, after an overload. Nothing moves while fewer
than half of the limit are in flight. The limit starts at 20, its least too. Its latency is a request's round trip. That
of an LLM's answer is set by its length, so the latency of a token stands for it. What it does not let run waits here,
where the limiter refuses; with a gate, the gate refuses. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Self

from flyball_engine.contract import Limits
from flyball_lab.baselines.baseline import SearchBounds, Window

LONG_WINDOWS: Final = 600
WARM_UP: Final = 10
TOLERANCE: Final = 1.5
SMOOTHING: Final = 0.2
QUEUE: Final = 4.0
DECAY: Final = 0.95
LEAST: Final = 20


@dataclass(frozen=True)
class Gradient2:
    """`limit`: not rounded. `long`: seconds, over `windows` windows."""

    bounds: SearchBounds
    limit: float
    long: float = 0.0
    windows: int = 0

    @classmethod
    def start(cls, bounds: SearchBounds) -> Self:
        """At the source's first limit."""
        return cls(bounds, bounds.seqs.clip(LEAST))

    @property
    def limits(self) -> Limits:
        """S alone."""
        return self.bounds.limits(self.limit)

    def after(self, window: Window) -> Self:
        """A window without tokens says nothing."""
        short = window.token
        if short is None:
            return self
        learnt = self._learnt(short)
        if window.running < self.limit / 2:
            return learnt
        gradient = max(0.5, min(1.0, TOLERANCE * learnt.long / short))
        limit = (1 - SMOOTHING) * self.limit + SMOOTHING * (gradient * self.limit + QUEUE)
        least = min(LEAST, self.bounds.seqs.most)
        return replace(learnt, limit=min(self.bounds.seqs.most, max(least, limit)))

    def _learnt(self, short: float) -> Self:
        windows = self.windows + 1
        share = 1 / windows if windows <= WARM_UP else 2 / (LONG_WINDOWS + 1)
        long = self.long + share * (short - self.long)
        return replace(self, windows=windows, long=long * DECAY if long > 2 * short else long)
