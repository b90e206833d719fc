"""Clipper's adaptive batching: additive increase, multiplicative decrease of the batch size.

Crankshaw et al., NSDI 2017, arXiv:1612.03079, 4.3.1: the batch grows by a fixed amount until the time to process one
exceeds the latency objective; then it is reduced by 10 %. Clipper's batch is whole requests of one shot, and its
objectives are 99th percentiles. Here the batch is the requests that run together, and what it takes is what they wait
for a token: the 99th percentile over the requests that ended is held against the objective per token. (The mean over
all tokens did no better.) The paper names no amount; 4 crosses the envelope in a minute. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Self

from flyball_engine.contract import Limits
from flyball_lab.baselines.baseline import SearchBounds, Window

INCREASE: Final = 4.0
DECREASE: Final = 0.9


@dataclass(frozen=True)
class Aimd:
    """`size`: of the batch, not rounded."""

    bounds: SearchBounds
    size: float

    @classmethod
    def start(cls, bounds: SearchBounds) -> Self:
        """At the upper bound, where vLLM starts: from 1, as in the paper, it would lose the first minute."""
        return cls(bounds, bounds.seqs.most)

    @property
    def limits(self) -> Limits:
        """S alone."""
        return self.bounds.limits(self.size)

    def after(self, window: Window) -> Self:
        """A window in which none ended says nothing."""
        if window.token_p99 is None:
            return self
        late = window.token_p99 > self.bounds.token_objective
        size = self.size * DECREASE if late else self.size + INCREASE
        return replace(self, size=min(self.bounds.seqs.most, max(self.bounds.seqs.least, size)))
