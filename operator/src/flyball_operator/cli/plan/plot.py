"""Plots of a service's past: its load beside what its replicas carry, and how each objective was met. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from flyball_engine.figures import figure
from flyball_operator.cli.plan.windows import LEAST_REQUESTS, ServicePast, Window
from flyball_operator.cli.time_range import rfc3339

#: Sides of the rectangle that lines are in, and the room around it, for words.
WIDTH: Final = 640.0
HEIGHT: Final = 160.0
LEFT: Final = 56.0
RIGHT: Final = 16.0
ABOVE: Final = 10.0
BELOW: Final = 26.0
#: The axis of values has a label more than so many parts, or fewer.
_PARTS: Final = 5


@dataclass(frozen=True)
class Tick:
    """A figure at an axis, so far from the left or from above."""

    label: str
    place: float


@dataclass(frozen=True)
class Line:
    """A figure over time. `path`: as SVG has it. `number` says its colour, `dashed` that it is no measurement."""

    name: str
    path: str
    number: int
    dashed: bool = False


@dataclass(frozen=True)
class Plot:
    """What is drawn. `times` and `values`: the ticks of the two axes."""

    title: str
    lines: tuple[Line, ...]
    times: tuple[Tick, ...]
    values: tuple[Tick, ...]
    width: float = LEFT + WIDTH + RIGHT
    height: float = ABOVE + HEIGHT + BELOW


#: Of labels: targets are given with so many.
_DIGITS: Final = 6
#: A window, and the value of a line in it.
_Values = Sequence[tuple[Window, float]]


def plots(past: ServicePast) -> tuple[Plot, ...]:
    """Those that there is something to draw for."""
    if not past.windows:
        return ()
    return tuple(one for one in (_load(past), _met(past)) if one.lines)


def _load(past: ServicePast) -> Plot:
    lines = {"requests/s that came": [(one, one.arrivals) for one in past.windows]}
    if any(one.refused > 0.0 for one in past.windows):
        lines["of them refused"] = [(one, one.refused) for one in past.windows]
    rates = [(one, one.replicas * one.capacity.rate) for one in past.windows if one.capacity is not None]
    carried = [(one, rate) for one, rate in rates if math.isfinite(rate)]
    most = max(value for found in lines.values() for _, value in found)
    scale = _Scale(past.windows, 0.0, 1.1 * max([most, *(value for _, value in carried)]) or 1.0)
    made = [scale.line(name, found, number) for number, (name, found) in enumerate(lines.items())]
    if carried:
        made.append(scale.line("carried by the replicas there were, by the model", carried, 2, dashed=True))
    return scale.plot("Load, requests/s", made)


def _met(past: ServicePast) -> Plot:
    """In percent, in windows with enough requests. Where vLLM's buckets do not tell, the least that may have met it."""
    judged = [
        (one, [(window, window.met[one.name]) for window in past.windows if _says_something(window, one.name)])
        for one in past.objectives
    ]
    found = [(one, [(window, 100.0 * share.least) for window, share in shares]) for one, shares in judged]
    unclear = {one.name for one, shares in judged if any(share.least < share.most for _, share in shares)}
    targets = [100.0 * (1.0 - one.allowed) for one, shares in found if shares]
    least = min([*targets, *(value for _, shares in found for _, value in shares)], default=0.0)
    scale = _Scale(past.windows, max(0.0, least - 0.1 * (100.0 - least) - 0.1), 100.0)
    made = list[Line]()
    for number, (one, shares) in enumerate(found):
        if shares:
            met = "met at least" if one.name in unclear else "met"
            made.append(scale.line(f"{one.name} {met}", shares, number))
            asked = [(window, 100.0 * (1.0 - one.allowed)) for window in past.windows]
            made.append(scale.line(f"{one.name} asked", asked, number, dashed=True))
    return scale.plot("Requests that met each objective, %", made)


def _says_something(window: Window, objective: str) -> bool:
    return objective in window.met and window.met[objective].total >= LEAST_REQUESTS


@dataclass(frozen=True)
class _Scale:
    """Where times and values are drawn."""

    windows: Sequence[Window]
    least: float
    most: float

    def line(self, name: str, values: _Values, number: int, *, dashed: bool = False) -> Line:
        """Level in each window; a gap where a window is missing."""
        path, last = "", None
        for window, value in values:
            begin, end, height = self._across(window.at - window.seconds), self._across(window.at), self._down(value)
            joined = last is not None and math.isclose(last, begin, abs_tol=0.2)
            path += f"V{height:g}H{end:g}" if joined else f"M{begin:g} {height:g}H{end:g}"
            last = end
        return Line(name, path, number, dashed)

    def plot(self, title: str, lines: Sequence[Line]) -> Plot:
        """With its axes."""
        times = tuple(Tick(rfc3339(at), self._across(at)) for at in (self._begin, self._end))
        values = tuple(Tick(figure(value, _DIGITS), self._down(value)) for value in self._labels())
        return Plot(title, tuple(lines), times, values)

    @property
    def _begin(self) -> float:
        return self.windows[0].at - self.windows[0].seconds

    @property
    def _end(self) -> float:
        return self.windows[-1].at

    def _across(self, at: float) -> float:
        return round(LEFT + WIDTH * (at - self._begin) / (self._end - self._begin), 1)

    def _down(self, value: float) -> float:
        return round(ABOVE + HEIGHT * (1.0 - (value - self.least) / (self.most - self.least)), 1)

    def _labels(self) -> Iterator[float]:
        """Multiples of 1, 2 or 5 of a power of ten."""
        rough = (self.most - self.least) / _PARTS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(one * power for one in (1, 2, 5, 10) if one * power >= rough)
        for number in range(math.ceil(self.least / step), math.floor(self.most / step + 1e-9) + 1):
            yield number * step
