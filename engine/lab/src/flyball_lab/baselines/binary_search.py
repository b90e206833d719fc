"""Noisy binary search of the decode batch, under the KV cache's capacity.

Pang et al., arXiv:2503.05248. Of an interval [low, high] of batch sizes the middle is used. With τ the mean latency of
a token, b the mean decode batch, and D ± ε the objective:

    τ > D + ε:  high = max(b, low + α),  low = low − δ
    τ < D − ε:  low = min(b, high − α),  high = high + δ
    otherwise:  low = b − α/2,  high = b + α/2

α = 20 is the least width, δ = 5 corrects an end that noise had put wrong; ε is a fifth of D (10 ms of 50 ms): the
values of the independent ports to SGLang (pull requests 28365 and 28477). The paper searches at each scheduling
decision; here it does so at each window. Beside it stands the paper's other part, the batch whose KV fits: the capacity
over the mean tokens of a request. Its reserve for variance is left out, which is in its favour as long as preemptions
are rare. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Self

from flyball_engine.contract import Limits
from flyball_lab.baselines.baseline import SearchBounds, Window

WIDTH: Final = 20.0
CORRECTION: Final = 5.0
TOLERANCE: Final = 0.2


@dataclass(frozen=True)
class BinarySearch:
    """`low`, `high`: the interval. `fits`: requests whose KV fits into the cache."""

    bounds: SearchBounds
    low: float
    high: float
    fits: float

    @classmethod
    def start(cls, bounds: SearchBounds) -> Self:
        """The whole envelope, and no request seen."""
        return cls(bounds, bounds.seqs.least, bounds.seqs.most, bounds.seqs.most)

    @property
    def target(self) -> float:
        """D: the upper end of D ± ε is the objective, for what is beyond it is violated."""
        return self.bounds.token_objective / (1 + TOLERANCE)

    @property
    def limits(self) -> Limits:
        """S alone."""
        return self.bounds.limits(min((self.low + self.high) / 2, self.fits))

    def after(self, window: Window) -> Self:
        """A window without decodes says nothing of latency."""
        fits = window.kv_tokens / window.request_tokens if window.request_tokens else self.fits
        if window.token is None or window.batch is None:
            return replace(self, fits=fits)
        low, high, batch = self.low, self.high, window.batch
        if window.token > self.target * (1 + TOLERANCE):
            low, high = low - CORRECTION, max(batch, low + WIDTH)
        elif window.token < self.target * (1 - TOLERANCE):
            low, high = min(batch, high - WIDTH), high + CORRECTION
        else:
            low, high = batch - WIDTH / 2, batch + WIDTH / 2
        seqs = self.bounds.seqs
        return replace(self, low=max(seqs.least, low), high=min(seqs.most, high), fits=fits)
