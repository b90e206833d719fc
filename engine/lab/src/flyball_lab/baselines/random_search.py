"""Random search on live traffic: fifteen limits drawn at random, each for a window, then the best for good.

Offline tuners (SCOOT, auto_tune, a TPE of some fifteen trials) need a copy of the traffic and GPU-hours. Without them a
trial is a window of what there is, and its requests pay for it. Bergstra and Bengio (JMLR 13, 2012) is the case for
random draws; SLO-Guard (arXiv:2604.17627) found model-based search no better in the end. The figure of a trial is the
requests per second that ended in it and kept every objective; the first second after a change belongs to the limits
before. Pure: the source of randomness is drawn from once, at the start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final, Self

from flyball_engine.contract import Limits
from flyball_lab.baselines.baseline import SearchBounds, Window
from flyball_operator.tuning.spec import Span

TRIALS: Final = 15
TRIAL_SECONDS: Final = 8.0


@dataclass(frozen=True)
class RandomSearch:
    """`candidates`: the limits to be tried, of which `scores` has what came of the first ones, in requests per second.

    `good`, `seconds`: of the trial that runs.
    """

    candidates: Sequence[Limits]
    scores: tuple[float, ...] = ()
    good: int = 0
    seconds: float = 0.0

    @classmethod
    def start(cls, bounds: SearchBounds, random: Random) -> Self:
        """Draw the candidates, even in the logarithm of both limits."""
        return cls([bounds.limits(_draw(bounds.seqs, random), _draw(bounds.tokens, random)) for _ in range(TRIALS)])

    @property
    def limits(self) -> Limits:
        """Those on trial, and after the last trial the best; of equals the first."""
        if len(self.scores) < len(self.candidates):
            return self.candidates[len(self.scores)]
        return self.candidates[max(range(len(self.scores)), key=self.scores.__getitem__)]

    def after(self, window: Window) -> Self:
        """Counts the window, and ends the trial when it is over."""
        if len(self.scores) == len(self.candidates):
            return self
        settled = window.good if self.seconds > 0 else 0
        good, seconds = self.good + settled, self.seconds + window.seconds
        if seconds < TRIAL_SECONDS:
            return replace(self, good=good, seconds=seconds)
        return replace(self, scores=(*self.scores, good / seconds), good=0, seconds=0.0)


def _draw(span: Span, random: Random) -> float:
    return math.exp(random.uniform(math.log(span.least), math.log(span.most)))
