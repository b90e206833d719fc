"""What may happen to metrics between an engine and the tuner. Pure: the source of randomness is a parameter."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from random import Random
from typing import Final

from flyball_operator.tuning.observe.signals import (
    ObjectiveCounts,
    PromptSums,
    RequestLoad,
    Signals,
    StepWindow,
    Sums,
)

#: What one figure becomes.
Change = Callable[[float], float]


class Absurd(StrEnum):
    """Figures that cannot be."""

    ZEROS = "zeros"
    """All figures are 0, the KV cache's size among them."""
    HUGE = "huge figures"
    """Figures a million million times as large."""
    NOT_A_NUMBER = "NaN"
    """As a quotient of nothing by nothing is."""
    INFINITE = "infinite figures"
    """As a quotient by nothing is."""
    RESET = "resets"
    """Counters that began anew: what grew has shrunk."""
    FROZEN = "frozen figures"
    """The first ones that were seen, again and again, with the time of now."""


_CHANGES: Final[Mapping[Absurd, Change]] = {
    Absurd.ZEROS: lambda _: 0.0,
    Absurd.HUGE: lambda value: value * 1e12,
    Absurd.NOT_A_NUMBER: lambda _: math.nan,
    Absurd.INFINITE: lambda _: math.inf,
    Absurd.RESET: lambda value: -value,
}


def noisy(signals: Signals, spread: float, random: Random) -> Signals:
    """Every figure is off by itself: lognormal with mean 1, and `spread` as the deviation of the logarithm."""
    return changed(signals, lambda value: value * random.lognormvariate(-(spread**2) / 2, spread))


def absurd(kind: Absurd, signals: Signals, first: Signals) -> Signals:
    """What a liar says instead of `signals`; `first` was the first he saw."""
    if kind is not Absurd.FROZEN:
        return changed(signals, _CHANGES[kind])
    steps = first.steps
    if isinstance(steps, StepWindow) and isinstance(signals.steps, StepWindow):
        steps = replace(steps, start=signals.steps.start, end=signals.steps.end)
    return replace(first, at=signals.at, age_seconds=signals.age_seconds, steps=steps)


def changed(signals: Signals, change: Change) -> Signals:
    """All figures but the times and the number of engines."""
    steps, load = signals.steps, signals.load
    if isinstance(steps, StepWindow):
        cells = {key: Sums(*map(change, sums)) for key, sums in steps.cells.items()}
        if (prompts := steps.prompts) is not None:
            prompts = PromptSums(tokens=change(prompts.tokens), squares=change(prompts.squares))
        steps = replace(steps, cells=cells, prompts=prompts)
    if isinstance(load, RequestLoad):
        load = replace(load, **{name: change(figure) for name, figure in load.known.items()})
    return replace(
        signals,
        steps=steps,
        load=load,
        outcomes={name: _changed(outcome, change) for name, outcome in signals.outcomes.items()},
    )


def _changed(outcome: ObjectiveCounts, change: Change) -> ObjectiveCounts:
    return ObjectiveCounts(change(outcome.met), change(outcome.violated))
