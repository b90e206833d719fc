"""The demo as a picture: load, limits and what came of the objectives over its runs, for a terminal and as PNG."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from flyball_lab.pages import stacked
from flyball_lab.pages.charts import Line, Point, Span
from flyball_lab.pages.stacked import Panel
from flyball_operator.cli.watch_chart import line

#: Columns beside the lines of `watch_chart`: names and figures.
_BESIDE: Final = 38
_SECONDS: Final = 2.0
#: Moments that are kept: of an hour.
_KEPT: Final = 1800


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What was seen at a time, in seconds from the first run's begin. None: the engine did not say.

    `running`, `waiting`: requests. `seqs`, `tokens`: limits. `attained`: percent of a run so far, by objective.
    """

    at: float
    run: str
    running: int | None = None
    waiting: int | None = None
    seqs: int | None = None
    tokens: int | None = None
    attained: Mapping[str, float | None] = field(default_factory=dict)


class Record:
    """The moments of the runs, one every two seconds; what is between runs is left out."""

    def __init__(self) -> None:
        self.moments: list[Moment] = []
        self._offset = 0.0

    def due(self, run: str, elapsed: float) -> float | None:
        """The time to note a moment of a run under, `elapsed` seconds after its begin; None where none is due."""
        last = self.moments[-1] if self.moments else None
        if last is not None and last.run != run:
            self._offset = last.at + _SECONDS
        at = self._offset + elapsed
        newer = last is None or last.run != run or at - last.at >= _SECONDS
        return at if newer and len(self.moments) < _KEPT else None


def as_text(moments: Sequence[Moment], width: int) -> Iterator[str]:
    """Lines of blocks, one column for an equal share of the time each, and the runs below."""
    room = max(8, width - _BESIDE)
    end = moments[-1].at if moments else 0.0
    columns = _columns(moments, room, end)

    def row(name: str, of: Callable[[Moment], float | None], *, percent: bool = False) -> str:
        values = [None if one is None else of(one) for one in columns]
        known = [value for value in values if value is not None]
        if percent:
            return line(name, values, room, f"least {min(known):.0f} %" if known else "-", most=100.0)
        return line(name, values, room, f"{min(known):g} to {max(known):g}" if known else "-")

    yield row("running", lambda one: one.running)
    yield row("waiting", lambda one: one.waiting)
    yield row("seqs limit", lambda one: one.seqs)
    yield row("token limit", lambda one: one.tokens)
    for name in dict.fromkeys(name for one in moments for name in one.attained):
        yield row(name, _share(name), percent=True)
    for number, (name, start) in enumerate(_starts(moments), 1):
        yield f"  {number} from {start:.0f} s: {name}"


def _columns(moments: Sequence[Moment], room: int, end: float) -> list[Moment | None]:
    """The moment that each column ends with; None before the first."""
    found: list[Moment | None] = []
    for column in range(1, room + 1):
        seen = [one for one in moments if one.at <= end * column / room]
        found.append(seen[-1] if seen else None)
    return found


def _starts(moments: Sequence[Moment]) -> list[tuple[str, float]]:
    """Each run with its begin."""
    starts: dict[str, float] = {}
    for one in moments:
        starts.setdefault(one.run, one.at)
    return list(starts.items())


def save(moments: Sequence[Moment], targets: Mapping[str, float], path: Path) -> None:
    """Draw it as PNG. `targets`: percent, by objective."""
    starts = _starts(moments)
    ends = [*(start for _, start in starts[1:]), moments[-1].at] if moments else []
    shares: dict[str, Callable[[Moment], float | None]] = {name: _share(name) for name in targets}
    stacked.save(
        [
            Panel(
                "requests", _drawn(moments, {"running": lambda one: one.running, "waiting": lambda one: one.waiting})
            ),
            Panel(
                "limits",
                _drawn(moments, {"requests at once": lambda one: one.seqs, "tokens in a step": lambda one: one.tokens}),
                logarithmic=True,
            ),
            Panel("attained in the run, %", _drawn(moments, shares), marks=[*enumerate(targets.values())], most=100.0),
        ],
        [Span(name, start, end) for (name, start), end in zip(starts, ends, strict=True)],
        path,
    )


def _share(name: str) -> Callable[[Moment], float | None]:
    return lambda one: one.attained.get(name)


def _drawn(moments: Sequence[Moment], figures: Mapping[str, Callable[[Moment], float | None]]) -> list[Line]:
    """A line for each figure; where it is not known the line has a gap."""
    return [
        Line(name, number, [Point(one.at, math.nan if (value := of(one)) is None else value) for one in moments])
        for number, (name, of) in enumerate(figures.items())
    ]
